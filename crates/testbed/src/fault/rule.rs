//! Which calls meet a fault, and what a test can learn about and do to the calls that met it.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::sync::watch;

use super::{ApiRequest, FaultError, Verb};

/// What a test waits for a fault to happen: far more than any round of an operator takes.
const REACH_LIMIT: Duration = Duration::from_mins(3);

/// A forgotten hold ends by itself, long after every test that meant it has released it.
const HOLD_LIMIT: Duration = Duration::from_mins(10);

type Condition = Box<dyn Fn(&ApiRequest) -> bool + Send + Sync>;

/// The calls that a fault is for.
pub struct Calls {
    verbs: Vec<Verb>,
    pattern: String,
    conditions: Vec<Condition>,
    nth: Option<u64>,
    chance: Option<f64>,
    limit: u64,
}

impl Calls {
    /// All calls of one verb to `resource[.group][/subresource]`, see [`ApiRequest::is_for`].
    pub fn of(verb: Verb, pattern: &str) -> Self {
        Self::of_any([verb], pattern)
    }

    /// All creates, updates, patches and deletes of a resource.
    pub fn writes(pattern: &str) -> Self {
        Self::of_any(Verb::WRITES, pattern)
    }

    pub fn of_any(verbs: impl IntoIterator<Item = Verb>, pattern: &str) -> Self {
        Self {
            verbs: verbs.into_iter().collect(),
            pattern: pattern.to_owned(),
            conditions: Vec::new(),
            nth: None,
            chance: None,
            limit: u64::MAX,
        }
    }

    #[must_use]
    pub fn in_namespace(self, namespace: &str) -> Self {
        let namespace = namespace.to_owned();
        self.only_if(move |request| request.namespace.as_ref() == Some(&namespace))
    }

    #[must_use]
    pub fn named(self, name: &str) -> Self {
        let name = name.to_owned();
        self.only_if(move |request| request.name.as_ref() == Some(&name))
    }

    #[must_use]
    pub fn only_if(mut self, condition: impl Fn(&ApiRequest) -> bool + Send + Sync + 'static) -> Self {
        self.conditions.push(Box::new(condition));
        self
    }

    /// Only the nth of these calls, counted from one, since the fault was injected.
    #[must_use]
    pub fn nth(mut self, nth: u64) -> Self {
        self.nth = Some(nth);
        self
    }

    /// Each of these calls with this probability, drawn from the proxy's seed and the number of the call.
    #[must_use]
    pub fn with_chance(mut self, chance: f64) -> Self {
        self.chance = Some(chance);
        self
    }

    /// At most so many of them.
    #[must_use]
    pub fn at_most(mut self, limit: u64) -> Self {
        self.limit = limit;
        self
    }

    fn include(&self, request: &ApiRequest) -> bool {
        self.verbs.contains(&request.verb)
            && request.is_for(&self.pattern)
            && self.conditions.iter().all(|condition| condition(request))
    }
}

/// What happens to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Forwarded after this time.
    Latency(Duration),
    /// The server carries the call out and its code is noted, also where the client gives up before; else nothing.
    CarriedOut,
    /// Answered with this code and its usual reason; the server never sees the call. 410 on a watch is a server that
    /// has compacted the history.
    Status(u16),
    /// Answered with this code and text, which is no Status: by a server that does not serve the path (404), or by
    /// a proxy in front of it. The server never sees the call.
    Text(u16, &'static str),
    /// The server carries the call out, and its answer breaks off after half of its body.
    CutInBody,
    /// Answered with 200 and a body that never ends; the server never sees the call.
    Endless,
    /// 429 with `Retry-After`; the server never sees the call.
    TooManyRequests { retry_after_seconds: u32 },
    /// The connection breaks before the server sees the call.
    CutBeforeCommit,
    /// The server carries the call out, the connection breaks before its answer is passed on.
    CutAfterCommit,
    /// Waits before it is forwarded until the test releases or cuts it.
    HoldBeforeCommit,
    /// The server carries the call out, the answer waits until the test releases or cuts it.
    HoldAfterCommit,
    /// A watch that starts and then reports 410 Gone as its first event.
    WatchExpired,
    /// A watch that breaks after so many events, bookmarks included.
    WatchCutAfter(u64),
}

