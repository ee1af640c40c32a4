//! What a Node should be, and what it takes to get there. Pure.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::{
        coordination::v1::{Lease, LeaseSpec},
        core::v1::{Node, NodeCondition, NodeSpec},
    },
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference},
};
use serde_json::{Value, json};

use super::NodeOptions;

/// Cluster API copies it into the Machine, whose webhook accepts nothing but a version of Kubernetes.
const KUBELET_VERSION: &str = "v1.36.3";

/// A kubelet's: after four missed renewals the Node counts as lost.
const LEASE_SECONDS: i32 = 40;

/// A kubelet's: the Lease says that the Node lives, its status is repeated rarely.
const HEARTBEAT: SignedDuration = SignedDuration::from_mins(5);

/// What a large machine offers. Pods there are played: they use nothing.
const CAPACITY: [(&str, &str); 3] = [("cpu", "64"), ("memory", "256Gi"), ("pods", "500")];

/// Conditions as a kubelet has them: type, status, reason.
const CONDITIONS: [(&str, &str, &str); 4] = [
    ("MemoryPressure", "False", "AgentHasSufficientMemory"),
    ("DiskPressure", "False", "AgentHasNoDiskPressure"),
    ("PIDPressure", "False", "AgentHasSufficientPID"),
    ("Ready", "True", "AgentReady"),
];

/// One request.
#[derive(Debug, PartialEq)]
pub enum Write {
    Create(Box<Node>),
    /// Of metadata and spec.
    Patch(Value),
    Status(Value),
}

/// The provider id of a Node that is another machine's.
pub fn foreign(found: &Node, node: &NodeOptions) -> Option<String> {
    let id = found.spec.as_ref()?.provider_id.clone()?;
    (!id.is_empty() && id != node.provider_id).then_some(id)
}

/// What is missing. Nothing for a Node that is as it should be: what others added to it stays.
pub fn writes(found: Option<&Node>, node: &NodeOptions, now: Timestamp) -> Vec<Write> {
    let labels = labels(node);
    let Some(found) = found else {
        let metadata =
            ObjectMeta { name: Some(node.instance_id.clone()), labels: Some(labels), ..ObjectMeta::default() };
        let spec = NodeSpec { provider_id: Some(node.provider_id.clone()), ..NodeSpec::default() };
        let create = Node { metadata, spec: Some(spec), status: None };
        return vec![Write::Create(Box::new(create)), Write::Status(status(None, node, now))];
    };
    let mut writes = Vec::new();
    let there = found.metadata.labels.clone().unwrap_or_default();
    let missing: BTreeMap<_, _> = labels.into_iter().filter(|(key, value)| there.get(key) != Some(value)).collect();
    let has_id = found.spec.as_ref().and_then(|spec| spec.provider_id.as_ref()).is_some_and(|id| !id.is_empty());
    if !missing.is_empty() || !has_id {
        writes.push(Write::Patch(json!({
            "metadata": { "labels": missing },
            "spec": { "providerID": node.provider_id },
        })));
    }
    if !is_fresh(found, now) {
        writes.push(Write::Status(status(Some(found), node, now)));
    }
    writes
}

fn labels(node: &NodeOptions) -> BTreeMap<String, String> {
    let own = [
        ("kubernetes.io/hostname", &*node.instance_id),
        ("kubernetes.io/os", "linux"),
        ("kubernetes.io/arch", arch()),
        ("nstance.dev/group", &node.group),
        ("nstance.dev/shard", &node.shard),
        ("topology.kubernetes.io/zone", &node.shard),
    ];
    let own = own.map(|(key, value)| (key.to_owned(), value.to_owned()));
    node.labels.clone().into_iter().chain(own).collect()
}

/// As Kubernetes spells it.
fn arch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn condition<'a>(node: &'a Node, kind: &str) -> Option<&'a NodeCondition> {
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|condition| condition.type_ == kind)
}

/// Whether the status says what it should, and recently.
fn is_fresh(node: &Node, now: Timestamp) -> bool {
    let fresh = |(kind, status, _): (&str, &str, &str)| {
        condition(node, kind).is_some_and(|condition| {
            let beat = condition.last_heartbeat_time.as_ref();
            condition.status == status && beat.is_some_and(|beat| now.duration_since(beat.0).abs() < HEARTBEAT)
        })
    };
    let version = node.status.as_ref().and_then(|status| status.node_info.as_ref());
    version.is_some_and(|info| info.kubelet_version == KUBELET_VERSION) && CONDITIONS.into_iter().all(fresh)
}

/// A patch that leaves the conditions of others alone.
fn status(found: Option<&Node>, node: &NodeOptions, now: Timestamp) -> Value {
    // The API takes whole seconds.
    let now = now.round(jiff::Unit::Second).unwrap_or(now);
    let conditions: Vec<_> = CONDITIONS
        .into_iter()
        .map(|(kind, status, reason)| {
            let before = found.and_then(|found| condition(found, kind)).filter(|before| before.status == status);
            let since = before.and_then(|before| before.last_transition_time.as_ref()).map_or(now, |time| time.0);
            json!({
                "type": kind,
                "status": status,
                "reason": reason,
                "message": "reported by the instance's agent",
                "lastHeartbeatTime": now.to_string(),
                "lastTransitionTime": since.to_string(),
            })
        })
        .collect();
    let capacity: BTreeMap<_, _> = CAPACITY.into_iter().collect();
    let addresses = node.addresses.iter().filter(|address| !address.is_empty());
    let addresses = addresses.map(|address| json!({ "type": "InternalIP", "address": address }));
    let host = json!({ "type": "Hostname", "address": node.instance_id });
    json!({ "status": {
        "addresses": addresses.chain([host]).collect::<Vec<_>>(),
        "capacity": capacity,
        "allocatable": capacity,
        "conditions": conditions,
        "nodeInfo": {
            "architecture": arch(),
            "bootID": "",
            "containerRuntimeVersion": concat!("strata://", env!("CARGO_PKG_VERSION")),
            "kernelVersion": "",
            "kubeProxyVersion": "",
            "kubeletVersion": KUBELET_VERSION,
            "machineID": node.instance_id,
            "operatingSystem": "linux",
            "osImage": "",
            "systemUUID": "",
        },
    }})
}

/// The Lease that is renewed. It goes with the Node.
pub fn lease(node: &NodeOptions, uid: Option<&str>, now: Timestamp) -> Lease {
    let owner = uid.map(|uid| OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: node.instance_id.clone(),
        uid: uid.to_owned(),
        ..OwnerReference::default()
    });
    let metadata = ObjectMeta {
        name: Some(node.instance_id.clone()),
        owner_references: owner.map(|owner| vec![owner]),
        ..ObjectMeta::default()
    };
    let now = now.round(jiff::Unit::Microsecond).unwrap_or(now);
    let spec = LeaseSpec {
        holder_identity: Some(node.instance_id.clone()),
        lease_duration_seconds: Some(LEASE_SECONDS),
        renew_time: Some(MicroTime(now)),
        ..LeaseSpec::default()
    };
    Lease { metadata, spec: Some(spec) }
}

#[cfg(test)]
mod tests;
