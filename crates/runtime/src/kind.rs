//! One kind as a layer sees it: its cache, and writes whose answers enter the cache.

mod follow;
mod readiness;
mod subresource;

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions, Request};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::{sync::watch as signal, time::Instant};

pub(crate) use self::readiness::Cache;
use crate::{
    cluster::{Cluster, Freshness},
    error::{Chain, Error},
    followers::Wish,
    hub::Subscription,
    interruption::Interruption,
    key::Key,
    queue::Queue,
    selection::{Requirements, Selection},
    store::{Changed, Store, Versioned},
    view::View,
    watch::Target,
    writer::{Writer, decode, unmade},
};

/// What is left after a delete was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deleted {
    Gone,
    /// It has a deletion timestamp and waits for its grace period or finalizers.
    Terminating,
}

/// What became of one object in the cache of its kind.
#[derive(Debug)]
pub struct Change<'a, T> {
    pub key: &'a Key,
    pub before: Option<&'a T>,
    pub after: Option<&'a T>,
    /// Not from the answer to a request that was sent through this kind: the round that sent one knows, rounds of other
    /// objects may have to look. What other kinds' requests brought is news here, like what the watch brings.
    pub from_watch: bool,
}

/// Enqueues what the watch brings into `queue`: `concerns` gives the key to look at when the object of a key changes.
pub fn enqueue_on_watch<T>(
    queue: &Arc<Queue>,
    concerns: impl Fn(&Key) -> Option<Key> + Send + Sync + 'static,
) -> impl Fn(&Change<'_, T>) + Send + Sync + 'static {
    let queue = queue.clone();
    move |change| {
        if let (true, Some(key)) = (change.from_watch, concerns(change.key)) {
            queue.changed(&key);
        }
    }
}

/// Held from a change until listeners are notified, so that changes of one object arrive in their order: indexes may
/// be built on it.
struct Notifier<'a, T> {
    listeners: MutexGuard<'a, Vec<Listener<T>>>,
    news: &'a signal::Sender<u64>,
}

impl<T> Notifier<'_, T> {
    fn notify(&self, key: &Key, from_watch: bool, changed: &Changed<T>) {
        let before = changed.before.as_deref().map(|version| &version.value);
        let after = changed.after.as_deref().map(|version| &version.value);
        let change = Change { key, before, after, from_watch };
        self.listeners.iter().for_each(|listener| listener(&change));
        self.news.send_modify(|news| *news += 1);
    }
}

