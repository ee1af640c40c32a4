//! One kind as a layer sees it: its cache, and writes whose answers enter the cache.

use std::{
    collections::HashSet,
    fmt::Debug,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{
    Client, Resource,
    api::{DeleteParams, GetParams, Patch, PatchParams, PostParams, Preconditions, Request},
    core::NamespaceResourceScope,
};
use serde::{Deserialize, Deserializer, Serialize, de::DeserializeOwned};

use http_body_util::BodyExt;

use crate::{
    error::Error,
    key::Key,
    lease::Leadership,
    store::{Store, Versioned},
    watch::undecodable,
};

/// What is decoded from the API server for a kind: as little of the object as the layer needs.
pub trait View:
    Resource<DynamicType = (), Scope = NamespaceResourceScope> + DeserializeOwned + Clone + Debug + Send + Sync + 'static
{
}

impl<W> View for W where
    W: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + DeserializeOwned
        + Clone
        + Debug
        + Send
        + Sync
        + 'static
{
}

/// Who writes, under whose authority and within which time.
#[derive(Clone)]
pub struct Writer {
    pub client: Client,
    pub leadership: Leadership,
    /// Field manager of the layer.
    pub manager: &'static str,
    /// A request without answer is given up after this; what it may have done is found out by the next round.
    pub timeout: Duration,
}

/// What is left after a delete was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deleted {
    Gone,
    /// It has a deletion timestamp and waits for its grace period or finalizers.
    Terminating,
}

pub struct Kind<W, T> {
    pub(crate) store: Store<T>,
    pub(crate) keep: fn(W) -> Option<T>,
    writer: Writer,
    pub(crate) resource: &'static str,
    /// Why the watch does not run, if it does not.
    trouble: Mutex<Option<String>>,
    /// Keys to be read before they are planned for: a write had no answer, or a list spoke against the store.
    doubtful: Mutex<HashSet<Key>>,
}

