//! The queue of one controller: which key runs next.
//!
//! A key is queued at most once and never runs twice at a time; a change that arrives while it runs makes it run once
//! more. Changes, and looks that are due, go before keys that keep failing, and these before resyncs, but what was passed
//! over sixteen times goes first; within each of the three the namespaces take turns, so a namespace with a
//! thousand keys waiting delays another by one round, not by a thousand. Nor can it occupy every slot (see
//! [`waiting::Slots`]). Within its namespace a key whose status was put off for the others goes first once its time is
//! over. Memory is bounded by the number of keys.

mod waiting;

use std::{
    collections::{BTreeMap, HashMap, hash_map::DefaultHasher},
    hash::{Hash, Hasher},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use process::{Clock, jittered};
use tokio::{sync::Notify, time::Instant};

use self::waiting::{Slots, Urgency, Waiting};
use crate::{error::Class, key::Key};

/// The first retry comes this soon: shorter would be a hot loop, longer would be felt by a user who waits.
const FIRST_RETRY: Duration = Duration::from_millis(100);
/// From this failure in a row on, a key stands behind all changes: conflicts and short outages are over by then.
const KEEPS_FAILING: u32 = 3;

/// A key may act this often in a row at full speed; any ordinary life (create, upgrade, repair, delete) fits well in.
const BURST: u32 = 20;
/// Beyond the burst a key acts once per this time: another client undoes what we do, and neither side will yield.
const COOL_DOWN: Duration = Duration::from_secs(1);

/// How a round ended, as far as the queue must know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing more to do until a change or the next resync.
    Settled,
    /// Settled, but look again after this time at the latest.
    Look(Duration),
    /// Writes were made: look at once whether anything is left.
    Again,
    /// Failed: retry with growing delay, not sooner than the server asked.
    Failed(Class, Option<Duration>),
    /// The object is gone.
    Forget,
}

#[derive(Debug, Default)]
struct Entry {
    queued: Option<(Urgency, Instant)>,
    running_since: Option<Instant>,
    /// This run was named as slow already.
    is_named_slow: bool,
    /// A change arrived during the run.
    run_again: bool,
    failing: Option<Failing>,
    /// The run put off the status until then.
    put_off: Option<Instant>,
    timer: Option<Timer>,
    /// When all acting so far would be paid for at one round per [`COOL_DOWN`].
    paid_at: Option<Instant>,
}

/// A key whose last round failed.
///
/// A change may be what it waits for, so it brings the retry forward: the first one lets the key run at once, and each
/// further one in a row waits twice as long after its failure, until the retry's own delay is reached. So an edit is
/// tried without delay, and a stream of changes does not defeat the growing delay. A retry that came by itself makes
/// good for one that was brought forward.
#[derive(Clone, Copy, Debug)]
struct Failing {
    at: Instant,
    /// In a row.
    times: u32,
    /// Retries brought forward, less those that came by themselves.
    hurried: u32,
    is_hurried: bool,
    /// What the server asked for; no change shortens it.
    not_before: Option<Instant>,
}

impl Failing {
    fn new(at: Instant, before: Option<Self>) -> Self {
        let times = before.map_or(0, |before| before.times).saturating_add(1);
        let hurried = match before {
            Some(before) if before.is_hurried => before.hurried.saturating_add(1),
            Some(before) => before.hurried.saturating_sub(1),
            None => 0,
        };
        Self { at, times, hurried, is_hurried: false, not_before: None }
    }

    /// The earliest time at which a change may bring the next attempt.
    fn earliest(&self) -> Instant {
        let patience = if self.hurried == 0 { Duration::ZERO } else { doubled(FIRST_RETRY, self.hurried - 1) };
        (self.at + patience).max(self.not_before.unwrap_or(self.at))
    }
}

/// `first`, doubled `times` times; the limit keeps the factor a number, far above any cap.
pub(crate) fn doubled(first: Duration, times: u32) -> Duration {
    first.saturating_mul(1 << times.min(20))
}

/// When a key is queued by itself, and how urgent it is then. The number distinguishes timers of the same moment.
#[derive(Clone, Copy, Debug)]
struct Timer {
    at: (Instant, u64),
    urgency: Urgency,
}

impl Entry {
    fn acted(&mut self, now: Instant) {
        self.paid_at = Some(self.paid_at.map_or(now, |at| at.max(now)) + COOL_DOWN);
    }

