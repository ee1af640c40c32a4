//! What is known of the Lease, and the Lease as we want it.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use kube::api::ObjectMeta;
use tokio::time::Instant;

use super::LeaseConfig;

/// Holds the epoch of the last lead.
const EPOCH: &str = "strata.dev/epoch";

/// What we last saw of the Lease, and when on our clock.
#[derive(Debug, Default)]
pub(super) struct Seen {
    lease: Option<Lease>,
    changed_at: Option<Instant>,
    /// Another client deleted the Lease under its holder, who may still act until then.
    barred_until: Option<Instant>,
    /// The greatest epoch ever seen: a Lease that was deleted or restored does not make epochs smaller.
    epoch: u64,
}

/// What something said about the Lease was worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nothing that we did not know.
    Known,
    News,
    /// The Lease is older than the one we knew: the server's store was restored.
    WentBack,
}

impl Seen {
    pub(super) fn lease(&self) -> Option<&Lease> {
        self.lease.as_ref()
    }

    pub(super) fn version(&self) -> Option<u64> {
        version(self.lease.as_ref())
    }

    /// Ingests an event of the watch; `is_deleted`: the Lease had this form last. Events come late, so one that is
    /// older than what we know is no news.
    pub(super) fn event(&mut self, lease: Lease, is_deleted: bool, now: Instant, config: &LeaseConfig) -> Verdict {
        self.note_epoch(Some(&lease));
        if version(Some(&lease)).is_some_and(|new| self.version().is_some_and(|known| new <= known)) {
            return Verdict::Known;
        }
        self.accept((!is_deleted).then_some(lease), now, config);
        Verdict::News
    }

    /// Ingests the answer to a read, a list or a write; `since` is the version known when it was sent. The server
    /// answers with what it holds, so the answer is right, whatever its version, unless something newer came meanwhile.
    pub(super) fn answer(
        &mut self,
        since: Option<u64>,
        lease: Option<Lease>,
        now: Instant,
        config: &LeaseConfig,
    ) -> Verdict {
        self.note_epoch(lease.as_ref());
        let known = self.version();
        if known != since {
            // An absence may be older or newer than what came meanwhile: the next answer decides.
            return lease.map_or(Verdict::Known, |lease| self.event(lease, false, now, config));
        }
        if self.lease == lease {
            return Verdict::Known;
        }
        let is_older = version(lease.as_ref()).is_some_and(|new| known.is_some_and(|known| new < known));
        self.accept(lease, now, config);
        if is_older { Verdict::WentBack } else { Verdict::News }
    }

    fn accept(&mut self, lease: Option<Lease>, now: Instant, config: &LeaseConfig) {
        self.barred_until = if lease.is_some() { None } else { self.expiry(config) };
        self.lease = lease;
        self.changed_at = Some(now);
    }

    fn note_epoch(&mut self, lease: Option<&Lease>) {
        let annotations = lease.and_then(|lease| lease.metadata.annotations.as_ref());
        let epoch = annotations.and_then(|annotations| annotations.get(EPOCH)?.parse().ok());
        self.epoch = self.epoch.max(epoch.unwrap_or(0));
    }

    /// The epoch of a lead that begins now.
    pub(super) fn next_epoch(&self, now: Timestamp) -> u64 {
        next_epoch(self.epoch, now)
    }

    /// When another's hold ends by what we saw; `None` if no other replica holds it.
    pub(super) fn expiry(&self, config: &LeaseConfig) -> Option<Instant> {
        let Some(spec) = self.lease.as_ref().and_then(|lease| lease.spec.as_ref()) else { return self.barred_until };
        if !is_held_by_another(spec, &config.identity) {
            return None;
        }
        let theirs = spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
        Some(self.changed_at? + theirs.map_or(config.duration, Duration::from_secs))
    }
}

/// Kubernetes guarantees that versions of one kind compare as numbers.
fn version(lease: Option<&Lease>) -> Option<u64> {
    lease?.metadata.resource_version.as_deref()?.parse().ok()
}

fn is_held_by_another(spec: &LeaseSpec, identity: &str) -> bool {
    spec.holder_identity.as_deref().is_some_and(|holder| !holder.is_empty() && holder != identity)
}

