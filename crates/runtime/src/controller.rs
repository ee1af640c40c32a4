//! The round of one object: gather → plan → execute → report, the same for every controller.

mod deferral;
mod fallback;
mod running;

use std::{
    collections::{HashMap, HashSet},
    fmt::Debug,
    future::Future,
    hash::Hash,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::{Metadata, Resource, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::core::object::HasStatus;
use plan::{
    fact::{Class, Failure},
    round::{Inputs, Peer, Plan, Progress, Report, Round},
};
use process::Clock;
use serde::Serialize;

use self::{deferral::Deferral, fallback::Refusals, running::Running};
use crate::{
    error::Error,
    event::Recorder,
    facts::FactCache,
    fence::Fence,
    kept::Kept,
    key::Key,
    kind::Kind,
    lease::Leadership,
    metrics::Metrics,
    queue::{Next, Queue},
    slots::Slots,
    subject::Subject,
    view::View,
};

/// A round that takes longer is cut off between two effects: what is long is a job. Twelve requests that all time out.
const LONGEST_ROUND: Duration = Duration::from_mins(2);
/// Fetches that run at once for one peer: enough for every slot of a controller, few beside what an API server takes.
const FETCHES: usize = 16;
/// Of these for the objects of one namespace: three namespaces whose fetches hang leave room for a fourth.
const FETCHES_OF_NAMESPACE: usize = 5;
/// A fact is one request, or a few; who has not answered by then is unknown.
const FETCH_LIMIT: Duration = Duration::from_secs(30);

/// One kind of object that strata keeps in its declared state. A layer has one or several.
pub trait Controller: Send + Sync + Sized + 'static {
    /// Name in metrics (`controller`) and logs.
    const NAME: &'static str;
    type View: View;
    type Object: Resource + Metadata<Ty = ObjectMeta> + HasStatus<Status = Self::Status> + Clone + Send + Sync + 'static;
    /// What is held of each between its rounds: the object, or its text where there are thousands.
    type Kept: Kept<Self::Object>;
    type Status: Serialize + Clone + Default + PartialEq + Send + Sync;
    /// Plain data, defined in `plan`: written to a file and read back it plans the same.
    type Observed: Clone + PartialEq + Send + Sync;
    type Action: Debug + Send + Sync;
    /// What an action gives back to the report.
    type Done: Debug + Send + Sync;
    /// What is remembered between rounds, for as long as the process lives.
    type Note: Clone + Default + Send + Sync;
    /// What may be asked for; [`plan::fact::Never`] where nothing is.
    type Ask: Clone + Debug + Eq + Hash + Send + Sync;
    type Answer: Clone + PartialEq + Send + Sync;

    /// The kind of the objects that rounds are about.
    fn kind(&self) -> &Arc<Kind<Self::View, Self::Kept>>;
    /// The span that all lines of a round carry.
    fn span(key: &Key) -> tracing::Span;
    /// Facts about the object and what belongs to it, from the caches. Neither plans nor writes nor consumes.
    fn gather(
        &self,
        key: &Key,
        object: &Self::Object,
        note: &Self::Note,
    ) -> impl Future<Output = Result<Self::Observed, Error>> + Send;
    /// Pure, and without a clock: what has lasted is a fact.
    fn plan(
        &self,
        object: &Self::Object,
        observed: &Self::Observed,
        inputs: &InputsOf<Self>,
    ) -> Plan<Self::Action, Self::Ask>;
    /// Whether what an announced action needs is there, before the status says that it begins. Reads only.
    fn check(&self, turn: &Turn<'_, Self>, action: &Self::Action) -> impl Future<Output = Result<(), Error>> + Send {
        let _ = (turn, action);
        async { Ok(()) }
    }
    /// One idempotent effect.
    fn execute(
        &self,
        turn: &Turn<'_, Self>,
        action: &Self::Action,
    ) -> impl Future<Output = Result<Self::Done, Error>> + Send;
    /// Pure.
    fn report(&self, round: &RoundOf<'_, Self>, now: Timestamp) -> Report<Self::Status, Self::Note>;
    /// One fact, read from wherever it is. Runs outside any round.
    fn fetch(&self, ask: &Self::Ask, fence: &Fence) -> impl Future<Output = Result<Self::Answer, Failure>> + Send {
        let _ = fence;
        let message = format!("{} has no answer to {ask:?}", Self::NAME);
        async { Err(Failure { class: Class::Terminal, message }) }
    }
    /// Bytes that an answer takes in memory, about.
    fn weigh(answer: &Self::Answer) -> usize {
        size_of_val(answer)
    }
    /// Whom a fetch talks to, and how long it may take. Of one peer only some run at once.
    fn peer(ask: &Self::Ask) -> (Peer, Duration) {
        let _ = ask;
        (Peer::API_SERVER, FETCH_LIMIT)
    }
    /// The status that reports this round is stored: what is said once need not be kept any longer.
    fn reported(&self, round: &RoundOf<'_, Self>) {
        let _ = round;
    }
    /// The object is gone.
    fn forget(&self, key: &Key) {
        let _ = key;
    }
}

pub type InputsOf<C> = Inputs<<C as Controller>::Note, <C as Controller>::Ask, <C as Controller>::Answer>;
pub type RoundOf<'a, C> = Round<
    'a,
    <C as Controller>::Object,
    <C as Controller>::Observed,
    <C as Controller>::Action,
    <C as Controller>::Done,
    <C as Controller>::Note,
    <C as Controller>::Ask,
    <C as Controller>::Answer,
>;
type PlanOf<C> = Plan<<C as Controller>::Action, <C as Controller>::Ask>;

/// What an effect may use: the object it is for, what was observed, and the right to act.
pub struct Turn<'a, C: Controller> {
    pub key: &'a Key,
    pub subject: &'a Subject<C::Object>,
    pub observed: &'a C::Observed,
    pub inputs: &'a InputsOf<C>,
    pub fence: &'a Fence,
}

/// How a round ended.
pub(crate) struct Ended {
    pub next: Next,
    /// Something was written.
    pub has_acted: bool,
    /// A failure that leaves what comes next to the rest of the round.
    pub failure: Option<Error>,
}

/// A controller with all that its rounds share.
pub(crate) struct Shared<C: Controller> {
    controller: C,
    pub(crate) queue: Arc<Queue>,
    clock: Clock,
    leadership: Leadership,
    recorder: Recorder,
    metrics: Arc<Metrics>,
    facts: FactCache<C::Ask, C::Answer>,
    fetches: Mutex<HashMap<Peer, Arc<Slots>>>,
    memory: Mutex<HashMap<Key, Memory<C>>>,
    refusals: Mutex<Refusals>,
}

/// What is kept of an object between its rounds.
struct Memory<C: Controller> {
    uid: Option<String>,
    note: C::Note,
    /// Rare, so most objects have no room for it.
    asked: Option<Box<Asked<C::Observed>>>,
    deferral: Deferral,
}

/// Rounds in a row that only asked, and what they all observed: a change is a reason to ask again.
struct Asked<O> {
    observed: O,
    /// Since the last pause.
    rounds: u32,
    pauses: u32,
}

impl<C: Controller> Default for Memory<C> {
    fn default() -> Self {
        Self { uid: None, note: C::Note::default(), asked: None, deferral: Deferral::default() }
    }
}

impl<C: Controller> Shared<C> {
    pub(crate) fn new(
        controller: C,
        queue: Arc<Queue>,
        clock: Clock,
        leadership: Leadership,
        recorder: Recorder,
        metrics: Arc<Metrics>,
    ) -> Arc<Self> {
        Arc::new(Self {
            controller,
            queue,
            clock,
            leadership,
            recorder,
            metrics,
            facts: FactCache::default(),
            fetches: Mutex::default(),
            memory: Mutex::default(),
            refusals: Mutex::default(),
        })
    }

    /// Every object there is. What is remembered of others, which went while this replica did not lead, is forgotten.
    pub(crate) fn keys(&self) -> Vec<Key> {
        let keys = self.controller.kind().store().keys();
        let there: HashSet<&Key> = keys.iter().collect();
        let gone: Vec<Key> = self.memory().keys().filter(|key| !there.contains(key)).cloned().collect();
        for key in gone {
            self.memory().remove(&key);
            self.controller.forget(&key);
        }
        keys
    }

    pub(crate) async fn round(self: &Arc<Self>, key: &Key) -> Result<Ended, Error> {
        let kind = self.controller.kind();
        kind.settle(key).await?;
        let Some(found) = kind.get(key).map(|kept| Kept::opened(&kept)) else {
            self.memory().remove(key);
            self.controller.forget(key);
            return Ok(Ended { next: Next::Forget, has_acted: false, failure: None });
        };
        let uid = found.value.metadata().uid.clone();
        // A namesake is another object.
        let note = self.memory().get(key).filter(|known| known.uid == uid).map(|known| known.note.clone());
        let note = note.unwrap_or_default();
        let observed = self.controller.gather(key, &found.value, &note).await?;
        let mut inputs = Inputs { note, ..InputsOf::<C>::default() };
        let (plan, used) = self.plan(&found.value, &observed, &mut inputs);
        let progress = plan.steps.iter().map(|_| Progress::NotBegun).collect();
        let fence = self.fence(key, found.value.metadata());
        let object = found.value.clone();
        let mut running = Running {
            shared: self,
            key,
            subject: Subject::new(found),
            object,
            observed,
            inputs,
            plan,
            used,
            fence,
            progress,
            silent: HashSet::new(),
            error: None,
            has_written: false,
            lacking: Vec::new(),
            is_outdated: false,
            is_unknown: false,
        };
        running.execute().await;
        let reported = running.report().await;
        running.end(reported)
    }

    /// Plans, answers from the cache what the plan asks for, and plans again, until it asks for nothing that is known.
    fn plan(
        &self,
        object: &C::Object,
        observed: &C::Observed,
        inputs: &mut InputsOf<C>,
    ) -> (PlanOf<C>, HashMap<C::Ask, u64>) {
        let mut used = HashMap::new();
        loop {
            let plan = self.controller.plan(object, observed, inputs);
            let mut is_richer = false;
            for want in plan.wants.iter().filter(|want| !used.contains_key(&want.ask)).collect::<Vec<_>>() {
                if let Some(answer) = self.facts.get(want, self.clock.instant()) {
                    used.insert(want.ask.clone(), answer.sequence);
                    inputs.facts.insert(want.ask.clone(), answer.fact);
                    is_richer = true;
                }
            }
            if !is_richer {
                return (plan, used);
            }
        }
    }

    fn fence(&self, key: &Key, metadata: &ObjectMeta) -> Fence {
        let (kind, key, uid) = (self.controller.kind().clone(), key.clone(), metadata.uid.clone());
        let is_current = move || kind.get(&key).is_some_and(|kept| kept.value.uid() == uid.as_deref());
        let generation = metadata.generation.unwrap_or_default();
        Fence::new(self.leadership.clone(), self.clock.clone(), generation, LONGEST_ROUND, is_current)
    }

    /// Gets a fact, outside any round's slot; every key that waits for it has a round when it is there.
    fn fetch(self: &Arc<Self>, ask: &C::Ask, key: &Key) {
        let Some(begun) = self.facts.begin(ask, key, self.clock.instant()) else { return };
        let (shared, ask, namespace) = (self.clone(), ask.clone(), key.namespace.clone());
        let (peer, limit) = C::peer(&ask);
        tokio::spawn(async move {
            let slots = shared.slots(&peer);
            let _slot = slots.acquire(&namespace).await;
            let fence = Fence::new(shared.leadership.clone(), shared.clock.clone(), 0, limit, || true);
            // In a box, so that one that waits for its turn takes no room for what it will do.
            let fetch = std::panic::AssertUnwindSafe(Box::pin(shared.controller.fetch(&ask, &fence)));
            let fetch = futures::FutureExt::catch_unwind(fetch);
            // What the answer says was so at some moment since.
            let asked_at = shared.clock.instant();
            let failed = |message: String| Failure { class: Class::Transient, message };
            let result = match tokio::time::timeout(limit, fetch).await {
                Ok(Ok(result)) => result,
                Ok(Err(_)) => {
                    shared.metrics.panicked(C::NAME);
                    Err(failed(format!("the fetch of {ask:?} failed: see the log")))
                }
                Err(_) => Err(failed(format!("no answer within {limit:?}"))),
            };
            let weighed = result.map(|answer| {
                let bytes = C::weigh(&answer);
                (answer, bytes)
            });
            for key in shared.facts.end(&ask, begun, weighed, asked_at, shared.clock.instant()) {
                shared.queue.changed(&key);
            }
        });
    }

    /// The slots of a peer; those that no fetch uses are forgotten.
    fn slots(&self, peer: &Peer) -> Arc<Slots> {
        let mut all = self.fetches.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, slots| Arc::strong_count(slots) > 1);
        all.entry(peer.clone()).or_insert_with(|| Arc::new(Slots::new(FETCHES, FETCHES_OF_NAMESPACE))).clone()
    }

    fn memory(&self) -> MutexGuard<'_, HashMap<Key, Memory<C>>> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn refusals(&self) -> MutexGuard<'_, Refusals> {
        self.refusals.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
