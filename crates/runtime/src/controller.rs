//! The round of one object: gather → plan → execute → report, the same for every controller.

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
    event::Event,
    fact::{Class, Failure},
    round::{Inputs, Peer, Plan, Progress, Report, Round, Step},
};
use serde::Serialize;
use tokio::{sync::Semaphore, time::Instant};

use crate::{
    clock::Clock,
    error::Error,
    event::Recorder,
    facts::FactCache,
    fence::Fence,
    key::Key,
    kind::Kind,
    lease::Leadership,
    metrics::Metrics,
    queue::{Next, Queue},
    subject::Subject,
    view::View,
};

/// A round that takes longer is cut off between two effects: what is long is a job. Twelve requests that all time out.
const LONGEST_ROUND: Duration = Duration::from_mins(2);
/// A plan that asked this often in a row without acting asks for something it never uses: a defect of the plan.
const MOST_FETCHES: u32 = 4;
/// Fetches that run at once for one peer: enough for every slot of a controller, few beside what an API server takes.
const FETCHES: usize = 16;
/// How long a fallback is written without trying the full status: the definition may be updated any time.
const FALLBACK: Duration = Duration::from_mins(10);

/// One kind of object that strata keeps in its declared state. A layer has one or several.
pub trait Controller: Send + Sync + Sized + 'static {
    /// Name in metrics (`controller`) and logs.
    const NAME: &'static str;
    /// How long one fetch may take.
    const FETCH_LIMIT: Duration = Duration::from_secs(30);
    type View: View;
    type Object: Resource + Metadata<Ty = ObjectMeta> + HasStatus<Status = Self::Status> + Clone + Send + Sync + 'static;
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
    type Answer: Clone + Send + Sync;

    /// The kind of the objects that rounds are about.
    fn kind(&self) -> &Arc<Kind<Self::View, Self::Object>>;
    /// The span that all lines of a round carry.
    fn span(key: &Key) -> tracing::Span;
    /// Facts about the object and what belongs to it, from the caches. Neither plans nor writes nor consumes.
    fn gather(
        &self,
        key: &Key,
        object: &Self::Object,
        note: &Self::Note,
    ) -> impl Future<Output = Result<Self::Observed, Error>> + Send;
    /// Pure.
    fn plan(
        &self,
        object: &Self::Object,
        observed: &Self::Observed,
        inputs: &InputsOf<Self>,
        now: Timestamp,
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
    /// Whom a fetch talks to: of one peer only some run at once.
    fn peer(ask: &Self::Ask) -> Peer {
        let _ = ask;
        Peer::API_SERVER
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
type StepOf<C> = Step<<C as Controller>::Action, <C as Controller>::Ask>;

/// What an effect may use: the object it is for, what was observed, and the right to act.
pub struct Turn<'a, C: Controller> {
    pub key: &'a Key,
    pub subject: &'a Subject<C::Object>,
    pub observed: &'a C::Observed,
    pub inputs: &'a InputsOf<C>,
    pub fence: &'a Fence,
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
    fetches: Mutex<HashMap<Peer, Arc<Semaphore>>>,
    memory: Mutex<HashMap<Key, Memory<C>>>,
    /// When a definition last refused a status that has a fallback.
    refused_at: Mutex<Option<Instant>>,
}

/// What is kept of an object between its rounds.
struct Memory<C: Controller> {
    note: C::Note,
    /// Rounds in a row that only asked, and what they all observed: a change is a reason to ask again.
    asked: Option<(C::Observed, u32)>,
}

impl<C: Controller> Default for Memory<C> {
    fn default() -> Self {
        Self { note: C::Note::default(), asked: None }
    }
}

/// One round under way.
struct Running<'a, C: Controller> {
    shared: &'a Arc<Shared<C>>,
    key: &'a Key,
    subject: Subject<C::Object>,
    /// With the status that is stored now.
    object: C::Object,
    observed: C::Observed,
    inputs: InputsOf<C>,
    plan: PlanOf<C>,
    /// Which facts the plan was made on.
    used: HashMap<C::Ask, u64>,
    fence: Fence,
    progress: Vec<Progress<C::Done>>,
    silent: HashSet<Peer>,
    error: Option<Error>,
    has_written: bool,
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
            refused_at: Mutex::default(),
        })
    }

    pub(crate) fn keys(&self) -> Vec<Key> {
        self.controller.kind().store().keys()
    }

    pub(crate) async fn round(self: &Arc<Self>, key: &Key, now: Timestamp) -> Result<(Next, bool), Error> {
        let kind = self.controller.kind();
        kind.settle(key).await?;
        let Some(found) = kind.get(key) else {
            self.memory().remove(key);
            self.controller.forget(key);
            return Ok((Next::Forget, false));
        };
        let note = self.memory().get(key).map(|memory| memory.note.clone()).unwrap_or_default();
        let observed = self.controller.gather(key, &found.value, &note).await?;
        let mut inputs = Inputs { note, ..InputsOf::<C>::default() };
        let (plan, used) = self.plan(&found.value, &observed, &mut inputs, now);
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
        now: Timestamp,
    ) -> (PlanOf<C>, HashMap<C::Ask, u64>) {
        let mut used = HashMap::new();
        loop {
            let plan = self.controller.plan(object, observed, inputs, now);
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
        let is_current = move || kind.get(&key).is_some_and(|found| found.value.metadata().uid == uid);
        let generation = metadata.generation.unwrap_or_default();
        Fence::new(self.leadership.clone(), self.clock.clone(), generation, LONGEST_ROUND, is_current)
    }

    /// Gets a fact, outside any round's slot; whoever waits for it has a round when it is there.
    fn fetch(self: &Arc<Self>, ask: &C::Ask, key: &Key) {
        let Some(begun) = self.facts.begin(ask, key, self.clock.instant()) else { return };
        let (shared, ask) = (self.clone(), ask.clone());
        let limit = C::FETCH_LIMIT;
        let fence = Fence::new(self.leadership.clone(), self.clock.clone(), 0, limit, || true);
        tokio::spawn(async move {
            let fetch = async {
                let slots = shared.slots(&ask);
                let _slot = slots.acquire().await;
                let fetch = std::panic::AssertUnwindSafe(shared.controller.fetch(&ask, &fence));
                futures::FutureExt::catch_unwind(fetch).await
            };
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
            for key in shared.facts.end(&ask, begun, weighed, shared.clock.instant()) {
                shared.queue.changed(&key);
            }
        });
    }

    /// The slots of a peer; those that no fetch uses are forgotten.
    fn slots(&self, ask: &C::Ask) -> Arc<Semaphore> {
        let mut all = self.fetches.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, slots| Arc::strong_count(slots) > 1);
        all.entry(C::peer(ask)).or_insert_with(|| Arc::new(Semaphore::new(FETCHES))).clone()
    }

    fn memory(&self) -> MutexGuard<'_, HashMap<Key, Memory<C>>> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn must_fall_back(&self) -> bool {
        let refused_at = *self.refused_at.lock().unwrap_or_else(PoisonError::into_inner);
        refused_at.is_some_and(|at| self.clock.instant().saturating_duration_since(at) <= FALLBACK)
    }
}

