//! What is decoded of each kind, and what of that is kept.

use std::{collections::BTreeMap, time::Duration};

use api::{
    performer::{
        CONTAINER_NAME, GENERATION_ANNOTATION, IMAGE_ANNOTATION, INPUT_HASH_ANNOTATION, LABEL_PERFORMER, Performer,
        PerformerSpec, PerformerStatus, REPLACEMENTS_ANNOTATION, VERSION_ANNOTATION, owned_name,
    },
    workspace::{MOST_VALUES, count_values},
};
use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Pod, Service},
    apimachinery::pkg::{
        apis::meta::v1::{ObjectMeta, OwnerReference, Time},
        util::intstr::IntOrString,
    },
};
use plan::performers::{
    Deletion, Exit, Foreign, ImageWriter, PodFacts, PodPhase, PortFacts, Scheduled, ServiceFacts, ServiceType,
    TargetPort, Waiting,
};
use runtime::{Key, Packed, lean_metadata, readable, view_of};
use serde::{Deserialize, Deserializer, de::IgnoredAny};
use serde_json::value::RawValue;

use crate::MANAGER;

#[derive(Clone, Debug, Deserialize)]
pub struct PerformerView {
    #[serde(deserialize_with = "lean_metadata")]
    metadata: ObjectMeta,
    #[serde(default, deserialize_with = "bounded")]
    spec: Option<PerformerSpec>,
    #[serde(default, deserialize_with = "readable")]
    status: Option<PerformerStatus>,
}

view_of!(PerformerView, Performer);

/// As [`readable`], but of no more than [`MOST_VALUES`]: a toleration takes three bytes in an object and a hundred as a
/// value, and every round of its namespace holds several copies.
fn bounded<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<PerformerSpec>, D::Error> {
    let text = Box::<RawValue>::deserialize(deserializer)?;
    Ok(if count_values(text.get()) > MOST_VALUES { None } else { serde_json::from_str(text.get()).ok() })
}

impl PerformerView {
    /// Labels, annotations and owners are never looked at, and may be large.
    #[allow(clippy::unnecessary_wraps, reason = "the form that every kind's filter has")]
    pub fn project(self) -> Option<Packed<Performer>> {
        let ObjectMeta { name, namespace, uid, resource_version, generation, deletion_timestamp, finalizers, .. } =
            self.metadata;
        let metadata = ObjectMeta {
            name,
            namespace,
            uid,
            resource_version,
            generation,
            deletion_timestamp,
            finalizers,
            ..ObjectMeta::default()
        };
        Some(Packed::new(&Performer { metadata, spec: self.spec, status: self.status }))
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(from = "SentPod")]
pub struct PodView {
    metadata: ObjectMeta,
    /// Who set the image of the performer's container, where the server says so.
    image_manager: Option<String>,
    spec: PodSpecView,
    status: PodStatusView,
}

view_of!(PodView, Pod);

/// What is decoded of a pod.
#[derive(Deserialize)]
struct SentPod {
    metadata: PodMetadata,
    #[serde(default)]
    spec: PodSpecView,
    #[serde(default)]
    status: PodStatusView,
}

impl From<SentPod> for PodView {
    fn from(sent: SentPod) -> Self {
        let SentPod { mut metadata, spec, status } = sent;
        let image_manager = image_manager(metadata.managed_fields.take().unwrap_or_default());
        Self { metadata: metadata.into(), image_manager, spec, status }
    }
}

/// Metadata with the one thing that only managedFields show: who changed the image. The bulk of them
/// is skipped while decoding.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodMetadata {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    creation_timestamp: Option<Time>,
    deletion_timestamp: Option<Time>,
    deletion_grace_period_seconds: Option<i64>,
    finalizers: Option<Vec<String>>,
    owner_references: Option<Vec<OwnerReference>>,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
    managed_fields: Option<Vec<ManagerView>>,
}

