//! Derived objects: what shall be there, what is there, and the steps from one to the other.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use api::condition::Reason;
use api::workspace::{API_VERSION, DIGEST_ANNOTATION, InventoryEntry, LABEL_MANAGED_BY, MANAGED_BY};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Map, Value, json};

use crate::object::{differs, digest};
use crate::{Plan, Why};

/// Only labelled objects are watched, so nobody tells when a name that a stranger holds becomes free.
const TAKEN_LOOK: Duration = Duration::from_secs(30);

/// The kinds that are derived, in the order in which they are applied: what others refer to or rely on comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ObjectKind {
    ConfigMap,
    Secret,
    NetworkPolicy,
    ServiceAccount,
    Role,
    RoleBinding,
    Service,
    PersistentVolumeClaim,
    StatefulSet,
    User,
    HelmRelease,
    Ingress,
}

impl ObjectKind {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ConfigMap => "ConfigMap",
            Self::Secret => "Secret",
            Self::NetworkPolicy => "NetworkPolicy",
            Self::ServiceAccount => "ServiceAccount",
            Self::Role => "Role",
            Self::RoleBinding => "RoleBinding",
            Self::Service => "Service",
            Self::PersistentVolumeClaim => "PersistentVolumeClaim",
            Self::StatefulSet => "StatefulSet",
            Self::User => "User",
            Self::HelmRelease => "HelmRelease",
            Self::Ingress => "Ingress",
        }
    }

    pub const fn api_version(self) -> &'static str {
        match self {
            Self::ConfigMap | Self::Secret | Self::ServiceAccount | Self::Service | Self::PersistentVolumeClaim => "v1",
            Self::NetworkPolicy | Self::Ingress => "networking.k8s.io/v1",
            Self::Role | Self::RoleBinding => "rbac.authorization.k8s.io/v1",
            Self::StatefulSet => "apps/v1",
            Self::User | Self::HelmRelease => API_VERSION,
        }
    }

    /// Immutable objects with a hash of their content in the name. Of these only metadata is followed.
    pub const fn is_config(self) -> bool {
        matches!(self, Self::ConfigMap | Self::Secret)
    }

    /// What must be the owner's own before this one is made. A pod that runs as a stranger's account has their rights,
    /// and a binding gives them ours, or us what their Role holds.
    const fn relies_on(self) -> &'static [Self] {
        match self {
            Self::RoleBinding => &[Self::ServiceAccount, Self::Secret, Self::Role],
            Self::StatefulSet => &[Self::ServiceAccount, Self::Secret],
            _ => &[],
        }
    }

    /// Places in which something added by others would change what the object does, so nothing more than ours may
    /// stand there. They are atomic to the API server: an apply takes out what is not in it.
    const fn exact(self) -> &'static [&'static str] {
        match self {
            Self::NetworkPolicy => &["/spec"],
            Self::Service => &["/spec/selector"],
            Self::StatefulSet => &["/spec/template/spec/nodeSelector"],
            Self::HelmRelease => &["/spec/values"],
            _ => &[],
        }
    }
}

/// One object in the namespace of its owner.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectId {
    pub kind: ObjectKind,
    pub name: String,
}

impl ObjectId {
    pub fn new(kind: ObjectKind, name: impl Into<String>) -> Self {
        Self { kind, name: name.into() }
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind.as_str(), self.name)
    }
}

/// A whole object. It may hold secrets and values, so it is never shown.
#[derive(Clone, PartialEq)]
pub struct Body(pub Value);

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

/// An object that shall be there.
#[derive(Clone, Debug, PartialEq)]
pub struct Derived {
    pub id: ObjectId,
    pub wish: Wish,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Wish {
    /// It shall have these fields.
    Apply(Body),
    /// It shall stay as it is.
    Keep,
    /// What it shall be is not known at the moment; if it is there, it stays as it is.
    Hold(Why),
}

/// An object that is there.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    pub uid: String,
    pub resource_version: String,
    /// Of its controller.
    pub owner_uid: Option<String>,
    pub is_going: bool,
    pub generation: Option<i64>,
    /// All but status; of configs only metadata.
    pub content: Body,
    pub status: Value,
    /// What [`fingerprint`] gave for the server's answer to our last apply. What still differs in it will not be
    /// mended by another: a webhook or another field manager wants it so.
    pub accepted: Option<String>,
}

pub type Objects = BTreeMap<ObjectId, Found>;

impl Found {
    pub(super) fn is_of(&self, owner_uid: &str) -> bool {
        self.owner_uid.as_deref() == Some(owner_uid)
    }

    pub(super) fn annotation(&self, name: &str) -> Option<&str> {
        self.content.0["metadata"]["annotations"][name].as_str()
    }