    /// The earliest moment the key may run again, if that is in the future.
    fn cools_until(&self, now: Instant) -> Option<Instant> {
        self.paid_at.and_then(|at| at.checked_sub(COOL_DOWN * BURST)).filter(|at| *at > now)
    }
}

#[derive(Debug, Default)]
struct Inner {
    entries: HashMap<Key, Entry>,
    /// How many of them each namespace has.
    namespaces: HashMap<Arc<str>, usize>,
    /// A standby remembers nothing: it looks at everything when it takes the lead.
    is_paused: bool,
    waiting: Waiting,
    slots: Slots,
    timers: BTreeMap<(Instant, u64), Key>,
    sequence: u64,
    adds: u64,
    retries: u64,
}

/// Counts for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Depth {
    pub queued: usize,
    pub known: usize,
    pub adds: u64,
    pub retries: u64,
    /// Sum and longest of the rounds running now.
    pub unfinished: Duration,
    pub longest: Duration,
}

#[derive(Debug)]
pub struct Queue {
    inner: Mutex<Inner>,
    wake: Notify,
    clock: Clock,
    resync: Duration,
}

/// A key handed out to run, and how long it waited.
#[derive(Debug, PartialEq, Eq)]
pub struct Turn {
    pub key: Key,
    pub waited: Duration,
}

impl Queue {
    /// `resync` is the period of the drift check; it also caps the delay between retries.
    pub fn new(clock: Clock, resync: Duration) -> Self {
        Self { inner: Mutex::default(), wake: Notify::new(), clock, resync }
    }

    /// How many rounds run at once. Without it there is no limit, and no slot is reserved.
    pub fn slots(&self, total: usize) {
        self.lock().slots.set_total(total);
    }

    /// Something about this key changed.
    pub fn changed(&self, key: &Key) {
        self.lock().changed(key, self.clock.instant());
        self.wake.notify_one();
    }

    /// The round that runs leaves its status to a later one, within this time.
    pub(crate) fn put_off(&self, key: &Key, within: Duration) {
        let at = self.clock.instant() + within;
        if let Some(entry) = self.lock().entries.get_mut(key) {
            entry.put_off = Some(at);
        }
    }

    /// The next key to run, as soon as there is one. The caller ends the run with [`Queue::done`].
    pub async fn next(&self) -> Turn {
        loop {
            let woken = self.wake.notified();
            let now = self.clock.instant();
            let due = {
                let mut inner = self.lock();
                inner.fire_timers(now);
                if let Some(turn) = inner.take(now) {
                    return turn;
                }
                inner.timers.first_key_value().map(|((at, _), _)| *at)
            };
            match due {
                Some(at) => tokio::select! {
                    () = woken => {}
                    () = tokio::time::sleep_until(at) => {}
                },
                None => woken.await,
            }
        }
    }

    /// Ends a run. `has_acted`: it wrote something, which counts against the key's burst. True if the key was forgotten
    /// and was the last of its namespace.
    pub fn done(&self, key: &Key, next: Next, has_acted: bool) -> bool {
        let is_last = self.end_run(key, next, has_acted, self.clock.instant());
        // The loop in `next` may have to hand out this key, use its slot for another, or wait for an earlier timer.
        self.wake.notify_one();
        is_last
    }

    fn end_run(&self, key: &Key, next: Next, has_acted: bool, now: Instant) -> bool {
        let mut inner = self.lock();
        let (is_paused, sequence) = (inner.is_paused, inner.sequence);
        inner.slots.free(key);
        let Some(entry) = inner.entries.get_mut(key) else { return false };
        entry.running_since = None;
        if has_acted {
            entry.acted(now);
        }
        let run_again = std::mem::take(&mut entry.run_again);
        let (before, put_off) = (entry.failing.take(), entry.put_off.take());
        let (delay, urgency) = match next {
            _ if is_paused => return inner.remove(key),
            Next::Forget if !run_again => return inner.remove(key),
            Next::Again | Next::Forget => (Duration::ZERO, Urgency::Changed),
            Next::Settled => (self.resync_delay(key, sequence), Urgency::Resync),
            Next::Look(after) => match self.resync_delay(key, sequence) {
                resync if resync < after => (resync, Urgency::Resync),
                // What a look is for is as urgent as a change: time has made one.
                _ => (after, Urgency::Changed),
            },
            Next::Failed(class, asked) => {
                // What the server asks is granted, but not for ever.
                let asked = asked.map(|asked| asked.min(self.resync));
                let failing = Failing { not_before: asked.map(|asked| now + asked), ..Failing::new(now, before) };
                entry.failing = Some(failing);
                inner.retries += 1;
                let delay = self.retry_delay(key, class, failing.times);
                let delay = asked.map_or(delay, |asked| delay.max(asked).min(self.resync));
                let urgency = if failing.times >= KEEPS_FAILING { Urgency::Retry } else { Urgency::Changed };
                inner.set_timer(key, now + delay, urgency);
                if run_again {
                    inner.bring_forward(key, (now + FIRST_RETRY).max(failing.earliest()));
                }
                return false;
            }
        };
        if run_again || delay.is_zero() {
            inner.enqueue(key, Urgency::Changed, now);
        } else {
            inner.set_timer(key, now + delay, urgency);
        }
        if let Some(at) = put_off {
            let sooner = inner.entries.get(key).and_then(|entry| entry.timer).map(|timer| timer.at.0);
            inner.set_timer(key, sooner.map_or(at, |sooner| sooner.min(at)), Urgency::Overdue);
        }
        false
    }

