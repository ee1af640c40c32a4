//! Facts that cost a call: fetched once for all objects that want them, kept with their age, bounded in bytes.

use std::{
    cmp::Reverse,
    collections::{BTreeSet, HashMap},
    fmt::{self, Debug, Write},
    hash::Hash,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use plan::fact::{Fact, Failure, Want};
use tokio::time::Instant;

use crate::{key::Key, queue::doubled};

/// A fetch that failed is repeated after this long at the soonest, doubled with every failure in a row: short enough
/// for a user who waits, long enough for a peer that is failing.
const FIRST_RETRY: Duration = Duration::from_secs(1);
/// The doubling ends here: a peer that comes back is noticed within half a minute.
const SLOWEST_RETRY: Duration = Duration::from_secs(30);
/// Of all facts of one controller together. A fact is a few hundred bytes (a chart's version, an etcd member list), so
/// this holds tens of thousands. Of the namespace that holds the most, the least recently used go first: what one
/// namespace asks for never drives out the facts of all others.
const MOST_BYTES: usize = 16 << 20;
/// Beside the question and its answer: times, list of those that wait.
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
    /// Of these, by the namespace that is charged.
    by_namespace: HashMap<Arc<str>, usize>,
    sequence: u64,
}

#[derive(Debug)]
struct Entry<F> {
    /// Changes with whatever is stored or spoiled.
    sequence: u64,
    /// With the time of the question: it was so at some moment since.
    known: Option<(F, Instant)>,
    is_spoiled: bool,
    failure: Option<Failed>,
    /// Of the first that asked: what several share is charged to one.
    namespace: Arc<str>,
    weight: Weight,
    used_at: Instant,
    fetch: Option<Fetching>,
}

/// Bytes of what an entry holds.
#[derive(Clone, Copy, Debug)]
struct Weight {
    ask: usize,
    known: usize,
    failure: usize,
}

impl Weight {
    fn bytes(self) -> usize {
        OVERHEAD + self.ask + self.known + self.failure
    }
}

#[derive(Debug)]
struct Failed {
    why: Failure,
    /// When it was known: a peer that is silent until the deadline failed just now.
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
        let inner = Inner { entries: HashMap::new(), bytes: 0, by_namespace: HashMap::new(), sequence: 0 };
        Self { inner: Mutex::new(inner), most_bytes: MOST_BYTES }
    }
}

