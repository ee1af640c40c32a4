//! Faults by name, as a person asks for them.

use std::{str::FromStr, sync::Arc};

use serde::{Deserialize, Serialize};

use super::Parts;
use crate::{
    hetzner::{BadFault, Kind},
    talos::{self, BadCallFault, CallFault, Impairment, Machine},
};

/// Why a fault is not set.
#[derive(Debug, thiserror::Error)]
pub enum FaultError {
    #[error(transparent)]
    Hcloud(#[from] BadFault),
    #[error(transparent)]
    Call(#[from] BadCallFault),
    #[error(transparent)]
    Talos(#[from] talos::Error),
    #[error(
        "{0:?} is not a fault of a node: use power-off, delete, partition, api-partition, etcd-stopped, \
         kubelet-stopped, slow-disk or certificate-expired, or name a call with --rpc"
    )]
    Kind(String),
    #[error("there is no server {name}; there are {known}")]
    NoServer { name: String, known: String },
    #[error("{0:?} is not a call of the machine API; there are {calls}", calls = talos::CALLS.join(", "))]
    NoCall(String),
    #[error("{0} has no effect here: capacity alone is missing at one location or for one server type")]
    NotCapacity(String),
}

/// A fault that waits for its request, or lasts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Active {
    /// `hcloud`, or the server's name.
    pub on: String,
    /// The operation or call that it waits for.
    pub of: Option<String>,
    pub kind: String,
    /// How often it still happens; `None` for until cleared.
    pub times: Option<u32>,
}

/// What happens to a node.
enum NodeFault {
    PowerOff,
    Delete,
    Lasting(Impairment),
}

impl FromStr for NodeFault {
    type Err = FaultError;

    fn from_str(text: &str) -> Result<Self, FaultError> {
        match text {
            "power-off" => Ok(Self::PowerOff),
            "delete" => Ok(Self::Delete),
            other => {
                let lasting = serde_json::from_value(other.into()).map(Self::Lasting);
                lasting.map_err(|_| FaultError::Kind(other.to_owned()))
            }
        }
    }
}

/// Where capacity is missing.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Where {
    pub location: Option<String>,
    pub server_type: Option<String>,
}

impl Parts {
    pub(super) fn fail_hcloud(
        &self,
        operation: &str,
        kind: &str,
        at: Where,
        times: Option<u32>,
    ) -> Result<(), FaultError> {
        let kind = match kind.parse::<Kind>()? {
            Kind::Capacity { .. } => Kind::Capacity { location: at.location, server_type: at.server_type },
            _ if at.location.is_some() || at.server_type.is_some() => {
                return Err(FaultError::NotCapacity(kind.to_owned()));
            }
            other => other,
        };
        Ok(self.simulator.faults().add(operation, kind, times)?)
    }

    fn server(&self, name: &str) -> Result<Arc<Machine>, FaultError> {
        self.world.machine(name).ok_or_else(|| {
            let known: Vec<String> = self.world.machines().iter().map(|machine| machine.name().to_owned()).collect();
            FaultError::NoServer { name: name.to_owned(), known: known.join(", ") }
        })
    }

    pub(super) fn fail_call(&self, name: &str, rpc: &str, kind: &str, times: u32) -> Result<(), FaultError> {
        let fault: CallFault = kind.parse()?;
        if !talos::CALLS.contains(&rpc) {
            return Err(FaultError::NoCall(rpc.to_owned()));
        }
        self.server(name)?.fail(rpc, fault, times);
        Ok(())
    }

    pub(super) async fn fail_node(&self, name: &str, kind: &str) -> Result<(), FaultError> {
        let (fault, machine) = (kind.parse::<NodeFault>()?, self.server(name)?);
        match fault {
            NodeFault::PowerOff => {
                machine.power_off().await;
                self.simulator.power_changed(i64::try_from(machine.id()).unwrap_or_default(), false);
            }
            NodeFault::Delete => {
                self.simulator.lose(name).await;
            }
            NodeFault::Lasting(impairment) => machine.impair(impairment).await?,
        }
        Ok(())
    }

    pub(super) fn active(&self) -> Vec<Active> {
        let hcloud = self.simulator.faults().list().into_iter().map(|fault| Active {
            on: "hcloud".to_owned(),
            kind: fault.kind.to_string(),
            of: Some(fault.operation),
            times: fault.times,
        });
        let machines = self.world.machines();
        let nodes = machines.iter().flat_map(|machine| {
            let on = machine.name().to_owned();
            let lasting = machine.impairments().into_iter().map({
                let on = on.clone();
                move |impairment| Active { on: on.clone(), of: None, kind: name_of(impairment), times: None }
            });
            let calls = machine.faults().into_iter().map(move |(rpc, fault, times)| Active {
                on: on.clone(),
                of: Some(rpc),
                kind: fault.to_string(),
                times: Some(times),
            });
            lasting.chain(calls)
        });
        hcloud.chain(nodes).collect()
    }

    /// Ends all that lasts. A server that was turned off or deleted stays so.
    pub(super) async fn clear(&self) -> Result<(), FaultError> {
        self.simulator.faults().clear();
        for machine in self.world.machines() {
            machine.clear_faults();
            machine.repair().await?;
        }
        Ok(())
    }
}

fn name_of(impairment: Impairment) -> String {
    let name = serde_json::to_value(impairment).ok();
    name.as_ref().and_then(serde_json::Value::as_str).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_of_nodes_have_names() {
        for name in
            ["partition", "api-partition", "etcd-stopped", "kubelet-stopped", "slow-disk", "certificate-expired"]
        {
            match name.parse() {
                Ok(NodeFault::Lasting(impairment)) => assert_eq!(name_of(impairment), name),
                _ => panic!("{name}"),
            }
        }
        assert!(matches!("power-off".parse(), Ok(NodeFault::PowerOff)));
        assert!(matches!("delete".parse(), Ok(NodeFault::Delete)));
        let refused = "Partition".parse::<NodeFault>().err().unwrap();
        assert!(refused.to_string().contains("api-partition"), "{refused}");
    }
}