    /// Forgets all keys but the running ones and takes no new ones.
    pub fn pause(&self) {
        let mut inner = self.lock();
        if !std::mem::replace(&mut inner.is_paused, true) {
            let running = inner.entries.extract_if(|_, entry| entry.running_since.is_some()).collect();
            let (adds, retries, slots) = (inner.adds, inner.retries, std::mem::take(&mut inner.slots));
            *inner = Inner { is_paused: true, adds, retries, slots, ..Inner::default() };
            inner.entries = running;
            for key in inner.entries.keys().cloned().collect::<Vec<_>>() {
                *inner.namespaces.entry(key.namespace).or_default() += 1;
            }
        }
    }

    /// Whether more keys wait than may run at once.
    pub(crate) fn has_backlog(&self) -> bool {
        let inner = self.lock();
        inner.waiting.len() > inner.slots.total()
    }

    pub fn is_paused(&self) -> bool {
        self.lock().is_paused
    }

    /// Goes on, with all of `keys` to be looked at.
    pub fn resume(&self, keys: impl IntoIterator<Item = Key>) {
        let now = self.clock.instant();
        let mut inner = self.lock();
        if std::mem::take(&mut inner.is_paused) {
            for key in keys {
                inner.enqueue(&key, Urgency::Changed, now);
            }
        }
        drop(inner);
        self.wake.notify_one();
    }

    pub fn depth(&self) -> Depth {
        let now = self.clock.instant();
        let inner = self.lock();
        let running: Vec<Duration> = inner.running_for(now).into_iter().map(|(_, running)| running).collect();
        Depth {
            queued: inner.waiting.len(),
            known: inner.entries.len(),
            adds: inner.adds,
            retries: inner.retries,
            unfinished: running.iter().sum(),
            longest: running.into_iter().max().unwrap_or_default(),
        }
    }

    /// Whether a key waits for its round now.
    pub(crate) fn has_waiting(&self) -> bool {
        self.lock().waiting.len() > 0
    }

    /// Rounds that run for longer than `limit`, the longest first.
    pub(crate) fn slow(&self, limit: Duration) -> Vec<(Key, Duration)> {
        let mut slow = self.lock().running_for(self.clock.instant());
        slow.retain(|(_, running)| *running > limit);
        // By key where equal, so that two looks show the same.
        slow.sort_by(|(a, since_a), (b, since_b)| since_b.cmp(since_a).then_with(|| a.cmp(b)));
        slow
    }

    /// As [`Queue::slow`], but each round once.
    pub(crate) fn newly_slow(&self, limit: Duration) -> Vec<(Key, Duration)> {
        let mut slow = self.slow(limit);
        let mut inner = self.lock();
        slow.retain(|(key, _)| {
            inner.entries.get_mut(key).is_some_and(|entry| !std::mem::replace(&mut entry.is_named_slow, true))
        });
        slow
    }

    fn resync_delay(&self, key: &Key, sequence: u64) -> Duration {
        jittered(self.resync, seed(key, sequence))
    }

