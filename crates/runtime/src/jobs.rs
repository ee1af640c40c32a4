//! Long work beside the rounds: child processes, and calls that take minutes.
//!
//! A round hands a [`Job`] to [`Jobs::submit`] and goes on; a later round looks at [`Jobs::state`] and takes the result.
//! One key has one job at a time, a newer waiting job of a key replaces the older, and what starts is decided by
//! [budgets](Budget). A waiting job is a small description: what it needs is read by [`Executor::prepare`] when its turn
//! has come.

mod budget;
mod queue;
mod stop;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    future::Future,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use tokio::{
    sync::{Notify, oneshot},
    time::{Instant, sleep, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

pub use budget::{Budget, Draw, Refill};
use process::Clock;
pub use stop::{Stop, Stopped, Stops};

use crate::{child::KILL_PATIENCE, key::Key, lease::Leadership};
use queue::Queue;
use stop::Stopper;

/// How one sort of job is done.
pub trait Executor: Send + Sync + 'static {
    /// A small description: all that is held while the job waits.
    type Task: Send + 'static;
    /// Everything the job needs.
    type Contents: Send + 'static;
    type Output: Send + Sync + 'static;

    /// Reads what the job needs, when its turn has come. It has no effect yet: it is dropped when the job is to end.
    fn prepare(&self, task: Self::Task) -> impl Future<Output = Result<Self::Contents, NotBegun<Self::Output>>> + Send;

    /// Does it. When `stops` asks for an end it should end by itself; some time after the moment given there it is
    /// dropped.
    fn execute(&self, contents: Self::Contents, stops: Stops) -> impl Future<Output = Self::Output> + Send;

    /// How it ended in one word, for metrics.
    fn result(ended: &Ended<Self::Output>) -> &'static str;
}

/// Why a job does not begin although its turn has come.
#[derive(Debug)]
pub enum NotBegun<O> {
    /// What it was planned on has changed; the text says what.
    Outdated(String),
    /// What it needs cannot be read. The executor says what that means.
    Failed(O),
}

/// One piece of work for one key.
#[derive(Debug)]
pub struct Job<T> {
    pub key: Key,
    /// In whose turn it may start; that namespace is charged for what it draws. None: in the turn of the key's own.
    pub namespaces: Vec<Arc<str>>,
    /// What sort of work it is, for metrics.
    pub kind: &'static str,
    /// What the caller knows it by; comes back in [`Finished`].
    pub label: Arc<str>,
    pub draws: Vec<Draw>,
    /// How long it may take, once it is prepared.
    pub time: Duration,
    pub task: T,
}

/// Why a job is not even put in line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("the job asks for {asked} of {budget}, the limit for one job is {most}")]
    TooLarge { budget: &'static str, asked: u64, most: u64 },
    #[error("the operator is stopping")]
    Draining,
}

/// How a job ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended<O> {
    /// By itself; the executor says how.
    Done(O),
    /// Not begun: what it was planned on has changed.
    Outdated(String),
    /// Not begun: it was to end while it was prepared, or preparing it took too long.
    NotBegun(Stopped),
    /// It did not end when it was to, and was dropped.
    Abandoned(Stopped),
    Panicked(String),
}

/// Where the jobs of one key are.
#[derive(Debug)]
pub enum State<O> {
    Idle,
    Waiting,
    /// Recorded before it begins.
    Running {
        kind: &'static str,
        label: Arc<str>,
        since: Timestamp,
        /// It was asked to end.
        is_ending: bool,
    },
    /// Until it is taken, or the key's next job.
    Finished(Arc<Finished<O>>),
}

/// A job that has ended.
#[derive(Clone, Debug)]
pub struct Finished<O> {
    pub kind: &'static str,
    pub label: Arc<str>,
    pub ended: Ended<O>,
    pub started_at: Timestamp,
    pub duration: Duration,
}

/// Called with the key of a job that has ended; must not block. False: its object is gone, and with it the result.
pub type OnChange = Box<dyn Fn(&Key) -> bool + Send + Sync>;