impl From<PodMetadata> for ObjectMeta {
    fn from(lean: PodMetadata) -> Self {
        Self {
            name: lean.name,
            namespace: lean.namespace,
            uid: lean.uid,
            resource_version: lean.resource_version,
            creation_timestamp: lean.creation_timestamp,
            deletion_timestamp: lean.deletion_timestamp,
            deletion_grace_period_seconds: lean.deletion_grace_period_seconds,
            finalizers: lean.finalizers,
            owner_references: lean.owner_references,
            labels: lean.labels,
            annotations: lean.annotations,
            ..Self::default()
        }
    }
}

/// One writer of the object and the fields whose values it has set.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ManagerView {
    #[serde(default)]
    manager: String,
    fields_v1: Option<FieldsView>,
}

#[derive(Deserialize)]
struct FieldsView {
    #[serde(rename = "f:spec", default)]
    spec: SpecFieldsView,
}

#[derive(Default, Deserialize)]
struct SpecFieldsView {
    /// By their key, for example `k:{"name":"performer"}`.
    #[serde(rename = "f:containers", default)]
    containers: BTreeMap<String, ContainerFieldsView>,
}

#[derive(Deserialize)]
struct ContainerFieldsView {
    #[serde(rename = "f:image")]
    image: Option<IgnoredAny>,
}