    fn retry_delay(&self, key: &Key, class: Class, failures: u32) -> Duration {
        if class == Class::Terminal {
            return self.resync_delay(key, failures.into());
        }
        jittered(doubled(FIRST_RETRY, failures - 1).min(self.resync), seed(key, failures.into()))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn seed(key: &Key, salt: u64) -> u64 {
    let mut hasher = DefaultHasher::new();
    (key, salt).hash(&mut hasher);
    hasher.finish()
}

impl Inner {
    fn running_for(&self, now: Instant) -> Vec<(Key, Duration)> {
        let running = self.entries.iter().filter_map(|(key, entry)| Some((key, entry.running_since?)));
        running.map(|(key, since)| (key.clone(), now.saturating_duration_since(since))).collect()
    }

    /// Forgets a key; true if it was the last of its namespace.
    fn remove(&mut self, key: &Key) -> bool {
        self.entries.remove(key);
        let Some(count) = self.namespaces.get_mut(&key.namespace) else { return false };
        *count -= 1;
        let is_last = *count == 0;
        if is_last {
            self.namespaces.remove(&key.namespace);
        }
        is_last
    }

    /// Queues a changed key, or brings the retry of a failing one forward.
    fn changed(&mut self, key: &Key, now: Instant) {
        match self.entries.get(key) {
            Some(Entry { timer: Some(_), failing: Some(failing), .. }) => {
                let earliest = failing.earliest().max(now);
                self.bring_forward(key, earliest);
            }
            _ => self.enqueue(key, Urgency::Changed, now),
        }
    }

    /// Lets a failing key's retry come at `at`, unless it comes earlier anyway. Either way the retry is a change now.
    fn bring_forward(&mut self, key: &Key, at: Instant) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        let (Some(timer), Some(failing)) = (&mut entry.timer, &mut entry.failing) else { return };
        timer.urgency = Urgency::Changed;
        if at < timer.at.0 {
            failing.is_hurried = true;
            self.set_timer(key, at, Urgency::Changed);
        }
    }

    fn enqueue(&mut self, key: &Key, urgency: Urgency, now: Instant) {
        if self.is_paused {
            return;
        }
        self.adds += 1;
        if !self.entries.contains_key(key) {
            *self.namespaces.entry(key.namespace.clone()).or_default() += 1;
        }
        let entry = self.entries.entry(key.clone()).or_default();
        if entry.running_since.is_some() {
            entry.run_again = true;
            return;
        }
        match entry.queued {
            Some((before, since)) if before < urgency => {
                entry.queued = Some((urgency, since));
                self.waiting.raise(key, before, urgency);
            }
            Some(_) => {}
            None => match entry.cools_until(now) {
                Some(at) => self.set_timer(key, at, urgency),
                None => self.push(key, urgency, now),
            },
        }
    }

    /// Lets a key wait for a round.
    fn push(&mut self, key: &Key, urgency: Urgency, now: Instant) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        entry.queued = Some((urgency, now));
        self.end_timer(key, urgency);
        self.waiting.push(key.clone(), urgency);
    }

    /// Ends the key's timer, unless what it is for is more urgent than this.
    fn end_timer(&mut self, key: &Key, urgency: Urgency) {
        let timer = self.entries.get_mut(key).and_then(|entry| entry.timer.take_if(|timer| timer.urgency <= urgency));
        if let Some(timer) = timer {
            self.timers.remove(&timer.at);
        }
    }

    fn set_timer(&mut self, key: &Key, at: Instant, urgency: Urgency) {
        self.sequence += 1;
        let timer = Timer { at: (at, self.sequence), urgency };
        if let Some(entry) = self.entries.get_mut(key) {
            if let Some(old) = entry.timer.replace(timer) {
                self.timers.remove(&old.at);
            }
            self.timers.insert(timer.at, key.clone());
        }
    }

    fn fire_timers(&mut self, now: Instant) {
        while let Some(first) = self.timers.first_entry() {
            if first.key().0 > now {
                return;
            }
            let key = first.remove();
            if let Some(timer) = self.entries.get_mut(&key).and_then(|entry| entry.timer.take()) {
                self.enqueue(&key, timer.urgency, now);
            }
        }
    }

    fn take(&mut self, now: Instant) -> Option<Turn> {
        let (key, urgency) = self.waiting.pop(&self.slots)?;
        let entry = self.entries.get_mut(&key)?;
        let since = entry.queued.take().map_or(now, |(_, since)| since);
        entry.running_since = Some(now);
        entry.is_named_slow = false;
        self.end_timer(&key, Urgency::Overdue);
        self.slots.take(&key, urgency);
        Some(Turn { key, waited: now.saturating_duration_since(since) })
    }
}

#[cfg(test)]
mod tests;