impl<C: Controller> Running<'_, C> {
    /// Every step in its order; a failed one stops those that need it, and a silent peer those that it is for.
    async fn execute(&mut self) {
        for at in 0..self.plan.steps.len() {
            self.progress[at] = match self.attempt(at).await {
                Ok(progress) => progress,
                Err(error) => {
                    let progress = error.progress();
                    // Nothing can be made in a namespace that goes: what is left would be refused one by one.
                    if error.stops_peer() || error.is_namespace_terminating() {
                        self.silent.insert(self.plan.steps[at].peer.clone());
                    }
                    // What stops a peer says more than what stopped one step.
                    if self.error.as_ref().is_none_or(|first| !first.stops_peer() && error.stops_peer()) {
                        self.error = Some(error);
                    }
                    progress
                }
            };
        }
    }

    async fn attempt(&mut self, at: usize) -> Result<Progress<C::Done>, Error> {
        let step = &self.plan.steps[at];
        let is_due = step.needs.iter().all(|need| self.progress[need.index()].is_done());
        if !is_due || self.silent.contains(&step.peer) || !self.rests(step) {
            return Ok(Progress::Skipped);
        }
        self.fence.check()?;
        if step.announced {
            self.shared.controller.check(&self.turn(), &step.action).await?;
            self.announce(at).await?;
        }
        let step = &self.plan.steps[at];
        self.shared.facts.spoil(&step.spoils);
        let done = self.shared.controller.execute(&self.turn(), &step.action).await;
        // Also a fetch that began during the effect may have seen what was before it.
        self.shared.facts.spoil(&step.spoils);
        self.has_written = true;
        done.map(Progress::Done)
    }

    fn turn(&self) -> Turn<'_, C> {
        let (observed, inputs) = (&self.observed, &self.inputs);
        Turn { key: self.key, subject: &self.subject, observed, inputs, fence: &self.fence }
    }

    /// Whether the facts that a step rests on are still those that it was planned on; else they are fetched anew.
    fn rests(&self, step: &StepOf<C>) -> bool {
        let now = self.shared.clock.instant();
        let is_current = |ask: &C::Ask, want| self.shared.facts.is_current(want, self.used.get(ask).copied(), now);
        let mut rests = true;
        for want in step.rests_on.iter().filter(|want| !is_current(&want.ask, want)) {
            self.shared.fetch(&want.ask, self.key);
            rests = false;
        }
        rests
    }

    /// Stores the status that says that a step begins.
    async fn announce(&mut self, at: usize) -> Result<(), Error> {
        self.progress[at] = Progress::Begun;
        let report = self.compute(self.shared.clock.now());
        self.store(&report.status, report.fallback.as_ref()).await?;
        self.record(&report.discriminator, report.transitions);
        Ok(())
    }

    fn round(&self) -> RoundOf<'_, C> {
        Round {
            object: &self.object,
            observed: &self.observed,
            inputs: &self.inputs,
            plan: &self.plan,
            progress: &self.progress,
        }
    }

    fn compute(&self, now: Timestamp) -> Report<C::Status, C::Note> {
        self.shared.controller.report(&self.round(), now)
    }

    /// Writes the status if it differs from the stored one.
    async fn store(&mut self, status: &C::Status, fallback: Option<&C::Status>) -> Result<(), Error> {
        let wanted = fallback.filter(|_| self.shared.must_fall_back()).unwrap_or(status);
        let stored = match (self.write(wanted).await, fallback) {
            (Err(error), Some(fallback)) if wanted != fallback && is_invalid(&error) => {
                tracing::warn!(
                    controller = C::NAME,
                    error = %error,
                    "the installed definition refuses the status; writing what it accepts. Update it: strata crd | kubectl apply -f -"
                );
                *self.shared.refused_at.lock().unwrap_or_else(PoisonError::into_inner) =
                    Some(self.shared.clock.instant());
                self.write(fallback).await?;
                fallback
            }
            (result, _) => {
                result?;
                wanted
            }
        };
        *self.object.status_mut() = Some(stored.clone());
        Ok(())
    }

    async fn write(&mut self, status: &C::Status) -> Result<(), Error> {
        let none = C::Status::default();
        // Nothing reported so far and nothing to report are the same.
        let before = self.object.status().unwrap_or(&none);
        if before == status {
            return Ok(());
        }
        self.subject.patch_status(self.shared.controller.kind(), self.key, before, status).await?;
        self.has_written = true;
        Ok(())
    }

    async fn report(&mut self) -> Result<(), Error> {
        let report = self.compute(self.shared.clock.now());
        self.shared.memory().entry(self.key.clone()).or_default().note = report.note;
        self.record(&report.discriminator, report.done);
        let stored = match self.store(&report.status, report.fallback.as_ref()).await {
            // Deleted meanwhile: there is no object left to report to.
            Err(error) if error.is_not_found() => Ok(()),
            result => result,
        };
        if stored.is_ok() {
            self.record(&report.discriminator, report.transitions);
            self.shared.controller.reported(&self.round());
        }
        tracing::info!(phase = report.phase, actions = self.plan.steps.len(), "reconciled");
        stored
    }

    fn record(&self, discriminator: &str, events: Vec<Event>) {
        self.subject.record(&self.shared.recorder, self.key, discriminator, events);
    }

    /// How many rounds in a row only asked although nothing that is observed changed.
    fn count_fetches(&self) -> u32 {
        let mut memory = self.shared.memory();
        let asked = &mut memory.entry(self.key.clone()).or_default().asked;
        match asked {
            Some((observed, count)) if *observed == self.observed => *count += 1,
            _ => *asked = Some((self.observed.clone(), 1)),
        }
        asked.as_ref().map_or(0, |(_, count)| *count)
    }

    /// Fetches what is missing and says what the queue does next.
    fn end(self, reported: Result<(), Error>) -> Result<(Next, bool), Error> {
        let missing: Vec<_> =
            self.plan.wants.iter().filter(|want| !self.used.contains_key(&want.ask)).map(|want| &want.ask).collect();
        let is_asking = !missing.is_empty() && !self.has_written;
        // Each answer brings a round: one that still waits for others does not count.
        let is_waiting = missing.iter().any(|ask| self.shared.facts.is_fetching(ask));
        if is_asking && !is_waiting && self.count_fetches() > MOST_FETCHES {
            // The next change or resync asks again.
            self.shared.memory().entry(self.key.clone()).or_default().asked = None;
            self.shared.metrics.asked_in_vain(C::NAME);
            tracing::error!(
                controller = C::NAME,
                asks = ?missing,
                "a defect: the plan asks for facts again and again and never acts on them; it waits for a change"
            );
        } else {
            if !is_asking {
                self.shared.memory().entry(self.key.clone()).or_default().asked = None;
            }
            for ask in missing {
                self.shared.fetch(ask, self.key);
            }
        }
        if let Some(error) = self.error {
            return Err(error);
        }
        reported?;
        // What was handed over is looked at when it ends.
        let mut attempts = self.plan.steps.iter().zip(&self.progress);
        if attempts.any(|(step, progress)| step.job.is_none() && progress.is_done()) {
            return Ok((Next::Again, true));
        }
        Ok((self.plan.next_look.map_or(Next::Settled, Next::Look), self.has_written))
    }
}

/// Whether a status was refused for what it says.
fn is_invalid(error: &Error) -> bool {
    error.status().is_some_and(|status| matches!(status.code, 400 | 422))
}