impl Fault {
    /// All that can befall a write, each by its name; `slow` is longer than its sender waits.
    pub const fn of_a_write(slow: Duration) -> [(&'static str, Self); 8] {
        [
            ("conflict", Self::Status(409)),
            ("busy", Self::TooManyRequests { retry_after_seconds: 1 }),
            ("error", Self::Status(500)),
            ("unavailable", Self::Status(503)),
            ("slow", Self::Latency(slow)),
            ("cut-before", Self::CutBeforeCommit),
            ("cut-after", Self::CutAfterCommit),
            ("mute-after", Self::HoldAfterCommit),
        ]
    }

    /// Whether a call meets it when the server has committed.
    pub(super) fn is_after_commit(self) -> bool {
        matches!(self, Self::CarriedOut | Self::CutAfterCommit | Self::HoldAfterCommit | Self::CutInBody)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Gate {
    Closed,
    Released,
    Cut,
}

/// A fault in the proxy. Dropping it leaves the fault in place: [`super::FaultProxy::clear`] removes all of them.
#[derive(Clone)]
pub struct Injected(Arc<Rule>);

impl Injected {
    /// How many calls have met the fault, each counted at the moment it struck (for a hold: when the call stands still).
    pub fn hits(&self) -> u64 {
        *self.0.hits.borrow()
    }

    /// Waits until the first call has met the fault, and returns the latest that has.
    pub async fn reached(&self) -> Result<ApiRequest, FaultError> {
        self.reached_times(1).await
    }

    /// Waits until `times` calls have met the fault, and returns the latest that has.
    pub async fn reached_times(&self, times: u64) -> Result<ApiRequest, FaultError> {
        let mut hits = self.0.hits.subscribe();
        let enough = tokio::time::timeout(REACH_LIMIT, hits.wait_for(|hits| *hits >= times)).await;
        let latest = lock(&self.0.counts).latest.clone();
        match (enough, latest) {
            (Ok(Ok(_)), Some(latest)) => Ok(latest),
            _ => Err(FaultError::NotReached(self.0.to_string())),
        }
    }

    /// Lets every held call go on, those to come too.
    pub fn release(&self) {
        self.0.gate.send_replace(Gate::Released);
    }

    /// Breaks the connection of every held call, those to come too.
    pub fn cut(&self) {
        self.0.gate.send_replace(Gate::Cut);
    }

    /// No further call meets the fault; held calls go on.
    pub fn end(&self) {
        lock(&self.0.counts).ended = true;
        self.release();
    }
}

#[derive(Default)]
struct Counts {
    seen: u64,
    taken: u64,
    ended: bool,
    latest: Option<ApiRequest>,
}

pub(super) struct Rule {
    calls: Calls,
    pub(super) fault: Fault,
    seed: u64,
    counts: Mutex<Counts>,
    hits: watch::Sender<u64>,
    gate: watch::Sender<Gate>,
}

impl Rule {
    pub(super) fn new(calls: Calls, fault: Fault, seed: u64) -> Arc<Self> {
        Arc::new(Self {
            calls,
            fault,
            seed,
            counts: Mutex::default(),
            hits: watch::Sender::new(0),
            gate: watch::Sender::new(Gate::Closed),
        })
    }

    /// Counts a call if it is one of ours and says whether it meets the fault.
    pub(super) fn takes(&self, request: &ApiRequest) -> bool {
        if !self.calls.include(request) {
            return false;
        }
        let mut counts = lock(&self.counts);
        counts.seen += 1;
        let takes = !counts.ended
            && counts.taken < self.calls.limit
            && self.calls.nth.is_none_or(|nth| nth == counts.seen)
            && self.calls.chance.is_none_or(|chance| draw(self.seed, counts.seen) < chance);
        counts.taken += u64::from(takes);
        takes
    }

    /// The fault strikes now.
    pub(super) fn hit(&self, request: &ApiRequest) {
        lock(&self.counts).latest = Some(request.clone());
        self.hits.send_modify(|hits| *hits += 1);
    }

    /// Stands still until the test decides.
    pub(super) async fn held(&self, request: &ApiRequest) -> Gate {
        let mut gate = self.gate.subscribe();
        self.hit(request);
        match tokio::time::timeout(HOLD_LIMIT, gate.wait_for(|gate| *gate != Gate::Closed)).await {
            Ok(Ok(decided)) => *decided,
            _ => Gate::Cut,
        }
    }

    pub(super) fn handle(self: &Arc<Self>) -> Injected {
        Injected(self.clone())
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seen = lock(&self.counts).seen;
        write!(formatter, "{:?} on {:?} {} (such calls seen: {seen})", self.fault, self.calls.verbs, self.calls.pattern)
    }
}

/// A number in [0, 1) that depends on the seed and the call alone (SplitMix64), so that calls to other resources in
/// between do not shift it.
fn draw(seed: u64, call: u64) -> f64 {
    let mut bits = seed.wrapping_add(call.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^= bits >> 31;
    let high = u32::try_from(bits >> 32).expect("32 bits are left");
    f64::from(high) / (f64::from(u32::MAX) + 1.0)
}

/// A panic in another test thread must not hide behind a poisoned lock: the data is counters and plain collections.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn create_pod() -> ApiRequest {
        let uri = "/api/v1/namespaces/x/pods".parse().unwrap();
        ApiRequest::parse(&http::Method::POST, &uri, br#"{"metadata":{"name":"a"}}"#).unwrap()
    }

    fn taken(calls: Calls, seed: u64) -> Vec<usize> {
        let rule = Rule::new(calls, Fault::Status(500), seed);
        (1..=100).filter(|_| rule.takes(&create_pod())).collect()
    }

    #[test]
    fn calls_are_chosen_by_number_limit_and_condition() {
        let pods = || Calls::of(Verb::Create, "pods");
        assert_eq!(taken(pods().nth(3), 1), [3]);
        assert_eq!(taken(pods().at_most(2), 1), [1, 2]);
        assert_eq!(taken(pods().in_namespace("x").named("a").at_most(1), 1), [1]);
        assert!(taken(pods().in_namespace("y"), 1).is_empty());
        assert!(taken(Calls::of(Verb::Delete, "pods"), 1).is_empty());
        assert_eq!(taken(Calls::writes("*"), 1).len(), 100);
    }

    #[test]
    fn chance_follows_the_seed() {
        let chosen = |seed| taken(Calls::of(Verb::Create, "pods").with_chance(0.3), seed);
        assert_eq!(chosen(7), chosen(7));
        assert_ne!(chosen(7), chosen(8));
        assert!((15..=45).contains(&chosen(7).len()), "{:?}", chosen(7));
    }
}
