//! A group as the commands show it: counts, shards, instances, and what waits for what. Only derived, nothing is read here.

use api::{
    condition::{Condition, ConditionStatus, ConditionType, Reason},
    machine::{MachineReason, NstanceMachine, NstanceShardGroup, NstanceShardGroupStatus},
};
use jiff::Timestamp;
use serde::Serialize;

use super::read::{Group, Whole, is_paused};

/// The form that scripts rely on.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    pub namespace: String,
    pub group: String,
    /// Name of the NstanceMachinePool.
    pub pool: String,
    pub machine_pool: Option<String>,
    pub shards: Vec<String>,
    #[serde(rename = "static")]
    pub is_static: bool,
    #[serde(rename = "paused")]
    pub is_paused: bool,
    /// Replicas of the MachinePool; null without one.
    pub wanted: Option<i32>,
    /// Instances that the shards report.
    pub current: i32,
    /// Instances whose Machine is ready, by Cluster API.
    pub ready: i32,
    /// Of the condition Ready.
    pub status: Option<ConditionStatus>,
    pub reason: Option<String>,
    pub message: Option<String>,
}

/// One shard's part of a group.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ShardView {
    pub shard: String,
    pub wanted: i32,
    pub current: i32,
    /// Instances that run.
    pub ready: usize,
    /// Since when the shard does not answer; null while it does.
    pub silent_since: Option<Timestamp>,
    pub reason: Option<String>,
    /// Why it is not as declared; null where it is.
    pub message: Option<String>,
}

/// One instance.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct InstanceView {
    /// Name of the NstanceMachine, and of the instance on its shard.
    pub instance: String,
    pub shard: Option<String>,
    pub node: Option<String>,
    #[serde(rename = "providerID")]
    pub provider_id: Option<String>,
    pub ready: bool,
    pub is_going: bool,
    pub reason: Option<String>,
    pub message: Option<String>,
}

/// What is not done, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Wait {
    pub what: String,
    pub why: String,
}

impl Summary {
    pub fn of(group: &Group) -> Self {
        let (spec, status) =
            (group.pool.spec.clone().unwrap_or_default(), group.pool.status.clone().unwrap_or_default());
        let ready = status.condition(ConditionType::Ready);
        let machine_pool = group.machine_pool.as_ref();
        Self {
            namespace: group.pool.metadata.namespace.clone().unwrap_or_default(),
            group: spec.group,
            pool: group.pool_name().to_owned(),
            machine_pool: machine_pool.map(|pool| pool.name().to_owned()),
            shards: spec.shards,
            is_static: status.is_static,
            is_paused: paused(group).is_some(),
            wanted: machine_pool.map(|pool| pool.spec.replicas.unwrap_or_default()),
            current: status.replicas,
            ready: machine_pool.and_then(|pool| pool.status.ready_replicas).unwrap_or_default(),
            status: ready.map(|ready| ready.status),
            reason: ready.map(|ready| ready.reason.to_string()),
            message: ready.map(|ready| ready.message.clone()),
        }
    }

    /// `2 of 3 instances, 1 ready`.
    pub fn counts(&self) -> String {
        match self.wanted {
            Some(wanted) => format!("{} of {wanted} instances, {} ready", self.current, self.ready),
            None => format!("{} instances", self.current),
        }
    }
}

/// What is paused, if anything is. A paused Cluster shows in the pool's condition.
pub fn paused(group: &Group) -> Option<String> {
    if is_paused(&group.pool.metadata) {
        return Some(format!("NstanceMachinePool {}", group.pool_name()));
    }
    if let Some(machine_pool) = group.machine_pool.as_ref().filter(|pool| is_paused(&pool.metadata)) {
        return Some(format!("MachinePool {}", machine_pool.name()));
    }
    let condition = group.pool.status.as_ref().and_then(|status| status.condition(ConditionType::Paused));
    condition.filter(|condition| condition.status == ConditionStatus::True)?;
    let cluster = group.machine_pool.as_ref().map_or("", |pool| pool.spec.cluster_name.as_str());
    Some(format!("Cluster {cluster}").trim_end().to_owned())
}

impl Whole {
    /// In the order of their names.
    pub fn shards(&self) -> Vec<ShardView> {
        let mut shards: Vec<_> = self.shard_groups.iter().map(|group| self.shard(group)).collect();
        shards.sort_by(|one, other| one.shard.cmp(&other.shard));
        shards
    }

    fn shard(&self, group: &NstanceShardGroup) -> ShardView {
        let (spec, status) = (group.spec.clone().unwrap_or_default(), group.status.clone().unwrap_or_default());
        let runs = |machine: &&NstanceMachine| {
            let status = machine.status.as_ref();
            status.is_some_and(|status| status.ready && status.shard.as_ref() == Some(&spec.shard))
        };
        let failing = failing(&status);
        ShardView {
            wanted: spec.size(),
            current: status.replicas,
            ready: self.machines.iter().filter(runs).count(),
            silent_since: silent_since(&status),
            reason: failing.map(|condition| condition.reason.to_string()),
            message: failing.map(|condition| condition.message.clone()),
            shard: spec.shard,
        }
    }

