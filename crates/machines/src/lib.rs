//! Machines: groups of instances in zone shards as resources of Cluster API. Pools and Machines ask for instances, the
//! shards' servers own them, and no instance goes before its node was drained.

mod capi;
mod cluster;
pub mod config;
mod control_plane;
mod drains;
pub mod ground;
pub mod identity;
mod import;
mod kinds;
mod machine;
mod nodes;
mod on_demand;
mod pool;
pub mod rights;
mod secrets;
mod shard_group;
pub mod shards;

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use plan::machines::on_demand::Limits;
use runtime::{Key, LayerSpec, Operator};

pub use control_plane::ApiServer;

use drains::Desk;
use kinds::{Kinds, Queues};
use shards::{Pace, Shards};

pub const LAYER: LayerSpec = LayerSpec {
    name: "machines",
    is_default: false,
    demands_definitions: false,
    rights: rights::CLUSTER,
    own_namespace: rights::OWN_NAMESPACE,
    roles: ground::roles,
    accounts: ground::ACCOUNTS,
    crds: || api::machine::crds().into(),
    foreign: &[
        ("clusters", CLUSTER_API),
        ("machinepools", CLUSTER_API),
        ("machines", CLUSTER_API),
        ("machinedrainrules", CLUSTER_API),
    ],
};

/// How Cluster API comes into a cluster.
const CLUSTER_API: &str = "clusterctl init, or the core components of Cluster API 1.14 or later";

/// Field manager of everything this layer writes.
const MANAGER: &str = "strata-machines";

/// How the layer works; every interval is here, so that tests shorten it instead of waiting.
#[derive(Clone, Debug)]
pub struct Config {
    pub settings: config::Settings,
    /// How Cluster API reaches the API server of the own cluster.
    pub api_server: ApiServer,
    /// Rounds of one kind that run at once.
    pub concurrency: usize,
    /// Period of the check that costs nothing.
    pub resync: Duration,
    pub pace: Pace,
    /// Of machines for Pods.
    pub on_demand: Limits,
}

impl Config {
    pub fn new(settings: config::Settings, api_server: ApiServer) -> Self {
        Self {
            settings,
            api_server,
            concurrency: 10,
            resync: Duration::from_mins(2),
            pace: Pace::default(),
            on_demand: Limits::default(),
        }
    }
}

/// Adds the layer to an operator.
pub fn install(operator: &mut Operator, config: &Config) {
    let settings = &config.settings;
    let ground = ground::install(operator, settings, &config.api_server, config.resync);
    let inputs = shards::Inputs {
        addresses: ground.shards,
        list: settings.shard_list(),
        credentials: ground.identity.credentials,
    };
    let shards = Shards::install(operator, inputs, config.pace);
    let cluster = Key::new(settings.namespace.as_str(), settings.cluster_name());
    let kinds = Kinds::new(&operator.writer(MANAGER), ground.clusters, cluster);
    let queue = || operator.queue(config.resync);
    let queues = Queues { pools: queue(), shard_groups: queue(), machines: queue() };
    kinds.watch(operator, &queues);
    kinds.watch_nodes(operator, &queues, ground.external);
    notify_of_shards(&shards, &kinds, &queues);
    import::install(operator, &kinds, &shards);
    let desk = Desk::install(operator, &kinds, &shards, &queues, ground.workload.clone());
    on_demand::install(operator, &kinds, &shards, ground.workload, config.on_demand);
    let pools = pool::PoolController {
        kinds: kinds.clone(),
        shards: shards.clone(),
        server_clock: operator.server_clock.clone(),
    };
    operator.control(pools, queues.pools, config.concurrency);
    let shard_groups = shard_group::ShardGroupController {
        kinds: kinds.clone(),
        shards: shards.clone(),
        desk: desk.clone(),
        drains: Mutex::default(),
    };
    operator.control(shard_groups, queues.shard_groups, config.concurrency);
    let machines = machine::MachineController {
        kinds,
        shards,
        desk,
        drained: Mutex::default(),
        clock: operator.clock.clone(),
        server_clock: operator.server_clock.clone(),
        failed: Mutex::default(),
    };
    operator.control(machines, queues.machines, config.concurrency);
}

/// What a shard says concerns its shard groups and machines, and every pool: also of a shard that a pool does not have yet.
fn notify_of_shards(shards: &Shards, kinds: &Arc<Kinds>, queues: &Queues) {
    let (of_shard, targets) = (kinds.clone(), queues.clone());
    shards.listen(move |shard| {
        of_shard.indexes.shards.keys(&shard.into()).iter().for_each(|key| targets.shard_groups.changed(key));
        of_shard.pools.store().keys().iter().for_each(|key| targets.pools.changed(key));
        of_shard.machines_of(shard).iter().for_each(|key| targets.machines.changed(key));
    });
    let (of_call, target) = (kinds.clone(), queues.machines.clone());
    shards.on_ended(machine::CALLS, move |key| {
        target.changed(key);
        of_call.members.get(key).is_some()
    });
    let (of_call, target) = (kinds.clone(), queues.shard_groups.clone());
    shards.on_ended(shard_group::CALLS, move |key| {
        target.changed(key);
        of_call.shard_groups.get(key).is_some()
    });
}
