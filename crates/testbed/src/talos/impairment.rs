//! What a server suffers from until it is repaired: cut off from others, slow, or without one of its services.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use super::{
    Error, Machine,
    node::{Node, lock},
};
use crate::process::Child;

/// A duty cycle of etcd that keeps it alive and makes every write wait: with four fifths of a second stopped, heartbeats
/// of 100 ms are late and an election of one second is near.
const STOPPED: Duration = Duration::from_millis(800);
const RUNNING: Duration = Duration::from_millis(200);

/// One of the things that can be wrong with a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Impairment {
    /// No traffic to it or from it.
    Partition,
    /// No traffic of the machine API and of Kubernetes' API; etcd goes on.
    ApiPartition,
    /// etcd is killed and stays down until the next boot.
    EtcdStopped,
    /// The kubelet is silent.
    KubeletStopped,
    /// etcd stands still most of the time.
    SlowDisk,
    /// The machine API shows a certificate that has expired.
    CertificateExpired,
}

impl Impairment {
    /// The kinds of network loss.
    pub(super) const PARTITIONS: [Self; 2] = [Self::Partition, Self::ApiPartition];
}

/// What is wrong with one server. It outlives a reboot.
#[derive(Debug, Default)]
pub(super) struct Impairments {
    active: watch::Sender<Vec<Impairment>>,
    slow_disk: Mutex<Option<AbortOnDropHandle<()>>>,
}

impl Impairments {
    pub(super) fn has(&self, impairment: Impairment) -> bool {
        self.active.borrow().contains(&impairment)
    }

    pub(super) fn forget(&self, impairment: Impairment) {
        self.active.send_if_modified(|active| {
            let before = active.len();
            active.retain(|one| *one != impairment);
            active.len() != before
        });
    }

    pub(super) fn watch(&self) -> watch::Receiver<Vec<Impairment>> {
        self.active.subscribe()
    }
}

impl Machine {
    /// What is wrong with it now.
    pub fn impairments(&self) -> Vec<Impairment> {
        self.impairments.active.borrow().clone()
    }

    /// Lets something be wrong until [`Self::repair`]; nothing where it is already.
    pub async fn impair(self: &Arc<Self>, impairment: Impairment) -> Result<(), Error> {
        if self.impairments.has(impairment) {
            return Ok(());
        }
        self.impairments.active.send_modify(|active| active.push(impairment));
        let is_partition = Impairment::PARTITIONS.contains(&impairment);
        if is_partition && let Err(error) = self.apply_partitions().await {
            self.impairments.forget(impairment);
            return Err(error);
        }
        match impairment {
            Impairment::EtcdStopped => self.stop_etcd().await,
            Impairment::SlowDisk => {
                let slow = tokio::spawn(slow_down(Arc::downgrade(self)));
                *lock(&self.impairments.slow_disk) = Some(AbortOnDropHandle::new(slow));
            }
            _ => {}
        }
        Ok(())
    }

    /// Nothing is wrong any more.
    pub async fn repair(self: &Arc<Self>) -> Result<(), Error> {
        let before = self.impairments.active.send_replace(Vec::new());
        drop(lock(&self.impairments.slow_disk).take());
        if before.iter().any(|one| Impairment::PARTITIONS.contains(one)) {
            self.apply_partitions().await?;
        }
        if before.contains(&Impairment::EtcdStopped) {
            self.start_etcd().await?;
        }
        Ok(())
    }

    async fn apply_partitions(&self) -> Result<(), Error> {
        match self.world() {
            Some(world) => world.apply_partitions().await,
            None => Ok(()),
        }
    }

    /// Whether others reach its APIs and it reaches theirs.
    pub(super) fn is_reachable(&self) -> bool {
        !Impairment::PARTITIONS.iter().any(|one| self.impairments.has(*one))
    }
}

impl Node {
    /// Whether it reaches the etcd of others.
    pub(super) fn is_isolated(&self) -> bool {
        self.impaired.borrow().contains(&Impairment::Partition)
    }

    /// Whether its kubelet can do its work.
    pub(super) fn has_kubelet(impaired: &[Impairment]) -> bool {
        let against = [Impairment::Partition, Impairment::ApiPartition, Impairment::KubeletStopped];
        !impaired.iter().any(|one| against.contains(one))
    }
}

/// Goes on when this is dropped, also where its task is cut off.
struct Paused(Arc<Child>);

impl Drop for Paused {
    fn drop(&mut self) {
        // One that has ended needs nothing.
        let _ = self.0.resume();
    }
}

async fn slow_down(machine: std::sync::Weak<Machine>) {
    while let Some(machine) = machine.upgrade() {
        let etcd = machine.node().and_then(|node| node.etcd_child());
        drop(machine);
        if let Some(etcd) = etcd
            && etcd.pause().is_ok()
        {
            let _paused = Paused(etcd);
            tokio::time::sleep(STOPPED).await;
        }
        tokio::time::sleep(RUNNING).await;
    }
}