impl<Q: Clone + Debug + Eq + Hash, F: Clone + PartialEq> FactCache<Q, F> {
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
        let is_new = !inner.entries.contains_key(ask);
        let weight = Weight { ask: if is_new { length(ask) } else { 0 }, known: 0, failure: 0 };
        if is_new {
            inner.charge(&key.namespace, 0, weight.bytes());
        }
        let entry = inner.entries.entry(ask.clone()).or_insert_with(|| Entry {
            sequence: 0,
            known: None,
            is_spoiled: false,
            failure: None,
            namespace: key.namespace.clone(),
            weight,
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

    /// Stores what a fetch gave that asked at `asked_at`, unless the fact was spoiled meanwhile. Returns the keys that wait
    /// for it.
    pub(crate) fn end(
        &self,
        ask: &Q,
        begun: Begun,
        result: Result<(F, usize), Failure>,
        asked_at: Instant,
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
        // The same answer again is the same fact, only younger: what rests on it need not be planned anew.
        let is_same = !entry.is_spoiled
            && entry.failure.is_none()
            && matches!((&result, &entry.known), (Ok((value, _)), Some((known, _))) if value == known);
        if !is_same {
            entry.sequence = sequence;
        }
        let before = entry.weight.bytes();
        match result {
            Ok((value, bytes)) => {
                (entry.known, entry.failure, entry.is_spoiled) = (Some((value, asked_at)), None, false);
                (entry.weight.known, entry.weight.failure) = (bytes, 0);
            }
            Err(why) => {
                let in_a_row = entry.failure.as_ref().map_or(0, |failed| failed.in_a_row).saturating_add(1);
                entry.weight.failure = why.message.len();
                entry.failure = Some(Failed { why, at: now, in_a_row });
            }
        }
        let (after, namespace) = (entry.weight.bytes(), entry.namespace.clone());
        inner.charge(&namespace, before, after);
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
    doubled(FIRST_RETRY, in_a_row.saturating_sub(1)).min(SLOWEST_RETRY)
}

/// Of a question as text, which is about what it takes in memory.
fn length(ask: &impl Debug) -> usize {
    struct Length(usize);
    impl Write for Length {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            self.0 += text.len();
            Ok(())
        }
    }
    let mut length = Length(0);
    // Counting does not fail.
    let _ = write!(length, "{ask:?}");
    length.0
}

impl<Q: Clone + Eq + Hash, F> Inner<Q, F> {
    /// What a namespace holds has changed by this much.
    fn charge(&mut self, namespace: &Arc<str>, before: usize, after: usize) {
        self.bytes = self.bytes + after - before;
        let held = self.by_namespace.entry(namespace.clone()).or_default();
        *held = *held + after - before;
        if *held == 0 {
            self.by_namespace.remove(namespace);
        }
    }

    /// Drops the least recently used of the namespace that holds the most, until the rest fits; what is being fetched
    /// and what just came stay.
    fn make_room(&mut self, most: usize, newest: &Q) {
        while self.bytes > most {
            let idle = self.entries.iter().filter(|(ask, entry)| entry.fetch.is_none() && *ask != newest);
            let held = |entry: &Entry<F>| self.by_namespace.get(&entry.namespace).copied().unwrap_or_default();
            let first = idle.min_by_key(|(_, entry)| (Reverse(held(entry)), entry.used_at));
            let Some(ask) = first.map(|(ask, _)| ask.clone()) else { return };
            if let Some(entry) = self.entries.remove(&ask) {
                self.charge(&entry.namespace, entry.weight.bytes(), 0);
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
        let waiting = cache.end(&"a", begun, Ok((7, 4)), Instant::now(), Instant::now());
        assert_eq!(waiting, BTreeSet::from([key("one"), key("two")]));
        assert!(!cache.is_fetching(&"a"));
        assert_eq!(known(&cache, "a"), Some(7));
        tokio::time::advance(MINUTE + Duration::from_secs(1)).await;
        assert_eq!(known(&cache, "a"), None, "too old");
    }

    #[tokio::test(start_paused = true)]
    async fn the_same_answer_again_is_the_same_fact() {
        let cache = cache(MOST_BYTES);
        let fetch = |value| {
            let begun = cache.begin(&"a", &key("one"), Instant::now()).unwrap();
            cache.end(&"a", begun, Ok((value, 4)), Instant::now(), Instant::now());
            cache.get(&want("a"), Instant::now()).map(|answer| answer.sequence)
        };
        let sequence = fetch(7);
        tokio::time::advance(MINUTE / 2).await;
        assert_eq!(fetch(7), sequence);
        assert!(cache.is_current(&want("a"), sequence, Instant::now() + MINUTE), "only younger");
        let other = fetch(8);
        assert_ne!(other, sequence);
        cache.spoil(&["a"]);
        assert_ne!(fetch(8), other, "what was spoiled is learnt anew");
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_fetched_before_a_spoiling_is_dropped() {
        let cache = cache(MOST_BYTES);
        let begun = cache.begin(&"a", &key("one"), Instant::now()).unwrap();
        cache.spoil(&["a"]);
        assert_eq!(cache.end(&"a", begun, Ok((7, 4)), Instant::now(), Instant::now()), BTreeSet::from([key("one")]));
        assert_eq!(known(&cache, "a"), None);
        let begun = cache.begin(&"a", &key("one"), Instant::now()).unwrap();
        cache.end(&"a", begun, Ok((8, 4)), Instant::now(), Instant::now());
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
            cache.end(&"a", begun, result, Instant::now(), Instant::now());
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
    async fn a_peer_that_was_silent_until_the_deadline_is_unknown_from_then_on() {
        let cache = cache(MOST_BYTES);
        let begun = cache.begin(&"a", &key("one"), Instant::now()).unwrap();
        let asked_at = Instant::now();
        tokio::time::advance(SLOWEST_RETRY * 2).await;
        cache.end(&"a", begun, Err(failure()), asked_at, Instant::now());
        let answer = cache.get(&want("a"), Instant::now()).unwrap();
        assert_eq!(answer.fact, Fact::Unknown { why: failure(), last: None });
    }

    #[tokio::test(start_paused = true)]
    async fn the_least_recently_used_go_when_bytes_run_out() {
        let cache = cache(3 * (OVERHEAD + length(&"a") + 100));
        for ask in ["a", "b", "c"] {
            let begun = cache.begin(&ask, &key("one"), Instant::now()).unwrap();
            cache.end(&ask, begun, Ok((1, 100)), Instant::now(), Instant::now());
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        assert_eq!(known(&cache, "a"), Some(1));
        let begun = cache.begin(&"d", &key("one"), Instant::now()).unwrap();
        cache.end(&"d", begun, Ok((1, 100)), Instant::now(), Instant::now());
        assert_eq!(["a", "b", "c", "d"].map(|ask| known(&cache, ask).is_some()), [true, false, true, true]);
    }

    #[tokio::test(start_paused = true)]
    async fn one_namespace_drives_out_its_own_facts_and_no_others() {
        let cache: FactCache<String, u32> = FactCache { most_bytes: 20 * (OVERHEAD + 110), ..FactCache::default() };
        let learn = |namespace: &str, ask: String| {
            let begun = cache.begin(&ask, &Key::new(namespace, "x"), Instant::now()).unwrap();
            cache.end(&ask, begun, Ok((1, 100)), Instant::now(), Instant::now());
        };
        learn("calm", "calm".to_owned());
        for number in 0..1000 {
            tokio::time::advance(Duration::from_millis(1)).await;
            learn("greedy", number.to_string());
        }
        let is_known = |ask: &str| cache.get(&Want { ask: ask.to_owned(), max_age: MINUTE }, Instant::now()).is_some();
        assert!(is_known("calm") && is_known("999") && !is_known("0"));
    }

    #[tokio::test(start_paused = true)]
    async fn questions_and_failures_weigh_too() {
        let cache: FactCache<String, u32> = FactCache { most_bytes: 10 << 10, ..FactCache::default() };
        for number in 0..100 {
            let ask = format!("{number}{}", "x".repeat(1 << 10));
            let begun = cache.begin(&ask, &key("one"), Instant::now()).unwrap();
            let why = Failure { class: Class::Transient, message: "y".repeat(1 << 10) };
            cache.end(&ask, begun, Err(why), Instant::now(), Instant::now());
        }
        let inner = cache.lock();
        assert!((1..=4).contains(&inner.entries.len()), "{} of 2 KiB and more in 10 KiB", inner.entries.len());
        assert_eq!(inner.bytes, inner.entries.values().map(|entry| entry.weight.bytes()).sum::<usize>());
        assert_eq!(inner.bytes, inner.by_namespace.values().sum::<usize>());
    }
}