pub(crate) type Listener<T> = Box<dyn Fn(&Change<'_, T>) + Send + Sync>;

/// No object has this version: the store of an API server begins with it, empty.
const VERSION_OF_NOTHING: &str = "1";

/// A projection of a kind's objects: several may follow one watch, each with its own.
pub struct Kind<W: View, T> {
    store: Store<T>,
    project: fn(W) -> Option<T>,
    /// Notified of changes, in this order.
    listeners: Mutex<Vec<Listener<T>>>,
    types: W::DynamicType,
    writer: Writer,
    pub(crate) resource: &'static str,
    /// Known since it is watched, and taken apart.
    selection: OnceLock<(Selection, Option<Requirements>)>,
    /// Objects in the cache that are not selected: what a read or a write found under a name that was asked for. The
    /// watch of the selection would not speak of them, so a wider one does not either.
    strangers: Mutex<HashSet<Key>>,
    /// Why the watch does not run, if it does not.
    interruption: Interruption,
    /// When the server last spoke.
    contact: Mutex<Option<Instant>>,
    /// The cluster was removed: nothing enters the cache any more. Changes only while the listeners are locked.
    is_closed: AtomicBool,
    /// Keys to be read before they are planned for: a write had no answer, or a list spoke against the store.
    doubtful: Mutex<HashMap<Key, u64>>,
    /// Those that no round had settled when [`Kind::settle_all`] last looked.
    left: Mutex<HashMap<Key, u64>>,
    /// Counts changes of what is held, and of how far it can be believed.
    news: signal::Sender<u64>,
}

impl<W: View, T: Send + Sync + 'static> Kind<W, T> {
    /// `project` reduces a decoded object to what stays in memory; `None` for objects that do not concern us.
    pub fn new(resource: &'static str, writer: Writer, project: fn(W) -> Option<T>) -> Arc<Self>
    where
        W::DynamicType: Default,
    {
        Self::of(W::DynamicType::default(), resource, writer, project, Interruption::default())
    }

    /// A kind that is known only when the process runs.
    pub(crate) fn of(
        types: W::DynamicType,
        resource: &'static str,
        writer: Writer,
        project: fn(W) -> Option<T>,
        interruption: Interruption,
    ) -> Arc<Self> {
        Arc::new(Self {
            store: Store::default(),
            project,
            listeners: Mutex::default(),
            types,
            writer,
            resource,
            selection: OnceLock::new(),
            strangers: Mutex::default(),
            interruption,
            contact: Mutex::default(),
            is_closed: AtomicBool::new(false),
            doubtful: Mutex::default(),
            left: Mutex::default(),
            news: signal::Sender::new(0),
        })
    }

    pub fn store(&self) -> &Store<T> {
        &self.store
    }

    pub fn get(&self, key: &Key) -> Option<Arc<Versioned<T>>> {
        self.store.get(key)
    }

    /// Reads the object if there is doubt about it; without doubt this costs nothing.
    pub async fn settle(&self, key: &Key) -> Result<(), Error> {
        self.settle_for(key, false).await
    }

    async fn settle_for(&self, key: &Key, from_watch: bool) -> Result<(), Error> {
        let is_doubtful = self.doubtful().contains_key(key);
        if is_doubtful { self.refresh_for(key, from_watch).await } else { Ok(()) }
    }

    /// Settles every doubt that was there the last time already, as the watch would: a round that is about to read its
    /// own object is left to do so. What cannot be read stays doubtful; true if nothing does.
    pub(crate) async fn settle_all(&self) -> bool {
        let doubtful = self.doubtful().clone();
        let former = std::mem::replace(&mut *self.left.lock().unwrap_or_else(PoisonError::into_inner), doubtful);
        let mut is_settled = true;
        for (key, doubt) in former {
            if self.doubtful().get(&key).copied() != Some(doubt) {
                continue;
            }
            if let Err(error) = self.settle_for(&key, true).await {
                is_settled = false;
                tracing::debug!(error = %Chain(&error), %key, resource = self.resource, "could not be read");
            }
        }
        is_settled
    }

    /// The next round of this key begins with a read.
    pub(crate) fn doubt(&self, key: Key) {
        *self.doubtful().entry(key).or_default() += 1;
    }

    /// Adds a listener behind those that are there.
    pub(crate) fn listen(&self, listener: Listener<T>) {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner).push(listener);
    }

    /// Follows the watch of the selected objects; `None` if the kind does so already.
    pub(crate) fn subscribe(self: &Arc<Self>, selection: Selection, slowest: Duration) -> Option<Subscription> {
        if let Some((selected, _)) = self.selection.get() {
            assert_eq!(*selected, selection, "one kind has one selection; another selection is another Kind");
            return None;
        }
        self.selection.set((selection.clone(), selection.requirements())).ok()?;
        let target = Target { path: self.path(), is_metadata: W::metadata_api(), selection };
        let wish = Wish { resource: self.resource, target, slowest };
        Some(self.cluster().hub().subscribe(self.clone(), wish))
    }

    pub(crate) fn cluster(&self) -> &Cluster {
        &self.writer.cluster
    }

    /// Where its objects are, in all namespaces.
    fn path(&self) -> String {
        W::url_path(&self.types, None)
    }

    /// How far the cache can be believed. One of another cluster that is silent is unknown, not empty.
    pub fn freshness(&self) -> Freshness {
        if self.is_closed() {
            return Freshness { age: None, interruption: Some("the cluster was removed".to_owned()) };
        }
        let contact = *self.contact.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.cluster().clock().instant();
        let age = contact.filter(|_| self.store.is_synced()).map(|at| now.saturating_duration_since(at));
        Freshness { age, interruption: self.interruption.get() }
    }

    /// Whether a list was read, or it is known why none was: before that, an empty cache says nothing.
    pub fn is_settled(&self) -> bool {
        self.store.is_synced() || self.interruption.get().is_some()
    }

    /// Changes with every object in the cache, with the end of a list, and with an interruption and its end: for what
    /// waits for the cache without a queue.
    pub fn news(&self) -> signal::Receiver<u64> {
        self.news.subscribe()
    }

    fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::SeqCst)
    }

    /// To be held from a change of the store until listeners are notified.
    fn notifier(&self) -> Notifier<'_, T> {
        let listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        Notifier { listeners, news: &self.news }
    }

    /// Changes the store and notifies the listeners.
    fn change(&self, key: &Key, from_watch: bool, change: impl FnOnce(&Store<T>) -> Option<Changed<T>>) {
        let notifier = self.notifier();
        if self.is_closed() {
            return;
        }
        if let Some(changed) = change(&self.store) {
            if changed.after.is_none() {
                self.strangers().remove(key);
            }
            notifier.notify(key, from_watch, &changed);
        }
    }

    fn doubtful(&self) -> MutexGuard<'_, HashMap<Key, u64>> {
        self.doubtful.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub async fn create(&self, key: &Key, body: &impl Serialize) -> Result<u64, Error> {
        let params = PostParams { field_manager: Some(self.writer.manager.into()), ..PostParams::default() };
        let body = serde_json::to_vec(body).expect("our own objects serialise");
        let request = self.at(key).create(&params, body).map_err(|error| unmade("create", self.resource, error))?;
        let held = self.store.version(key);
        let answer = self.writer.send(self.resource, "create", request).await;
        self.absorb(key, held, "create", answer).await
    }

    /// A JSON merge patch. The caller puts `metadata.uid` and `metadata.resourceVersion` in it, so that it changes
    /// exactly the object that was looked at.
    pub async fn patch(&self, key: &Key, subresource: Option<&str>, patch: &impl Serialize) -> Result<u64, Error> {
        let params = PatchParams { field_manager: Some(self.writer.manager.into()), ..PatchParams::default() };
        let patch = Patch::Merge(patch);
        let request = match subresource {
            Some(subresource) => self.at(key).patch_subresource(subresource, &key.name, &params, &patch),
            None => self.at(key).patch(&key.name, &params, &patch),
        };
        let request = request.map_err(|error| unmade("patch", self.resource, error))?;
        let held = self.store.version(key);
        let answer = self.writer.send(self.resource, "patch", request).await;
        self.absorb(key, held, "patch", answer).await
    }

    /// A server-side apply: the object shall have these fields, and those of an earlier apply that are missing now
    /// shall go. Others' fields stay; where two want the same, ours wins.
    ///
    /// With `metadata.uid` and `metadata.resourceVersion` in the body it changes exactly the object that was looked at.
    /// Without them it creates, and is answered by a conflict if there is an object of that name, no matter who owns
    /// it.
    pub async fn apply(&self, key: &Key, body: &impl Serialize) -> Result<u64, Error> {
        let mut body = serde_json::to_value(body).expect("our own objects serialise");
        if body["metadata"]["resourceVersion"].is_null() {
            body["metadata"]["resourceVersion"] = json!(VERSION_OF_NOTHING);
        }
        let params = PatchParams::apply(self.writer.manager).force();
        let request = self.at(key).patch(&key.name, &params, &Patch::Apply(body));
        let request = request.map_err(|error| unmade("apply", self.resource, error))?;
        let held = self.store.version(key);
        let answer = self.writer.send(self.resource, "apply", request).await;
        self.absorb(key, held, "apply", answer).await
    }

    /// Deletes the object of this uid in this version. Already gone is success.
    pub async fn delete(&self, key: &Key, uid: &str, version: &str) -> Result<Deleted, Error> {
        let preconditions = Preconditions { uid: Some(uid.to_owned()), resource_version: Some(version.to_owned()) };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        let held = self.store.version(key);
        let request =
            self.at(key).delete(&key.name, &params).map_err(|error| unmade("delete", self.resource, error))?;
        match self.writer.send(self.resource, "delete", request).await {
            Ok(answer) => Ok(self.remains(key, held, &answer)),
            Err(error) if error.is_not_found() => {
                self.gone(key, held);
                Ok(Deleted::Gone)
            }
            Err(error) => Err(self.look_after(key, error).await),
        }
    }

    /// The object as the server has it now, past the cache. `None`: there is none.
    pub async fn read(&self, key: &Key) -> Result<Option<W>, Error> {
        self.writer.read_of(&self.types, self.resource, key).await
    }

    /// Reads the object from the server into the cache.
    pub async fn refresh(&self, key: &Key) -> Result<(), Error> {
        self.refresh_for(key, false).await
    }

    async fn refresh_for(&self, key: &Key, from_watch: bool) -> Result<(), Error> {
        let doubt = self.doubtful().get(key).copied();
        let before = self.store.standing(key);
        let found = self.read(key).await?.and_then(|object| {
            self.note_stranger(key, object.meta());
            let version = identity(object.meta()).map_or(0, |(_, version)| version);
            (self.project)(object).map(|value| (version, value))
        });
        let is_watched = !self.strangers().contains(key);
        self.change(key, from_watch, |store| store.correct(key, before, is_watched, found));
        // A doubt that arose during the read stays.
        let mut doubtful = self.doubtful();
        if doubtful.get(key).copied() == doubt {
            doubtful.remove(key);
        }
        Ok(())
    }

    /// The answer to a delete is the object as it is now, or a Status when nothing of it is left.
    fn remains(&self, key: &Key, held: Option<u64>, answer: &[u8]) -> Deleted {
        match serde_json::from_slice::<W>(answer) {
            Ok(object) if is_terminating(object.meta()) => {
                self.ingest(object);
                self.cluster().hub().learnt(&self.path(), self.address(), answer);
                Deleted::Terminating
            }
            // What is left is not known before it is read; it is not taken for gone.
            Err(_) if !is_status(answer) => {
                self.doubt(key.clone());
                Deleted::Terminating
            }
            _ => {
                self.gone(key, held);
                Deleted::Gone
            }
        }
    }

    /// Forgets an object that a request of ours found gone; every cache that holds it does.
    fn gone(&self, key: &Key, held: Option<u64>) {
        self.change(key, false, |store| store.deleted(key, held));
        if let Some(held) = held {
            self.cluster().hub().deleted(&self.path(), self.address(), key, held);
        }
    }

    /// Distinguishes this kind from others.
    fn address(&self) -> *const () {
        std::ptr::from_ref(self).cast()
    }

    /// An object that is none of our business any more is forgotten.
    fn ingest(&self, object: W) {
        let Some((key, version)) = identity(object.meta()) else { return };
        self.note_stranger(&key, object.meta());
        self.put_answer(&key, version, (self.project)(object), false);
    }

    /// Notes whether an object that was not selected by the server would be.
    fn note_stranger(&self, key: &Key, meta: &ObjectMeta) {
        let Some((_, Some(requirements))) = self.selection.get() else { return };
        let is_selected = requirements.select(key, || meta.labels.clone().unwrap_or_default());
        if is_selected == Some(false) {
            self.strangers().insert(key.clone());
        } else {
            self.strangers().remove(key);
        }
    }

    pub(crate) fn strangers(&self) -> MutexGuard<'_, HashSet<Key>> {
        self.strangers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An object in the answer to a write. What the watch does not speak of it cannot have overtaken.
    fn put_answer(&self, key: &Key, version: u64, value: Option<T>, from_watch: bool) {
        let is_stranger = self.strangers().contains(key);
        self.change(key, from_watch, |store| match value {
            Some(value) if is_stranger => store.observe(key.clone(), version, value),
            Some(value) => store.answered(key.clone(), version, value),
            None => store.forget(key, version),
        });
    }

    /// The answer to a write enters the cache, and all others of these objects; its version is what the next write of
    /// this round builds on. A write that drops the last finalizer of an object being deleted is answered by the object
    /// in its former version: it is gone.
    async fn absorb(
        &self,
        key: &Key,
        held: Option<u64>,
        verb: &'static str,
        answer: Result<Vec<u8>, Error>,
    ) -> Result<u64, Error> {
        let decoded = answer.and_then(|answer| Ok((decode::<W>(self.resource, verb, &answer)?, answer)));
        match decoded {
            Ok((object, answer)) => {
                let version = identity(object.meta()).map_or(0, |(_, version)| version);
                if object.meta().deletion_timestamp.is_some() && !is_terminating(object.meta()) {
                    self.gone(key, held);
                } else {
                    self.ingest(object);
                    self.cluster().hub().learnt(&self.path(), self.address(), &answer);
                }
                Ok(version)
            }
            Err(error) => Err(self.look_after(key, error).await),
        }
    }

    /// A conflict means that our view was old, and its event may be held up: read once, so that the retry sees. After
    /// no answer at all there is little hope for a read now: the next round begins with it.
    async fn look_after(&self, key: &Key, error: Error) -> Error {
        if matches!(error, Error::Client { .. } | Error::TimedOut { .. } | Error::Undecodable { .. }) {
            self.doubt(key.clone());
        }
        if (error.is_not_found() || error.status().is_some_and(|status| status.code == 409))
            && let Err(read) = self.refresh(key).await
        {
            tracing::debug!(error = %Chain(&read), %key, "could not refresh after a conflict");
        }
        error
    }

    fn at(&self, key: &Key) -> Request {
        place::<W>(&self.types, key)
    }
}

