//! The object that a round is about: its own writes to it build on each other, and events are recorded for it.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use k8s_openapi::{Metadata, Resource, api::core::v1::ObjectReference, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use plan::{
    event::{Event, EventKind},
    object::merge_patch,
};
use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    error::Error,
    event::{Occurrence, Recorder},
    key::Key,
    kind::Kind,
    store::Versioned,
    view::View,
};

pub struct Subject<K> {
    found: Arc<Versioned<K>>,
    /// Its version after this round's own writes: what the next write must build on.
    version: AtomicU64,
}

impl<K: Resource + Metadata<Ty = ObjectMeta>> Subject<K> {
    pub fn new(found: Arc<Versioned<K>>) -> Self {
        let version = AtomicU64::new(found.version);
        Self { found, version }
    }

    /// As it was when the round began.
    pub fn object(&self) -> &K {
        &self.found.value
    }

    pub fn uid(&self) -> &str {
        self.object().metadata().uid.as_deref().unwrap_or_default()
    }

    /// Patches the object that was looked at, in the version this round left it in.
    pub async fn patch<W: View, T: Send + Sync + 'static>(
        &self,
        kind: &Kind<W, T>,
        key: &Key,
        subresource: Option<&str>,
        mut patch: Value,
    ) -> Result<(), Error> {
        patch["metadata"]["uid"] = json!(self.object().metadata().uid);
        patch["metadata"]["resourceVersion"] = json!(self.version.load(Ordering::Relaxed).to_string());
        let version = kind.patch(key, subresource, &patch).await?;
        self.version.store(version, Ordering::Relaxed);
        Ok(())
    }

    /// Lets the object go. If it is gone already, there is nothing left to hold.
    pub async fn release_finalizer<W: View, T: Send + Sync + 'static>(
        &self,
        kind: &Kind<W, T>,
        key: &Key,
        finalizers: &[String],
    ) -> Result<(), Error> {
        match self.patch(kind, key, None, json!({ "metadata": { "finalizers": finalizers } })).await {
            Err(error) if error.is_not_found() => Ok(()),
            result => result,
        }
    }

    /// Puts one status in place of another.
    pub async fn patch_status<W: View, T: Send + Sync + 'static, S: Serialize>(
        &self,
        kind: &Kind<W, T>,
        key: &Key,
        before: &S,
        after: &S,
    ) -> Result<(), Error> {
        let patch = json!({ "status": merge_patch(&json!(before), &json!(after)) });
        self.patch(kind, key, Some("status"), patch).await
    }

    /// Records events, each once however often it is recorded: by the object's version and by `apart`.
    pub fn record(&self, recorder: &Recorder, key: &Key, apart: &str, events: Vec<Event>) {
        for event in events {
            recorder.record(Occurrence {
                regarding: ObjectReference {
                    api_version: Some(K::API_VERSION.into()),
                    kind: Some(K::KIND.into()),
                    name: Some(key.name.to_string()),
                    namespace: Some(key.namespace.to_string()),
                    uid: self.object().metadata().uid.clone(),
                    ..ObjectReference::default()
                },
                is_warning: event.kind == EventKind::Warning,
                reason: event.reason.to_owned(),
                action: event.action.to_owned(),
                note: event.note,
                discriminator: format!("{apart}/{}", self.version.load(Ordering::Relaxed)),
            });
        }
    }
}
