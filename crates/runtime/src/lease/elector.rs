//! The campaign for the Lease.

use std::{
    pin::pin,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::StreamExt;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{
    Api, Client,
    api::PostParams,
    runtime::{
        WatchStreamExt,
        watcher::{self, Event},
    },
};
use process::{Clock, Pulse};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::{
    Leadership, LeaseConfig, Term,
    seen::{Seen, Verdict, claim, is_held_by, released},
};
use crate::{error::Brief, interruption::Interruption, watch::describe};

pub struct Elector {
    api: Api<Lease>,
    config: LeaseConfig,
    clock: Clock,
    term: watch::Sender<Term>,
    seen: Arc<Mutex<Seen>>,
    /// The Lease is another than we knew.
    changes: Notify,
    /// A read found the Lease older than we knew it: the watch still waits for versions that may never come.
    watch_anew: Notify,
    /// Why the Lease can be neither taken nor renewed: a missing right, namespace or permission to use its name.
    interruption: Interruption,
}

impl Elector {
    /// For readiness.
    pub(crate) fn interruption(&self) -> Interruption {
        self.interruption.clone()
    }

    pub fn new(client: Client, config: LeaseConfig, clock: Clock) -> (Self, Leadership) {
        let (term, receiver) = watch::channel(Term::Standby);
        let leadership = Leadership { term: receiver, clock: clock.clone() };
        let elector = Self {
            api: Api::namespaced(client, &config.namespace),
            config,
            clock,
            term,
            seen: Arc::default(),
            changes: Notify::new(),
            watch_anew: Notify::new(),
            interruption: Interruption::default(),
        };
        (elector, leadership)
    }

    /// Campaigns and renews until `stop`, then releases the Lease. `may_lead` becomes true when the caches are full:
    /// a replica that cannot act yet should not take the lead from one that can.
    pub async fn run(self, mut may_lead: watch::Receiver<bool>, stop: CancellationToken, pulse: Pulse) {
        let campaign = async {
            let ready = async {
                // A closed channel means the process is going down; `stop` ends us then.
                if may_lead.wait_for(|ready| *ready).await.is_err() {
                    std::future::pending::<()>().await;
                }
            };
            stop.run_until_cancelled(ready).await;
            while !stop.is_cancelled() {
                // Not cut off by a stop: the server may have carried it out, and only its answer holds the version that
                // the release must state.
                let succeeded = self.attempt().await;
                stop.run_until_cancelled(self.rest(succeeded)).await;
            }
            self.release().await;
        };
        let beat = async {
            loop {
                pulse.tick().await;
            }
        };
        tokio::select! {
            () = campaign => {}
            () = self.follow() => {}
            () = beat => {}
        }
    }

    /// Keeps `seen` up to date and wakes the campaign on every change.
    async fn follow(&self) {
        let config = watcher::Config::default().fields(&format!("metadata.name={}", self.config.name));
        loop {
            let mut events = pin!(watcher::watcher(self.api.clone(), config.clone()).default_backoff());
            let mut listing = Listing::default();
            loop {
                tokio::select! {
                    () = self.watch_anew.notified() => break,
                    Some(event) = events.next() => self.followed(event, &mut listing),
                }
            }
        }
    }

    fn followed(&self, event: watcher::Result<Event<Lease>>, listing: &mut Listing) {
        let now = self.clock.instant();
        let verdict = match event {
            Ok(Event::Apply(lease)) => self.seen().event(lease, false, now, &self.config),
            Ok(Event::Delete(lease)) => self.seen().event(lease, true, now, &self.config),
            Ok(Event::Init) => {
                *listing = Listing { since: self.seen().version(), found: None };
                return;
            }
            Ok(Event::InitApply(lease)) => {
                listing.found = Some(lease);
                return;
            }
            Ok(Event::InitDone) => self.seen().answer(listing.since, listing.found.take(), now, &self.config),
            Err(error) => {
                tracing::debug!(error = describe(&error), "watch of the lease interrupted");
                return;
            }
        };
        self.judged(verdict);
    }

    /// Ingests an answer to a request that was sent when `since` was known.
    fn answered(&self, since: Option<u64>, lease: Option<Lease>) {
        let verdict = self.seen().answer(since, lease, self.clock.instant(), &self.config);
        if verdict == Verdict::WentBack {
            self.watch_anew.notify_one();
        }
        self.judged(verdict);
    }

    /// A replica that sees another hold the Lease stops leading that moment. The echoes of own renewals end here.
    fn judged(&self, verdict: Verdict) {
        match verdict {
            Verdict::Known => return,
            Verdict::News => {}
            Verdict::WentBack => {
                tracing::warn!(
                    lease = self.config.name,
                    "the lease is older than it was: the etcd of the API server was restored"
                );
            }
        }
        if !self.held_for().is_zero() {
            self.set(Term::Standby);
        }
        self.changes.notify_one();
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
    async fn rest(&self, succeeded: bool) {
        let leads = matches!(*self.term.borrow(), Term::Leading { .. });
        let held = self.held_for();
        let wait = match (held.is_zero(), succeeded) {
            (false, _) => held,
            (true, true) => self.config.renew_interval(),
            // A missing right or namespace is not there an instant later.
            (true, false) if self.interruption.get().is_some() => self.config.renew_interval(),
            (true, false) => self.config.renew_interval() / 8,
        };
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            // A leader's own renewals come back as changes: only a standby has to hurry.
            () = self.changes.notified(), if !leads => {}
        }
    }

    /// Acquires or renews the Lease if no other replica holds it. Whether the next attempt can wait.
    async fn attempt(&self) -> bool {
        if !self.held_for().is_zero() {
            self.set(Term::Standby);
            self.interruption.set(None);
            return true;
        }
        let started = self.clock.instant();
        let epoch = self.epoch();
        // An attempt that hangs must leave time for others before the right to write runs out.
        let succeeded = match tokio::time::timeout(self.config.renew_interval(), self.write(epoch)).await {
            Ok(Ok(())) => {
                self.set(Term::Leading { until: started + self.config.renew_deadline(), epoch });
                self.interruption.set(None);
                true
            }
            Ok(Err(error)) => {
                self.refused(&error);
                self.reread().await;
                false
            }
            Err(_) => {
                tracing::warn!("no answer while acquiring or renewing the lease");
                false
            }
        };
        self.step_down_if_lapsed();
        succeeded
    }

    /// That of the lead that is to be renewed, else a new one: work of a lead that has lapsed must not pass for work of
    /// the next, even if no other replica led in between.
    fn epoch(&self) -> u64 {
        match *self.term.borrow() {
            Term::Leading { until, epoch } if until > self.clock.instant() => epoch,
            _ => self.seen().next_epoch(self.clock.now()),
        }
    }

    /// Losing a race is everyday life; any other refusal is logged once, because nothing is done until it is repaired.
    fn refused(&self, error: &kube::Error) {
        match error {
            kube::Error::Api(status) if status.code != 409 && status.code < 500 => {
                let (namespace, name) = (&self.config.namespace, &self.config.name);
                let interruption = format!("lease {namespace}/{name} cannot be acquired: {}", status.message);
                if self.interruption.set(Some(interruption.clone().into())) {
                    tracing::warn!("{interruption}; nothing is reconciled until this is fixed");
                }
            }
            other => tracing::debug!(error = %Brief(other), "could not acquire or renew the lease"),
        }
    }

    fn step_down_if_lapsed(&self) {
        let now = self.clock.instant();
        let has_lapsed = matches!(*self.term.borrow(), Term::Leading { until, .. } if until <= now);
        if has_lapsed {
            tracing::warn!("leadership lapsed: the lease could not be renewed in time");
            self.set(Term::Standby);
        }
    }

    /// Creates or updates the Lease, on condition that it is still as we saw it.
    async fn write(&self, epoch: u64) -> kube::Result<()> {
        let (since, known) = {
            let seen = self.seen();
            (seen.version(), seen.lease().cloned())
        };
        let lease = claim(known.as_ref(), &self.config, epoch, self.clock.now());
        let written = match known {
            Some(_) => self.api.replace(&self.config.name, &PostParams::default(), &lease).await?,
            None => self.api.create(&PostParams::default(), &lease).await?,
        };
        self.answered(since, Some(written));
        Ok(())
    }

    /// After a refusal our view is old; the watch may be behind as well.
    async fn reread(&self) {
        let since = self.seen().version();
        let read = tokio::time::timeout(self.config.renew_interval(), self.api.get_opt(&self.config.name)).await;
        if let Ok(Ok(lease)) = read {
            self.answered(since, lease);
        }
    }

    fn set(&self, term: Term) {
        let (identity, lease) = (&self.config.identity, &self.config.name);
        let before = self.term.send_replace(term);
        match (before, term) {
            (Term::Leading { .. }, Term::Leading { .. }) => {}
            (_, Term::Leading { epoch, .. }) => tracing::info!(identity, lease, epoch, "leading"),
            (Term::Leading { .. }, _) => tracing::info!(identity, lease, "no longer leading"),
            _ => {}
        }
    }

    /// Gives the Lease up, so that a standby need not wait for it to expire.
    async fn release(&self) {
        self.set(Term::Standby);
        match tokio::time::timeout(self.config.renew_interval(), self.give_up()).await {
            Ok(Ok(true)) => tracing::info!(lease = self.config.name, "released the lease"),
            Ok(Ok(false)) => {}
            Ok(Err(error)) => tracing::warn!(error = %Brief(&error), "could not release the lease; it will expire"),
            Err(_) => tracing::warn!("no answer while releasing the lease; it will expire"),
        }
    }

    /// False if the Lease is not ours.
    async fn give_up(&self) -> kube::Result<bool> {
        let mut may_be_outdated = true;
        loop {
            let held = self.seen().lease().filter(|lease| is_held_by(lease, &self.config.identity)).cloned();
            let Some(held) = held else { return Ok(false) };
            let lease = released(&held, self.clock.now());
            match self.api.replace(&self.config.name, &PostParams::default(), &lease).await {
                Ok(_) => return Ok(true),
                // A renewal whose answer was lost may have been carried out.
                Err(kube::Error::Api(status)) if status.code == 409 && may_be_outdated => {
                    may_be_outdated = false;
                    self.reread().await;
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// A list that the watch begins with: the version known when it was sent, and what it found so far.
#[derive(Default)]
struct Listing {
    since: Option<u64>,
    found: Option<Lease>,
}