/// How jobs are run.
pub struct Config {
    pub budgets: Vec<(&'static str, Budget)>,
    /// How long reading what a job needs may take: its budgets are drawn already.
    pub preparation: Duration,
    /// From being asked to end to being ended.
    pub grace: Duration,
    pub clock: Clock,
    pub on_change: OnChange,
}

/// How long after its last moment a job that does not end is dropped: a child process that is killed takes as long at
/// most, and a little for the load of the machine.
const ABANDON: Duration = KILL_PATIENCE.saturating_mul(2);

/// A handle; clones are the same.
pub struct Jobs<E: Executor>(Arc<Inner<E>>);

struct Inner<E: Executor> {
    executor: E,
    config: Config,
    runtime: tokio::runtime::Handle,
    shared: Mutex<Shared<E>>,
    ended: Notify,
}

struct Shared<E: Executor> {
    queue: Queue<Waiting<E>>,
    running: HashMap<Key, Running>,
    finished: HashMap<Key, Arc<Finished<E::Output>>>,
    tallies: BTreeMap<(&'static str, &'static str), Tally>,
    /// When the queue is looked at again for the sake of a rate.
    look_at: Option<Instant>,
    is_draining: bool,
}

struct Waiting<E: Executor> {
    job: Job<E::Task>,
    /// Who awaits the end in person, instead of by [`Jobs::state`].
    awaited: Option<oneshot::Sender<Arc<Finished<E::Output>>>>,
}

struct Running {
    kind: &'static str,
    label: Arc<str>,
    since: Timestamp,
    stopper: Arc<Stopper>,
}

/// All jobs at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    pub waiting: usize,
    pub running: usize,
    /// What is drawn from each budget, and the most that may be.
    pub budgets: BTreeMap<&'static str, (u64, u64)>,
    /// Ended jobs by kind and result.
    pub ended: BTreeMap<(&'static str, &'static str), Tally>,
}

/// How many jobs ended alike, and how long they took together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub count: u64,
    pub duration: Duration,
}

impl<E: Executor> Jobs<E> {
    /// Jobs run on the present runtime.
    pub fn new(executor: E, config: Config) -> Self {
        let shared = Shared {
            queue: Queue::new(config.budgets.iter().copied()),
            running: HashMap::new(),
            finished: HashMap::new(),
            tallies: BTreeMap::new(),
            look_at: None,
            is_draining: false,
        };
        let runtime = tokio::runtime::Handle::current();
        Self(Arc::new(Inner { executor, config, runtime, shared: Mutex::new(shared), ended: Notify::new() }))
    }

    pub fn executor(&self) -> &E {
        &self.0.executor
    }

    pub fn config(&self) -> &Config {
        &self.0.config
    }

    /// Puts a job in line, in place of a waiting one of the same key; what runs is not interrupted. A result that was
    /// not taken yet is forgotten. Never blocks.
    pub fn submit(&self, job: Job<E::Task>) -> Result<(), Refused> {
        self.0.push(Waiting { job, awaited: None })
    }

    /// Submits at once, and what it returns waits for the end: for callers outside rounds. None if it was cancelled or
    /// replaced before it started.
    pub fn run(
        &self,
        job: Job<E::Task>,
    ) -> Result<impl Future<Output = Option<Arc<Finished<E::Output>>>> + use<E>, Refused> {
        let (sender, receiver) = oneshot::channel();
        self.0.push(Waiting { job, awaited: Some(sender) })?;
        Ok(async { receiver.await.ok() })
    }

    /// Lets a waiting job of this key start in the turn of a further namespace, too.
    pub fn join(&self, key: &Key, namespace: &Arc<str>) {
        let mut shared = self.0.lock();
        shared.queue.join(key, namespace);
        self.0.advance(&mut shared);
    }

    pub fn state(&self, key: &Key) -> State<E::Output> {
        let shared = self.0.lock();
        if let Some(running) = shared.running.get(key) {
            let (kind, label, since) = (running.kind, running.label.clone(), running.since);
            return State::Running { kind, label, since, is_ending: running.stopper.is_asked() };
        }
        match shared.finished.get(key) {
            Some(finished) => State::Finished(finished.clone()),
            None if shared.queue.is_waiting(key) => State::Waiting,
            None => State::Idle,
        }
    }