/// Where the objects of a kind are, in the namespace of a key; kinds without namespaces have none in their keys.
pub(crate) fn place<W: View>(types: &W::DynamicType, key: &Key) -> Request {
    Request::new(W::url_path(types, Some(&*key.namespace).filter(|namespace| !namespace.is_empty())))
}

/// Whether an answer is no object but a Status.
fn is_status(answer: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Head {
        kind: String,
    }
    serde_json::from_slice::<Head>(answer).is_ok_and(|head| head.kind == "Status")
}

fn is_terminating(meta: &ObjectMeta) -> bool {
    let waits_for_grace = meta.deletion_grace_period_seconds.is_some_and(|grace| grace > 0);
    let waits_for_finalizers = meta.finalizers.as_ref().is_some_and(|finalizers| !finalizers.is_empty());
    meta.deletion_timestamp.is_some() && (waits_for_grace || waits_for_finalizers)
}

/// Key and version of an object. Kubernetes guarantees that resource versions of one kind compare as numbers.
pub(crate) fn identity(meta: &ObjectMeta) -> Option<(Key, u64)> {
    let version = meta.resource_version.as_deref()?.parse().ok()?;
    Some((Key::new(meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref()?), version))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::lean_metadata;

    #[derive(Deserialize)]
    struct Object {
        #[serde(deserialize_with = "lean_metadata")]
        metadata: ObjectMeta,
    }

    #[test]
    fn metadata_is_read_without_managed_fields() {
        let object: Object = serde_json::from_value(serde_json::json!({"metadata": {
            "name": "a", "namespace": "n", "resourceVersion": "12", "managedFields": [{"fieldsV1": {"f:spec": {}}}]
        }}))
        .unwrap();
        assert_eq!(object.metadata.managed_fields, None);
        assert_eq!(identity(&object.metadata), Some((Key::new("n", "a"), 12)));
    }

    #[test]
    fn a_delete_answer_shows_whether_anything_is_left() {
        let terminating = |metadata: serde_json::Value| is_terminating(&lean_metadata(metadata).unwrap());
        let at = "2026-01-01T00:00:00Z";
        assert!(terminating(serde_json::json!({"deletionTimestamp": at, "deletionGracePeriodSeconds": 30})));
        assert!(terminating(
            serde_json::json!({"deletionTimestamp": at, "deletionGracePeriodSeconds": 0, "finalizers": ["x"]})
        ));
        assert!(!terminating(serde_json::json!({"deletionTimestamp": at, "deletionGracePeriodSeconds": 0})));
        assert!(!terminating(serde_json::json!({"name": "a"})));
        assert!(!terminating(serde_json::json!({})));
    }
}