    fn is_to_apply(&self, id: &ObjectId, desired: &Value) -> bool {
        let live = &self.content.0;
        is_lacking(id, desired, live) && self.accepted.as_deref() != Some(&*fingerprint(live))
    }
}

/// Whether a live object is other than desired in anything that is ours to say.
pub fn is_lacking(id: &ObjectId, desired: &Value, live: &Value) -> bool {
    if id.kind.is_config() {
        return differs(&desired["metadata"], &live["metadata"]).is_some();
    }
    let exceeds = |place: &&str| {
        let (desired, live) = (desired.pointer(place), live.pointer(place));
        differs(live.unwrap_or(&Value::Null), desired.unwrap_or(&Value::Null)).is_some()
    };
    differs(desired, live).is_some() || id.kind.exact().iter().any(exceeds)
}

/// Names the content of a live object, whatever the server counts in it.
pub fn fingerprint(content: &Value) -> String {
    let mut content = content.clone();
    if let Some(metadata) = content.get_mut("metadata").and_then(Value::as_object_mut) {
        for counted in ["resourceVersion", "generation", "managedFields"] {
            metadata.remove(counted);
        }
    }
    digest(&content)
}

/// One effect on the cluster. Idempotent; carries the uid and version it was decided on wherever something is there.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Store this list as the owner's `metadata.finalizers` (it holds ours), provided nobody changed it meanwhile.
    AddFinalizer { finalizers: Vec<String> },
    /// Server-side apply. Without uid and version in the body it creates, and fails should the name exist.
    Apply { id: ObjectId, body: Body },
    /// Change some fields of an object that is no longer derived and stays for the time being, provided it still is
    /// this one in this version.
    Patch { id: ObjectId, uid: String, resource_version: String, patch: Body },
    /// Delete the object, provided it still is this one in this version.
    Delete { id: ObjectId, uid: String, resource_version: String },
    /// Store this list as the owner's `metadata.finalizers` (ours taken out), provided nobody changed it meanwhile.
    ReleaseFinalizer { finalizers: Vec<String> },
}

/// What came of one action. A round has one outcome for each action it tried; a refused object stops no other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Done,
    /// The API server refuses the object as it is: quota, admission, validation, a missing right.
    Rejected {
        message: String,
    },
    /// The namespace is going away; nothing can be created there.
    NamespaceTerminating,
    /// Anything that may pass: conflict, time-out, server error. The round is tried again.
    Failed,
}

/// Whose objects they are.
#[derive(Clone, Debug)]
pub(super) struct Owner {
    pub kind: &'static str,
    pub name: String,
    pub namespace: String,
    pub uid: String,
    /// Beside the one that says who manages it.
    pub labels: BTreeMap<String, String>,
}

impl Owner {
    pub(super) fn new(kind: &'static str, metadata: &ObjectMeta, labels: BTreeMap<String, String>) -> Self {
        Self {
            kind,
            name: metadata.name.clone().unwrap_or_default(),
            namespace: metadata.namespace.clone().unwrap_or_default(),
            uid: metadata.uid.clone().unwrap_or_default(),
            labels,
        }
    }

    /// The object with these fields; `fields` may bring labels and annotations of its own.
    pub(super) fn derive(&self, kind: ObjectKind, name: impl Into<String>, fields: Value) -> Derived {
        let id = ObjectId::new(kind, name);
        let Value::Object(mut body) = fields else { unreachable!("fields are an object") };
        body.insert("apiVersion".to_owned(), json!(kind.api_version()));
        body.insert("kind".to_owned(), json!(kind.as_str()));
        let metadata = body.entry("metadata").or_insert_with(|| json!({}));
        metadata["name"] = json!(id.name);
        metadata["namespace"] = json!(self.namespace);
        metadata["ownerReferences"] = json!([{
            "apiVersion": API_VERSION, "kind": self.kind, "name": self.name, "uid": self.uid, "controller": true,
        }]);
        for (label, value) in self.labels() {
            metadata["labels"][label] = json!(value);
        }
        let name = digest(&Value::Object(body.clone()));
        body["metadata"]["annotations"][DIGEST_ANNOTATION] = json!(name);
        Derived { id, wish: Wish::Apply(Body(Value::Object(body))) }
    }

    pub(super) fn labels(&self) -> Map<String, Value> {
        let labels = self.labels.iter().map(|(label, value)| (label.clone(), json!(value)));
        labels.chain([(LABEL_MANAGED_BY.to_owned(), json!(MANAGED_BY))]).collect()
    }
}

/// What stands in the way of one object, or of all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Trouble {
    pub id: Option<ObjectId>,
    pub why: Why,
}

impl Trouble {
    pub(super) fn whole(why: Why) -> Self {
        Self { id: None, why }
    }

    pub(super) fn of(id: &ObjectId, reason: Reason, message: impl Into<String>) -> Self {
        Self { id: Some(id.clone()), why: Why { reason, message: message.into() } }
    }
}

