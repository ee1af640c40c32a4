//! Machines: groups of instances in zone shards as resources of Cluster API. Pools and Machines ask for instances, the
//! shards' servers own them, and no instance goes before its node was drained.

mod cluster;
pub mod config;
mod control_plane;
pub mod ground;
pub mod identity;
mod secrets;

pub use control_plane::ApiServer;

/// Field manager of everything this layer writes.
const MANAGER: &str = "strata-machines";
