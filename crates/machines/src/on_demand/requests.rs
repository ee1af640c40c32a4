//! Machines that were made for Pods, and the other Machines of the namespace.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use api::{
    condition::{ConditionStatus, ConditionType, Reason},
    machine::{MachineReason, NstanceMachine, ON_DEMAND_POD_ANNOTATION, ON_DEMAND_UID_LABEL},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use plan::machines::on_demand::{Infrastructure, PodName, Request, is_name};
use runtime::{Key, Kind, lean_metadata, readable, view_of};
use serde::Deserialize;

use super::pods::Pods;
use crate::{capi, cluster::is_paused, kinds::Kinds};

pub(super) type Machines = Kind<MachineView, Machine>;

#[derive(Clone, Debug, Deserialize)]
pub(super) struct MachineView {
    #[serde(deserialize_with = "lean_metadata")]
    metadata: ObjectMeta,
    #[serde(default, deserialize_with = "readable")]
    status: Option<Status>,
}

view_of!(MachineView, capi::MachineView);

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    node_ref: Option<NodeRef>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct NodeRef {
    name: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Machine {
    uid: String,
    is_deleting: bool,
    is_paused: bool,
    /// The Pod that it was made for.
    pod: Option<PodName>,
    /// The Node that it is.
    node: Option<String>,
}

#[expect(clippy::unnecessary_wraps, reason = "the form that every projection has")]
pub(super) fn machine(view: MachineView) -> Option<Machine> {
    let MachineView { metadata, status } = view;
    let node = status.and_then(|status| status.node_ref).map(|node| node.name).filter(|name| !name.is_empty());
    let (is_deleting, is_paused) = (metadata.deletion_timestamp.is_some(), is_paused(&metadata));
    Some(Machine { pod: pod(&metadata), is_deleting, is_paused, node, uid: metadata.uid.unwrap_or_default() })
}

fn pod(metadata: &ObjectMeta) -> Option<PodName> {
    let uid = metadata.labels.as_ref()?.get(ON_DEMAND_UID_LABEL)?.clone();
    let (namespace, name) = metadata.annotations.as_ref()?.get(ON_DEMAND_POD_ANNOTATION)?.split_once('/')?;
    Some(PodName { namespace: namespace.to_owned(), name: name.to_owned(), uid })
}

/// What all Machines say.
#[derive(Default)]
pub(super) struct Seen {
    pub requests: Vec<Request>,
    pub taken: BTreeSet<String>,
    pub nodes: BTreeMap<String, String>,
}

impl Machine {
    /// Where the Pod is that it was made for.
    pub fn pod_key(&self) -> Option<Key> {
        self.pod.as_ref().map(|pod| Key::new(pod.namespace.as_str(), pod.name.as_str()))
    }
}

pub(super) fn see(machines: &Machines, kinds: &Arc<Kinds>, pods: &Pods) -> Seen {
    let mut seen = Seen::default();
    for key in machines.store().keys() {
        let Some(found) = machines.get(&key) else { continue };
        let (name, machine) = (key.name.to_string(), &found.value);
        if let Some(node) = &machine.node {
            seen.nodes.insert(node.clone(), name.clone());
        }
        match (&machine.pod, machine.pod_key()) {
            (Some(pod), Some(pod_key)) => seen.requests.push(Request {
                infrastructure: infrastructure(kinds, &key, &machine.uid),
                uid: machine.uid.clone(),
                resource_version: found.version.to_string(),
                is_deleting: machine.is_deleting,
                is_paused: machine.is_paused,
                pod: pod.clone(),
                now: pods.one(&pod_key),
                node: machine.node.clone(),
                name,
            }),
            _ if is_name(&name) => drop(seen.taken.insert(name)),
            _ => {}
        }
    }
    // Of a Machine that is gone, what was made for it goes after it.
    kinds.members.store().for_each(|key, member| {
        if is_name(&key.name) && pod(&member.metadata).is_none() {
            seen.taken.insert(key.name.to_string());
        }
    });
    seen
}

fn infrastructure(kinds: &Kinds, key: &Key, machine: &str) -> Infrastructure {
    if !kinds.members.store().is_synced() {
        return Infrastructure::Unknown;
    }
    let Some(found) = kinds.members.get(key) else { return Infrastructure::Absent };
    let mut owners = found.value.metadata.owner_references.iter().flatten();
    if !owners.any(|owner| owner.uid == machine) {
        return Infrastructure::Foreign;
    }
    let group = found.value.spec.as_ref().map(|spec| spec.group().to_owned()).unwrap_or_default();
    Infrastructure::Present { group, refusal: refusal(&found.value) }
}

/// What speaks against the request for as long as neither it nor the group changes.
fn refusal(member: &NstanceMachine) -> Option<String> {
    let ready = member.status.as_ref()?.condition(ConditionType::Ready)?;
    let is_refused = matches!(ready.reason, MachineReason::Known(Reason::ConfigValidationFailed | Reason::Invalid));
    (ready.status == ConditionStatus::False && is_refused).then(|| ready.message.clone())
}