    /// By shard and name.
    pub fn instances(&self) -> Vec<InstanceView> {
        let mut instances: Vec<_> = self.machines.iter().map(|machine| self.instance(machine)).collect();
        instances.sort_by(|one, other| (&one.shard, &one.instance).cmp(&(&other.shard, &other.instance)));
        instances
    }

    fn instance(&self, machine: &NstanceMachine) -> InstanceView {
        let name = machine.metadata.name.clone().unwrap_or_default();
        let status = machine.status.clone().unwrap_or_default();
        let waits = obstacle(machine);
        InstanceView {
            node: self.nodes.get(&name).cloned(),
            provider_id: machine.spec.as_ref().and_then(|spec| spec.provider_id.clone()),
            ready: status.ready,
            is_going: is_going(machine),
            reason: waits.map(|condition| condition.reason.as_str().to_owned()),
            message: waits.map(|condition| condition.message.clone()),
            shard: status.shard,
            instance: name,
        }
    }

    /// What is not done yet, and why: what the user can change comes first.
    pub fn waits(&self) -> Vec<Wait> {
        let wait = |what: String, why: &str| Wait { what, why: why.to_owned() };
        let group = &self.group;
        let mut waits = Vec::new();
        if let Some(what) = paused(group) {
            waits.push(wait(what, "it is paused: nothing is changed until it is resumed"));
        }
        let status = group.pool.status.clone().unwrap_or_default();
        let ready = status.condition(ConditionType::Ready).filter(|ready| ready.status != ConditionStatus::True);
        // What it says of its shards they say themselves below.
        if let Some(ready) = ready.filter(|ready| ready.reason != Reason::Reconciling || self.shard_groups.is_empty()) {
            waits.push(wait(format!("NstanceMachinePool {}", group.pool_name()), &ready.message));
        }
        if group.machine_pool.is_none() {
            let why =
                "no MachinePool refers to it; the operator makes one for a pool that has been without for ten seconds";
            waits.push(wait(format!("NstanceMachinePool {}", group.pool_name()), why));
        }
        for shard in self.shards() {
            if let Some(why) = &shard.message {
                waits.push(wait(format!("shard {}", shard.shard), why));
            } else if shard.current != shard.wanted {
                let why = format!("{} of {} instances are there", shard.current, shard.wanted);
                waits.push(wait(format!("shard {}", shard.shard), &why));
            }
        }
        for instance in self.instances() {
            if let Some(why) = &instance.message {
                waits.push(wait(format!("instance {}", instance.instance), why));
            }
        }
        waits
    }

    /// A setting that a shard refuses, and that only the user can correct.
    pub fn refusal(&self) -> Option<Wait> {
        let refused = |group: &&NstanceShardGroup| {
            let condition = group.status.as_ref().and_then(|status| status.condition(ConditionType::ConfigValid));
            condition.is_some_and(|condition| condition.status == ConditionStatus::False)
        };
        let group = self.shard_groups.iter().find(refused)?;
        let view = self.shard(group);
        Some(Wait { what: format!("shard {}", view.shard), why: view.message.unwrap_or_default() })
    }
}

/// The condition that says why a shard does not have its part as declared.
fn failing(status: &NstanceShardGroupStatus) -> Option<&Condition> {
    status.condition(ConditionType::Ready).filter(|ready| ready.status != ConditionStatus::True)
}

fn silent_since(status: &NstanceShardGroupStatus) -> Option<Timestamp> {
    let reachable = status.condition(ConditionType::ShardReachable)?;
    (reachable.status == ConditionStatus::False).then_some(reachable.last_transition_time)
}

/// The condition that says why a machine is not as it should be: of one that goes, its drain.
fn obstacle(machine: &NstanceMachine) -> Option<&Condition<MachineReason>> {
    let status = machine.status.as_ref()?;
    let not = |kind| status.condition(kind).filter(|condition| condition.status != ConditionStatus::True);
    not(ConditionType::Drained).or_else(|| not(ConditionType::Ready))
}

fn is_going(machine: &NstanceMachine) -> bool {
    let is_drained = machine.status.as_ref().and_then(|status| status.condition(ConditionType::Drained));
    machine.metadata.deletion_timestamp.is_some() || is_drained.is_some()
}

#[cfg(test)]
mod tests {
    use api::machine::NstanceMachinePool;
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    use super::*;

