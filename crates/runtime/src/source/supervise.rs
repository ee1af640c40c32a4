//! The life of one source: connect, listen, lose, wait, again.

use std::{
    panic::AssertUnwindSafe,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures::FutureExt;
use process::panic;
use tokio::{
    sync::SemaphorePermit,
    time::{Instant, sleep, sleep_until, timeout_at},
};

use super::{Entry, Feed, Lost, Peer, Pool, QUICK, Signals, Sink, spread};

/// The first wait after a loss; with what is added to spread peers apart, the longest is 30 s.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(20);
/// What a peer may ask for: budgets of calls are counted by the hour.
const LONGEST_RETRY_AFTER: Duration = Duration::from_hours(1);

/// The wait before another attempt, a little different for each peer: after a restart of theirs, all come at once.
fn wait(peer: &impl Peer, failures: u32) -> Duration {
    let wait = (FIRST_WAIT * (1 << failures.min(10))).min(LONGEST_WAIT);
    wait + wait * spread(peer, failures) / 2000
}

/// One peer's entry.
struct Slot<P: Peer, V> {
    pool: Arc<Pool<P, V>>,
    peer: P,
    /// Distinguishes this source from one that took its place.
    signals: Arc<Signals>,
}

impl<P: Peer, V: Send + Sync + 'static> Sink<V> for Slot<P, V> {
    fn change(&self, session: u64, change: &mut dyn FnMut(&mut Entry<V>, Instant) -> bool) {
        let now = self.pool.clock.instant();
        if let Some(entry) = self.pool.lock().get_mut(&self.peer).filter(|entry| entry.session == session)
            && change(entry, now)
        {
            entry.signals.changed.notify_one();
        }
    }
}

/// Follows one peer until dropped.
pub(super) async fn run<P: Peer, V: Send + Sync + 'static>(pool: Arc<Pool<P, V>>, peer: P, signals: Arc<Signals>) {
    let slot = Arc::new(Slot { pool: pool.clone(), peer: peer.clone(), signals });
    let mut notice = Notice { slot: slot.clone(), last: None };
    let mut failures = 0;
    loop {
        let began = pool.clock.instant();
        let lost = AssertUnwindSafe(notice.give(session(&slot))).catch_unwind().await;
        let lost = lost.unwrap_or_else(|panic| {
            pool.panics.fetch_add(1, Ordering::Relaxed);
            let panic = panic::message(&*panic);
            tracing::error!(source = pool.name, %peer, panic, "panic in a source; reconnecting");
            Lost::new(format!("panic: {panic}"))
        });
        if slot.contact_at().is_some_and(|at| at >= began) {
            failures = 0;
        }
        pool.losses.fetch_add(1, Ordering::Relaxed);
        let asked = lost.retry_after.unwrap_or_default().min(LONGEST_RETRY_AFTER);
        let wait = wait(&peer, failures).max(asked);
        failures += 1;
        if slot.end(&lost.why) {
            tracing::warn!(source = pool.name, %peer, why = lost.why, ?wait, "source lost; connecting again");
        }
        // A listener that panics costs its source the rest of the wait.
        let _ = AssertUnwindSafe(notice.give(sleep(wait))).catch_unwind().await;
    }
}

impl<P: Peer, V: Send + Sync + 'static> Slot<P, V> {
    fn with<T>(&self, look: impl FnOnce(&mut Entry<V>) -> T) -> Option<T> {
        let mut peers = self.pool.lock();
        peers.get_mut(&self.peer).filter(|entry| Arc::ptr_eq(&entry.signals, &self.signals)).map(look)
    }

    /// The connection has ended: what was known is unknown from now on. True if the reason is another than before.
    fn end(&self, why: &str) -> bool {
        let end = |entry: &mut Entry<V>| {
            entry.session += 1;
            entry.is_connected = false;
            let is_news = entry.interruption.as_deref() != Some(why);
            entry.interruption = Some(why.to_owned());
            if is_news {
                self.signals.changed.notify_one();
            }
            is_news
        };
        self.with(end).unwrap_or(false)
    }

    fn contact_at(&self) -> Option<Instant> {
        self.with(|entry| entry.contact_at).flatten()
    }
}

/// One connection, to its end.
async fn session<P: Peer, V: Send + Sync + 'static>(slot: &Arc<Slot<P, V>>) -> Lost {
    let quick = slot.pool.connects.acquire().await.expect("the semaphore is never closed");
    let Some((session, connect)) = slot.with(|entry| (entry.session, entry.connect.clone())) else {
        // Another took its place, and this one is about to be dropped.
        return std::future::pending().await;
    };
    let feed = Feed { sink: slot.clone(), session, signals: slot.signals.clone() };
    tokio::select! {
        ended = async move { connect(feed).await } => {
            ended.err().unwrap_or_else(|| Lost::new("the peer closed the connection"))
        }
        lost = limits(slot, quick) => lost,
    }
}

/// Ends when the peer takes too long to answer, or says nothing for too long.
async fn limits<P: Peer, V: Send + Sync + 'static>(slot: &Slot<P, V>, quick: SemaphorePermit<'_>) -> Lost {
    let (pool, config) = (&slot.pool, &slot.pool.config);
    let began = pool.clock.instant();
    let is_quick = answers(slot, began + config.connect.min(QUICK)).await;
    // Others may connect now.
    drop(quick);
    if !is_quick {
        let Ok(_slow) = pool.slow_connects.try_acquire() else {
            return Lost::new(format!("no answer within {QUICK:?}, and many others are as slow"));
        };
        if !answers(slot, began + config.connect).await {
            return Lost::new(format!("no answer within {:?}", config.connect));
        }
    }
    loop {
        let limit = slot.contact_at().map_or(began, |at| at.max(began)) + config.silence;
        if limit <= pool.clock.instant() {
            return Lost::new(format!("silent for {:?}", config.silence));
        }
        sleep_until(limit).await;
    }
}

/// Waits until the peer has answered; false if that takes longer than until `limit`.
async fn answers<P: Peer, V: Send + Sync + 'static>(slot: &Slot<P, V>, limit: Instant) -> bool {
    while slot.with(|entry| entry.is_connected) != Some(true) {
        if timeout_at(limit, slot.signals.answered.notified()).await.is_err() {
            return false;
        }
    }
    true
}

/// Notifies of what is new: at once after a quiet time, otherwise when the changes that follow have been collected.
struct Notice<P: Peer, V> {
    slot: Arc<Slot<P, V>>,
    last: Option<Instant>,
}

impl<P: Peer, V: Send + Sync + 'static> Notice<P, V> {
    /// Notifies while `work` goes on.
    async fn give<T>(&mut self, work: impl Future<Output = T>) -> T {
        let slot = self.slot.clone();
        let mut work = std::pin::pin!(work);
        let mut due: Option<Instant> = None;
        loop {
            let wait = async {
                match due {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                done = &mut work => {
                    // What was collected is not lost with the connection.
                    if due.is_some() {
                        slot.signals.changed.notify_one();
                    }
                    return done;
                }
                () = slot.signals.changed.notified(), if due.is_none() => {
                    let now = slot.pool.clock.instant();
                    due = Some(self.last.map_or(now, |last| last + slot.pool.config.debounce));
                }
                () = wait => {
                    due = None;
                    // Of what came meanwhile is notified now.
                    let _ = slot.signals.changed.notified().now_or_never();
                    self.last = Some(slot.pool.clock.instant());
                    (slot.pool.notify)(&slot.peer);
                }
            }
        }
    }
}
