//! Machines that are entries of a table: for tests and large benchmarks. Clones share the table, as servers share a
//! cloud.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use async_trait::async_trait;
use plan::shard::instance::MachineStatus;

use super::{MachineInfo, Order, Provider, ProviderError};
use crate::clock::Clock;

#[derive(Clone)]
pub struct InProcess {
    clock: Clock,
    table: Arc<Mutex<Table>>,
}

#[derive(Default)]
struct Table {
    machines: BTreeMap<String, (MachineInfo, Order)>,
    /// Machines made, ever.
    made: usize,
    room: BTreeMap<String, u32>,
    refusal: Option<String>,
    stuck: Option<String>,
}

impl InProcess {
    pub fn new(clock: Clock) -> Self {
        Self { clock, table: Arc::default() }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn machines(&self) -> Vec<MachineInfo> {
        self.table().machines.values().map(|(machine, _)| machine.clone()).collect()
    }

    pub fn order(&self, instance_id: &str) -> Option<Order> {
        self.table().machines.get(instance_id).map(|(_, order)| order.clone())
    }

    pub fn made(&self) -> usize {
        self.table().made
    }

    /// Lets a machine stop, or vanish with `None`, as a cloud might.
    pub fn set_status(&self, instance_id: &str, status: Option<MachineStatus>) {
        let mut table = self.table();
        match status {
            None => drop(table.machines.remove(instance_id)),
            Some(status) => {
                if let Some((machine, _)) = table.machines.get_mut(instance_id) {
                    machine.status = status;
                }
            }
        }
    }

    /// Announces that a machine is taken away, as a cloud does to the machine itself.
    pub fn give_notice(&self, instance_id: &str) {
        if let Some((machine, _)) = self.table().machines.get_mut(instance_id) {
            machine.noticed = true;
        }
    }

    /// Makes a machine of that name with all labels of another, as a person might.
    pub fn copy(&self, instance_id: &str, name: &str) {
        let mut table = self.table();
        if let Some((machine, order)) = table.machines.get(instance_id).cloned() {
            let provider_id = format!("{name}-of-{}", machine.provider_id);
            table.machines.insert(name.to_owned(), (MachineInfo { provider_id, ..machine }, order));
        }
    }

    /// Limits a subnet to that many machines.
    pub fn set_room(&self, subnet: &str, most: u32) {
        self.table().room.insert(subnet.to_owned(), most);
    }

    /// Refuses every change with that text until it is lifted.
    pub fn refuse(&self, text: Option<&str>) {
        self.table().refusal = text.map(str::to_owned);
    }

    /// Does not remove the machine of that instance, as a cloud whose machine is locked.
    pub fn lock(&self, instance_id: &str) {
        self.table().stuck = Some(instance_id.to_owned());
    }
}

impl Table {
    fn allowed(&self) -> Result<(), ProviderError> {
        self.refusal.as_ref().map_or(Ok(()), |text| Err(ProviderError::new(text)))
    }
}

#[async_trait]
impl Provider for InProcess {
    async fn create(&self, order: &Order) -> Result<MachineInfo, ProviderError> {
        let now = self.clock.now();
        let mut table = self.table();
        table.allowed()?;
        if let Some((machine, _)) = table.machines.get(&order.instance_id) {
            return Ok(machine.clone());
        }
        table.made += 1;
        let machine = MachineInfo {
            instance_id: order.instance_id.clone(),
            provider_id: format!("local-{}", table.made),
            status: MachineStatus::Running,
            created_at: now,
            noticed: false,
            group: order.group.clone(),
            on_demand: order.on_demand,
        };
        table.machines.insert(order.instance_id.clone(), (machine.clone(), order.clone()));
        Ok(machine)
    }

    async fn delete(&self, instance_id: &str) -> Result<(), ProviderError> {
        let mut table = self.table();
        table.allowed()?;
        if table.stuck.as_deref() == Some(instance_id) {
            return Err(ProviderError::new("the machine is locked"));
        }
        table.machines.remove(instance_id);
        Ok(())
    }

    async fn status(&self, instance_id: &str) -> Result<Option<MachineInfo>, ProviderError> {
        Ok(self.table().machines.get(instance_id).map(|(machine, _)| machine.clone()))
    }

    async fn list(&self, cluster: &str, shard: &str) -> Result<Vec<MachineInfo>, ProviderError> {
        let table = self.table();
        let ours = |(_, order): &&(MachineInfo, Order)| order.cluster == cluster && order.shard == shard;
        Ok(table.machines.values().filter(ours).map(|(machine, _)| machine.clone()).collect())
    }

    async fn free(&self, subnet: &str) -> Result<Option<u32>, ProviderError> {
        let table = self.table();
        let used = table.machines.values().filter(|(_, order)| order.subnet == subnet).count();
        let used = u32::try_from(used).unwrap_or(u32::MAX);
        Ok(table.room.get(subnet).map(|most| most.saturating_sub(used)))
    }

    fn node_provider_id(&self, shard: &str, machine: &MachineInfo) -> String {
        super::node_provider_id(super::PROCESS, shard, &machine.instance_id, &machine.provider_id)
    }
}
