//! Which Nodes are the instances', and which machines look for which Nodes.

use std::{
    collections::BTreeMap,
    future::pending,
    sync::{Arc, OnceLock, PoisonError},
    time::Duration,
};

use api::machine::{MOST_ADDRESSES, MachineAddress, NstanceMachine, NstanceMachinePool, POOL_LABEL, SHARD_LABEL};
use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Node, NodeAddress, NodeSpec},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use plan::{
    drain::{DRAIN_ANNOTATION, Labels},
    fact::{Fact, latest},
    machines::{
        machine::Owner,
        node::{NodeRef, last_segment},
    },
};
use runtime::{Change, Freshness, Key, Kind, Operator, Queue, Selection, Versioned, lean_metadata, readable, view_of};
use serde::Deserialize;

use crate::{
    MANAGER,
    control_plane::External,
    kinds::{Kinds, Queues, owner},
};

/// For machines of which no shard is known yet.
const ANY_SHARD: &str = "";

/// Following an external cluster only waits.
const STOP_LIMIT: Duration = Duration::from_secs(1);

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct NodeView {
    #[serde(deserialize_with = "lean_metadata")]
    metadata: ObjectMeta,
    #[serde(default, deserialize_with = "readable")]
    spec: Option<NodeSpec>,
    #[serde(default, deserialize_with = "readable")]
    status: Option<NodeStatus>,
}

/// What is decoded of a Node's status: its images and volumes are of no interest.
#[derive(Clone, Debug, Default, Deserialize)]
struct NodeStatus {
    #[serde(default)]
    addresses: Option<Vec<NodeAddress>>,
}

view_of!(NodeView, Node);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeFacts {
    pub uid: Box<str>,
    pub provider_id: Box<str>,
    /// The drain that cordoned it last.
    pub drain: Option<Box<str>>,
    pub is_cordoned: bool,
    pub created_at: Option<Timestamp>,
    addresses: Box<[MachineAddress]>,
}

/// Nodes without a provider ID are of none of our instances.
fn node(view: NodeView) -> Option<NodeFacts> {
    let spec = view.spec?;
    let provider_id = spec.provider_id.filter(|id| !id.is_empty())?.into();
    let created_at = view.metadata.creation_timestamp.map(|time| time.0);
    let drain = view.metadata.annotations.and_then(|mut all| all.remove(DRAIN_ANNOTATION)).map(Into::into);
    let addresses = view.status.unwrap_or_default().addresses.unwrap_or_default().into_iter();
    let addresses = addresses.filter_map(|found| MachineAddress::of_node(&found.type_, &found.address));
    Some(NodeFacts {
        uid: view.metadata.uid.unwrap_or_default().into(),
        provider_id,
        drain,
        is_cordoned: spec.unschedulable.unwrap_or_default(),
        created_at,
        addresses: addresses.take(MOST_ADDRESSES).collect(),
    })
}

/// The Nodes of the cluster that the instances join; unknown before there is a way to reach it.
#[derive(Default)]
pub(crate) struct Nodes(OnceLock<Arc<Kind<NodeView, NodeFacts>>>);

impl Nodes {
    pub fn get(&self, key: &Key) -> Option<Arc<Versioned<NodeFacts>>> {
        self.0.get()?.get(key)
    }

    pub fn freshness(&self) -> Freshness {
        self.0.get().map_or_else(
            || Freshness {
                age: None,
                interruption: Some("there is no kubeconfig of the workload cluster that can be used".to_owned()),
            },
            |nodes| nodes.freshness(),
        )
    }
}

pub(crate) fn label<'a>(machine: &'a NstanceMachine, name: &str) -> Option<&'a str> {
    machine.metadata.labels.as_ref()?.get(name).map(String::as_str)
}

/// Whether a pool has it: its shard made the instance, and removes it with the group's size alone. Users may take its label
/// off, and the pool's own word stays.
pub(crate) fn is_member(machine: &NstanceMachine) -> bool {
    label(machine, POOL_LABEL).is_some() || owner(&machine.metadata, NstanceMachinePool::KIND).is_some()
}

