//! Gather, fetch and execute for HelmReleases; every decision is in `plan::releases`.

mod execute;
mod fetch;
mod gather;
mod identity;
mod live;
mod metrics;
mod prepare;
mod storage;
pub mod values;
mod view;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
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
use runtime::{Controller, DynamicWatches, Error, Fence, Index, InputsOf, Json, Key, Kind, RoundOf, Turn, Writer};

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

/// How often live objects of each release changed, as watches saw it.
#[derive(Default)]
pub(crate) struct Changes(Mutex<HashMap<Key, u64>>);

impl Changes {
    pub fn count(&self, key: &Key) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(key.clone()).or_default() += 1;
    }

    fn of(&self, key: &Key) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(key).copied().unwrap_or_default()
    }

    fn forget(&self, key: &Key) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
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
}

impl Controller for ReleaseController {
    const NAME: &'static str = "helmrelease";
    /// A chart may wait for its turn in the runner, and then for a slow registry.
    const FETCH_LIMIT: Duration = Duration::from_mins(10);
    type View = Json<HelmRelease>;
    type Object = HelmRelease;
    type Status = HelmReleaseStatus;
    type Observed = Observed;
    type Action = Action;
    type Done = ();
    type Note = Note;
    type Ask = Ask;
    type Answer = Answer;

    fn kind(&self) -> &Arc<Kind<Json<HelmRelease>, HelmRelease>> {
        &self.releases
    }

    fn span(key: &Key) -> tracing::Span {
        tracing::info_span!("round", helmrelease = %key, namespace = %key.namespace)
    }

    async fn gather(&self, key: &Key, object: &HelmRelease, _: &Note) -> Result<Observed, Error> {
        Ok(self.observe(key, object))
    }

    fn plan(
        &self,
        object: &HelmRelease,
        observed: &Observed,
        inputs: &InputsOf<Self>,
        now: Timestamp,
    ) -> Plan<Action, Ask> {
        releases::plan(object, observed, inputs, now, &self.policy)
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

    /// Repositories are of their namespaces: one that does not answer holds up no other.
    fn peer(ask: &Ask) -> Peer {
        match ask {
            Ask::Chart { namespace, .. } => Peer(format!("charts of {namespace}").into()),
            _ => Peer::API_SERVER,
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