    fn read<T: DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).unwrap()
    }

    fn condition(kind: &str, status: &str, reason: &str, message: &str) -> Value {
        let since = "2026-01-01T00:00:00Z";
        json!({ "type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": since })
    }

    fn pool(conditions: &Value) -> NstanceMachinePool {
        let metadata = json!({ "name": "web", "namespace": "machines", "uid": "p" });
        let status = json!({ "replicas": 2, "conditions": conditions });
        read(json!({ "metadata": metadata, "spec": { "group": "web", "shards": ["a", "b"] }, "status": status }))
    }

    fn shard_group(shard: &str, size: i32, replicas: i32, conditions: &Value) -> NstanceShardGroup {
        let spec = json!({ "group": "web", "shard": shard, "size": size });
        let status = json!({ "replicas": replicas, "conditions": conditions });
        read(json!({ "metadata": { "name": format!("web--{shard}") }, "spec": spec, "status": status }))
    }

    fn machine(name: &str, shard: &str, ready: bool, conditions: &Value) -> NstanceMachine {
        let status = json!({ "shard": shard, "ready": ready, "conditions": conditions });
        read(json!({ "metadata": { "name": name }, "spec": { "group": "web" }, "status": status }))
    }

    /// Two shards, one of them silent, and a machine that a budget holds.
    fn whole() -> Whole {
        let group = Group {
            pool: pool(&json!([condition("Ready", "False", "Reconciling", "not all shards have their share: …")])),
            machine_pool: Some(read(json!({
                "metadata": { "name": "web", "namespace": "machines" },
                "spec": { "clusterName": "c", "replicas": 3 }, "status": { "readyReplicas": 1 },
            }))),
        };
        let silent = json!([
            condition("Ready", "False", "ShardUnreachable", "shard b does not answer: …; check its server"),
            condition("ShardReachable", "False", "ShardUnreachable", "shard b does not answer: …; check its server"),
        ]);
        let held = json!([condition("Drained", "False", "BlockedByPDB", "pod shop/web-1: budget shop/web")]);
        Whole {
            group,
            shard_groups: vec![
                shard_group("b", 2, 1, &silent),
                shard_group("a", 1, 1, &json!([condition("Ready", "True", "SyncSucceeded", "all is well")])),
            ],
            machines: vec![machine("y", "b", true, &held), machine("x", "a", true, &json!([]))],
            nodes: [("x".to_owned(), "node-x".to_owned())].into(),
        }
    }

    #[test]
    fn a_silent_shard_and_a_blocked_drain_are_what_a_group_waits_for() {
        let whole = whole();
        let shards = whole.shards();
        assert_eq!(
            shards.iter().map(|one| (one.wanted, one.current, one.ready)).collect::<Vec<_>>(),
            [(1, 1, 1), (2, 1, 1)]
        );
        assert_eq!(shards[0].silent_since, None);
        assert_eq!(shards[1].silent_since.map(|time| time.to_string()).as_deref(), Some("2026-01-01T00:00:00Z"));
        let instances = whole.instances();
        assert_eq!(instances[0].node.as_deref(), Some("node-x"));
        assert!(!instances[0].is_going && instances[1].is_going);
        let waits: Vec<_> = whole.waits().into_iter().map(|wait| format!("{}: {}", wait.what, wait.why)).collect();
        assert_eq!(
            waits,
            ["shard b: shard b does not answer: …; check its server", "instance y: pod shop/web-1: budget shop/web",]
        );
        assert_eq!(whole.refusal(), None, "silence is no refusal");
    }

    #[test]
    fn a_group_at_rest_waits_for_nothing() {
        let mut whole = whole();
        whole.group.pool = pool(&json!([condition("Ready", "True", "Reconciled", "all is well")]));
        whole.shard_groups.remove(0);
        whole.machines.remove(0);
        assert_eq!(whole.waits(), []);
        let summary = Summary::of(&whole.group);
        assert_eq!(summary.counts(), "2 of 3 instances, 1 ready");
    }

    #[test]
    fn what_is_paused_is_named() {
        let mut group = whole().group;
        assert_eq!(paused(&group), None);
        group.pool = pool(&json!([condition("Paused", "True", "Paused", "paused")]));
        assert_eq!(paused(&group).as_deref(), Some("Cluster c"));
        let annotations = Some([(api::machine::PAUSED_ANNOTATION.to_owned(), String::new())].into());
        group.machine_pool.as_mut().unwrap().metadata.annotations.clone_from(&annotations);
        assert_eq!(paused(&group).as_deref(), Some("MachinePool web"));
        group.pool.metadata.annotations = annotations;
        assert_eq!(paused(&group).as_deref(), Some("NstanceMachinePool web"));
        group.machine_pool = None;
        assert_eq!(Summary::of(&group).counts(), "2 instances");
    }

    #[test]
    fn a_pool_without_a_machine_pool_or_with_a_refusal_says_so() {
        let mut whole = whole();
        whole.group.machine_pool = None;
        whole.group.pool = pool(&json!([condition("Ready", "False", "Invalid", "shard c is unknown")]));
        let refused = json!([
            condition("Ready", "False", "ConfigValidationFailed", "no template web"),
            condition("ConfigValid", "False", "ConfigValidationFailed", "no template web"),
        ]);
        whole.shard_groups = vec![shard_group("a", 1, 0, &refused)];
        whole.machines.clear();
        let waits: Vec<_> = whole.waits().into_iter().map(|wait| wait.why).collect();
        assert_eq!(waits[0], "shard c is unknown");
        assert!(waits[1].starts_with("no MachinePool refers to it"), "{waits:?}");
        assert_eq!(waits[2], "no template web");
        let refusal = whole.refusal().unwrap();
        assert_eq!((refusal.what.as_str(), refusal.why.as_str()), ("shard a", "no template web"));
    }
}
