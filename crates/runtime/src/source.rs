//! What peers outside Kubernetes say: a stream or a poller for each, which come and go while the operator runs.
//!
//! Each runs in a task of its own. One that is dead, slow or panics costs itself: it is connected again after a wait,
//! and what it said last is kept with its age. Who needs a value reads it here at any time, and never waits for a peer.

use std::{
    collections::HashMap,
    fmt::Display,
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::AtomicU64},
    time::Duration,
};

use futures::future::BoxFuture;
use plan::fact::{Class, Fact, Failure};
use process::{Clock, Pulse};
use tokio::{
    sync::{Notify, Semaphore},
    task::JoinSet,
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use crate::error::Chain;

mod supervise;
mod tally;
#[cfg(test)]
mod tests;

pub(crate) use tally::{AllSources, Tallied};

/// How the sources of one kind are treated.
#[derive(Clone, Debug)]
pub struct SourceConfig {
    /// Changes that follow each other within this are notified of once.
    pub debounce: Duration,
    /// How long a peer may take to answer before the attempt is given up.
    pub connect: Duration,
    /// How long a connected peer may say nothing before it counts as lost. A stream needs a heartbeat or a peer that
    /// says something at least this often; a poller its period and the time of one call.
    pub silence: Duration,
}

/// A connection that ended, and why.
#[derive(Debug)]
pub struct Lost {
    why: String,
    retry_after: Option<Duration>,
}

impl Lost {
    pub fn new(why: impl Into<String>) -> Self {
        Self { why: why.into(), retry_after: None }
    }

    /// The peer asked not to be called before.
    #[must_use]
    pub fn retry_after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self
    }
}

impl<E: std::error::Error> From<E> for Lost {
    fn from(error: E) -> Self {
        Self::new(Chain(&error).to_string())
    }
}

/// Connects to a peer and feeds what it says, until the connection ends. Called again after a wait.
pub type Connect<V> = Arc<dyn Fn(Feed<V>) -> BoxFuture<'static, Result<(), Lost>> + Send + Sync>;

/// What is known of a peer.
#[derive(Debug)]
pub struct Snapshot<V> {
    /// What it said last, also if it is not connected now.
    pub value: Option<Arc<V>>,
    /// Counts the values: another number is another value.
    pub sequence: u64,
    /// Time since the peer last said that the value is so.
    pub age: Option<Duration>,
    /// Why the peer cannot be asked now. With this, its value is unknown, whatever it was.
    pub interruption: Option<String>,
}

impl<V> Snapshot<V> {
    /// What is known, as a plan sees it: the part of the value that `project` takes.
    pub fn fact<T>(&self, project: impl FnOnce(&V) -> T) -> Fact<T> {
        let last = self.value.as_deref().map(project).zip(self.age);
        match (&self.interruption, last) {
            (None, Some((value, age))) => Fact::Known { value, age },
            (why, last) => {
                let message = why.clone().unwrap_or_else(|| "nothing received yet".to_owned());
                Fact::Unknown { why: Failure { class: Class::Transient, message }, last }
            }
        }
    }
}

struct Entry<V> {
    connect: Connect<V>,
    /// Counts connections; what an earlier one still says is dropped.
    session: u64,
    is_connected: bool,
    value: Option<Arc<V>>,
    sequence: u64,
    contact_at: Option<Instant>,
    interruption: Option<String>,
    stop: CancellationToken,
    is_started: bool,
    signals: Arc<Signals>,
}

#[derive(Default)]
struct Signals {
    /// A value, a connection or its end is to be notified of.
    changed: Notify,
    /// The peer answered.
    answered: Notify,
    /// A fresh value is wanted.
    wanted: Notify,
}

/// Attempts to connect that run at once: a handshake costs CPU, and hundreds may begin together.
const CONNECTS: usize = 16;
/// A peer that has not answered by then lets others connect, so that dead ones do not hold up others.
const QUICK: Duration = Duration::from_secs(2);
/// Slow attempts beside the quick ones: each is a socket. If there are more, they are tried again later.
const SLOW_CONNECTS: usize = 64;

/// The sources of one kind, by peer. Clones share them.
pub struct Sources<P, V> {
    pool: Arc<Pool<P, V>>,
}

