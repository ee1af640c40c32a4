//! Gather, execute and report for HelmReleases; every decision is in `plan::releases`.

mod execute;
mod gather;
mod identity;
mod live;
mod metrics;
mod storage;
pub mod values;
mod view;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use api::workspace::{HelmRelease, HelmReleaseStatus, StoppedWorkload};
use jiff::Timestamp;
use kube::api::GroupVersionKind;
use plan::{
    Plan,
    releases::{self, Action, Difference, Outcome, Policy, Round},
};
use runtime::{Clock, DynamicWatches, Error, Executed, Index, Key, Layer, Recorder, Subject, Writer};
use tokio::time::Instant;

pub(crate) use identity::Identities;
pub(crate) use live::Discovered;
pub(crate) use metrics::ReleaseMetrics;
pub(crate) use view::{SecretFacts, keep_secret, release_key};

use crate::{
    helm::{Charts, Runner},
    workspace::{ConfigMaps, Releases, Secrets},
};

/// The ways back from what changed to the releases that must look.
#[derive(Default)]
pub(crate) struct Indexes {
    /// From a Helm release to the objects that stand for it; more than one is a conflict.
    pub releases: Index<Key>,
    /// From a Helm release to its storage Secrets.
    pub revisions: Index<Key>,
    /// From a Secret or ConfigMap to those that take values from it.
    pub secrets: Index<Key>,
    pub config_maps: Index<Key>,
    /// From a release's name to those that depend on it.
    pub dependents: Index<Key>,
    /// From a live object to the release it belongs to, and from its kind.
    pub objects: Index<(GroupVersionKind, Key)>,
    pub kinds: Index<GroupVersionKind>,
}

/// What was found out about a release's live objects, for as long as its revision is the newest.
#[derive(Clone)]
struct Looked<T> {
    secret_uid: String,
    at: Instant,
    found: Result<T, String>,
}

/// What cannot be observed cheaply and is only worth remembering while the process lives.
#[derive(Clone, Default)]
struct Notes {
    /// How often a live object changed.
    changes: u64,
    drift: Option<Looked<Vec<Difference>>>,
    replicas: Option<Looked<Vec<StoppedWorkload>>>,
    /// When a range was last looked up.
    chart_at: Option<Instant>,
    /// The value of the reconcile annotation that the chart's source was last asked for.
    asked_for: Option<String>,
}

pub(crate) struct ReleaseLayer {
    pub releases: Arc<Releases>,
    pub secrets: Arc<Secrets>,
    pub config_maps: Arc<ConfigMaps>,
    pub writer: Writer,
    pub runner: Runner,
    pub charts: Charts,
    pub identities: Identities,
    pub indexes: Arc<Indexes>,
    pub watches: DynamicWatches,
    pub policy: Policy,
    pub events: Recorder,
    pub clock: Clock,
    pub notes: Arc<Memos>,
    pub discovered: Discovered,
}

/// The notes of all releases.
#[derive(Default)]
pub(crate) struct Memos(Mutex<HashMap<Key, Notes>>);

impl Memos {
    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Notes>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A live object changed: somebody must look again.
    pub fn objects_changed(&self, key: &Key) {
        if let Some(notes) = self.lock().get_mut(key) {
            notes.changes += 1;
            (notes.drift, notes.replicas) = (None, None);
        }
    }

    /// Before a look: what to compare with after it.
    fn changes(&self, key: &Key) -> u64 {
        self.lock().entry(key.clone()).or_default().changes
    }

    /// Notes what a look found, unless an object changed during it: that may have been looked at before.
    fn note(&self, key: &Key, changes: u64, note: impl FnOnce(&mut Notes)) {
        if let Some(notes) = self.lock().get_mut(key).filter(|notes| notes.changes == changes) {
            note(notes);
        }
    }
}

/// One HelmRelease and its surroundings, at the beginning of a round.
pub(crate) struct Observed {
    subject: Subject<HelmRelease>,
    release: Key,
    surroundings: releases::Observed,
    /// The status after this round's own writes.
    written: Mutex<Option<HelmReleaseStatus>>,
}

