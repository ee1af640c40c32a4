//! Machines: groups of instances in zone shards as resources of Cluster API. Pools and Machines ask for instances, the
//! shards' servers own them, and no instance goes before its node was drained.

mod cluster;
pub mod config;
mod control_plane;
pub mod identity;
mod secrets;
pub mod shards;

use std::time::Duration;

use runtime::Operator;
use tokio::sync::watch;

pub use control_plane::ApiServer;

/// Field manager of everything this layer writes.
const MANAGER: &str = "strata-machines";

/// What the rest of the layer is built on.
pub struct Ground {
    pub shards: watch::Receiver<std::sync::Arc<config::Shards>>,
    pub identity: identity::Known,
}

/// Adds configuration, identity and the operator's Cluster to an operator.
pub fn install_ground(
    operator: &mut Operator,
    settings: &config::Settings,
    api_server: &ApiServer,
    resync: Duration,
) -> Ground {
    let secrets = secrets::watch(operator, &settings.namespace, |_| {});
    let shards = config::Reload::follow(operator, settings);
    let identity = identity::install(operator, settings, &secrets, shards.clone());
    let inputs =
        cluster::Inputs { settings, api_server, secrets: &secrets, shards: shards.clone(), identity: &identity, resync };
    cluster::install(operator, &inputs);
    Ground { shards, identity }
}
