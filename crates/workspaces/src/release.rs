//! Gather, fetch and execute for HelmReleases; every decision is in `plan::releases`.

mod execute;
mod fetch;
mod gather;
mod identity;
mod live;
mod metrics;
mod pointer;
mod prepare;
mod storage;
pub mod values;
mod view;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use api::workspace::{HelmRelease, HelmReleaseStatus};
use jiff::Timestamp;
use kube::api::GroupVersionKind;
use plan::{
    fact::Failure,
    releases::{self, Action, Answer, Ask, Note, Observed, Policy},
    round::{Peer, Plan, Report},
};
use process::Clock;
use runtime::{
    Controller, DynamicWatches, Error, Fence, Index, InputsOf, Key, Kind, Parts, RoundOf, ServerClock, Turn, Writer,
};
use tokio::time::Instant;

pub(crate) use identity::Identities;
pub(crate) use live::Discovered;
pub(crate) use metrics::ReleaseMetrics;
pub(crate) use prepare::Preparation;
pub(crate) use view::{SecretFacts, project_secret, release_key};

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

/// How often live objects of each release changed, as watches saw it. Changes that follow each other closely count as
/// one: each count is another look at all objects.
pub(crate) struct Changes {
    clock: Clock,
    counts: Mutex<HashMap<Key, Changed>>,
}

#[derive(Default)]
struct Changed {
    count: u64,
    counted_at: Option<Instant>,
    /// Something changed since, too soon to be counted.
    is_open: bool,
}

impl Changed {
    fn is_due(&self, now: Instant) -> bool {
        self.counted_at.is_none_or(|at| now.saturating_duration_since(at) >= PAUSE)
    }
}

/// Between two looks: nothing that changes more often is worth a look each time.
const PAUSE: Duration = Duration::from_secs(1);

impl Changes {
    pub fn new(clock: Clock) -> Self {
        Self { clock, counts: Mutex::default() }
    }

    pub fn add(&self, key: &Key) {
        let now = self.clock.instant();
        let mut counts = self.lock();
        let changed = counts.entry(key.clone()).or_default();
        if changed.is_open && changed.is_due(now) {
            // It counted when its time had come, and this is another.
            changed.count += 1;
            changed.counted_at = changed.counted_at.map(|at| at + PAUSE);
        }
        changed.is_open = !changed.is_due(now);
        if !changed.is_open {
            (changed.count, changed.counted_at) = (changed.count + 1, Some(now));
        }
    }

    /// The count, and whether a change waits to be counted. Looking changes nothing: an open change counts as soon as
    /// its time has come.
    fn of(&self, key: &Key) -> (u64, bool) {
        let now = self.clock.instant();
        let counts = self.lock();
        let Some(changed) = counts.get(key) else { return (0, false) };
        let is_counted = changed.is_open && changed.is_due(now);
        (changed.count + u64::from(is_counted), changed.is_open && !is_counted)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Changed>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn forget(&self, key: &Key) {
        self.lock().remove(key);
    }
}

pub(crate) struct ReleaseController {
    pub releases: Arc<Releases>,
    pub secrets: Arc<Secrets>,
    pub config_maps: Arc<ConfigMaps>,
    pub writer: Writer,
    pub runner: Runner,
    pub charts: Charts,
    pub identities: Arc<Identities>,
    pub preparation: Arc<Preparation>,
    pub indexes: Arc<Indexes>,
    pub watches: DynamicWatches,
    pub policy: Policy,
    pub changes: Arc<Changes>,
    pub discovered: Discovered,
    pub server_clock: ServerClock,
}

impl Controller for ReleaseController {
    const NAME: &'static str = "helmrelease";
    type View = Parts<HelmRelease>;
    type Object = HelmRelease;
    type Kept = HelmRelease;
    type Status = HelmReleaseStatus;
    type Observed = Observed;
    type Action = Action;
    type Done = ();
    type Note = Note;
    type Ask = Ask;
    type Answer = Answer;

    fn kind(&self) -> &Arc<Kind<Parts<HelmRelease>, HelmRelease>> {
        &self.releases
    }

    fn span(key: &Key) -> tracing::Span {
        tracing::info_span!("round", helmrelease = %key, namespace = %key.namespace)
    }

    async fn gather(&self, key: &Key, object: &HelmRelease, _: &Note) -> Result<Observed, Error> {
        Ok(self.observe(key, object))
    }

    fn plan(&self, object: &HelmRelease, observed: &Observed, inputs: &InputsOf<Self>) -> Plan<Action, Ask> {
        releases::plan(object, observed, inputs, &self.policy)
    }

    async fn check(&self, turn: &Turn<'_, Self>, action: &Action) -> Result<(), Error> {
        match action {
            Action::Start(operation) => {
                let checked = self.check_start(turn, operation).await;
                self.explain(turn.subject.object(), checked).await
            }
            _ => Ok(()),
        }
    }

    async fn execute(&self, turn: &Turn<'_, Self>, action: &Action) -> Result<(), Error> {
        self.carry_out(turn, action).await
    }

    fn report(&self, round: &RoundOf<'_, Self>, now: Timestamp) -> Report<HelmReleaseStatus, Note> {
        releases::report(round, now, &self.policy)
    }

    async fn fetch(&self, ask: &Ask, fence: &Fence) -> Result<Answer, Failure> {
        self.answer(ask, fence).await
    }

    /// Repositories are of their namespaces: one that does not answer holds up no other. A chart may wait for its turn in
    /// the runner, and then for a slow registry; a look at the objects of a large release takes a request for each.
    fn peer(ask: &Ask) -> (Peer, Duration) {
        match ask {
            Ask::Chart { namespace, .. } => (Peer(format!("charts of {namespace}").into()), Duration::from_mins(10)),
            Ask::Drift { .. } | Ask::Replicas { .. } => (Peer::API_SERVER, Duration::from_mins(1)),
            _ => (Peer::API_SERVER, Duration::from_secs(30)),
        }
    }

    fn weigh(answer: &Answer) -> usize {
        serde_json::to_vec(answer).map_or(0, |text| text.len())
    }

    /// What ended is part of the stored status now; until then it was asked for again.
    fn reported(&self, round: &RoundOf<'_, Self>) {
        if releases::has_ended(round) {
            self.runner.take(&release_key(round.object));
        }
    }

    fn forget(&self, key: &Key) {
        self.changes.forget(key);
        self.follow(key, &[]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn changes_that_follow_each_other_count_once_and_a_look_uses_none_up() {
        let (changes, key) = (Changes::new(Clock::default()), Key::new("n", "web"));
        assert_eq!(changes.of(&key), (0, false));
        changes.add(&key);
        assert_eq!((changes.of(&key), changes.of(&key)), ((1, false), (1, false)));
        (0..10).for_each(|_| changes.add(&key));
        assert_eq!(changes.of(&key), (1, true), "too near to the last one");
        tokio::time::advance(PAUSE).await;
        assert_eq!((changes.of(&key), changes.of(&key)), ((2, false), (2, false)));
        changes.add(&key);
        assert_eq!(changes.of(&key), (2, true), "it is another, and as near to the last one");
        tokio::time::advance(PAUSE * 3).await;
        assert_eq!(changes.of(&key), (3, false));
        changes.add(&key);
        assert_eq!(changes.of(&key), (4, false));
        changes.forget(&key);
        assert_eq!(changes.of(&key), (0, false));
    }
}