/// Wanted objects that strangers hold the names of, and those of which it is not known what they shall be.
pub(super) fn troubles(owner_uid: &str, wanted: &[Derived], objects: &Objects) -> Vec<Trouble> {
    let trouble = |Derived { id, wish }: &Derived| match (wish, objects.get(id)) {
        (Wish::Hold(why), _) => Some(Trouble { id: Some(id.clone()), why: why.clone() }),
        (Wish::Apply(_), Some(found)) if !found.is_of(owner_uid) => {
            let message = format!("{id} exists and belongs to someone else; rename or delete it");
            Some(Trouble::of(id, Reason::ObjectTaken, message))
        }
        _ => None,
    };
    wanted.iter().filter_map(trouble).collect()
}

/// Applies what is wanted and not so, but for what relies on something that a stranger holds the name of.
pub(super) fn converge(plan: &mut Plan<Action>, owner_uid: &str, wanted: &[Derived], objects: &Objects) {
    let mut wanted: Vec<_> = wanted.iter().collect();
    wanted.sort_by_key(|derived| derived.id.kind);
    let is_taken = |id: &ObjectId| objects.get(id).is_some_and(|found| !found.is_of(owner_uid));
    let taken: Vec<_> = wanted.iter().map(|derived| &derived.id).filter(|id| is_taken(id)).map(|id| id.kind).collect();
    for Derived { id, wish } in wanted {
        let Wish::Apply(body) = wish else { continue };
        if id.kind.relies_on().iter().any(|kind| taken.contains(kind)) {
            continue;
        }
        match objects.get(id) {
            None => plan.actions.push(Action::Apply { id: id.clone(), body: body.clone() }),
            Some(found) if !found.is_of(owner_uid) => plan.look_within(TAKEN_LOOK),
            // Once it is gone, its event brings another round.
            Some(found) if found.is_going => {}
            Some(found) if found.is_to_apply(id, &body.0) => {
                let mut body = body.clone();
                body.0["metadata"]["uid"] = json!(found.uid);
                body.0["metadata"]["resourceVersion"] = json!(found.resource_version);
                plan.actions.push(Action::Apply { id: id.clone(), body });
            }
            Some(_) => {}
        }
    }
}

/// Ours, and not wanted any more.
pub(super) fn surplus<'a>(
    owner_uid: &'a str,
    wanted: &'a [Derived],
    objects: &'a Objects,
) -> impl Iterator<Item = (&'a ObjectId, &'a Found)> {
    let wanted: BTreeSet<_> = wanted.iter().map(|derived| &derived.id).collect();
    objects.iter().filter(move |(id, found)| found.is_of(owner_uid) && !found.is_going && !wanted.contains(id))
}

pub(super) fn delete(id: &ObjectId, found: &Found) -> Action {
    Action::Delete { id: id.clone(), uid: found.uid.clone(), resource_version: found.resource_version.clone() }
}

/// The finalizers with ours, if it is not among them yet.
pub(super) fn add_finalizer(metadata: &ObjectMeta, finalizer: &str) -> Option<Action> {
    let mut finalizers = metadata.finalizers.clone().unwrap_or_default();
    let is_there = finalizers.iter().any(|present| present == finalizer);
    (!is_there).then(|| {
        finalizers.push(finalizer.to_owned());
        Action::AddFinalizer { finalizers }
    })
}

/// The finalizers without ours, if it is among them.
pub(super) fn release_finalizer(metadata: &ObjectMeta, finalizer: &str) -> Option<Action> {
    let mut finalizers = metadata.finalizers.clone().unwrap_or_default();
    let before = finalizers.len();
    finalizers.retain(|present| present != finalizer);
    (finalizers.len() < before).then_some(Action::ReleaseFinalizer { finalizers })
}

/// What is ours at the end of a round.
pub(super) fn inventory(
    owner_uid: &str,
    objects: &Objects,
    plan: &Plan<Action>,
    outcomes: &[Outcome],
) -> Vec<InventoryEntry> {
    let mut present: BTreeSet<_> =
        objects.iter().filter(|(_, found)| found.is_of(owner_uid)).map(|(id, _)| id.clone()).collect();
    for (action, outcome) in plan.actions.iter().zip(outcomes) {
        // What was deleted may take its time to go; the next round sees.
        if let (Action::Apply { id, .. }, Outcome::Done) = (action, outcome) {
            present.insert(id.clone());
        }
    }
    present.into_iter().map(entry).collect()
}

fn entry(id: ObjectId) -> InventoryEntry {
    let group = id.kind.api_version().split_once('/').map_or(String::new(), |(group, _)| format!(".{group}"));
    InventoryEntry { kind: format!("{}{group}", id.kind.as_str()), name: id.name }
}
