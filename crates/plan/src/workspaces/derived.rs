//! Derived objects: what shall be there, what is there, and the steps from one to the other.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use api::condition::Reason;
use api::workspace::{API_VERSION, DIGEST_ANNOTATION, InventoryEntry, LABEL_MANAGED_BY, MANAGED_BY};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Map, Value, json};

use super::secret::Content;
use crate::Why;
use crate::object::{differs, digest};
use crate::round::{BlockedObject, Plan, Step, StepId};

/// Only labelled objects are watched, so no event says when a name that a stranger holds becomes free.
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

/// In the order of the declaration.
const KINDS: [ObjectKind; 12] = [
    ObjectKind::ConfigMap,
    ObjectKind::Secret,
    ObjectKind::NetworkPolicy,
    ObjectKind::ServiceAccount,
    ObjectKind::Role,
    ObjectKind::RoleBinding,
    ObjectKind::Service,
    ObjectKind::PersistentVolumeClaim,
    ObjectKind::StatefulSet,
    ObjectKind::User,
    ObjectKind::HelmRelease,
    ObjectKind::Ingress,
];

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

/// One object in the namespace of its owner. Written as its kind and name, so that it can be the key of a JSON map.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
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

impl From<ObjectId> for String {
    fn from(id: ObjectId) -> Self {
        id.to_string()
    }
}

impl TryFrom<String> for ObjectId {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let found = text.split_once(' ').and_then(|(kind, name)| {
            let kind = KINDS.into_iter().find(|known| known.as_str() == kind)?;
            Some(Self::new(kind, name))
        });
        found.ok_or_else(|| format!("{text} is not the kind and name of a derived object"))
    }
}

/// An object without the content of Secrets. It may hold a user's values, so it is never shown.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
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
    /// Of a Secret that is to be applied: what the body does not say.
    pub content: Option<Content>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Wish {
    /// It shall have these fields.
    Apply(Body),
    /// It shall stay as it is, but for what it is found by.
    Keep,
    /// What it shall be is not known at the moment; if it is there, it stays as it is. Without a reason it is being
    /// found out.
    Hold(Option<Why>),
}

impl Derived {
    pub(super) fn hold(kind: ObjectKind, name: &str, why: Option<Why>) -> Self {
        Self { id: ObjectId::new(kind, name), wish: Wish::Hold(why), content: None }
    }

    pub(super) fn keep(kind: ObjectKind, name: &str) -> Self {
        Self { id: ObjectId::new(kind, name), wish: Wish::Keep, content: None }
    }
}

/// An object that is there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Found {
    pub uid: String,
    pub resource_version: String,
    /// Of its controller.
    pub owner_uid: Option<String>,
    pub is_going: bool,
    pub generation: Option<i64>,
    /// All but status; of configs only metadata.
    pub content: Body,
    /// Null before one was written. One that cannot be read is unknown, see `read_status`.
    pub status: Value,
    /// What [`fingerprint`] gave for the server's answer to our last apply. What still differs in it will not be
    /// repaired by another: a webhook or another field manager wants it so.
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

    /// The status: empty if none was written yet, `None` if it cannot be read.
    pub(super) fn read_status<T: DeserializeOwned + Default>(&self) -> Option<T> {
        if self.status.is_null() { Some(T::default()) } else { T::deserialize(&self.status).ok() }
    }

    pub(super) fn is_to_apply(&self, id: &ObjectId, desired: &Value) -> bool {
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
    /// Store this list as the owner's `metadata.finalizers` (it holds ours), provided it has not changed meanwhile.
    AddFinalizer { finalizers: Vec<String> },
    /// Server-side apply. Without uid and version in the body it creates, and fails should the name exist. The executor
    /// adds the content of a Secret.
    Apply { id: ObjectId, body: Body, content: Option<Content> },
    /// Change some fields of an object that is not applied: it is no longer derived and stays for the time being, cannot
    /// be derived now, or its content is written once. Provided it still is this one in this version.
    Patch { id: ObjectId, uid: String, resource_version: String, patch: Body },
    /// Delete the object, provided it still is this one in this version.
    Delete { id: ObjectId, uid: String, resource_version: String },
    /// Store this list as the owner's `metadata.finalizers` (ours taken out), provided it has not changed meanwhile.
    ReleaseFinalizer { finalizers: Vec<String> },
}

/// What an action gives back: the [`fingerprint`] of what the server made of an apply that did not give what was asked
/// for.
pub type Done = Option<String>;

