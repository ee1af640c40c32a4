//! Leadership by a Lease, after client-go's rules.
//!
//! Others' expiry is judged by the time that passed on our own monotonic clock since we last saw the Lease change,
//! never by the times written in it: clocks differ and jump. Our own authority to write ends `renew_deadline` after
//! the start of the last renewal that succeeded, which is earlier than anyone else may consider the Lease expired.
//! A standby watches the Lease, so a released one is taken over at once.

use std::{
    pin::pin,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::StreamExt;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams},
    runtime::{
        WatchStreamExt,
        watcher::{self, Event},
    },
};
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::{clock::Clock, error::Brief, health::Pulse, trouble::Trouble, watch::describe};

#[derive(Clone, Debug)]
pub struct LeaseConfig {
    pub namespace: String,
    pub name: String,
    /// Unique per process: two replicas that called themselves the same would both believe they lead.
    pub identity: String,
    /// After this long without a renewal others may take over.
    pub duration: Duration,
}

impl LeaseConfig {
    /// A leader stops writing after two thirds of the lease without a renewal; the last third is for requests that
    /// are still on their way.
    fn renew_deadline(&self) -> Duration {
        self.duration * 2 / 3
    }

    /// Also how long one attempt may take: a second and a third fit into the renew deadline, so one lost request does
    /// not cost the leadership.
    fn renew_interval(&self) -> Duration {
        self.duration * 2 / 9
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Term {
    Standby,
    /// May write until this moment.
    LeadingUntil(Instant),
    /// Leader election is off.
    Always,
}

/// The right to write, checked before each write.
#[derive(Clone, Debug)]
pub struct Leadership {
    term: watch::Receiver<Term>,
    clock: Clock,
}

impl Leadership {
    /// For a process that is alone by arrangement.
    pub fn always(clock: Clock) -> Self {
        Self { term: watch::channel(Term::Always).1, clock }
    }

    /// How long we may still write; `None` when we may not.
    pub fn time_left(&self) -> Option<Duration> {
        match *self.term.borrow() {
            Term::Standby => None,
            // Longer than any request may take.
            Term::Always => Some(Duration::from_hours(1)),
            Term::LeadingUntil(end) => {
                let left = end.saturating_duration_since(self.clock.instant());
                (!left.is_zero()).then_some(left)
            }
        }
    }

    pub fn is_leading(&self) -> bool {
        self.time_left().is_some()
    }

    /// Waits until we lead.
    pub async fn acquired(&self) {
        let mut term = self.term.clone();
        while !self.is_leading() {
            if term.changed().await.is_err() {
                // The elector is gone for good: never leading again.
                std::future::pending::<()>().await;
            }
        }
    }
}

impl Leadership {
    /// Waits until our right to write ends within `margin` and no renewal came in time, or has ended: what must be over
    /// before another replica acts is to be ended now. A replica that does not lead has lost already.
    ///
    /// A healthy leader has never less than four ninths of the lease left, and after the end of its right another third
    /// passes before anyone else may act; a margin beyond one ninth would ring at the first slow renewal.
    pub async fn lost(&self, margin: Duration) {
        let mut term = self.term.clone();
        loop {
            let known = *term.borrow_and_update();
            let end = match known {
                Term::Standby => return,
                Term::Always => return std::future::pending().await,
                Term::LeadingUntil(end) => end,
            };
            let left = end.saturating_duration_since(self.clock.instant()).saturating_sub(margin);
            tokio::select! {
                () = tokio::time::sleep(left) => return,
                changed = term.changed() => if changed.is_err() { return },
            }
        }
    }
}

impl Leadership {
    /// Waits until a right to write that is about to end has ended, or was renewed after all.
    pub async fn decided(&self, margin: Duration) {
        let mut term = self.term.clone();
        loop {
            let Term::LeadingUntil(end) = *term.borrow_and_update() else { return };
            let left = end.saturating_duration_since(self.clock.instant());
            if left.is_zero() || left > margin {
                return;
            }
            tokio::select! {
                () = tokio::time::sleep(left) => return,
                changed = term.changed() => if changed.is_err() { return },
            }
        }
    }
}

/// What we last saw of the Lease, and when on our clock.
#[derive(Debug, Default)]
struct Seen {
    lease: Option<Lease>,
    changed_at: Option<Instant>,
    /// Someone deleted the Lease under its holder, who may still act until then.
    barred_until: Option<Instant>,
}

impl Seen {
    /// Takes in a Lease (or its absence) seen at `now`; what is older than what we know is ignored.
    fn update(&mut self, lease: Option<Lease>, now: Instant, config: &LeaseConfig) {
        match (version(self.lease.as_ref()), version(lease.as_ref())) {
            (Some(known), Some(new)) if new <= known => return,
            (_, Some(_)) => self.barred_until = None,
            (_, None) => self.barred_until = self.expiry(config),
        }
        self.lease = lease;
        self.changed_at = Some(now);
    }

    /// When another's hold ends by what we saw; `None` if nobody else holds it.
    fn expiry(&self, config: &LeaseConfig) -> Option<Instant> {
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

pub struct Elector {
    api: Api<Lease>,
    client: Client,
    config: LeaseConfig,
    clock: Clock,
    term: watch::Sender<Term>,
    seen: Arc<Mutex<Seen>>,
    /// Why the Lease can be neither taken nor renewed: a missing right, namespace or permission to use its name.
    trouble: Trouble,
}

impl Elector {
    /// For readiness.
    pub(crate) fn trouble(&self) -> Trouble {
        self.trouble.clone()
    }

    pub fn new(client: Client, config: LeaseConfig, clock: Clock) -> (Self, Leadership) {
        let (term, receiver) = watch::channel(Term::Standby);
        let leadership = Leadership { term: receiver, clock: clock.clone() };
        let api = Api::namespaced(client.clone(), &config.namespace);
        (Self { api, client, config, clock, term, seen: Arc::default(), trouble: Trouble::default() }, leadership)
    }

    /// Campaigns and renews until `stop`, then releases the Lease. `may_lead` becomes true when the caches are full:
    /// a replica that cannot act yet should not take the lead from one that can.
    pub async fn run(self, mut may_lead: watch::Receiver<bool>, stop: CancellationToken, pulse: Pulse) {
        let changes = tokio::sync::Notify::new();
        let follow = self.follow(&changes);
        let campaign = async {
            // A closed channel means the process is going down; `stop` ends us then.
            if may_lead.wait_for(|ready| *ready).await.is_err() {
                std::future::pending::<()>().await;
            }
            loop {
                let succeeded = self.attempt().await;
                self.rest(succeeded, &changes, &pulse).await;
            }
        };
        let beat = async {
            loop {
                pulse.tick().await;
            }
        };
        tokio::select! {
            () = follow => {}
            () = campaign => {}
            () = beat => {}
            () = stop.cancelled() => {}
        }
        self.release().await;
    }

    /// Keeps `seen` up to date and wakes the campaign on every change.
    async fn follow(&self, changes: &tokio::sync::Notify) {
        let config = watcher::Config::default().fields(&format!("metadata.name={}", self.config.name));
        let mut events = pin!(
            watcher::watcher(Api::<Lease>::namespaced(self.client.clone(), &self.config.namespace), config)
                .default_backoff()
        );
        while let Some(event) = events.next().await {
            match event {
                Ok(Event::Apply(lease) | Event::InitApply(lease)) => self.saw(Some(lease)),
                Ok(Event::Delete(_)) => self.saw(None),
                Ok(Event::Init | Event::InitDone) => {}
                Err(error) => tracing::debug!(error = describe(&error), "watch of the lease interrupted"),
            }
            changes.notify_one();
        }
    }

    /// Notes the Lease; whoever reads that another holds it stops leading that moment.
    fn saw(&self, lease: Option<Lease>) {
        self.seen().update(lease, self.clock.instant(), &self.config);
        if !self.held_for().is_zero() {
            self.set(Term::Standby);
        }
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long until another's lease counts as expired by what we saw; zero if it is free.
    fn held_for(&self) -> Duration {
        let expiry = self.seen().expiry(&self.config);
        expiry.map_or(Duration::ZERO, |at| at.saturating_duration_since(self.clock.instant()))
    }

    /// Waits for the next reason to attempt: renewal time, an expiry, or a change of the Lease.
    async fn rest(&self, succeeded: bool, changes: &tokio::sync::Notify, pulse: &Pulse) {
        let leads = matches!(*self.term.borrow(), Term::LeadingUntil(_));
        let held = self.held_for();
        let wait = match (held.is_zero(), succeeded) {
            (false, _) => held,
            (true, true) => self.config.renew_interval(),
            (true, false) => self.config.renew_interval() / 8,
        };
        pulse.beat();
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            // A leader's own renewals come back as changes: only a standby has to hurry.
            () = changes.notified(), if !leads => {}
        }
    }

    /// Takes or renews the Lease if nobody else holds it. Whether the next attempt can wait.
    async fn attempt(&self) -> bool {
        if !self.held_for().is_zero() {
            self.set(Term::Standby);
            self.trouble.set(None);
            return true;
        }
        let started = self.clock.instant();
        // An attempt that hangs must leave time for others before the right to write runs out.
        let succeeded = match tokio::time::timeout(self.config.renew_interval(), self.write()).await {
            Ok(Ok(())) => {
                self.set(Term::LeadingUntil(started + self.config.renew_deadline()));
                self.trouble.set(None);
                true
            }
            Ok(Err(error)) => {
                self.refused(&error);
                self.reread().await;
                false
            }
            Err(_) => {
                tracing::warn!("no answer while taking or renewing the lease");
                false
            }
        };
        self.step_down_if_lapsed();
        succeeded
    }

    /// Losing a race is everyday life; any other refusal is told once, because nothing is done until it is mended.
    fn refused(&self, error: &kube::Error) {
        match error {
            kube::Error::Api(status) if status.code != 409 && status.code < 500 => {
                let (namespace, name) = (&self.config.namespace, &self.config.name);
                let trouble = format!("lease {namespace}/{name} cannot be taken: {}", status.message);
                if self.trouble.set(Some(trouble.clone())) {
                    tracing::warn!("{trouble}; nothing is reconciled until that is mended");
                }
            }
            other => tracing::debug!(error = %Brief(other), "could not take or renew the lease"),
        }
    }

    fn step_down_if_lapsed(&self) {
        let now = self.clock.instant();
        let has_lapsed = matches!(*self.term.borrow(), Term::LeadingUntil(end) if end <= now);
        if has_lapsed {
            tracing::warn!("leadership lapsed: the lease could not be renewed in time");
            self.set(Term::Standby);
        }
    }

    /// Creates or updates the Lease, on condition that it is still as we saw it.
    async fn write(&self) -> kube::Result<()> {
        let known = self.seen().lease.clone();
        let lease = claim(known.as_ref(), &self.config, self.clock.now());
        let written = match known {
            Some(_) => self.api.replace(&self.config.name, &PostParams::default(), &lease).await?,
            None => self.api.create(&PostParams::default(), &lease).await?,
        };
        self.saw(Some(written));
        Ok(())
    }

    /// After a refusal our view is old; the watch may be behind as well.
    async fn reread(&self) {
        let read = tokio::time::timeout(self.config.renew_interval(), self.api.get_opt(&self.config.name)).await;
        if let Ok(Ok(lease)) = read {
            self.saw(lease);
        }
    }

    fn set(&self, term: Term) {
        let led = matches!(*self.term.borrow(), Term::LeadingUntil(_));
        match (led, matches!(term, Term::LeadingUntil(_))) {
            (false, true) => tracing::info!(identity = self.config.identity, lease = self.config.name, "leading"),
            (true, false) => {
                tracing::info!(identity = self.config.identity, lease = self.config.name, "no longer leading");
            }
            _ => {}
        }
        self.term.send_replace(term);
    }

    /// Gives the Lease up, so that a standby need not wait for it to expire.
    async fn release(&self) {
        let led = matches!(*self.term.borrow(), Term::LeadingUntil(_));
        self.set(Term::Standby);
        if !led {
            return;
        }
        let known = self.seen().lease.clone();
        let Some(mut lease) = known else { return };
        if let Some(spec) = &mut lease.spec {
            spec.holder_identity = Some(String::new());
            // Others may take it at once; the API server requires a positive number.
            spec.lease_duration_seconds = Some(1);
            spec.renew_time = Some(MicroTime(self.clock.now()));
        }
        let params = PostParams::default();
        let write = self.api.replace(&self.config.name, &params, &lease);
        match tokio::time::timeout(self.config.renew_interval(), write).await {
            Ok(Ok(_)) => tracing::info!(lease = self.config.name, "released the lease"),
            Ok(Err(error)) => tracing::warn!(error = %Brief(&error), "could not release the lease; it will expire"),
            Err(_) => tracing::warn!("no answer while releasing the lease; it will expire"),
        }
    }
}

fn is_held_by_another(spec: &LeaseSpec, identity: &str) -> bool {
    spec.holder_identity.as_deref().is_some_and(|holder| !holder.is_empty() && holder != identity)
}

/// The Lease as we want it, from the Lease as it is.
fn claim(known: Option<&Lease>, config: &LeaseConfig, now: jiff::Timestamp) -> Lease {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> LeaseConfig {
        LeaseConfig { namespace: "n".into(), name: "l".into(), identity: "me".into(), duration: Duration::from_secs(6) }
    }

    #[test]
    fn authority_ends_well_before_others_may_take_over() {
        let config = config();
        assert!(config.renew_deadline() + Duration::from_secs(2) <= config.duration);
        assert!(config.renew_interval() * 3 <= config.renew_deadline());
    }

    #[test]
    fn a_take_over_counts_a_transition_and_a_renewal_does_not() {
        let now = jiff::Timestamp::UNIX_EPOCH;
        let first = claim(None, &config(), now);
        assert_eq!(first.spec.as_ref().unwrap().lease_transitions, Some(0));
        let renewed = claim(Some(&first), &config(), now + Duration::from_secs(2));
        assert_eq!(renewed.spec.as_ref().unwrap().acquire_time, first.spec.as_ref().unwrap().acquire_time);
        let other = claim(Some(&renewed), &LeaseConfig { identity: "other".into(), ..config() }, now);
        assert_eq!(other.spec.unwrap().lease_transitions, Some(1));
    }

    #[tokio::test(start_paused = true)]
    async fn the_right_to_write_runs_out_by_itself() {
        let clock = Clock::default();
        let (term, receiver) = watch::channel(Term::LeadingUntil(clock.instant() + Duration::from_secs(4)));
        let leadership = Leadership { term: receiver, clock: clock.clone() };
        tokio::time::advance(Duration::from_secs(3)).await;
        assert_eq!(leadership.time_left(), Some(Duration::from_secs(1)));
        clock.step(jiff::SignedDuration::from_hours(-1));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(leadership.time_left(), None);
        term.send_replace(Term::LeadingUntil(clock.instant() + Duration::from_secs(1)));
        leadership.acquired().await;
    }

    #[tokio::test(start_paused = true)]
    async fn the_loss_of_the_lead_is_told_in_time_and_a_renewal_postpones_it() {
        let clock = Clock::default();
        let (started, second) = (clock.instant(), Duration::from_secs(1));
        let (term, receiver) = watch::channel(Term::LeadingUntil(started + 4 * second));
        let leadership = Leadership { term: receiver, clock: clock.clone() };
        let waiting = tokio::spawn({
            let leadership = leadership.clone();
            async move { leadership.lost(second).await }
        });
        tokio::time::sleep(2 * second).await;
        term.send_replace(Term::LeadingUntil(started + 6 * second));
        waiting.await.unwrap();
        assert_eq!(clock.instant() - started, 5 * second);
        assert!(leadership.is_leading(), "there is still time to end what must end");
        term.send_replace(Term::Standby);
        leadership.lost(Duration::ZERO).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_lead_about_to_end_is_decided_by_its_end_or_a_renewal() {
        let clock = Clock::default();
        let (started, second) = (clock.instant(), Duration::from_secs(1));
        let (term, receiver) = watch::channel(Term::LeadingUntil(started + second));
        let leadership = Leadership { term: receiver, clock: clock.clone() };
        let decided = async || {
            leadership.decided(second).await;
            (clock.instant() - started, leadership.is_leading())
        };
        let renewal = async {
            tokio::time::sleep(second / 2).await;
            term.send_replace(Term::LeadingUntil(started + 4 * second));
        };
        let (renewed, ()) = tokio::join!(decided(), renewal);
        assert_eq!(renewed, (second / 2, true));
        tokio::time::sleep(3 * second).await;
        assert_eq!(decided().await, (4 * second, false));
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

    #[tokio::test(start_paused = true)]
    async fn late_news_of_the_lease_is_ignored() {
        let (mut seen, now) = (Seen::default(), Instant::now());
        seen.update(Some(lease("me", 9)), now, &config());
        seen.update(Some(lease("other", 8)), now, &config());
        assert_eq!(seen.expiry(&config()), None);
        seen.update(Some(lease("other", 10)), now, &config());
        assert_eq!(seen.expiry(&config()), Some(now + Duration::from_secs(6)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_deleted_lease_is_free_only_when_its_holder_must_have_noticed() {
        let (mut seen, now) = (Seen::default(), Instant::now());
        seen.update(Some(lease("other", 9)), now, &config());
        seen.update(None, now + Duration::from_secs(2), &config());
        assert_eq!(seen.expiry(&config()), Some(now + Duration::from_secs(6)));
        seen.update(Some(lease("", 12)), now + Duration::from_secs(3), &config());
        assert_eq!(seen.expiry(&config()), None);
        seen.update(None, now + Duration::from_secs(4), &config());
        assert_eq!(seen.expiry(&config()), None);
    }
}
