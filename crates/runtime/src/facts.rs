//! Facts that cost a call: fetched once for all objects that want them, kept with their age, bounded in bytes.

use std::{
    collections::{BTreeSet, HashMap},
    hash::Hash,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use plan::fact::{Fact, Failure, Want};
use tokio::time::Instant;

use crate::key::Key;

/// A fetch that failed is repeated after this long at the soonest, doubled with every failure in a row: short enough
/// for a user who waits, long enough for a peer that is failing.
const FIRST_RETRY: Duration = Duration::from_secs(1);
/// The doubling ends here: a peer that comes back is noticed within half a minute.
const SLOWEST_RETRY: Duration = Duration::from_secs(30);
/// Of all facts of one controller together. A fact is a few hundred bytes (a chart's version, an etcd member list), so
/// this holds tens of thousands; the least recently used go first.
const MOST_BYTES: usize = 16 << 20;
/// Beside its value: key, times, list of those that wait.
const OVERHEAD: usize = 256;

#[derive(Debug)]
pub(crate) struct FactCache<Q, F> {
    inner: Mutex<Inner<Q, F>>,
    most_bytes: usize,
}

#[derive(Debug)]
struct Inner<Q, F> {
    entries: HashMap<Q, Entry<F>>,
    bytes: usize,
    sequence: u64,
}

#[derive(Debug)]
struct Entry<F> {
    /// Changes with whatever is stored or spoiled.
    sequence: u64,
    known: Option<(F, Instant)>,
    is_spoiled: bool,
    failure: Option<Failed>,
    bytes: usize,
    used_at: Instant,
    fetch: Option<Fetching>,
}

#[derive(Debug)]
struct Failed {
    why: Failure,
    at: Instant,
    in_a_row: u32,
}

#[derive(Debug)]
struct Fetching {
    waiting: BTreeSet<Key>,
}

/// A fetch that has begun, by the number its entry had then: a spoiling since makes the answer worthless.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Begun(u64);

/// A fact as a plan sees it, and which one it is.
#[derive(Debug, PartialEq)]
pub(crate) struct Answer<F> {
    pub fact: Fact<F>,
    pub sequence: u64,
}

impl<Q, F> Default for FactCache<Q, F> {
    fn default() -> Self {
        Self { inner: Mutex::new(Inner { entries: HashMap::new(), bytes: 0, sequence: 0 }), most_bytes: MOST_BYTES }
    }
}

impl<Q: Clone + Eq + Hash, F: Clone> FactCache<Q, F> {
    /// What is known, if it is young enough, or that it could not be learnt a moment ago.
    pub(crate) fn get(&self, want: &Want<Q>, now: Instant) -> Option<Answer<F>> {
        let mut inner = self.lock();
        let entry = inner.entries.get_mut(&want.ask)?;
        entry.used_at = now;
        let age = |at: &Instant| now.saturating_duration_since(*at);
        let last = entry.known.as_ref().map(|(value, at)| (value.clone(), age(at)));
        let sequence = entry.sequence;
        match (&entry.failure, last) {
            (Some(failed), last) if age(&failed.at) < retry_delay(failed.in_a_row) => {
                Some(Answer { fact: Fact::Unknown { why: failed.why.clone(), last }, sequence })
            }
            (None, Some((value, age))) if !entry.is_spoiled && age <= want.max_age => {
                Some(Answer { fact: Fact::Known { value, age }, sequence })
            }
            _ => None,
        }
    }

    /// Whether a fact is still the one that was planned on, and young enough.
    pub(crate) fn is_current(&self, want: &Want<Q>, sequence: Option<u64>, now: Instant) -> bool {
        let answer = self.get(want, now);
        answer.is_some_and(|answer| Some(answer.sequence) == sequence && matches!(answer.fact, Fact::Known { .. }))
    }

    /// Notes that `key` waits for the answer. `Some`: no fetch of it is running yet, so the caller starts one.
    pub(crate) fn begin(&self, ask: &Q, key: &Key, now: Instant) -> Option<Begun> {
        let mut inner = self.lock();
        if !inner.entries.contains_key(ask) {
            inner.bytes += OVERHEAD;
        }
        let entry = inner.entries.entry(ask.clone()).or_insert_with(|| Entry {
            sequence: 0,
            known: None,
            is_spoiled: false,
            failure: None,
            bytes: OVERHEAD,
            used_at: now,
            fetch: None,
        });
        if let Some(fetch) = &mut entry.fetch {
            fetch.waiting.insert(key.clone());
            return None;
        }
        entry.fetch = Some(Fetching { waiting: BTreeSet::from([key.clone()]) });
        Some(Begun(entry.sequence))
    }

    /// Whether a fetch is under way.
    pub(crate) fn is_fetching(&self, ask: &Q) -> bool {
        self.lock().entries.get(ask).is_some_and(|entry| entry.fetch.is_some())
    }

    /// Stores what a fetch gave, unless the fact was spoiled meanwhile. Returns the keys that wait for it.
    pub(crate) fn end(
        &self,
        ask: &Q,
        begun: Begun,
        result: Result<(F, usize), Failure>,
        now: Instant,
    ) -> BTreeSet<Key> {
        let mut inner = self.lock();
        inner.sequence += 1;
        let sequence = inner.sequence;
        let Some(entry) = inner.entries.get_mut(ask) else { return BTreeSet::new() };
        let waiting = entry.fetch.take().map(|fetch| fetch.waiting).unwrap_or_default();
        if entry.sequence != begun.0 {
            return waiting;
        }
        entry.sequence = sequence;
        let before = entry.bytes;
        match result {
            Ok((value, bytes)) => {
                (entry.known, entry.failure, entry.is_spoiled) = (Some((value, now)), None, false);
                entry.bytes = OVERHEAD + bytes;
            }
            Err(why) => {
                let in_a_row = entry.failure.as_ref().map_or(0, |failed| failed.in_a_row).saturating_add(1);
                entry.failure = Some(Failed { why, at: now, in_a_row });
            }
        }
        let after = entry.bytes;
        inner.bytes = inner.bytes - before + after;
        inner.make_room(self.most_bytes, ask);
        waiting
    }

    /// From now on these are not known; what is being fetched is of the past.
    pub(crate) fn spoil(&self, asks: &[Q]) {
        let mut inner = self.lock();
        for ask in asks {
            inner.sequence += 1;
            let sequence = inner.sequence;
            if let Some(entry) = inner.entries.get_mut(ask) {
                (entry.sequence, entry.is_spoiled, entry.failure) = (sequence, true, None);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner<Q, F>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn retry_delay(in_a_row: u32) -> Duration {
    FIRST_RETRY.saturating_mul(1 << in_a_row.saturating_sub(1).min(10)).min(SLOWEST_RETRY)
}

impl<Q: Clone + Eq + Hash, F> Inner<Q, F> {
    /// Drops the least recently used until the rest fits; what is being fetched and what just came stay.
    fn make_room(&mut self, most: usize, newest: &Q) {
        while self.bytes > most {
            let idle = self.entries.iter().filter(|(ask, entry)| entry.fetch.is_none() && *ask != newest);
            let Some(oldest) = idle.min_by_key(|(_, entry)| entry.used_at).map(|(ask, _)| ask.clone()) else { return };
            if let Some(entry) = self.entries.remove(&oldest) {
                self.bytes -= entry.bytes;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use plan::fact::Class;

    use super::*;

    const MINUTE: Duration = Duration::from_mins(1);

    fn cache(most_bytes: usize) -> FactCache<&'static str, u32> {
        FactCache { most_bytes, ..FactCache::default() }
    }

    fn want(ask: &'static str) -> Want<&'static str> {
        Want { ask, max_age: MINUTE }
    }

    fn key(name: &str) -> Key {
        Key::new("n", name)
    }

    fn failure() -> Failure {
        Failure { class: Class::Transient, message: "no answer".into() }
    }

    fn known(cache: &FactCache<&'static str, u32>, ask: &'static str) -> Option<u32> {
        cache.get(&want(ask), Instant::now()).and_then(|answer| answer.fact.known().ok().copied())
    }

    #[tokio::test(start_paused = true)]
    async fn one_fetch_serves_all_that_wait() {
        let cache = cache(MOST_BYTES);
        let begun = cache.begin(&"a", &key("one"), Instant::now()).unwrap();
        assert!(cache.is_fetching(&"a"));
        assert_eq!(cache.begin(&"a", &key("two"), Instant::now()), None);
        let waiting = cache.end(&"a", begun, Ok((7, 4)), Instant::now());
        assert_eq!(waiting, BTreeSet::from([key("one"), key("two")]));
        assert!(!cache.is_fetching(&"a"));
        assert_eq!(known(&cache, "a"), Some(7));
        tokio::time::advance(MINUTE + Duration::from_secs(1)).await;
        assert_eq!(known(&cache, "a"), None, "too old");
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_fetched_before_a_spoiling_is_dropped() {
        let cache = cache(MOST_BYTES);
        let begun = cache.begin(&"a", &key("one"), Instant::now()).unwrap();
        cache.spoil(&["a"]);
        assert_eq!(cache.end(&"a", begun, Ok((7, 4)), Instant::now()), BTreeSet::from([key("one")]));
        assert_eq!(known(&cache, "a"), None);
        let begun = cache.begin(&"a", &key("one"), Instant::now()).unwrap();
        cache.end(&"a", begun, Ok((8, 4)), Instant::now());
        let sequence = cache.get(&want("a"), Instant::now()).map(|answer| answer.sequence);
        assert!(cache.is_current(&want("a"), sequence, Instant::now()));
        cache.spoil(&["a"]);
        assert!(!cache.is_current(&want("a"), sequence, Instant::now()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_keeps_what_was_last_known_and_is_repeated_with_growing_delay() {
        let cache = cache(MOST_BYTES);
        let fetch = |result| {
            let begun = cache.begin(&"a", &key("one"), Instant::now()).unwrap();
            cache.end(&"a", begun, result, Instant::now());
        };
        fetch(Ok((7, 4)));
        tokio::time::advance(MINUTE * 2).await;
        fetch(Err(failure()));
        let answer = cache.get(&want("a"), Instant::now()).unwrap();
        assert_eq!(answer.fact, Fact::Unknown { why: failure(), last: Some((7, MINUTE * 2)) });
        tokio::time::advance(FIRST_RETRY).await;
        assert_eq!(cache.get(&want("a"), Instant::now()), None, "to be fetched again");
        fetch(Err(failure()));
        tokio::time::advance(FIRST_RETRY).await;
        assert!(cache.get(&want("a"), Instant::now()).is_some(), "the second failure waits longer");
    }

    #[tokio::test(start_paused = true)]
    async fn the_least_recently_used_go_when_bytes_run_out() {
        let cache = cache(3 * (OVERHEAD + 100));
        for ask in ["a", "b", "c"] {
            let begun = cache.begin(&ask, &key("one"), Instant::now()).unwrap();
            cache.end(&ask, begun, Ok((1, 100)), Instant::now());
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        assert_eq!(known(&cache, "a"), Some(1));
        let begun = cache.begin(&"d", &key("one"), Instant::now()).unwrap();
        cache.end(&"d", begun, Ok((1, 100)), Instant::now());
        assert_eq!(["a", "b", "c", "d"].map(|ask| known(&cache, ask).is_some()), [true, false, true, true]);
    }
}