pub(super) fn is_held_by(lease: &Lease, identity: &str) -> bool {
    lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref()) == Some(identity)
}

/// Greater than `before`, and than any epoch that was forgotten with a deleted or restored Lease: those began as wall
/// milliseconds, and no replica leads a thousand times a second.
pub(super) fn next_epoch(before: u64, now: Timestamp) -> u64 {
    before.saturating_add(1).max(u64::try_from(now.as_millisecond()).unwrap_or(0))
}

/// The Lease as we want it, from the Lease as it is.
pub(super) fn claim(known: Option<&Lease>, config: &LeaseConfig, epoch: u64, now: Timestamp) -> Lease {
    let spec = known.and_then(|lease| lease.spec.clone()).unwrap_or_default();
    let is_renewal = spec.holder_identity.as_deref() == Some(config.identity.as_str());
    let transitions = spec.lease_transitions.unwrap_or(0);
    let mut metadata = known.map_or_else(
        || ObjectMeta {
            name: Some(config.name.clone()),
            namespace: Some(config.namespace.clone()),
            ..ObjectMeta::default()
        },
        |lease| lease.metadata.clone(),
    );
    metadata.managed_fields = None;
    metadata.annotations.get_or_insert_default().insert(EPOCH.to_owned(), epoch.to_string());
    Lease {
        metadata,
        spec: Some(LeaseSpec {
            holder_identity: Some(config.identity.clone()),
            // Rounded up: the API counts in whole seconds, and others must not expire us early.
            lease_duration_seconds: Some(i32::try_from(config.duration.as_millis().div_ceil(1000)).unwrap_or(i32::MAX)),
            acquire_time: if is_renewal { spec.acquire_time } else { Some(MicroTime(now)) },
            renew_time: Some(MicroTime(now)),
            lease_transitions: Some(if is_renewal || known.is_none() { transitions } else { transitions + 1 }),
            ..spec
        }),
    }
}