/// What the server made of applies that did not give what was asked for; see [`Found::accepted`].
pub type Accepted = BTreeMap<ObjectId, String>;

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
        self.derive_with(kind, name, fields, None, &Value::Null)
    }

    /// A Secret. `digest` names its content, where that is known.
    pub(super) fn derive_secret(
        &self,
        name: impl Into<String>,
        fields: Value,
        content: Content,
        digest: Option<&str>,
    ) -> Derived {
        self.derive_with(ObjectKind::Secret, name, fields, Some(content), &json!(digest))
    }

    fn derive_with(
        &self,
        kind: ObjectKind,
        name: impl Into<String>,
        fields: Value,
        content: Option<Content>,
        content_digest: &Value,
    ) -> Derived {
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
        let mut whole = Value::Object(body.clone());
        if !content_digest.is_null() {
            whole["data"] = content_digest.clone();
        }
        body["metadata"]["annotations"][DIGEST_ANNOTATION] = json!(digest(&whole));
        Derived { id, wish: Wish::Apply(Body(Value::Object(body))), content }
    }

    pub(super) fn labels(&self) -> Map<String, Value> {
        let labels = self.labels.iter().map(|(label, value)| (label.clone(), json!(value)));
        labels.chain([(LABEL_MANAGED_BY.to_owned(), json!(MANAGED_BY))]).collect()
    }
}

/// Adds what is in the way of wanted objects: strangers that hold their names, and what they shall be if that cannot be
/// known.
pub(super) fn block<Q>(plan: &mut Plan<Action, Q>, owner_uid: &str, wanted: &[Derived], objects: &Objects) {
    for Derived { id, wish, .. } in wanted {
        match (wish, objects.get(id)) {
            (Wish::Hold(Some(why)), _) => block_object(plan, id, why.clone()),
            (Wish::Apply(_), Some(found)) if !found.is_of(owner_uid) => {
                let message = format!("{id} exists and belongs to another owner; rename or delete it");
                block_object(plan, id, Why { reason: Reason::ObjectTaken, message });
            }
            _ => {}
        }
    }
}

/// Keeps the most important first.
pub(super) fn block_object<Q>(plan: &mut Plan<Action, Q>, id: &ObjectId, why: Why) {
    plan.blocked_objects.push(BlockedObject { object: id.to_string(), why });
    plan.blocked_objects.sort_by_key(|blocked| blocked.why.reason);
}

/// Applies what is wanted and not so, after `first`, but for what relies on something that a stranger holds the name of.
pub(super) fn converge<Q>(
    plan: &mut Plan<Action, Q>,
    owner_uid: &str,
    wanted: &[Derived],
    objects: &Objects,
    first: Option<StepId>,
) {
    let mut wanted: Vec<_> = wanted.iter().collect();
    wanted.sort_by_key(|derived| derived.id.kind);
    let is_taken = |id: &ObjectId| objects.get(id).is_some_and(|found| !found.is_of(owner_uid));
    let taken: Vec<_> = wanted.iter().map(|derived| &derived.id).filter(|id| is_taken(id)).map(|id| id.kind).collect();
    let mut made = Vec::new();
    for Derived { id, wish, content } in wanted {
        let Wish::Apply(body) = wish else { continue };
        if id.kind.relies_on().iter().any(|kind| taken.contains(kind)) {
            continue;
        }
        let body = match objects.get(id) {
            None => body.clone(),
            Some(found) if !found.is_of(owner_uid) => {
                plan.look_within(TAKEN_LOOK);
                continue;
            }
            Some(found) if !found.is_going && found.is_to_apply(id, &body.0) => {
                let mut body = body.clone();
                body.0["metadata"]["uid"] = json!(found.uid);
                body.0["metadata"]["resourceVersion"] = json!(found.resource_version);
                body
            }
            // As it should be; or, once it is gone, its event brings another round.
            Some(_) => continue,
        };
        let needs: Vec<_> = needs(id, &body, &made).chain(first).collect();
        let action = Action::Apply { id: id.clone(), body, content: content.clone() };
        let step = plan.push_step(Step::new(action).needs(needs));
        // What is ours already can be relied on, whatever becomes of its repair.
        if !objects.contains_key(id) {
            made.push((id, step));
        }
    }
}

/// What must be made before this one is applied: what it relies on, and the configs that it refers to.
fn needs<'a>(id: &'a ObjectId, body: &Body, made: &'a [(&ObjectId, StepId)]) -> impl Iterator<Item = StepId> + use<'a> {
    let has_configs = made.iter().any(|(other, _)| other.kind.is_config());
    // Names with a hash in them are not found by accident, so the text alone decides.
    let text = if has_configs { body.0.to_string() } else { String::new() };
    let is_needed = move |other: &ObjectId| {
        let is_referred_to = other.kind.is_config() && text.contains(&other.name);
        is_referred_to || id.kind.relies_on().contains(&other.kind)
    };
    made.iter().filter(move |(other, _)| is_needed(other)).map(|(_, step)| *step)
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
pub(super) fn inventory<'a>(
    owner_uid: &str,
    objects: &'a Objects,
    applied: impl Iterator<Item = &'a ObjectId>,
) -> Vec<InventoryEntry> {
    let ours = objects.iter().filter(|(_, found)| found.is_of(owner_uid)).map(|(id, _)| id);
    // What was deleted may take its time to go; the next round sees.
    let present: BTreeSet<_> = ours.chain(applied).collect();
    present.into_iter().cloned().map(entry).collect()
}

fn entry(id: ObjectId) -> InventoryEntry {
    let group = id.kind.api_version().split_once('/').map_or(String::new(), |(group, _)| format!(".{group}"));
    InventoryEntry { kind: format!("{}{group}", id.kind.as_str()), name: id.name }
}