impl<P, V> Clone for Sources<P, V> {
    fn clone(&self) -> Self {
        Self { pool: self.pool.clone() }
    }
}

struct Pool<P, V> {
    name: &'static str,
    config: SourceConfig,
    clock: Clock,
    /// To be called with each peer of which something is new.
    notify: Box<dyn Fn(&P) + Send + Sync>,
    peers: Mutex<HashMap<P, Entry<V>>>,
    added: Notify,
    connects: Semaphore,
    slow_connects: Semaphore,
    losses: AtomicU64,
    panics: AtomicU64,
}

/// What distinguishes one peer from another.
pub trait Peer: Clone + Eq + Hash + Display + Send + Sync + 'static {}

impl<P: Clone + Eq + Hash + Display + Send + Sync + 'static> Peer for P {}

impl<P: Peer, V: Send + Sync + 'static> Sources<P, V> {
    pub(crate) fn new(
        name: &'static str,
        config: SourceConfig,
        clock: Clock,
        notify: impl Fn(&P) + Send + Sync + 'static,
    ) -> Self {
        Self {
            pool: Arc::new(Pool {
                name,
                config,
                clock,
                notify: Box::new(notify),
                peers: Mutex::default(),
                added: Notify::new(),
                connects: Semaphore::new(CONNECTS),
                slow_connects: Semaphore::new(SLOW_CONNECTS),
                losses: AtomicU64::new(0),
                panics: AtomicU64::new(0),
            }),
        }
    }

    /// From now on the peer is followed, by this connection. One that is followed already is connected anew, and keeps
    /// what it said last.
    pub fn set<F>(&self, peer: P, connect: impl Fn(Feed<V>) -> F + Send + Sync + 'static)
    where
        F: Future<Output = Result<(), Lost>> + Send + 'static,
    {
        let connect: Connect<V> = Arc::new(move |feed| Box::pin(connect(feed)));
        let mut peers = self.pool.lock();
        let former = peers.remove(&peer);
        if let Some(former) = &former {
            former.stop.cancel();
        }
        let (session, value, sequence, contact_at) = former.map_or((0, None, 0, None), |former| {
            (former.session + 1, former.value, former.sequence, former.contact_at)
        });
        let entry = Entry {
            connect,
            session,
            is_connected: false,
            value,
            sequence,
            contact_at,
            interruption: Some(NOT_YET.to_owned()),
            stop: CancellationToken::new(),
            is_started: false,
            signals: Arc::default(),
        };
        peers.insert(peer, entry);
        self.pool.added.notify_one();
    }

    /// From now on it is not, and what it said is forgotten.
    pub fn remove(&self, peer: &P) {
        if let Some(entry) = self.pool.lock().remove(peer) {
            entry.stop.cancel();
        }
    }

    /// What is known of a peer; `None` if there is no source for it.
    pub fn get(&self, peer: &P) -> Option<Snapshot<V>> {
        let now = self.pool.clock.instant();
        let peers = self.pool.lock();
        let entry = peers.get(peer)?;
        Some(Snapshot {
            value: entry.value.clone(),
            sequence: entry.sequence,
            age: entry.contact_at.map(|at| now.saturating_duration_since(at)),
            interruption: entry.interruption.clone(),
        })
    }

    pub fn peers(&self) -> Vec<P> {
        self.pool.lock().keys().cloned().collect()
    }

    /// A poller asks its peer at once instead of at the end of its period.
    pub fn hurry(&self, peer: &P) {
        if let Some(entry) = self.pool.lock().get(peer) {
            entry.signals.wanted.notify_one();
        }
    }

    /// Runs all of them, for ever.
    pub(crate) async fn run(self, pulse: Pulse) {
        let mut running = JoinSet::new();
        loop {
            for (peer, stop, signals) in self.pool.unstarted() {
                let pool = self.pool.clone();
                running.spawn(async move { stop.run_until_cancelled(supervise::run(pool, peer, signals)).await });
            }
            tokio::select! {
                () = self.pool.added.notified() => {}
                Some(_) = running.join_next() => {}
                () = pulse.tick() => {}
            }
        }
    }
}

/// The interruption of a peer that was not reached since it was asked for.
const NOT_YET: &str = "not connected yet";