/// The Lease given up: others may take it at once.
pub(super) fn released(held: &Lease, now: Timestamp) -> Lease {
    let mut lease = held.clone();
    lease.metadata.managed_fields = None;
    if let Some(spec) = &mut lease.spec {
        spec.holder_identity = Some(String::new());
        // The API server requires a positive number.
        spec.lease_duration_seconds = Some(1);
        spec.renew_time = Some(MicroTime(now));
    }
    lease
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> LeaseConfig {
        LeaseConfig { namespace: "n".into(), name: "l".into(), identity: "me".into(), duration: Duration::from_secs(6) }
    }

    #[test]
    fn a_take_over_counts_a_transition_and_a_renewal_does_not() {
        let now = Timestamp::UNIX_EPOCH;
        let first = claim(None, &config(), 1, now);
        assert_eq!(first.spec.as_ref().unwrap().lease_transitions, Some(0));
        let renewed = claim(Some(&first), &config(), 1, now + Duration::from_secs(2));
        assert_eq!(renewed.spec.as_ref().unwrap().acquire_time, first.spec.as_ref().unwrap().acquire_time);
        let other = claim(Some(&renewed), &LeaseConfig { identity: "other".into(), ..config() }, 2, now);
        assert_eq!(other.spec.unwrap().lease_transitions, Some(1));
    }

    fn lease(holder: &str, version: u64) -> Lease {
        Lease {
            metadata: ObjectMeta { resource_version: Some(version.to_string()), ..ObjectMeta::default() },
            spec: Some(LeaseSpec {
                holder_identity: Some(holder.into()),
                lease_duration_seconds: Some(6),
                ..LeaseSpec::default()
            }),
        }
    }

    /// A Lease held by another since `now`, in version 9.
    fn held_by_another(now: Instant) -> Seen {
        let mut seen = Seen::default();
        assert_eq!(seen.event(lease("other", 9), false, now, &config()), Verdict::News);
        seen
    }

    #[tokio::test(start_paused = true)]
    async fn late_events_and_echoes_of_own_writes_are_no_news() {
        let (mut seen, now, config) = (Seen::default(), Instant::now(), config());
        seen.answer(None, Some(lease("me", 9)), now, &config);
        assert_eq!(seen.event(lease("me", 9), false, now, &config), Verdict::Known);
        assert_eq!(seen.event(lease("other", 8), false, now, &config), Verdict::Known);
        assert_eq!(seen.event(lease("other", 8), true, now, &config), Verdict::Known, "it was made again since");
        assert_eq!(seen.expiry(&config), None);
        assert_eq!(seen.event(lease("other", 10), false, now, &config), Verdict::News);
        assert_eq!(seen.expiry(&config), Some(now + Duration::from_secs(6)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_deleted_lease_is_free_only_when_its_holder_must_have_noticed() {
        let (now, config) = (Instant::now(), config());
        let second = Duration::from_secs(1);
        let mut seen = held_by_another(now);
        seen.event(lease("other", 10), true, now + 2 * second, &config);
        assert_eq!(seen.expiry(&config), Some(now + 6 * second));
        seen.event(lease("", 12), false, now + 3 * second, &config);
        assert_eq!(seen.expiry(&config), None);
        seen.event(lease("", 13), true, now + 4 * second, &config);
        assert_eq!(seen.expiry(&config), None);
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_with_a_lower_version_is_believed_because_the_store_was_restored() {
        let (now, config) = (Instant::now(), config());
        let mut seen = held_by_another(now);
        let later = now + Duration::from_mins(1);
        assert_eq!(seen.answer(Some(9), Some(lease("gone", 4)), later, &config), Verdict::WentBack);
        assert_eq!(seen.version(), Some(4));
        assert_eq!(seen.expiry(&config), Some(later + Duration::from_secs(6)), "its holder may be alive");
        assert_eq!(seen.answer(Some(4), Some(lease("gone", 4)), later, &config), Verdict::Known);
        assert_eq!(seen.answer(Some(4), Some(lease("me", 4)), later, &config), Verdict::News, "another history");
        assert_eq!(seen.event(lease("other", 5), false, later, &config), Verdict::News);
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_was_overtaken_by_the_watch_is_no_news() {
        let (now, config) = (Instant::now(), config());
        let mut seen = held_by_another(now);
        assert_eq!(seen.answer(Some(7), Some(lease("old", 8)), now, &config), Verdict::Known);
        assert_eq!(seen.answer(None, None, now, &config), Verdict::Known);
        assert_eq!(seen.version(), Some(9));
        assert_eq!(seen.answer(Some(7), Some(lease("me", 10)), now, &config), Verdict::News);
        assert_eq!(seen.answer(Some(10), None, now, &config), Verdict::News, "it is gone");
    }

    fn at(milliseconds: i64) -> Timestamp {
        Timestamp::from_millisecond(milliseconds).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn epochs_only_grow() {
        let (mut seen, now, config) = (Seen::default(), Instant::now(), config());
        assert_eq!(seen.next_epoch(at(5000)), 5000);
        let mut held = claim(None, &config, 5000, at(5000));
        held.metadata.resource_version = Some("9".into());
        seen.answer(None, Some(held.clone()), now, &config);
        assert_eq!(seen.next_epoch(at(9000)), 9000, "ahead of the wall clock by nothing");
        assert_eq!(seen.next_epoch(at(4000)), 5001, "the wall clock is behind");
        held.metadata.resource_version = Some("10".into());
        seen.event(held, true, now, &config);
        assert_eq!(seen.next_epoch(at(4000)), 5001, "the Lease was deleted");
        seen.answer(None, Some(claim(None, &config, 3000, at(3000))), now, &config);
        assert_eq!(seen.next_epoch(at(4000)), 5001, "the Lease was restored");
        assert_eq!(Seen::default().next_epoch(at(-1)), 1, "a clock before 1970");
    }

    #[test]
    fn a_renewal_and_a_release_keep_the_epoch_and_the_annotations_of_others() {
        let mut first = claim(None, &config(), 7, at(0));
        first.metadata.annotations.get_or_insert_default().insert("team".into(), "a".into());
        for lease in [claim(Some(&first), &config(), 7, at(1)), released(&first, at(1))] {
            assert_eq!(lease.metadata.annotations, first.metadata.annotations);
        }
        assert_eq!(first.metadata.annotations.unwrap()[EPOCH], "7");
    }
}
