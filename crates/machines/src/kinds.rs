//! The kinds that the layer follows, and the ways back from what changed to whom it concerns.

use std::sync::{Arc, RwLock};

use api::machine::{NstanceMachine, NstanceMachinePool, NstanceMachineSpec, NstanceShardGroup};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use plan::machines::{
    machine::{self, is_released},
    node::{NodeRef, last_segment},
};
use runtime::{Change, Error, Index, Key, Kind, Operator, Parts, Queue, Selection, Writer};

use crate::{
    capi::{self, Machine, MachinePool, MachinePoolView, MachineView},
    cluster::{Clusters, is_paused},
    nodes::{Nodes, shard_of},
};

pub(crate) type Pools = Kind<Parts<NstanceMachinePool>, NstanceMachinePool>;
pub(crate) type ShardGroups = Kind<Parts<NstanceShardGroup>, NstanceShardGroup>;
pub(crate) type Members = Kind<Parts<NstanceMachine>, NstanceMachine>;
pub(crate) type MachinePools = Kind<MachinePoolView, MachinePool>;
pub(crate) type Machines = Kind<MachineView, Machine>;

/// All objects of the layer are in one namespace; Nodes are those of the cluster that the instances join.
pub(crate) struct Kinds {
    pub pools: Arc<Pools>,
    pub shard_groups: Arc<ShardGroups>,
    pub members: Arc<Members>,
    pub machine_pools: Arc<MachinePools>,
    pub machines: Arc<Machines>,
    pub clusters: Arc<Clusters>,
    pub nodes: Nodes,
    pub indexes: Indexes,
    pub node_listeners: RwLock<Vec<Box<dyn Fn() + Send + Sync>>>,
    /// Key of the Cluster.
    pub cluster: Key,
    /// For reads past the caches.
    pub writer: Writer,
}

#[derive(Default)]
pub(crate) struct Indexes {
    /// From a group to its pools.
    pub pools: Index<Arc<str>>,
    /// From a pool to the MachinePools that name it.
    pub machine_pools: Index<Key>,
    /// From a group and from its owner's uid to its shard groups.
    pub shard_groups: Index<Box<str>>,
    pub owned_groups: Index<Box<str>>,
    /// From a shard to its shard groups.
    pub shards: Index<Box<str>>,
    /// From the end of a provider ID to the shard groups that publish it.
    pub published: Index<Box<str>>,
    /// From a pool's uid to its machines.
    pub members: Index<Box<str>>,
    /// From the end of a provider ID to its Nodes.
    pub nodes: Index<Box<str>>,
    /// From the end of a provider ID to the machines that look for its Node.
    pub sought: Index<Box<str>>,
    /// From an instance to its machine.
    pub instances: Index<Box<str>>,
    /// From a shard to its machines.
    pub machines_of_shards: Index<Box<str>>,
    /// From a machine to the Machine that names it.
    pub named: Index<Key>,
}

/// Whom changes are notified of.
#[derive(Clone)]
pub(crate) struct Queues {
    pub pools: Arc<Queue>,
    pub shard_groups: Arc<Queue>,
    pub machines: Arc<Queue>,
}

#[expect(clippy::unnecessary_wraps, reason = "the form that every projection has")]
fn pool(parts: Parts<NstanceMachinePool>) -> Option<NstanceMachinePool> {
    Some(NstanceMachinePool { spec: parts.spec(), status: parts.status(), metadata: parts.metadata })
}

#[expect(clippy::unnecessary_wraps, reason = "the form that every projection has")]
fn shard_group(parts: Parts<NstanceShardGroup>) -> Option<NstanceShardGroup> {
    Some(NstanceShardGroup { spec: parts.spec(), status: parts.status(), metadata: parts.metadata })
}

#[expect(clippy::unnecessary_wraps, reason = "the form that every projection has")]
fn member(parts: Parts<NstanceMachine>) -> Option<NstanceMachine> {
    Some(NstanceMachine { spec: parts.spec(), status: parts.status(), metadata: parts.metadata })
}