impl<P: Peer, V> Pool<P, V> {
    fn lock(&self) -> MutexGuard<'_, HashMap<P, Entry<V>>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unstarted(&self) -> Vec<(P, CancellationToken, Arc<Signals>)> {
        let mut peers = self.lock();
        let new = peers.iter_mut().filter(|(_, entry)| !entry.is_started);
        new.map(|(peer, entry)| {
            entry.is_started = true;
            (peer.clone(), entry.stop.clone(), entry.signals.clone())
        })
        .collect()
    }
}

/// Where a connection puts what its peer says. It is dead once the connection has ended.
pub struct Feed<V> {
    sink: Arc<dyn Sink<V>>,
    session: u64,
    signals: Arc<Signals>,
}

impl<V> Clone for Feed<V> {
    fn clone(&self) -> Self {
        Self { sink: self.sink.clone(), session: self.session, signals: self.signals.clone() }
    }
}

/// The entry of a feed, whatever its peer is.
trait Sink<V>: Send + Sync {
    /// Changes the entry, if the session is still the present one; true if it is to be notified of.
    fn change(&self, session: u64, change: &mut dyn FnMut(&mut Entry<V>, Instant) -> bool);
}

impl<V: PartialEq + Send + Sync + 'static> Feed<V> {
    /// The peer said something. The same again confirms what is known.
    pub fn put(&self, value: V) {
        let mut value = Some(value);
        self.sink.change(self.session, &mut |entry, now| {
            let Some(value) = value.take() else { return false };
            let is_news = entry.value.as_deref() != Some(&value);
            if is_news {
                entry.value = Some(Arc::new(value));
                entry.sequence += 1;
            }
            entry.contact(now) || is_news
        });
    }
}

impl<V: Send + Sync + 'static> Feed<V> {
    /// The peer answered, and says more later.
    pub fn connected(&self) {
        self.sink.change(self.session, &mut |entry, _| {
            entry.is_connected = true;
            entry.interruption = Some("connected, nothing received yet".to_owned());
            entry.signals.answered.notify_one();
            false
        });
    }

    /// The peer said that what is known is still so.
    pub fn confirm(&self) {
        self.sink.change(self.session, &mut |entry, now| entry.contact(now));
    }

    /// What the peer said last, to apply a difference to. After a connection it begins with what the former one left.
    pub fn last(&self) -> Option<Arc<V>> {
        let mut last = None;
        self.sink.change(self.session, &mut |entry, _| {
            last.clone_from(&entry.value);
            false
        });
        last
    }

    /// Waits between two questions, or until an answer is wanted at once.
    pub async fn rest(&self, period: Duration) {
        tokio::select! {
            () = tokio::time::sleep(period) => {}
            () = self.signals.wanted.notified() => {}
        }
    }
}

impl<V> Entry<V> {
    /// True if it had been silent.
    fn contact(&mut self, now: Instant) -> bool {
        self.contact_at = Some(now);
        if !self.is_connected {
            self.is_connected = true;
            self.signals.answered.notify_one();
        }
        self.interruption.take().is_some()
    }
}

/// A source that asks again and again: `ask` once every `period`, each call within `limit`.
pub fn poll<V, F>(
    period: Duration,
    limit: Duration,
    ask: impl Fn() -> F + Send + Sync + 'static,
) -> impl Fn(Feed<V>) -> BoxFuture<'static, Result<(), Lost>> + Send + Sync + 'static
where
    V: PartialEq + Send + Sync + 'static,
    F: Future<Output = Result<V, Lost>> + Send + 'static,
{
    let ask = Arc::new(ask);
    move |feed| {
        let ask = ask.clone();
        Box::pin(async move {
            loop {
                let asked = tokio::time::timeout(limit, ask()).await;
                feed.put(asked.map_err(|_| Lost::new(format!("no answer within {limit:?}")))??);
                feed.rest(period).await;
            }
        })
    }
}

/// A number that differs between peers and attempts, the same in every run.
fn spread(peer: &impl Hash, attempt: u32) -> u32 {
    let mut hasher = DefaultHasher::new();
    (peer, attempt).hash(&mut hasher);
    u32::try_from(hasher.finish() % 1000).unwrap_or(0)
}
