//! Machines: groups of instances on zone shards, as Cluster API's pools and machines.
//!
//! ```text
//! distribute(total, &shards)        → the share of each shard of a pool, and what waits for a silent one
//! pool::{plan, report}              NstanceMachinePool: its shard groups, its members, who of them goes
//! shard_group::{plan, report}       NstanceShardGroup: what a shard is asked for, and what it says
//! import::import                    pools for groups that only shards have
//! cluster::{missing, plan, report}   the operator's Cluster, and NstanceClusters
//! control_plane::{plan, report}     NstanceControlPlane: the kubeconfig by which Cluster API works
//! workload::judge                   which cluster a kubeconfig reaches
//! identity::decide                  the operator's certificate: register, renew, wait
//! machine::{plan, report}           NstanceMachine: one instance, until its shard reports it gone
//! notice::next                      an instance that its shard is about to delete: drain and acknowledgement
//! on_demand::plan                   Machines for Pods that ask for one, and the end of those that no Pod needs
//! ```
//!
//! No size is lowered below what is not drained: a member goes by the deletion of its Machine, which waits for the drain
//! of its Node, and only then is its shard asked to remove it.

pub mod cluster;
mod condition;
pub mod control_plane;
mod distribute;
pub mod identity;
pub mod import;
pub mod machine;
pub mod node;
pub mod notice;
pub mod on_demand;
pub mod pool;
pub mod shard;
pub mod shard_group;
pub mod workload;

pub use distribute::{Distribution, Share, Wait, distribute};

#[cfg(test)]
mod tests;