impl Layer for ReleaseLayer {
    const CONTROLLER: &'static str = "helmrelease";
    type Observed = Observed;
    type Action = Action;
    type Outcome = Outcome;

    fn span(key: &Key) -> tracing::Span {
        tracing::info_span!("round", helmrelease = %key, namespace = %key.namespace)
    }

    async fn gather(&self, key: &Key) -> Result<Option<Observed>, Error> {
        self.observe(key).await
    }

    fn plan(&self, observed: &Observed, now: Timestamp) -> Plan<Action> {
        releases::plan(observed.subject.object(), &observed.surroundings, now, &self.policy)
    }

    async fn execute(&self, key: &Key, observed: &Observed, action: &Action) -> Executed<Outcome> {
        self.carry_out(key, observed, action).await
    }

    fn keys(&self) -> Vec<Key> {
        self.releases.store().keys()
    }

    async fn report(
        &self,
        key: &Key,
        observed: &Observed,
        plan: &Plan<Action>,
        outcomes: &[Outcome],
    ) -> Result<bool, Error> {
        let is_released =
            plan.actions.iter().zip(outcomes).any(|(action, outcome)| {
                matches!(action, Action::ReleaseFinalizer { .. }) && *outcome == Outcome::Done
            });
        let before = observed.subject.object().status.as_ref();
        let after = self.status(observed, plan, outcomes);
        let written = if is_released { Ok(false) } else { self.write_status(key, observed, &after).await };
        // Deleted meanwhile: nobody is left to report to.
        let written = if written.as_ref().is_err_and(Error::is_not_found) { Ok(false) } else { written };
        if written.is_ok() {
            // What ended is part of the stored status now; until then it is asked for again.
            if observed.surroundings.has_ended() {
                self.runner.take(&observed.release);
            }
            self.tell(key, observed, before, &after, plan, outcomes);
        }
        let ready = after.condition(api::condition::ConditionType::Ready);
        let reason = ready.map_or("", |condition| condition.reason.as_str());
        tracing::info!(reason, actions = plan.actions.len(), "reconciled");
        written
    }
}

impl ReleaseLayer {
    fn round<'a>(&'a self, observed: &'a Observed, plan: &'a Plan<Action>, outcomes: &'a [Outcome]) -> Round<'a> {
        let (object, surroundings) = (observed.subject.object(), &observed.surroundings);
        Round { object, observed: surroundings, plan, outcomes, policy: &self.policy }
    }

    fn status(&self, observed: &Observed, plan: &Plan<Action>, outcomes: &[Outcome]) -> HelmReleaseStatus {
        let mut status = releases::status(&self.round(observed, plan, outcomes), self.clock.now());
        // An operation that began in this round was stored before it did, with the time of then.
        let written = observed.written.lock().unwrap_or_else(PoisonError::into_inner);
        if let (Some(operation), Some(written)) = (&mut status.operation, &*written)
            && let Some(before) = &written.operation
        {
            operation.started_at = before.started_at;
        }
        status
    }

    /// Stores the status if it differs from what is stored. True if it did.
    async fn write_status(&self, key: &Key, observed: &Observed, after: &HelmReleaseStatus) -> Result<bool, Error> {
        let before = {
            let written = observed.written.lock().unwrap_or_else(PoisonError::into_inner);
            written.clone().or_else(|| observed.subject.object().status.clone()).unwrap_or_default()
        };
        if before == *after {
            return Ok(false);
        }
        observed.subject.patch_status(&self.releases, key, &before, after).await?;
        *observed.written.lock().unwrap_or_else(PoisonError::into_inner) = Some(after.clone());
        Ok(true)
    }

    fn tell(
        &self,
        key: &Key,
        observed: &Observed,
        before: Option<&HelmReleaseStatus>,
        after: &HelmReleaseStatus,
        plan: &Plan<Action>,
        outcomes: &[Outcome],
    ) {
        let events = releases::events(before, after, &self.round(observed, plan, outcomes));
        observed.subject.tell(&self.events, key, "", events);
    }
}
