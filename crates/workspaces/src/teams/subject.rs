//! What rounds of Workspaces and of Users do in the same way: writes to the object itself, results, events.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicU64, Ordering},
};

use api::workspace::API_VERSION;
use k8s_openapi::{Metadata, api::core::v1::ObjectReference, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use plan::{
    event::{Event, EventKind},
    workspaces::{Action, ObjectKind, Outcome},
};
use runtime::{Class, Error, Executed, Key, Kind, Occurrence, Recorder, Versioned, View};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::shelf::Shelves;

/// The object that a round is about.
pub struct Subject<K> {
    pub object: Arc<Versioned<K>>,
    /// Its version after this round's own writes: what the next write must build on.
    version: AtomicU64,
    /// What went wrong with one action and stopped no other.
    failure: Mutex<Option<Error>>,
}

impl<K: Metadata<Ty = ObjectMeta>> Subject<K> {
    pub fn new(object: Arc<Versioned<K>>) -> Self {
        let version = AtomicU64::new(object.version);
        Self { object, version, failure: Mutex::default() }
    }

    fn metadata(&self) -> &ObjectMeta {
        self.object.value.metadata()
    }

    pub fn uid(&self) -> &str {
        self.metadata().uid.as_deref().unwrap_or_default()
    }

    /// Patches the object that was looked at, in the version this round left it in.
    async fn patch<W: View, T: Send + Sync + 'static>(
        &self,
        kind: &Kind<W, T>,
        key: &Key,
        subresource: Option<&str>,
        mut patch: Value,
    ) -> Result<(), Error> {
        patch["metadata"]["uid"] = json!(self.metadata().uid);
        patch["metadata"]["resourceVersion"] = json!(self.version.load(Ordering::Relaxed).to_string());
        let version = kind.patch(key, subresource, &patch).await?;
        self.version.store(version, Ordering::Relaxed);
        Ok(())
    }

    pub async fn execute<W: View, T: Send + Sync + 'static>(
        &self,
        kind: &Kind<W, T>,
        shelves: &Shelves,
        key: &Key,
        action: &Action,
    ) -> Executed<Outcome> {
        let result = match action {
            Action::AddFinalizer { finalizers } | Action::ReleaseFinalizer { finalizers } => {
                self.patch(kind, key, None, json!({ "metadata": { "finalizers": finalizers } })).await
            }
            _ => shelves.execute(&key.namespace, action).await,
        };
        match result {
            Ok(()) => Executed { outcome: Outcome::Done, error: None },
            // The object itself is gone; so there is nothing left to hold.
            Err(error) if matches!(action, Action::ReleaseFinalizer { .. }) && error.is_not_found() => {
                Executed { outcome: Outcome::Done, error: None }
            }
            Err(error) => self.failed(action, error),
        }
    }

    /// What is wrong with one object is no reason to leave the others; what is wrong with the server is.
    fn failed(&self, action: &Action, error: Error) -> Executed<Outcome> {
        if error.is_namespace_terminating() {
            return Executed { outcome: Outcome::NamespaceTerminating, error: Some(error) };
        }
        let is_own = matches!(action, Action::AddFinalizer { .. } | Action::ReleaseFinalizer { .. });
        let Some(status) = error.status().filter(|_| !is_own && error.class() != Class::Transient) else {
            return Executed { outcome: Outcome::Failed, error: Some(error) };
        };
        let outcome = match (status.code, action) {
            (400 | 403 | 422, Action::Apply { id, .. }) => {
                // The server may quote what it refuses.
                let is_secret = id.kind == ObjectKind::Secret;
                let message = if is_secret { status.reason.clone() } else { status.message.clone() };
                Outcome::Rejected { message }
            }
            _ => Outcome::Failed,
        };
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        Executed { outcome, error: None }
    }

    /// Writes the status if it changed: then true. Fails with what any action failed with.
    pub async fn report<W: View, T: Send + Sync + 'static, S: Serialize + Default + PartialEq>(
        &self,
        kind: &Kind<W, T>,
        key: &Key,
        (before, after): (Option<&S>, &S),
    ) -> Result<bool, Error> {
        // Nothing reported so far and nothing to report are the same.
        let is_news = before.map_or_else(|| *after != S::default(), |before| before != after);
        if is_news {
            match self.patch(kind, key, Some("status"), json!({ "status": difference(before, after) })).await {
                // Deleted meanwhile: nobody is left to report to.
                Err(error) if error.is_not_found() => {}
                result => result?,
            }
        }
        Ok(is_news)
    }

    /// What any action failed with.
    pub fn failure(&self) -> Result<(), Error> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).take().map_or(Ok(()), Err)
    }

    pub fn tell(&self, recorder: &Recorder, kind: &str, key: &Key, events: Vec<Event>) {
        for event in events {
            recorder.record(Occurrence {
                regarding: ObjectReference {
                    api_version: Some(API_VERSION.into()),
                    kind: Some(kind.into()),
                    name: Some(key.name.to_string()),
                    namespace: Some(key.namespace.to_string()),
                    uid: self.metadata().uid.clone(),
                    ..ObjectReference::default()
                },
                is_warning: event.kind == EventKind::Warning,
                reason: event.reason.to_owned(),
                action: event.action.to_owned(),
                note: event.note,
                discriminator: self.version.load(Ordering::Relaxed).to_string(),
            });
        }
    }
}

/// The merge patch from one status to the other: what vanished becomes null.
fn difference<S: Serialize>(before: Option<&S>, after: &S) -> Value {
    let fields = |status: &S| match json!(status) {
        Value::Object(fields) => fields,
        _ => Map::new(),
    };
    let mut patch = fields(after);
    for (field, _) in before.map(fields).unwrap_or_default() {
        patch.entry(field).or_insert(Value::Null);
    }
    Value::Object(patch)
}
