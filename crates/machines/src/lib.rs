//! Machines: groups of instances in zone shards as resources of Cluster API. Pools and Machines ask for instances, the
//! shards' servers own them, and no instance goes before its node was drained.

pub mod config;
pub mod identity;
mod secrets;
pub mod shards;

/// Field manager of everything this layer writes.
const MANAGER: &str = "strata-machines";