/// The owner of a kind of ours or of Cluster API's.
pub(crate) fn owner<'a>(metadata: &'a ObjectMeta, kind: &str) -> Option<&'a OwnerReference> {
    metadata.owner_references.iter().flatten().find(|owner| owner.kind == kind)
}

/// One that exists by now is left as it is: the next plan sees it.
pub(crate) fn accept(created: Result<u64, Error>) -> Result<(), Error> {
    match created {
        Err(error) if error.is_already_exists() => Ok(()),
        result => result.map(drop),
    }
}

/// What pools and shard groups see of a member beside its Machine and its Node.
fn seen(member: &NstanceMachine) -> impl PartialEq + '_ {
    let (metadata, spec) = (&member.metadata, member.spec.as_ref());
    (
        (&metadata.uid, owner(metadata, NstanceMachinePool::KIND), metadata.deletion_timestamp.is_some()),
        (shard_of(member), spec.map(NstanceMachineSpec::group), spec.and_then(|spec| spec.provider_id.as_deref())),
        (is_paused(metadata), is_released(member, &machine::Owner::Unset)),
    )
}

fn uid_of(metadata: &ObjectMeta, kind: &str) -> Option<Box<str>> {
    owner(metadata, kind).map(|owner| owner.uid.as_str().into())
}

impl Kinds {
    pub fn new(writer: &Writer, clusters: Arc<Clusters>, cluster: Key) -> Arc<Self> {
        Arc::new(Self {
            pools: Kind::new("nstancemachinepools", writer.clone(), pool),
            shard_groups: Kind::new("nstanceshardgroups", writer.clone(), shard_group),
            members: Kind::new("nstancemachines", writer.clone(), member),
            machine_pools: Kind::new("machinepools", writer.clone(), capi::machine_pool),
            machines: Kind::new("machines", writer.clone(), capi::machine),
            clusters,
            nodes: Nodes::default(),
            indexes: Indexes::default(),
            node_listeners: RwLock::default(),
            cluster,
            writer: writer.clone(),
        })
    }

    /// Whether the Cluster is paused: then nothing is changed.
    pub fn is_cluster_paused(&self) -> bool {
        self.clusters.get(&self.cluster).is_some_and(|cluster| cluster.value.is_paused)
    }

    /// Whether the Cluster is under deletion: Cluster API deletes every pool with it, and waits for them.
    pub fn is_cluster_going(&self) -> bool {
        self.clusters.get(&self.cluster).is_some_and(|cluster| cluster.value.is_deleting)
    }

    /// Whether nothing is to be done to one of ours: it is paused, or its Machine, or the Cluster.
    pub fn is_paused(&self, member: &NstanceMachine) -> bool {
        let machine = self.machine_of(member).and_then(|key| self.machines.get(&key));
        is_paused(&member.metadata)
            || machine.is_some_and(|machine| machine.value.is_paused)
            || self.is_cluster_paused()
    }

    /// The Machine whose `infrastructureRef` names one of ours. Before Cluster API makes it the owner it is one already.
    pub fn machine_of(&self, member: &NstanceMachine) -> Option<Key> {
        let (namespace, name) = (member.metadata.namespace.as_deref()?, member.metadata.name.as_deref()?);
        self.indexes.named.keys(&Key::new(namespace, name)).into_iter().next()
    }

    /// The Machine that owns one of ours.
    pub fn owner_of(&self, member: &NstanceMachine) -> machine::Owner {
        if !self.machines.store().is_synced() {
            return machine::Owner::Unknown;
        }
        let found = self.machine_of(member).and_then(|key| Some((self.machines.get(&key)?, key)));
        let Some((found, key)) = found else {
            let is_owned = owner(&member.metadata, "Machine").is_some();
            return if is_owned { machine::Owner::Gone } else { machine::Owner::Unset };
        };
        let facts = &found.value;
        machine::Owner::Machine(machine::Machine {
            name: key.name.to_string(),
            uid: facts.uid.clone(),
            resource_version: found.version.to_string(),
            is_deleting: facts.is_deleting,
            failure_domain: facts.failure_domain.clone(),
            has_hook: facts.has_hook,
            is_excluded: facts.is_excluded,
            drain_timeout: facts.drain_timeout,
        })
    }

