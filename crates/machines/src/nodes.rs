//! Which Nodes are the instances', and which machines look for which Nodes.

use std::sync::PoisonError;

use api::machine::{NstanceMachine, NstanceMachinePool, POOL_LABEL, SHARD_LABEL};
use plan::{
    drain::Labels,
    fact::Fact,
    machines::{
        machine::Owner,
        node::{NodeRef, last_segment},
    },
};
use runtime::{Change, Key, Queue};

use crate::kinds::{Kinds, NodeFacts, owner};

/// For machines of which no shard is known yet.
const ANY_SHARD: &str = "";

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
    /// The Nodes whose provider ID ends as one of these; not known while the workload cluster is silent.
    pub fn node_refs<'a>(&self, ids: impl IntoIterator<Item = &'a str>) -> Fact<Vec<NodeRef>> {
        let found = self.nodes_of(ids).into_iter().map(|(node, _)| node).collect();
        self.nodes.freshness().fact(found)
    }

    /// From now on a machine looks for the Nodes of these IDs.
    pub fn seeks(&self, machine: &Key, ids: &[String]) {
        self.indexes.sought.set(machine, ids.iter().map(|id| last_segment(id).into()));
    }

    pub fn listen_to_nodes(&self, listener: impl Fn() + Send + Sync + 'static) {
        self.node_listeners.write().unwrap_or_else(PoisonError::into_inner).push(Box::new(listener));
    }

    /// Notifies the machines that look for a Node.
    pub fn notify_of_node(&self, machines: &Queue, change: &Change<'_, NodeFacts>) {
        let ids = [change.before, change.after].into_iter().flatten().map(|node| last_segment(&node.provider_id));
        for id in ids {
            self.indexes.sought.keys(&id.into()).iter().for_each(|key| machines.changed(key));
        }
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