/// The writer of the performer's image. A value that admission rewrote belongs to the writer of the request.
fn image_manager(managers: Vec<ManagerView>) -> Option<String> {
    let key = format!(r#"k:{{"name":"{CONTAINER_NAME}"}}"#);
    let sets_it = |writer: &ManagerView| {
        let fields = writer.fields_v1.as_ref().and_then(|fields| fields.spec.containers.get(&key));
        fields.is_some_and(|container| container.image.is_some())
    };
    managers.into_iter().find(sets_it).map(|writer| writer.manager)
}

#[derive(Clone, Debug, Default, Deserialize)]
struct PodSpecView {
    #[serde(default)]
    containers: Vec<ContainerView>,
}

#[derive(Clone, Debug, Deserialize)]
struct ContainerView {
    #[serde(default)]
    name: String,
    #[serde(default)]
    image: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodStatusView {
    phase: Option<String>,
    reason: Option<String>,
    message: Option<String>,
    #[serde(default)]
    conditions: Vec<ConditionView>,
    #[serde(default)]
    container_statuses: Vec<ContainerStatusView>,
    #[serde(default)]
    init_container_statuses: Vec<ContainerStatusView>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ConditionView {
    #[serde(rename = "type")]
    kind: String,
    status: String,
    reason: Option<String>,
    message: Option<String>,
    last_transition_time: Option<Time>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ContainerStatusView {
    #[serde(default)]
    name: String,
    #[serde(default)]
    restart_count: u32,
    #[serde(default)]
    state: ContainerStateView,
    #[serde(default)]
    last_state: ContainerStateView,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct ContainerStateView {
    waiting: Option<WaitingView>,
    terminated: Option<TerminatedView>,
}

#[derive(Clone, Debug, Deserialize)]
struct WaitingView {
    #[serde(default)]
    reason: String,
    #[serde(default)]
    message: String,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct TerminatedView {
    #[serde(default)]
    exit_code: i32,
    #[serde(default)]
    reason: String,
    finished_at: Option<Time>,
}

fn time(time: Option<&Time>) -> Option<Timestamp> {
    time.map(|time| time.0)
}

fn text(text: Option<String>) -> Option<Box<str>> {
    text.map(Into::into)
}

impl PodView {
    /// Only pods whose name a Performer could claim; strangers among them are kept, so that they are seen.
    pub fn project(self) -> Option<PodFacts> {
        let meta = self.metadata;
        let performer = performer_name(meta.name.as_deref()?)?;
        let is_selected = label(&meta, LABEL_PERFORMER) == Some(performer);
        let mut containers = self.spec.containers;
        let image = take_ours(&mut containers, |c| &c.name).map(|c| c.image).unwrap_or_default();
        let image: Box<str> = image.into();
        let annotation = |name: &str| meta.annotations.as_ref().and_then(|all| all.get(name)).cloned();
        let ready = self.status.conditions.iter().find(|condition| condition.kind == "Ready");
        let mut statuses = self.status.container_statuses;
        let container = take_ours(&mut statuses, |c| &c.name);
        // Where ours cannot be distinguished from others, none is known to be another's.
        let beside = container.as_ref().map(|_| statuses).unwrap_or_default();
        let foreign = self.status.init_container_statuses.into_iter().chain(beside).find_map(foreign);
        let container = container.unwrap_or_default();
        Some(PodFacts {
            owner_uid: owner(&meta),
            created_at: time(meta.creation_timestamp.as_ref()),
            image_writer: match self.image_manager {
                Some(manager) if manager != MANAGER => ImageWriter::SomeoneElse,
                _ => ImageWriter::Us,
            },
            deletion: deletion(&meta),
            has_finalizers: meta.finalizers.as_ref().is_some_and(|finalizers| !finalizers.is_empty()),
            phase: PodPhase::read(self.status.phase.as_deref()),
            is_ready: ready.is_some_and(|condition| condition.status == "True"),
            ready_changed_at: ready.and_then(|condition| time(condition.last_transition_time.as_ref())),
            scheduled: scheduled(&self.status.conditions),
            waiting: container.state.waiting.map(waiting).map(Box::new),
            foreign: foreign.map(Box::new),
            exit: container.state.terminated.or(container.last_state.terminated).map(|end| {
                let finished_at = time(end.finished_at.as_ref());
                Box::new(Exit { code: end.exit_code, reason: end.reason.into(), finished_at })
            }),
            restarts: container.restart_count,
            ended: ended(self.status.reason, self.status.message),
            asked_image: text(annotation(IMAGE_ANNOTATION)).filter(|asked| *asked != image),
            image,
            input_hash: text(annotation(INPUT_HASH_ANNOTATION)),
            version: text(annotation(VERSION_ANNOTATION)),
            made_for: annotation(GENERATION_ANNOTATION).and_then(|generation| generation.parse().ok()),
            replacements: annotation(REPLACEMENTS_ANNOTATION).and_then(|count| count.parse().ok()).unwrap_or(0),
            is_selected,
            uid: meta.uid.unwrap_or_default().into(),
            resource_version: meta.resource_version.unwrap_or_default().into(),
        })
    }
}

/// The performer's own among a pod's containers or their statuses. Admission may put a sidecar first, and kubelet sorts
/// statuses by name: only the name distinguishes them, or that there is but one.
fn take_ours<T>(all: &mut Vec<T>, name: fn(&T) -> &str) -> Option<T> {
    let place = all.iter().position(|one| name(one) == CONTAINER_NAME).or((all.len() == 1).then_some(0))?;
    Some(all.remove(place))
}

fn waiting(view: WaitingView) -> Waiting {
    Waiting { reason: view.reason.into(), message: view.message.into() }
}

/// A container that does not start.
fn foreign(status: ContainerStatusView) -> Option<Foreign> {
    let waiting = status.state.waiting.map(waiting).filter(|waiting| waiting.problem().is_some())?;
    Some(Foreign { name: status.name.into(), waiting })
}

fn scheduled(conditions: &[ConditionView]) -> Scheduled {
    let Some(condition) = conditions.iter().find(|condition| condition.kind == "PodScheduled") else {
        return Scheduled::NotYet;
    };
    match (condition.status.as_str(), condition.reason.as_deref()) {
        ("True", _) => Scheduled::Yes(time(condition.last_transition_time.as_ref())),
        (_, Some("Unschedulable")) => Scheduled::Unschedulable(condition.message.as_deref().unwrap_or_default().into()),
        _ => Scheduled::NotYet,
    }
}

fn ended(reason: Option<String>, message: Option<String>) -> Option<Box<str>> {
    match (reason, message) {
        (Some(reason), Some(message)) => Some(format!("{reason}: {message}").into()),
        (Some(text), None) | (None, Some(text)) => Some(text.into()),
        (None, None) => None,
    }
}

#[derive(Clone, Debug, Deserialize)]
pub struct ServiceView {
    #[serde(deserialize_with = "lean_metadata")]
    metadata: ObjectMeta,
    #[serde(default)]
    spec: ServiceSpecView,
}

view_of!(ServiceView, Service);

#[derive(Clone, Debug, Default, Deserialize)]
struct ServiceSpecView {
    #[serde(rename = "type")]
    kind: Option<String>,
    #[serde(default)]
    selector: BTreeMap<Box<str>, Box<str>>,
    #[serde(default)]
    ports: Vec<PortView>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PortView {
    #[serde(default)]
    name: String,
    port: i32,
    target_port: Option<IntOrString>,
    protocol: Option<String>,
}

/// More than one of either is wrong, and is seen by these; a Service may have hundreds of thousands.
const MOST_LABELS: usize = 64;
const MOST_PORTS: usize = 2;

impl ServiceView {
    /// As for pods.
    pub fn project(self) -> Option<ServiceFacts> {
        let meta = self.metadata;
        performer_name(meta.name.as_deref()?)?;
        Some(ServiceFacts {
            owner_uid: owner(&meta),
            deletion: deletion(&meta),
            service_type: ServiceType::read(self.spec.kind.as_deref()),
            selector: self.spec.selector.into_iter().take(MOST_LABELS).collect(),
            ports: self.spec.ports.into_iter().take(MOST_PORTS).map(port).collect(),
            uid: meta.uid.unwrap_or_default().into(),
            resource_version: meta.resource_version.unwrap_or_default().into(),
        })
    }
}

fn port(view: PortView) -> PortFacts {
    PortFacts {
        name: view.name.into(),
        port: view.port,
        target: match view.target_port {
            Some(IntOrString::String(name)) => TargetPort::Name(name.into()),
            Some(IntOrString::Int(number)) => TargetPort::Number(number),
            None => TargetPort::Number(view.port),
        },
        is_tcp: matches!(view.protocol.as_deref(), None | Some("TCP")),
    }
}

fn label<'a>(meta: &'a ObjectMeta, name: &str) -> Option<&'a str> {
    meta.labels.as_ref()?.get(name).map(String::as_str)
}

fn owner(meta: &ObjectMeta) -> Option<Box<str>> {
    let owners = meta.owner_references.as_deref().unwrap_or_default();
    owners.iter().find(|owner| owner.controller == Some(true)).map(|owner| owner.uid.as_str().into())
}

fn deletion(meta: &ObjectMeta) -> Option<Deletion> {
    let grace = meta.deletion_grace_period_seconds.and_then(|seconds| u64::try_from(seconds).ok()).unwrap_or(0);
    time(meta.deletion_timestamp.as_ref()).map(|at| Deletion { at, grace: Duration::from_secs(grace) })
}

/// The Performer that a pod or Service name speaks of.
fn performer_name(owned: &str) -> Option<&str> {
    owned.strip_prefix(owned_name("").as_str()).filter(|name| !name.is_empty())
}

/// The Performer whose round must look when a pod or Service of this key changes.
pub fn performer_of(key: &Key) -> Option<Key> {
    performer_name(&key.name).map(|name| Key::new(key.namespace.clone(), name))
}

/// The pod and Service key of a Performer.
pub fn owned_key(key: &Key) -> Key {
    Key::new(key.namespace.clone(), owned_name(&key.name))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_names_that_a_performer_could_claim_are_kept() {
        let pod = |name: &str| {
            let view: PodView = serde_json::from_value(json!({"metadata": {"name": name, "namespace": "n"}})).unwrap();
            view.project().is_some()
        };
        assert!(pod("performer-a"));
        assert!(!pod("performer-"));
        assert!(!pod("coredns-1"));
        assert_eq!(performer_of(&Key::new("n", "performer-performer-1")), Some(Key::new("n", "performer-1")));
    }

    #[test]
    fn an_unreadable_spec_costs_that_object_only() {
        let view: PerformerView = serde_json::from_value(json!({"metadata": {"name": "a"}, "spec": 7})).unwrap();
        assert_eq!(view.project().unwrap().open().spec, None);
    }

    #[test]
    fn what_would_take_much_memory_is_not_kept() {
        let spec = |tolerations: usize| {
            let scheduling = json!({ "tolerations": vec![json!({}); tolerations] });
            let sent = json!({ "metadata": { "name": "a" }, "spec": { "image": "i", "scheduling": scheduling } });
            let view: PerformerView = serde_json::from_value(sent).unwrap();
            view.project().unwrap().open().spec
        };
        assert!(spec(100).is_some());
        assert!(spec(MOST_VALUES).is_none());
        let selector: BTreeMap<_, _> = (0..1000).map(|number| (format!("label-{number}"), "")).collect();
        let ports = vec![json!({ "port": 1 }); 1000];
        let sent = json!({ "metadata": { "name": "performer-a" }, "spec": { "selector": selector, "ports": ports } });
        let view: ServiceView = serde_json::from_value(sent).unwrap();
        let facts = view.project().unwrap();
        assert_eq!((facts.selector.len(), facts.ports.len()), (MOST_LABELS, MOST_PORTS));
    }

    #[test]
    fn a_performer_is_opened_as_it_was_sent() {
        let sent = json!({
            "metadata": {
                "name": "a", "namespace": "n", "uid": "u", "resourceVersion": "7", "generation": 3,
                "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["x/y"],
            },
            "spec": {
                "avsAddress": "0x12", "image": "i:1", "imagePullPolicy": "Never", "version": "v\u{1F600}\"\n",
                "config": {
                    "grpcPort": 70000, "environment": {"A": "", "B": "2"}, "args": ["-v"], "command": ["/p"],
                    "environmentFrom": [{"name": "C", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
                    "serviceAccountName": "s",
                },
                "resources": {"requests": {"cpu": "100m"}, "limits": {"memory": "1Gi"}},
                "scheduling": {
                    "nodeSelector": {"zone": "a"}, "tolerations": [{"operator": "Exists", "tolerationSeconds": 5}],
                    "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
                        {"weight": 1, "podAffinityTerm": {"topologyKey": "host", "labelSelector": {"matchLabels": {"a": "b"}}}},
                    ]}},
                    "runtimeClass": "kata", "priorityClassName": "high",
                },
                "hardwareRequirements": {"gpuType": "a100", "gpuCount": 2, "teeRequired": true, "teeType": "sgx"},
                "imagePullSecrets": [{"name": "r"}],
            },
            "status": {
                "phase": "Running", "ready": true, "podName": "p", "serviceName": "s", "grpcEndpoint": "e:1",
                "conditions": [{
                    "type": "Available", "status": "True", "reason": "PodReady", "message": "m",
                    "lastTransitionTime": "2026-01-01T00:00:00.123456789Z", "observedGeneration": 3,
                }],
                "lastUpgrade": "2026-01-01T00:00:00Z", "readyTime": "2026-01-01T00:00:01.5Z",
            },
        });
        let whole: Performer = serde_json::from_value(sent.clone()).unwrap();
        let view: PerformerView = serde_json::from_value(sent).unwrap();
        assert_eq!(view.project().unwrap().open(), whole);
    }

    #[test]
    fn a_waiting_container_and_its_last_end_are_read() {
        let view: PodView = serde_json::from_value(json!({
            "metadata": {"name": "performer-a", "labels": {LABEL_PERFORMER: "a"}},
            "spec": {"containers": [{"image": "x:1"}]},
            "status": {"phase": "Running", "containerStatuses": [{
                "restartCount": 3,
                "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}},
                "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled", "finishedAt": "2026-01-01T00:00:00Z"}}
            }]}
        }))
        .unwrap();
        let facts = view.project().unwrap();
        assert_eq!(&*facts.waiting.unwrap().reason, "CrashLoopBackOff");
        assert_eq!(facts.exit.unwrap().code, 137);
        assert_eq!((facts.restarts, &*facts.image, facts.is_selected), (3, "x:1", true));
    }

    /// Image, word of the waiting state and restarts of a pod with these containers, as the spec lists them and as
    /// kubelet sorts their statuses.
    fn seen(names: [&str; 2]) -> (String, Option<String>, u32) {
        let containers = names.map(|name| json!({"name": name, "image": format!("{name}:1")}));
        let mut sorted = names;
        sorted.sort_unstable();
        let statuses = sorted.map(|name| match name {
            "proxy" | "agent" => json!({"name": name, "restartCount": 0, "state": {"running": {}}}),
            _ => json!({"name": name, "restartCount": 3, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}),
        });
        let view: PodView = serde_json::from_value(json!({
            "metadata": {"name": "performer-a"},
            "spec": {"containers": containers},
            "status": {"phase": "Running", "containerStatuses": statuses}
        }))
        .unwrap();
        let facts = view.project().unwrap();
        (facts.image.into(), facts.waiting.map(|waiting| waiting.reason.into()), facts.restarts)
    }

    #[test]
    fn a_container_that_admission_added_is_seen_where_it_does_not_start() {
        let foreign = |init: &str, sidecar: &str, ours: &str| {
            let state = |name: &str, word: &str| json!({"name": name, "state": {"waiting": {"reason": word}}});
            let view: PodView = serde_json::from_value(json!({
                "metadata": {"name": "performer-a"},
                "status": {
                    "initContainerStatuses": [state("setup", init)],
                    "containerStatuses": [state("agent", sidecar), state(ours, "PodInitializing")],
                }
            }))
            .unwrap();
            view.project().unwrap().foreign.map(|foreign| foreign.name.into_string())
        };
        assert_eq!(foreign("CrashLoopBackOff", "PodInitializing", CONTAINER_NAME).as_deref(), Some("setup"));
        assert_eq!(foreign("", "ErrImagePull", CONTAINER_NAME).as_deref(), Some("agent"));
        assert_eq!(foreign("", "PodInitializing", CONTAINER_NAME), None);
        assert_eq!(foreign("", "ErrImagePull", "other"), None, "none of them is known to be ours");
    }

    #[test]
    fn the_writer_of_the_image_is_read_from_the_managed_fields() {
        let is_foreign = |managed_fields: serde_json::Value| {
            let view: PodView = serde_json::from_value(json!({
                "metadata": {"name": "performer-a", "managedFields": managed_fields},
            }))
            .unwrap();
            view.project().unwrap().image_writer == ImageWriter::SomeoneElse
        };
        let image = json!({"f:spec": {"f:containers": {r#"k:{"name":"performer"}"#: {".": {}, "f:image": {}}}}});
        let other = json!({"f:spec": {"f:containers": {
            r#"k:{"name":"performer"}"#: {"f:resources": {}}, r#"k:{"name":"agent"}"#: {"f:image": {}}}}});
        let by = |manager: &str, fields: &serde_json::Value| json!({"manager": manager, "fieldsV1": fields});
        assert!(!is_foreign(json!([by(MANAGER, &image), by("kubelet", &json!({"f:status": {}}))])));
        assert!(!is_foreign(json!([by("someone", &other), by(MANAGER, &image)])));
        assert!(is_foreign(json!([by(MANAGER, &other), by("kubectl-edit", &image)])));
        assert!(!is_foreign(json!([])), "the writer is unknown");
    }

    #[test]
    fn the_performers_container_is_found_by_its_name() {
        let expected = ("performer:1".to_owned(), Some("CrashLoopBackOff".to_owned()), 3);
        for names in [["agent", "performer"], ["performer", "agent"], ["proxy", "performer"], ["performer", "proxy"]] {
            assert_eq!(seen(names), expected, "{names:?}");
        }
        assert_eq!(seen(["one", "other"]), (String::new(), None, 0), "none of them is known to be ours");
    }
}