    /// The result of the key's last job, once: when it is reported.
    pub fn take(&self, key: &Key) -> Option<Arc<Finished<E::Output>>> {
        self.0.lock().finished.remove(key)
    }

    /// The key's object is gone: drops what waits, and the result of what has ended. What runs is left to its end.
    pub fn forget(&self, key: &Key) {
        let mut shared = self.0.lock();
        shared.finished.remove(key);
        drop(shared.queue.remove(key));
        self.0.advance(&mut shared);
    }

    /// Drops what waits for this key and asks what runs to end within the grace. Never blocks.
    pub fn cancel(&self, key: &Key) {
        let mut shared = self.0.lock();
        drop(shared.queue.remove(key));
        if let Some(running) = shared.running.get(key) {
            let kill_at = self.0.config.clock.instant() + self.0.config.grace;
            running.stopper.ask(Stop { why: Stopped::Cancelled, kill_at });
        }
        // What was dropped may have been the large one that others waited behind.
        self.0.advance(&mut shared);
    }

    /// Starts nothing more, drops what waits, ends what runs within `grace`, and returns when all of it is gone.
    pub async fn drain(&self, grace: Duration) {
        self.0.lock().is_draining = true;
        self.cancel_all(grace).await;
    }

    /// Drops what waits, ends what runs within `grace`, and returns when all of it is gone; what is submitted meanwhile
    /// is ended as well.
    pub async fn cancel_all(&self, grace: Duration) {
        let stop = Stop { why: Stopped::Ending, kill_at: self.0.config.clock.instant() + grace };
        loop {
            let ended = self.0.ended.notified();
            {
                let mut shared = self.0.lock();
                shared.queue.clear();
                if shared.running.is_empty() {
                    return;
                }
                for running in shared.running.values() {
                    running.stopper.ask(stop);
                }
            }
            ended.await;
        }
    }

    /// Ends all jobs whenever the lead is lost, within `margin` and so before another replica may act, and returns when
    /// `stop` has come and all of them have ended within `grace`.
    pub async fn end_with(&self, leadership: &Leadership, margin: Duration, stop: &CancellationToken, grace: Duration) {
        loop {
            let lost = async {
                leadership.acquired().await;
                leadership.lost(margin).await;
            };
            tokio::select! {
                () = stop.cancelled() => return self.drain(grace).await,
                () = lost => {
                    tracing::warn!("leadership lost: ending running jobs");
                    self.cancel_all(margin).await;
                    // A late renewal lets new ones begin, which have to end with it in turn.
                    leadership.decided(margin).await;
                }
            }
        }
    }

    pub fn snapshot(&self) -> Snapshot {
        let shared = self.0.lock();
        let budgets = shared.queue.budgets();
        Snapshot {
            waiting: shared.queue.waiting(),
            running: shared.running.len(),
            budgets: budgets.names().map(|(name, budget)| (name, (budgets.in_use(name), budget.total))).collect(),
            ended: shared.tallies.clone(),
        }
    }
}

impl<E: Executor> Clone for Jobs<E> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<E: Executor> fmt::Debug for Jobs<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Jobs({:?})", self.snapshot())
    }
}