/// The shard that a machine is on, as far as it is stored.
pub(crate) fn shard_of(machine: &NstanceMachine) -> Option<&str> {
    let stored = machine.status.as_ref().and_then(|status| status.shard.as_deref());
    stored.or_else(|| label(machine, SHARD_LABEL))
}

/// The ID of a machine's instance, as far as it is stored.
pub(crate) fn instance_of(machine: &NstanceMachine) -> Option<&str> {
    if is_member(machine) {
        return machine.metadata.name.as_deref();
    }
    machine.status.as_ref().and_then(|status| status.instance_id.as_deref())
}

impl Kinds {
    /// Follows the Nodes of the operator's own cluster, or of the external one from when it is reached.
    pub fn watch_nodes(self: &Arc<Self>, operator: &mut Operator, queues: &Queues, external: Option<External>) {
        let (kinds, targets) = (self.clone(), queues.clone());
        if let Some(external) = external {
            operator.part("machines nodes", STOP_LIMIT, move |stop, pulse| async move {
                stop.run_until_cancelled(pulse.while_waiting(kinds.follow_nodes(external, targets))).await;
            });
            return;
        }
        let nodes = Kind::new("nodes", operator.writer(MANAGER), node);
        operator.watch(&nodes, move |change| kinds.node_changed(&targets, change));
        self.nodes.0.get_or_init(|| nodes);
    }

    /// That the cluster is silent, and that it answers again, is news without any Node that changed.
    async fn follow_nodes(self: Arc<Self>, external: External, queues: Queues) {
        let mut reached = external.cluster.clone();
        let Ok(Some(cluster)) = reached.wait_for(Option::is_some).await.map(|reached| reached.clone()) else {
            // The sender ends with the process.
            return pending().await;
        };
        let nodes = Kind::new("nodes", cluster.writer(MANAGER), node);
        let mut news = nodes.news();
        let (kinds, targets) = (self.clone(), queues.clone());
        let nodes = self.nodes.0.get_or_init(|| nodes);
        cluster.watch(nodes, Selection::default(), move |change| kinds.node_changed(&targets, change));
        let mut was_known = false;
        loop {
            news.mark_unchanged();
            let freshness = nodes.freshness();
            let is_known = freshness.is_known();
            external.set_silence(freshness.interruption);
            if is_known != was_known {
                self.notify_of_all_nodes(&queues);
            }
            was_known = is_known;
            if news.changed().await.is_err() {
                return pending().await;
            }
        }
    }

    fn notify_of_all_nodes(&self, queues: &Queues) {
        self.members.store().keys().iter().for_each(|key| queues.machines.changed(key));
        self.shard_groups.store().keys().iter().for_each(|key| queues.shard_groups.changed(key));
        self.notify_listeners();
    }

    fn node_changed(&self, queues: &Queues, change: &Change<'_, NodeFacts>) {
        let id = |node: Option<&NodeFacts>| node.map(|node| Box::<str>::from(last_segment(&node.provider_id)));
        let (before, after) = (id(change.before), id(change.after));
        self.indexes.nodes.set(change.key, after.clone());
        if change.before != change.after {
            self.notify_of_node(&queues.machines, change);
            for id in before.iter().chain(&after) {
                self.indexes.published.keys(id).iter().for_each(|key| queues.shard_groups.changed(key));
            }
        }
    }

