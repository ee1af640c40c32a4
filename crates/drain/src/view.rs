//! What is decoded of each kind, and what of that is kept.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::{
    api::{
        core::v1::{Namespace, Node, PersistentVolume, Pod},
        policy::v1::PodDisruptionBudget,
    },
    apimachinery::pkg::apis::meta::v1::{LabelSelector, ManagedFieldsEntry, ObjectMeta, Time},
};
use plan::drain::{self, DRAIN_ANNOTATION, FIELD_MANAGER, Labels, Name, Owner, Phase};
use runtime::{Metadata, lean_metadata, view_of};
use serde::Deserialize;

/// A node with its managed fields: they alone show when it was cordoned.
#[derive(Clone, Debug, Deserialize)]
pub struct NodeView {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: NodeSpecView,
    #[serde(default)]
    status: NodeStatusView,
}

view_of!(NodeView, Node);

#[derive(Clone, Debug, Default, Deserialize)]
struct NodeSpecView {
    unschedulable: Option<bool>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct NodeStatusView {
    conditions: Option<Vec<ConditionView>>,
    volumes_attached: Option<Vec<VolumeView>>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ConditionView {
    #[serde(rename = "type")]
    kind: String,
    status: String,
    last_transition_time: Option<Time>,
}

#[derive(Clone, Debug, Deserialize)]
struct VolumeView {
    name: String,
}

fn condition<'a>(conditions: Option<&'a Vec<ConditionView>>, kind: &str) -> Option<&'a ConditionView> {
    conditions?.iter().find(|condition| condition.kind == kind)
}

impl NodeView {
    pub fn project(self) -> Option<drain::Node> {
        let ObjectMeta { uid, resource_version, annotations, managed_fields, .. } = self.metadata;
        let volumes = self.status.volumes_attached.into_iter().flatten();
        Some(drain::Node {
            uid: uid?,
            version: resource_version?.parse().ok()?,
            is_cordoned: self.spec.unschedulable == Some(true),
            is_cordoned_by_drain: managed_fields.iter().flatten().any(is_cordon),
            drain: annotations.and_then(|mut annotations| annotations.remove(DRAIN_ANNOTATION)),
            drained_since: managed_fields.iter().flatten().filter_map(cordoned_at).max(),
            is_unreachable: condition(self.status.conditions.as_ref(), "Ready")
                .is_some_and(|ready| ready.status == "Unknown"),
            volumes_attached: volumes.map(|volume| volume.name).collect(),
        })
    }
}

/// Whether a drain made the node unschedulable: the server counts a field to the one who changed it.
fn is_cordon(entry: &ManagedFieldsEntry) -> bool {
    let fields = entry.fields_v1.as_ref().map(|fields| &fields.0["f:spec"]["f:unschedulable"]);
    entry.manager.as_deref() == Some(FIELD_MANAGER) && fields.is_some_and(|field| !field.is_null())
}

/// When a drain last changed what it writes to a node.
fn cordoned_at(entry: &ManagedFieldsEntry) -> Option<Timestamp> {
    (entry.manager.as_deref() == Some(FIELD_MANAGER)).then_some(())?;
    entry.time.as_ref().map(|time| time.0)
}

#[derive(Clone, Debug, Deserialize)]
pub struct PodView {
    #[serde(deserialize_with = "lean_metadata")]
    metadata: ObjectMeta,
    #[serde(default)]
    spec: PodSpecView,
    #[serde(default)]
    status: PodStatusView,
}

