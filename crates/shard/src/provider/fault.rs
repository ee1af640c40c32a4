//! A provider as one process sees it, with that process' faults.

use std::sync::Arc;

use async_trait::async_trait;

use super::{MachineInfo, Order, Provider, ProviderError};
use crate::store::{Faults, Refused};

pub struct FaultyProvider {
    provider: Arc<dyn Provider>,
    faults: Faults,
}

impl FaultyProvider {
    pub fn new(provider: Arc<dyn Provider>, faults: Faults) -> Self {
        Self { provider, faults }
    }
}

impl From<Refused> for ProviderError {
    fn from(refused: Refused) -> Self {
        Self::new(refused.to_string())
    }
}

#[async_trait]
impl Provider for FaultyProvider {
    async fn claim(&self, known: Option<&str>, expected: bool) -> Result<Option<String>, ProviderError> {
        self.faults.read(self.provider.claim(known, expected)).await?
    }

    async fn create(&self, order: &Order) -> Result<MachineInfo, ProviderError> {
        self.faults.effect(self.provider.create(order)).await?
    }

    async fn delete(&self, instance_id: &str) -> Result<(), ProviderError> {
        self.faults.effect(self.provider.delete(instance_id)).await?
    }

    async fn status(&self, instance_id: &str) -> Result<Option<MachineInfo>, ProviderError> {
        self.faults.read(self.provider.status(instance_id)).await?
    }

    async fn list(&self, cluster: &str, shard: &str) -> Result<Vec<MachineInfo>, ProviderError> {
        self.faults.read(self.provider.list(cluster, shard)).await?
    }

    async fn free(&self, subnet: &str) -> Result<Option<u32>, ProviderError> {
        self.faults.read(self.provider.free(subnet)).await?
    }

    fn node_provider_id(&self, shard: &str, machine: &MachineInfo) -> String {
        self.provider.node_provider_id(shard, machine)
    }

    fn pid(&self, instance_id: &str) -> Option<u32> {
        self.provider.pid(instance_id)
    }
}