impl<W: View, T: Send + Sync + 'static> Kind<W, T> {
    /// `keep` reduces a decoded object to what stays in memory; `None` for objects that are none of our business.
    pub fn new(resource: &'static str, writer: Writer, keep: fn(W) -> Option<T>) -> Arc<Self> {
        Arc::new(Self {
            store: Store::default(),
            keep,
            writer,
            resource,
            trouble: Mutex::default(),
            doubtful: Mutex::default(),
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
        if self.doubtful().contains(key) {
            self.refresh(key).await?;
            self.doubtful().remove(key);
        }
        Ok(())
    }

    /// The next round of this key begins with a read.
    pub(crate) fn doubt(&self, key: Key) {
        self.doubtful().insert(key);
    }

    fn doubtful(&self) -> MutexGuard<'_, HashSet<Key>> {
        self.doubtful.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Filled, or why not.
    pub(crate) fn readiness(&self) -> Result<(), String> {
        if self.store.is_synced() {
            return Ok(());
        }
        let trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        Err(trouble.clone().unwrap_or_else(|| "not filled yet".to_owned()))
    }

    pub(crate) fn watch_interrupted(&self, trouble: Option<String>) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
    }

    pub async fn create(&self, key: &Key, body: &impl Serialize) -> Result<u64, Error> {
        let params = PostParams { field_manager: Some(self.writer.manager.into()), ..PostParams::default() };
        let body = serde_json::to_vec(body).expect("our own objects serialise");
        let request = self.at(key).create(&params, body).expect("the path is made of valid names");
        let result = self.send("create", request).await;
        self.absorb(key, result).await
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
        let result = self.send("patch", request.expect("our own patches serialise")).await;
        self.absorb(key, result).await
    }

    /// Deletes the object of this uid in this version. Already gone is success.
    pub async fn delete(&self, key: &Key, uid: &str, version: &str) -> Result<Deleted, Error> {
        let preconditions = Preconditions { uid: Some(uid.to_owned()), resource_version: Some(version.to_owned()) };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        let held = self.store.version(key);
        let request = self.at(key).delete(&key.name, &params).expect("our own parameters serialise");
        match self.send::<serde_json::Value>("delete", request).await {
            Ok(answer) => Ok(self.remains(key, held, answer)),
            Err(error) if error.is_not_found() => {
                self.store.deleted(key, held);
                Ok(Deleted::Gone)
            }
            Err(error) => Err(self.look_after(key, error).await),
        }
    }

    /// Reads the object from the server into the cache.
    pub async fn refresh(&self, key: &Key) -> Result<(), Error> {
        let request = self.at(key).get(&key.name, &GetParams::default()).expect("the path is made of valid names");
        let held = self.store.version(key);
        let found = match self.bounded::<W>("get", self.writer.timeout, request).await {
            Ok(object) => {
                let version = identity(object.meta()).map_or(0, |(_, version)| version);
                (self.keep)(object).map(|value| (version, value))
            }
            Err(error) if error.is_not_found() => None,
            Err(error) => return Err(error),
        };
        self.store.correct(key, held, found);
        Ok(())
    }

    /// The answer to a delete is the object as it is now, or a Status when nothing of it is left.
    fn remains(&self, key: &Key, held: Option<u64>, answer: serde_json::Value) -> Deleted {
        match serde_json::from_value::<W>(answer) {
            Ok(object) if is_terminating(object.meta()) => {
                self.take_in(object);
                Deleted::Terminating
            }
            _ => {
                self.store.deleted(key, held);
                Deleted::Gone
            }
        }
    }

    pub(crate) fn take_in(&self, object: W) -> bool {
        let Some((key, version)) = identity(object.meta()) else { return false };
        (self.keep)(object).is_some_and(|value| self.store.observe(key, version, value))
    }

    /// The answer to a write enters the cache; its version is what the next write of this round builds on.
    async fn absorb(&self, key: &Key, result: Result<W, Error>) -> Result<u64, Error> {
        match result {
            Ok(object) => {
                let version = identity(object.meta()).map_or(0, |(_, version)| version);
                self.take_in(object);
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
        if error.status().is_some_and(|status| matches!(status.code, 404 | 409))
            && let Err(read) = self.refresh(key).await
        {
            tracing::debug!(error = %read, %key, "could not refresh after a conflict");
        }
        error
    }

    async fn send<R: DeserializeOwned>(&self, verb: &'static str, request: http::Request<Vec<u8>>) -> Result<R, Error> {
        let Some(left) = self.writer.leadership.time_left() else {
            return Err(Error::NotLeader { verb, resource: self.resource });
        };
        self.bounded(verb, left.min(self.writer.timeout), request).await
    }

    async fn bounded<R: DeserializeOwned>(
        &self,
        verb: &'static str,
        limit: Duration,
        request: http::Request<Vec<u8>>,
    ) -> Result<R, Error> {
        match tokio::time::timeout(limit, self.exchange(verb, request)).await {
            Ok(answer) => answer,
            Err(_) => Err(Error::TimedOut { verb, resource: self.resource, limit }),
        }
    }

    /// One request and its answer. Not by kube's own `request`: that loses the header Retry-After, which is all that an
    /// overloaded API server says, and logs an answer that it cannot decode, environment values and all.
    async fn exchange<R: DeserializeOwned>(
        &self,
        verb: &'static str,
        request: http::Request<Vec<u8>>,
    ) -> Result<R, Error> {
        let resource = self.resource;
        let lost = |source| Error::Client { verb, resource, source: Box::new(source) };
        let answer = self.writer.client.send(request.map(Into::into)).await.map_err(lost)?;
        let (head, body) = answer.into_parts();
        let body = body.collect().await.map_err(|error| lost(kube::Error::Service(error.into())))?.to_bytes();
        if head.status.is_client_error() || head.status.is_server_error() {
            return Err(Error::refused(verb, resource, &head, &body));
        }
        serde_json::from_slice(&body).map_err(|error| Error::Undecodable { verb, resource, place: undecodable(&error) })
    }

    #[allow(clippy::unused_self, reason = "reads as a place: self.at(key)")]
    fn at(&self, key: &Key) -> Request {
        Request::new(W::url_path(&(), Some(&key.namespace)))
    }
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

/// The part of metadata that any controller needs. managedFields, the bulk of most objects, is skipped while decoding.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct LeanMetadata {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    generation: Option<i64>,
    creation_timestamp: Option<k8s_openapi::apimachinery::pkg::apis::meta::v1::Time>,
    deletion_timestamp: Option<k8s_openapi::apimachinery::pkg::apis::meta::v1::Time>,
    deletion_grace_period_seconds: Option<i64>,
    finalizers: Option<Vec<String>>,
    owner_references: Option<Vec<k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference>>,
    labels: Option<std::collections::BTreeMap<String, String>>,
    annotations: Option<std::collections::BTreeMap<String, String>>,
}

impl From<LeanMetadata> for ObjectMeta {
    fn from(lean: LeanMetadata) -> Self {
        Self {
            name: lean.name,
            namespace: lean.namespace,
            uid: lean.uid,
            resource_version: lean.resource_version,
            generation: lean.generation,
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

/// For `#[serde(deserialize_with)]` on the metadata of a [`View`].
pub fn lean_metadata<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    LeanMetadata::deserialize(deserializer).map(Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_delete_answer_tells_whether_anything_is_left() {
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