view_of!(PodView, Pod);

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodSpecView {
    node_name: Option<String>,
    priority: Option<i32>,
    /// The API server accepts a negative one, which means a second.
    termination_grace_period_seconds: Option<i64>,
    volumes: Option<Vec<PodVolumeView>>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodVolumeView {
    name: String,
    persistent_volume_claim: Option<ClaimView>,
    ephemeral: Option<serde::de::IgnoredAny>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ClaimView {
    claim_name: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct PodStatusView {
    phase: Option<String>,
    conditions: Option<Vec<ConditionView>>,
}

/// A pod and the node it is bound to: a read after a conflict may bring one of another node.
#[derive(Clone, Debug)]
pub struct Bound {
    pub node: String,
    pub pod: drain::Pod,
}

/// The API server's own default, for a pod that it has not defaulted.
const DEFAULT_GRACE: i64 = 30;
const MIRROR_ANNOTATION: &str = "kubernetes.io/config.mirror";

impl PodView {
    pub fn project(self) -> Option<Bound> {
        let ObjectMeta { name, namespace, uid, labels, annotations, owner_references, .. } = &self.metadata;
        let owner = owner_references.iter().flatten().find(|owner| owner.controller == Some(true));
        let name = Name::new(namespace.as_deref()?, name.as_deref()?);
        let (spec, status) = (&self.spec, &self.status);
        let ready = condition(status.conditions.as_ref(), "Ready");
        let grace = spec.termination_grace_period_seconds.unwrap_or(DEFAULT_GRACE);
        let pod = drain::Pod {
            uid: uid.clone()?,
            labels: labels.clone().unwrap_or_default(),
            phase: match status.phase.as_deref() {
                Some("Running") => Phase::Running,
                Some("Succeeded" | "Failed") => Phase::Completed,
                _ => Phase::Pending,
            },
            is_ready: ready.is_some_and(|ready| ready.status == "True"),
            owner: owner.map_or(Owner::Nothing, |owner| {
                if owner.kind == "DaemonSet" { Owner::DaemonSet } else { Owner::Other }
            }),
            is_mirror: annotations.as_ref().is_some_and(|all| all.contains_key(MIRROR_ANNOTATION)),
            priority: spec.priority.unwrap_or_default(),
            grace: Duration::from_secs(grace.try_into().unwrap_or(1)),
            bound_at: self.bound_at(),
            ends_at: self.metadata.deletion_timestamp.as_ref().map(|time| time.0),
            claims: claims(&name.name, spec.volumes.iter().flatten()),
            name,
        };
        Some(Bound { node: self.spec.node_name?, pod })
    }

    /// The API server stamps the condition when it binds a pod; one that was created with a node has none of that time.
    fn bound_at(&self) -> Option<Timestamp> {
        let scheduled = condition(self.status.conditions.as_ref(), "PodScheduled");
        let scheduled = scheduled.filter(|scheduled| scheduled.status == "True");
        let time = scheduled.and_then(|scheduled| scheduled.last_transition_time.as_ref());
        time.or(self.metadata.creation_timestamp.as_ref()).map(|time| time.0)
    }
}

/// The claim of an ephemeral volume is named by Kubernetes.
fn claims<'a>(pod: &str, volumes: impl Iterator<Item = &'a PodVolumeView>) -> BTreeSet<String> {
    let claim = |volume: &PodVolumeView| match (&volume.persistent_volume_claim, &volume.ephemeral) {
        (Some(claim), _) => Some(claim.claim_name.clone()),
        (None, Some(_)) => Some(format!("{pod}-{}", volume.name)),
        (None, None) => None,
    };
    volumes.filter_map(claim).collect()
}

#[derive(Clone, Debug, Deserialize)]
pub struct BudgetView {
    #[serde(deserialize_with = "lean_metadata")]
    metadata: ObjectMeta,
    #[serde(default)]
    spec: BudgetSpecView,
    #[serde(default)]
    status: BudgetStatusView,
}

view_of!(BudgetView, PodDisruptionBudget);

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct BudgetSpecView {
    selector: Option<LabelSelector>,
    unhealthy_pod_eviction_policy: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct BudgetStatusView {
    observed_generation: Option<i64>,
    disruptions_allowed: i32,
    current_healthy: i32,
    desired_healthy: i32,
    disrupted_pods: Option<BTreeMap<String, Time>>,
}

/// A budget, and the pods whose eviction its number already shows.
#[derive(Clone, Debug)]
pub struct Shown {
    pub budget: drain::Budget,
    pub disrupted: BTreeSet<String>,
}

impl BudgetView {
    pub fn project(self) -> Option<Shown> {
        let Self { metadata, spec, status } = self;
        let budget = drain::Budget {
            name: Name::new(metadata.namespace?, metadata.name?),
            version: metadata.resource_version?.parse().ok()?,
            selector: spec.selector,
            allowed: status.disruptions_allowed,
            spent: 0,
            healthy: status.current_healthy,
            desired: status.desired_healthy,
            releases_unready: spec.unhealthy_pod_eviction_policy.as_deref() == Some("AlwaysAllow"),
            is_current: status.observed_generation >= metadata.generation,
        };
        Some(Shown { budget, disrupted: status.disrupted_pods.unwrap_or_default().into_keys().collect() })
    }
}

#[allow(clippy::unnecessary_wraps, reason = "the form that every kind's projection has")]
pub fn labels(namespace: Metadata<Namespace>) -> Option<Labels> {
    Some(namespace.metadata.labels.unwrap_or_default())
}

#[derive(Clone, Debug, Deserialize)]
pub struct PersistentVolumeView {
    #[serde(deserialize_with = "lean_metadata")]
    metadata: ObjectMeta,
    #[serde(default)]
    spec: PersistentVolumeSpecView,
}

view_of!(PersistentVolumeView, PersistentVolume);

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PersistentVolumeSpecView {
    csi: Option<CsiView>,
    claim_ref: Option<ClaimRefView>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct CsiView {
    driver: String,
    volume_handle: String,
}

#[derive(Clone, Debug, Deserialize)]
struct ClaimRefView {
    namespace: String,
    name: String,
}

/// The claim of a volume, and how a node names the volume when it is attached.
#[derive(Clone, Debug)]
pub struct Claimed {
    pub volume: String,
    pub claim: Name,
}

impl PersistentVolumeView {
    pub fn project(self) -> Option<Claimed> {
        let (csi, claim) = (self.spec.csi?, self.spec.claim_ref?);
        let volume = format!("kubernetes.io/csi/{}^{}", csi.driver, csi.volume_handle);
        Some(Claimed { volume, claim: Name::new(claim.namespace, claim.name) })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(value: Value) -> drain::Pod {
        serde_json::from_value::<PodView>(value).unwrap().project().unwrap().pod
    }

    #[test]
    fn a_pod_is_reduced_to_what_a_drain_asks() {
        let found = pod(json!({
            "metadata": {
                "name": "web-1", "namespace": "team", "uid": "u1", "labels": {"app": "web"},
                "creationTimestamp": "2026-01-01T00:00:00Z",
                "ownerReferences": [
                    {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "x"},
                    {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "y", "controller": true},
                ],
            },
            "spec": {
                "nodeName": "n", "priority": 7, "terminationGracePeriodSeconds": 5,
                "volumes": [
                    {"name": "data", "persistentVolumeClaim": {"claimName": "web-data"}},
                    {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {}}},
                    {"name": "tmp", "emptyDir": {}},
                ],
            },
            "status": {"phase": "Running", "conditions": [
                {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:09Z"},
                {"type": "Ready", "status": "True"},
            ]},
        }));
        let expected = drain::Pod {
            name: Name::new("team", "web-1"),
            uid: "u1".into(),
            labels: [("app".to_owned(), "web".to_owned())].into(),
            phase: Phase::Running,
            is_ready: true,
            owner: Owner::Other,
            is_mirror: false,
            priority: 7,
            grace: Duration::from_secs(5),
            bound_at: Some("2026-01-01T00:00:09Z".parse().unwrap()),
            ends_at: None,
            claims: ["web-data".to_owned(), "web-1-scratch".to_owned()].into(),
        };
        assert_eq!(found, expected);
    }

    #[test]
    fn a_pod_without_status_was_bound_when_it_was_created() {
        let found = pod(json!({
            "metadata": {"name": "a", "namespace": "n", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z",
                "annotations": {"kubernetes.io/config.mirror": "x"},
                "ownerReferences": [{"apiVersion": "v1", "kind": "DaemonSet", "name": "d", "uid": "y", "controller": true}]},
            "spec": {"nodeName": "n"},
        }));
        assert_eq!(found.bound_at, Some("2026-01-01T00:00:00Z".parse().unwrap()));
        assert_eq!((found.owner, found.is_mirror, found.phase), (Owner::DaemonSet, true, Phase::Pending));
        assert_eq!(found.grace, Duration::from_secs(30));
        let found = pod(json!({
            "metadata": {"name": "a", "namespace": "n", "uid": "u"},
            "spec": {"nodeName": "n", "terminationGracePeriodSeconds": -1},
        }));
        assert_eq!(found.grace, Duration::from_secs(1));
    }

    #[test]
    fn the_time_of_the_cordon_is_what_the_server_noted_for_our_field_manager() {
        let node = json!({
            "metadata": {
                "name": "n", "uid": "u", "resourceVersion": "5", "annotations": {"strata.dev/drain": "one"},
                "managedFields": [
                    {"manager": "kubectl", "operation": "Update", "time": "2026-01-03T00:00:00Z"},
                    {"manager": "strata-drain", "operation": "Update", "time": "2026-01-02T00:00:00Z",
                     "fieldsV1": {"f:spec": {"f:unschedulable": {}}}},
                ],
            },
            "spec": {"unschedulable": true},
            "status": {
                "conditions": [{"type": "Ready", "status": "Unknown"}],
                "volumesAttached": [{"name": "kubernetes.io/csi/d^1", "devicePath": ""}],
            },
        });
        let node = serde_json::from_value::<NodeView>(node).unwrap().project().unwrap();
        assert_eq!(node.drained_since, Some("2026-01-02T00:00:00Z".parse().unwrap()));
        assert_eq!((node.drain.as_deref(), node.is_cordoned, node.is_unreachable), (Some("one"), true, true));
        assert_eq!(node.volumes_attached, ["kubernetes.io/csi/d^1".to_owned()].into());
    }

    #[test]
    fn a_budget_whose_status_is_of_an_older_spec_is_not_current() {
        let budget = |observed: Value| {
            let value = json!({
                "metadata": {"name": "b", "namespace": "n", "resourceVersion": "3", "generation": 2},
                "spec": {"selector": {}, "unhealthyPodEvictionPolicy": "AlwaysAllow"},
                "status": {"observedGeneration": observed, "disruptionsAllowed": 1, "currentHealthy": 2,
                    "desiredHealthy": 1, "expectedPods": 2, "disruptedPods": {"a": "2026-01-01T00:00:00Z"}},
            });
            serde_json::from_value::<BudgetView>(value).unwrap().project().unwrap()
        };
        assert!(!budget(json!(1)).budget.is_current);
        assert!(!budget(Value::Null).budget.is_current);
        let current = budget(json!(2));
        assert!(current.budget.is_current && current.budget.releases_unready && current.budget.allowed == 1);
        assert_eq!(current.disrupted, ["a".to_owned()].into());
    }

    #[test]
    fn a_volume_is_named_as_the_node_names_it() {
        let value = json!({"metadata": {"name": "pv"}, "spec": {
            "csi": {"driver": "csi.example", "volumeHandle": "vol-1"}, "claimRef": {"namespace": "n", "name": "data"}}});
        let claimed = serde_json::from_value::<PersistentVolumeView>(value).unwrap().project().unwrap();
        assert_eq!(
            (claimed.volume.as_str(), claimed.claim),
            ("kubernetes.io/csi/csi.example^vol-1", Name::new("n", "data"))
        );
    }
}
