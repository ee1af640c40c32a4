//! What rounds of Workspaces and of Users do in the same way: derived objects, results, events.

use std::sync::{Arc, Mutex, PoisonError};

use api::condition::Condition;
use k8s_openapi::{Metadata, Resource, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use plan::{
    Plan,
    workspaces::{Action, ObjectKind, Outcome, events},
};
use runtime::{Class, Error, Executed, Key, Kind, Recorder, Versioned, View};
use serde::Serialize;
use serde_json::json;

use super::shelf::Shelves;

/// The object that a round is about, and what went wrong with one action and stopped no other.
pub struct Subject<K> {
    subject: runtime::Subject<K>,
    failure: Mutex<Option<Error>>,
}

/// The statuses before and after a round, and how to find their conditions.
pub struct Statuses<'a, S> {
    pub before: Option<&'a S>,
    pub after: &'a S,
    pub conditions: fn(&S) -> &[Condition],
}

impl<K: Resource + Metadata<Ty = ObjectMeta>> Subject<K> {
    pub fn new(object: Arc<Versioned<K>>) -> Self {
        Self { subject: runtime::Subject::new(object), failure: Mutex::default() }
    }

    pub fn object(&self) -> &K {
        self.subject.object()
    }

    pub fn uid(&self) -> &str {
        self.subject.uid()
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
                let patch = json!({ "metadata": { "finalizers": finalizers } });
                self.subject.patch(kind, key, None, patch).await
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
        recorder: &Recorder,
        key: &Key,
        statuses: Statuses<'_, S>,
        (plan, outcomes): (&Plan<Action>, &[Outcome]),
    ) -> Result<bool, Error> {
        let Statuses { before, after, conditions } = statuses;
        // Nothing reported so far and nothing to report are the same.
        let none = S::default();
        let stored = before.unwrap_or(&none);
        let is_news = stored != after;
        let written = if is_news { self.subject.report(kind, key, stored, after).await } else { Ok(()) };
        // A transition is told when it is stored; what was done is told in any case.
        let told = if written.is_ok() { after } else { stored };
        self.subject.tell(recorder, key, "", events(conditions(stored), conditions(told), plan, outcomes));
        written?;
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).take().map_or(Ok(is_news), Err)
    }
}