impl<E: Executor> Inner<E> {
    fn lock(&self) -> MutexGuard<'_, Shared<E>> {
        // Nothing panics between two changes that belong together.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(self: &Arc<Self>, waiting: Waiting<E>) -> Result<(), Refused> {
        let mut shared = self.lock();
        if shared.is_draining {
            return Err(Refused::Draining);
        }
        let Job { key, namespaces, draws, .. } = &waiting.job;
        let (key, mut namespaces) = (key.clone(), namespaces.clone());
        let draws = draws.iter().map(|draw| draw.clone().lasting(waiting.job.time)).collect();
        if namespaces.is_empty() {
            namespaces.push(key.namespace.clone());
        }
        drop(shared.queue.push(&key, &namespaces, draws, waiting)?);
        shared.finished.remove(&key);
        self.advance(&mut shared);
        Ok(())
    }

    /// Starts what fits.
    fn advance(self: &Arc<Self>, shared: &mut Shared<E>) {
        let now = self.config.clock.instant();
        while !shared.is_draining
            && let Some((key, waiting)) = shared.queue.start_next(now)
        {
            let Waiting { job, awaited } = waiting;
            let (since, stopper) = (self.config.clock.now(), Arc::new(Stopper::default()));
            let running = Running { kind: job.kind, label: job.label.clone(), since, stopper: stopper.clone() };
            shared.running.insert(key.clone(), running);
            let inner = self.clone();
            self.runtime.spawn(async move {
                let (kind, label) = (job.kind, job.label.clone());
                let ended = inner.clone().supervise(job, stopper).await;
                let duration = inner.config.clock.instant() - now;
                inner.finish(&key, Finished { kind, label, ended, started_at: since, duration }, awaited);
            });
        }
        self.look_later(shared);
    }

    /// A rate is refilled by time alone, so nothing else wakes what waits for it.
    fn look_later(self: &Arc<Self>, shared: &mut Shared<E>) {
        let Some(at) = shared.queue.next_refill() else { return };
        if shared.look_at.is_some_and(|known| known <= at) {
            return;
        }
        shared.look_at = Some(at);
        let inner = self.clone();
        self.runtime.spawn(async move {
            sleep_until(at).await;
            let mut shared = inner.lock();
            shared.look_at.take_if(|known| *known == at);
            inner.advance(&mut shared);
        });
    }

    /// In a task of its own, so that a panic or a job that does not end costs that job and not its slot.
    async fn supervise(self: Arc<Self>, job: Job<E::Task>, stopper: Arc<Stopper>) -> Ended<E::Output> {
        let mut stops = stopper.stops();
        let mut work = tokio::spawn(self.work(job, stopper));
        let overdue = async {
            let mut stop = stops.asked().await;
            loop {
                tokio::select! {
                    () = sleep_until(stop.kill_at + ABANDON) => return stop.why,
                    sooner = stops.asked() => stop = sooner,
                }
            }
        };
        tokio::select! {
            ended = &mut work => ended.unwrap_or_else(|panic| Ended::Panicked(panic.to_string())),
            why = overdue => {
                work.abort();
                Ended::Abandoned(why)
            }
        }
    }

    async fn work(self: Arc<Self>, job: Job<E::Task>, stopper: Arc<Stopper>) -> Ended<E::Output> {
        let mut stops = stopper.stops();
        let prepared = tokio::select! {
            prepared = timeout(self.config.preparation, self.executor.prepare(job.task)) => prepared,
            stop = stops.asked() => return Ended::NotBegun(stop.why),
        };
        let contents = match prepared {
            Ok(Ok(contents)) => contents,
            Ok(Err(NotBegun::Outdated(what))) => return Ended::Outdated(what),
            Ok(Err(NotBegun::Failed(output))) => return Ended::Done(output),
            Err(_) => return Ended::NotBegun(Stopped::Deadline),
        };
        let mut execution = pin!(self.executor.execute(contents, stops));
        tokio::select! {
            output = &mut execution => return Ended::Done(output),
            () = sleep(job.time) => {}
        }
        let kill_at = self.config.clock.instant() + self.config.grace;
        stopper.ask(Stop { why: Stopped::Deadline, kill_at });
        Ended::Done(execution.await)
    }

    fn finish(
        self: &Arc<Self>,
        key: &Key,
        finished: Finished<E::Output>,
        awaited: Option<oneshot::Sender<Arc<Finished<E::Output>>>>,
    ) {
        let mut shared = self.lock();
        let tally = shared.tallies.entry((finished.kind, E::result(&finished.ended))).or_default();
        tally.count += 1;
        tally.duration += finished.duration;
        shared.running.remove(key);
        shared.queue.finish(key, self.config.clock.instant());
        let finished = Arc::new(finished);
        let is_polled = awaited.is_none();
        match awaited {
            // The caller may have gone.
            Some(awaited) => drop(awaited.send(finished)),
            None => drop(shared.finished.insert(key.clone(), finished)),
        }
        self.advance(&mut shared);
        drop(shared);
        self.ended.notify_waiters();
        if is_polled && !(self.config.on_change)(key) {
            self.lock().finished.remove(key);
        }
    }
}