    /// The Nodes whose provider ID ends as one of these.
    pub fn nodes_of<'a>(&self, ids: impl IntoIterator<Item = &'a str>) -> Vec<(NodeRef, bool)> {
        let mut found = Vec::new();
        for id in ids.into_iter().filter(|id| !id.is_empty()) {
            for key in self.indexes.nodes.keys(&last_segment(id).into()) {
                if let Some(node) = self.nodes.get(&key) {
                    let provider_id = node.value.provider_id.to_string();
                    let node_ref = NodeRef { name: key.name.to_string(), provider_id };
                    found.push((node_ref, node.value.is_cordoned));
                }
            }
        }
        found.sort();
        found.dedup();
        found
    }

    /// Follows all of them.
    pub fn watch(self: &Arc<Self>, operator: &mut Operator, queues: &Queues) {
        let here = || Selection::in_namespace(&self.cluster.namespace);
        let (kinds, targets) = (self.clone(), queues.clone());
        operator.watch_selected(&self.pools, here(), move |change| kinds.pool_changed(&targets, change));
        let (kinds, targets) = (self.clone(), queues.clone());
        operator.watch_selected(&self.shard_groups, here(), move |change| kinds.shard_group_changed(&targets, change));
        let (kinds, targets) = (self.clone(), queues.clone());
        operator.watch_selected(&self.members, here(), move |change| kinds.member_changed(&targets, change));
        let (kinds, targets) = (self.clone(), queues.clone());
        operator.watch_selected(&self.machine_pools, here(), move |change| {
            kinds.machine_pool_changed(&targets, change);
        });
        let (kinds, targets) = (self.clone(), queues.clone());
        operator.watch_selected(&self.machines, here(), move |change| kinds.machine_changed(&targets, change));
        let (kinds, targets) = (self.clone(), queues.clone());
        operator.watch_selected(&self.clusters, here(), move |change| {
            if *change.key == kinds.cluster && change.before != change.after {
                kinds.pools.store().keys().iter().for_each(|key| targets.pools.changed(key));
                kinds.shard_groups.store().keys().iter().for_each(|key| targets.shard_groups.changed(key));
                kinds.members.store().keys().iter().for_each(|key| targets.machines.changed(key));
            }
        });
    }

    fn pool_changed(&self, queues: &Queues, change: &Change<'_, NstanceMachinePool>) {
        let group = |pool: Option<&NstanceMachinePool>| {
            let spec = pool.and_then(|pool| pool.spec.as_ref())?;
            Some(Arc::<str>::from(spec.group.as_str()))
        };
        let (before, after) = (group(change.before), group(change.after));
        self.indexes.pools.set(change.key, after.clone());
        if change.from_watch {
            queues.pools.changed(change.key);
        }
        // Another pool of the same group may go ahead, or has to step back.
        if before != after {
            for group in before.iter().chain(&after) {
                self.indexes.pools.keys(group).iter().for_each(|key| queues.pools.changed(key));
            }
        }
        let uid = change.after.or(change.before).and_then(|pool| pool.metadata.uid.clone());
        let asked = |pool: Option<&NstanceMachinePool>| {
            pool.map(|pool| {
                let metadata = &pool.metadata;
                (metadata.generation, metadata.deletion_timestamp.is_some(), is_paused(metadata))
            })
        };
        if asked(change.before) != asked(change.after) {
            let owned = uid.map(|uid| self.indexes.owned_groups.keys(&uid.into_boxed_str()));
            owned.iter().flatten().for_each(|key| queues.shard_groups.changed(key));
        }
    }

    fn shard_group_changed(&self, queues: &Queues, change: &Change<'_, NstanceShardGroup>) {
        let key = change.key;
        let spec = change.after.and_then(|group| group.spec.as_ref());
        self.indexes.shard_groups.set(key, spec.map(|spec| spec.group.as_str().into()));
        self.indexes.shards.set(key, spec.map(|spec| spec.shard.as_str().into()));
        let metadata = change.after.map(|group| &group.metadata);
        self.indexes.owned_groups.set(key, metadata.and_then(|data| uid_of(data, NstanceMachinePool::KIND)));
        let status = change.after.and_then(|group| group.status.as_ref());
        let ids = status.map(|status| status.provider_ids.as_slice()).unwrap_or_default();
        self.indexes.published.set(key, ids.iter().map(|id| last_segment(id).into()));
        let asked = |group: Option<&NstanceShardGroup>| {
            group.map(|group| (group.metadata.generation, group.metadata.deletion_timestamp.is_some()))
        };
        // Pools write shard groups, and wait for what these report.
        if change.from_watch || asked(change.before) != asked(change.after) {
            queues.shard_groups.changed(key);
        }
        for group in [change.before, change.after].into_iter().flatten() {
            if let Some(pool) = owner(&group.metadata, NstanceMachinePool::KIND) {
                queues.pools.changed(&Key::new(key.namespace.clone(), pool.name.as_str()));
            }
        }
    }

    fn member_changed(&self, queues: &Queues, change: &Change<'_, NstanceMachine>) {
        let metadata = change.after.map(|member| &member.metadata);
        let uid = metadata.and_then(|metadata| uid_of(metadata, NstanceMachinePool::KIND));
        self.indexes.members.set(change.key, uid);
        self.note_machine(change.key, change.after);
        let asked = |machine: Option<&NstanceMachine>| {
            machine.map(|machine| (machine.metadata.generation, machine.metadata.deletion_timestamp.is_some()))
        };
        // Pools make and delete machines.
        if change.from_watch || asked(change.before) != asked(change.after) {
            queues.machines.changed(change.key);
        }
        // A pool has a thousand of them: most of what is written to each is no news to others.
        if change.before.map(seen) != change.after.map(seen) {
            for member in [change.before, change.after].into_iter().flatten() {
                self.concerns(queues, &change.key.namespace, member);
            }
        }
    }

    /// The pool of a member, and the shard group that it counts in; all of the pool's while its shard is not known.
    fn concerns(&self, queues: &Queues, namespace: &Arc<str>, member: &NstanceMachine) {
        let Some(pool) = owner(&member.metadata, NstanceMachinePool::KIND) else { return };
        queues.pools.changed(&Key::new(namespace.clone(), pool.name.as_str()));
        let shard = shard_of(member);
        for key in self.indexes.owned_groups.keys(&pool.uid.as_str().into()) {
            let group = self.shard_groups.get(&key);
            let spec = group.as_ref().and_then(|group| group.value.spec.as_ref());
            if shard.is_none() || spec.is_none_or(|spec| Some(spec.shard.as_str()) == shard) {
                queues.shard_groups.changed(&key);
            }
        }
    }

    fn machine_pool_changed(&self, queues: &Queues, change: &Change<'_, MachinePool>) {
        let pool = |found: Option<&MachinePool>| {
            let name = found?.pool.as_deref()?;
            Some(Key::new(change.key.namespace.clone(), name))
        };
        let (before, after) = (pool(change.before), pool(change.after));
        self.indexes.machine_pools.set(change.key, after.clone());
        if change.before != change.after {
            // The pool of its own name waits for the name.
            before.iter().chain(&after).chain([change.key]).for_each(|key| queues.pools.changed(key));
        }
    }

    fn machine_changed(&self, queues: &Queues, change: &Change<'_, Machine>) {
        let named = change.after.and_then(|machine| machine.infrastructure.as_deref());
        self.indexes.named.set(change.key, named.map(|name| Key::new(change.key.namespace.clone(), name)));
        if change.before == change.after {
            return;
        }
        for found in [change.before, change.after].into_iter().flatten() {
            let Some(name) = &found.infrastructure else { continue };
            let key = Key::new(change.key.namespace.clone(), name.as_str());
            queues.machines.changed(&key);
            if let Some(member) = self.members.get(&key) {
                self.concerns(queues, &key.namespace, &member.value);
            }
        }
    }
}