    /// The Nodes whose provider ID ends as one of these; not known while the workload cluster is silent.
    pub fn node_refs<'a>(&self, ids: impl IntoIterator<Item = &'a str>) -> Fact<Vec<NodeRef>> {
        let found = self.nodes_of(ids).into_iter().map(|(node, _)| node).collect();
        self.nodes.freshness().fact(found)
    }

    /// The addresses of these Nodes, by their names.
    pub fn addresses(&self, nodes: &Fact<Vec<NodeRef>>) -> BTreeMap<String, Vec<MachineAddress>> {
        let found = latest(nodes).into_iter().flatten();
        let found = found.filter_map(|node| Some((node, self.nodes.get(&Key::new("", node.name.as_str()))?)));
        found.map(|(node, facts)| (node.name.clone(), facts.value.addresses.to_vec())).collect()
    }

    /// From now on a machine looks for the Nodes of these IDs.
    pub fn seeks(&self, machine: &Key, ids: &[String]) {
        self.indexes.sought.set(machine, ids.iter().map(|id| last_segment(id).into()));
    }

    pub fn listen_to_nodes(&self, listener: impl Fn() + Send + Sync + 'static) {
        self.node_listeners.write().unwrap_or_else(PoisonError::into_inner).push(Box::new(listener));
    }

    /// Notifies the machines that look for a Node.
    fn notify_of_node(&self, machines: &Queue, change: &Change<'_, NodeFacts>) {
        let ids = [change.before, change.after].into_iter().flatten().map(|node| last_segment(&node.provider_id));
        for id in ids {
            self.indexes.sought.keys(&id.into()).iter().for_each(|key| machines.changed(key));
        }
        self.notify_listeners();
    }

    fn notify_listeners(&self) {
        let listeners = self.node_listeners.read().unwrap_or_else(PoisonError::into_inner);
        listeners.iter().for_each(|listener| listener());
    }

    /// Notes where a machine's instance is.
    pub fn note_machine(&self, key: &Key, machine: Option<&NstanceMachine>) {
        self.indexes.instances.set(key, machine.and_then(instance_of).map(Into::into));
        let shard = machine.map(|machine| shard_of(machine).unwrap_or(ANY_SHARD).into());
        self.indexes.machines_of_shards.set(key, shard);
        if machine.is_none() {
            self.indexes.sought.set(key, []);
        }
    }

    /// The machines that news of a shard concerns.
    pub fn machines_of(&self, shard: &str) -> Vec<Key> {
        let mut keys = self.indexes.machines_of_shards.keys(&shard.into());
        keys.extend(self.indexes.machines_of_shards.keys(&ANY_SHARD.into()));
        keys
    }

    /// The machine of an instance.
    pub fn machine_of_instance(&self, id: &str) -> Option<Key> {
        self.indexes.instances.keys(&id.into()).into_iter().next()
    }

    /// The shards of this machine, and of those that look for one of these Nodes, as far as they are stored.
    pub fn shards_of<'a>(
        &self,
        machine: Option<&Versioned<NstanceMachine>>,
        nodes: impl IntoIterator<Item = &'a NodeRef>,
    ) -> Vec<String> {
        let seek = |node: &NodeRef| self.indexes.sought.keys(&last_segment(&node.provider_id).into());
        let seekers = nodes.into_iter().flat_map(seek).filter_map(|key| self.members.get(&key));
        let seekers = seekers.filter_map(|found| shard_of(&found.value).map(str::to_owned));
        machine.and_then(|found| shard_of(&found.value)).map(str::to_owned).into_iter().chain(seekers).collect()
    }

    /// The labels of the Machine of an instance; none where it has no Machine.
    pub fn machine_labels(&self, machine: Option<&Key>) -> Labels {
        let found = machine.and_then(|key| self.members.get(key));
        let Some(Owner::Machine(owner)) = found.map(|found| self.owner_of(&found.value)) else {
            return Labels::new();
        };
        let machine = self.machines.get(&Key::new(self.cluster.namespace.clone(), owner.name.as_str()));
        machine.map(|machine| machine.value.labels.clone()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_member_without_its_label_is_still_its_pools() {
        let machine = |labels: serde_json::Value, owner: &str| -> NstanceMachine {
            let owner = json!({ "apiVersion": "v1", "kind": owner, "name": "web", "uid": "u" });
            let metadata = json!({ "name": "a", "labels": labels, "ownerReferences": [owner] });
            serde_json::from_value(json!({ "metadata": metadata, "spec": { "group": "web" } })).unwrap()
        };
        let pool = NstanceMachinePool::KIND;
        for member in [machine(json!({ POOL_LABEL: "web" }), pool), machine(json!({}), pool)] {
            assert!(is_member(&member));
            assert_eq!(instance_of(&member), Some("a"));
        }
        assert!(is_member(&machine(json!({ POOL_LABEL: "web" }), "Machine")));
        let own = machine(json!({}), "Machine");
        assert!(!is_member(&own));
        assert_eq!(instance_of(&own), None);
    }
}
