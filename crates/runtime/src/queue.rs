//! The queue of one controller: which key runs next.
//!
//! A key is queued at most once and never runs twice at a time; a change that arrives while it runs makes it run once
//! more. Changes, and looks that are due, go before keys that keep failing, and these before resyncs; within each of
//! the three the namespaces take turns, so a namespace with a thousand keys waiting delays another by one round, not
//! by a thousand. Nor can it occupy every slot (see [`waiting::Slots`]). Memory is bounded by the number of keys.

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
/// Beyond the burst a key acts once per this time: someone else undoes what we do, and neither side will yield.
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
fn doubled(first: Duration, times: u32) -> Duration {
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
        let before = entry.failing.take();
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

    /// Whether keys wait, or run beside the one that asks.
    pub(crate) fn is_busy(&self) -> bool {
        let inner = self.lock();
        inner.waiting.len() > 0 || inner.slots.running() > 1
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
        if let Some(timer) = entry.timer.take() {
            self.timers.remove(&timer.at);
        }
        self.waiting.push(key.clone(), urgency);
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
        let key = self.waiting.pop(&self.slots)?;
        let entry = self.entries.get_mut(&key)?;
        let since = entry.queued.take().map_or(now, |(_, since)| since);
        entry.running_since = Some(now);
        entry.is_named_slow = false;
        self.slots.take(&key);
        Some(Turn { key, waited: now.saturating_duration_since(since) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESYNC: Duration = Duration::from_mins(2);

    fn queue() -> Queue {
        Queue::new(Clock::default(), RESYNC)
    }

    fn key(namespace: &str, name: &str) -> Key {
        Key::new(namespace, name)
    }

    /// What is ready right now, in order, each taken as running.
    async fn ready(queue: &Queue) -> Vec<String> {
        let mut keys = Vec::new();
        while let Ok(turn) = tokio::time::timeout(Duration::ZERO, queue.next()).await {
            keys.push(turn.key.to_string());
        }
        keys
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_runs_once_at_a_time_and_once_more_after_a_change() {
        let queue = queue();
        let a = key("n", "a");
        queue.changed(&a);
        queue.changed(&a);
        assert_eq!(ready(&queue).await, ["n/a"]);
        queue.changed(&a);
        queue.changed(&a);
        assert_eq!(ready(&queue).await, [""; 0]);
        queue.done(&a, Next::Settled, false);
        assert_eq!(ready(&queue).await, ["n/a"]);
    }

    #[tokio::test(start_paused = true)]
    async fn namespaces_take_turns() {
        let queue = queue();
        for name in ["1", "2", "3", "4"] {
            queue.changed(&key("big", name));
        }
        queue.changed(&key("small", "x"));
        assert_eq!(ready(&queue).await, ["big/1", "small/x", "big/2", "big/3", "big/4"]);
    }

    #[tokio::test(start_paused = true)]
    async fn changes_go_before_resyncs_and_a_resync_can_turn_urgent() {
        let queue = queue();
        for name in ["1", "2", "3"] {
            queue.changed(&key("n", name));
        }
        ready(&queue).await;
        for name in ["1", "2", "3"] {
            queue.done(&key("n", name), Next::Settled, false);
        }
        tokio::time::advance(RESYNC * 2).await;
        queue.lock().fire_timers(Instant::now());
        queue.changed(&key("n", "9"));
        queue.changed(&key("n", "3"));
        assert_eq!(ready(&queue).await[..2], ["n/9", "n/3"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_due_look_has_the_urgency_of_a_change_and_a_resync_has_not() {
        let queue = queue();
        let (look, resync, change) = (key("looks", "a"), key("resyncs", "a"), key("changes", "a"));
        for key in [&look, &resync] {
            queue.changed(key);
            queue.next().await;
        }
        queue.done(&resync, Next::Settled, false);
        queue.done(&look, Next::Look(RESYNC), false);
        tokio::time::advance(RESYNC * 2).await;
        queue.lock().fire_timers(Instant::now());
        queue.changed(&change);
        // Later than both changes, though it was due as early as the look.
        assert_eq!(ready(&queue).await.last().unwrap(), "resyncs/a");
        queue.done(&look, Next::Look(RESYNC * 2), false);
        tokio::time::advance(RESYNC * 2).await;
        queue.lock().fire_timers(Instant::now());
        queue.changed(&key("changes", "b"));
        assert_eq!(ready(&queue).await, ["changes/b", "looks/a"], "the resync came before the look was due");
    }

    #[tokio::test(start_paused = true)]
    async fn a_namespace_whose_rounds_hang_leaves_a_slot_for_the_looks_of_another() {
        let queue = queue();
        queue.slots(10);
        let other = key("other", "ended");
        queue.changed(&other);
        queue.next().await;
        queue.done(&other, Next::Look(Duration::from_secs(10)), false);
        for number in 0..150 {
            queue.changed(&key("hanging", &number.to_string()));
        }
        let hang = async || {
            let keys = ready(&queue).await;
            assert!(keys.len() == 8 && keys.iter().all(|key| key.starts_with("hanging/")), "{keys:?}");
            keys
        };
        // Each round takes the whole request timeout and fails; the look is due while the second lot hangs.
        let first = hang().await;
        tokio::time::advance(Duration::from_millis(9_950)).await;
        for key in first {
            let name = key.split_once('/').unwrap().1;
            queue.done(&self::key("hanging", name), Next::Failed(Class::Transient, None), false);
        }
        hang().await;
        tokio::time::advance(Duration::from_millis(100)).await;
        assert_eq!(ready(&queue).await, ["other/ended"]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_reserve_is_one_slot_per_idle_namespace_and_never_for_keys_that_keep_failing() {
        let queue = queue();
        queue.slots(8);
        let failing = key("failing", "a");
        queue.changed(&failing);
        for _ in 0..KEEPS_FAILING {
            queue.next().await;
            queue.done(&failing, Next::Failed(Class::Transient, None), false);
        }
        for namespace in ["a", "b", "c"] {
            for number in 0..9 {
                queue.changed(&key(namespace, &number.to_string()));
            }
        }
        queue.changed(&key("d", "0"));
        queue.changed(&key("e", "0"));
        // Six slots by turns, then the reserve of two: for the namespaces that run nothing.
        let keys = ["a/0", "b/0", "c/0", "d/0", "e/0", "a/1"];
        assert_eq!(ready(&queue).await, keys);
        queue.changed(&key("f", "0"));
        tokio::time::advance(RESYNC).await;
        assert_eq!(ready(&queue).await, ["f/0"], "one slot is left, and not for the key that keeps failing");
        for key in ["a/0", "a/1"] {
            let (namespace, name) = key.split_once('/').unwrap();
            queue.done(&self::key(namespace, name), Next::Settled, false);
        }
        // One beyond the reserve, by turns, and one of the reserve for the namespace that runs nothing now.
        assert_eq!(ready(&queue).await, ["b/1", "a/2"], "changes go before the key that keeps failing");
    }

    #[tokio::test(start_paused = true)]
    async fn one_namespace_uses_all_slots_but_a_quarter() {
        for (slots, taken) in [(1, 1), (2, 1), (3, 2), (4, 3), (10, 8)] {
            let queue = queue();
            queue.slots(slots);
            for number in 0..20 {
                queue.changed(&key("n", &number.to_string()));
            }
            assert_eq!(ready(&queue).await.len(), taken, "of {slots} slots");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_that_keeps_failing_stands_behind_changes_and_before_resyncs() {
        let queue = queue();
        let (failing, settled) = (key("n", "failing"), key("n", "settled"));
        for key in [&failing, &settled] {
            queue.changed(key);
            queue.next().await;
        }
        queue.done(&settled, Next::Settled, false);
        for _ in 1..KEEPS_FAILING {
            queue.done(&failing, Next::Failed(Class::Transient, None), false);
            queue.next().await;
        }
        queue.done(&failing, Next::Failed(Class::Transient, None), false);
        tokio::time::advance(RESYNC * 2).await;
        queue.lock().fire_timers(Instant::now());
        queue.changed(&key("n", "change"));
        assert_eq!(ready(&queue).await, ["n/change", "n/failing", "n/settled"]);
    }

    #[tokio::test(start_paused = true)]
    async fn settled_keys_come_back_after_the_resync_period() {
        let queue = queue();
        let a = key("n", "a");
        queue.changed(&a);
        ready(&queue).await;
        queue.done(&a, Next::Settled, false);
        tokio::time::advance(RESYNC * 8 / 10).await;
        assert_eq!(ready(&queue).await, [""; 0]);
        tokio::time::advance(RESYNC * 4 / 10).await;
        assert_eq!(ready(&queue).await, ["n/a"]);
    }

    #[tokio::test(start_paused = true)]
    async fn retries_grow_up_to_the_resync_period_and_success_resets_them() {
        let queue = queue();
        let a = key("n", "a");
        queue.changed(&a);
        let mut delays = Vec::new();
        for _ in 0..16 {
            let before = Instant::now();
            queue.next().await;
            delays.push(before.elapsed());
            queue.done(&a, Next::Failed(Class::Transient, None), false);
        }
        assert!(delays[1] < Duration::from_millis(120));
        assert!(delays[1..10].windows(2).all(|pair| pair[1] > pair[0]));
        assert!(delays.iter().all(|delay| *delay <= RESYNC * 11 / 10));
        queue.next().await;
        queue.done(&a, Next::Again, false);
        queue.next().await;
        queue.done(&a, Next::Failed(Class::Transient, None), false);
        let before = Instant::now();
        queue.next().await;
        assert!(before.elapsed() < Duration::from_millis(120));
    }

    #[tokio::test(start_paused = true)]
    async fn the_server_may_ask_for_more_patience() {
        let queue = queue();
        let a = key("n", "a");
        queue.changed(&a);
        queue.next().await;
        queue.done(&a, Next::Failed(Class::Transient, Some(Duration::from_secs(7))), false);
        let before = Instant::now();
        queue.next().await;
        assert!(before.elapsed() >= Duration::from_secs(7));
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_cuts_a_delay_short() {
        let queue = queue();
        let a = key("n", "a");
        queue.changed(&a);
        queue.next().await;
        queue.done(&a, Next::Failed(Class::Terminal, None), false);
        assert_eq!(ready(&queue).await, [""; 0]);
        queue.changed(&a);
        assert_eq!(ready(&queue).await, ["n/a"]);
    }

    #[tokio::test(start_paused = true)]
    async fn no_change_shortens_what_the_server_asked_for() {
        let queue = queue();
        let a = key("n", "a");
        queue.changed(&a);
        queue.next().await;
        let asked = Duration::from_secs(30);
        queue.done(&a, Next::Failed(Class::Transient, Some(asked)), false);
        let before = Instant::now();
        for _ in 0..3 {
            tokio::time::advance(Duration::from_secs(5)).await;
            queue.changed(&a);
            assert_eq!(ready(&queue).await, [""; 0]);
        }
        queue.next().await;
        assert_eq!(before.elapsed(), asked);
    }

    /// How long each of thirty rounds waits after its failure while a change comes every `period`.
    async fn delays_with_changes_every(queue: &Queue, key: &Key, period: Duration) -> Vec<Duration> {
        queue.changed(key);
        let mut delays = Vec::new();
        for _ in 0..30 {
            let before = Instant::now();
            while tokio::time::timeout(period, queue.next()).await.is_err() {
                queue.changed(key);
            }
            delays.push(before.elapsed());
            queue.done(key, Next::Failed(Class::Transient, None), false);
        }
        delays.split_off(1)
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_of_changes_does_not_defeat_the_growing_delay() {
        let queue = queue();
        let a = key("n", "a");
        let delays = delays_with_changes_every(&queue, &a, Duration::from_millis(50)).await;
        assert!(delays[..11].windows(2).all(|pair| pair[1] > pair[0]), "{delays:?}");
        assert!(delays[12..].iter().all(|delay| *delay >= RESYNC * 4 / 5), "{delays:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_edit_of_a_key_that_has_failed_for_long_is_tried_at_once() {
        let queue = queue();
        let a = key("n", "a");
        queue.changed(&a);
        for _ in 0..20 {
            // A retry by itself, and an edit that does not help either.
            for is_edit in [false, true] {
                queue.next().await;
                queue.done(&a, Next::Failed(Class::Transient, None), false);
                if is_edit {
                    tokio::time::advance(Duration::from_millis(1)).await;
                    queue.changed(&a);
                    assert_eq!(ready(&queue).await, ["n/a"]);
                    queue.done(&a, Next::Failed(Class::Transient, None), false);
                }
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_that_others_keep_undoing_cools_down_and_recovers() {
        let queue = queue();
        let a = key("n", "a");
        let started = Instant::now();
        for _ in 0..BURST + 10 {
            queue.changed(&a);
            queue.next().await;
            queue.done(&a, Next::Again, true);
        }
        let spent = started.elapsed();
        assert!(spent >= COOL_DOWN * 9 && spent <= COOL_DOWN * 11, "{spent:?}");
        tokio::time::advance(COOL_DOWN * BURST).await;
        let started = Instant::now();
        queue.changed(&a);
        queue.next().await;
        assert_eq!(started.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn forgotten_keys_leave_nothing_behind() {
        let queue = queue();
        let a = key("n", "a");
        queue.changed(&a);
        queue.next().await;
        queue.done(&a, Next::Forget, false);
        assert_eq!(queue.depth().known, 0);
        assert!(queue.lock().timers.is_empty());
        queue.changed(&a);
        queue.next().await;
        queue.changed(&a);
        queue.done(&a, Next::Forget, false);
        assert_eq!(ready(&queue).await, ["n/a"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_round_that_only_reports_counts_against_the_burst_too() {
        let queue = queue();
        let a = key("n", "a");
        let started = Instant::now();
        for _ in 0..BURST + 10 {
            queue.changed(&a);
            queue.next().await;
            queue.done(&a, Next::Settled, true);
        }
        assert!(started.elapsed() >= COOL_DOWN * 9, "{:?}", started.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_standby_remembers_nothing_and_looks_at_everything_on_taking_the_lead() {
        let queue = queue();
        queue.changed(&key("n", "a"));
        queue.changed(&key("n", "b"));
        let running = queue.next().await.key;
        queue.pause();
        queue.changed(&key("n", "c"));
        assert_eq!(queue.depth().known, 1);
        assert!(queue.done(&running, Next::Settled, false), "it was the last of its namespace");
        assert_eq!((queue.depth().known, queue.depth().queued), (0, 0));
        queue.resume([key("n", "d")]);
        assert_eq!(ready(&queue).await, ["n/d"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_during_a_failed_run_does_not_shorten_what_the_server_asked_for() {
        let queue = queue();
        let a = key("n", "a");
        queue.changed(&a);
        queue.next().await;
        queue.changed(&a);
        queue.done(&a, Next::Failed(Class::Transient, Some(Duration::from_hours(24))), false);
        let before = Instant::now();
        queue.next().await;
        assert_eq!(before.elapsed(), RESYNC);
    }
}
