//! One round under way: its steps, its report, and what comes next.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::Metadata;
use kube::core::object::HasStatus;
use plan::{
    event::Event,
    fact::{Class, Fact},
    round::{Peer, Progress, Report, Round},
};

use super::{Asked, Controller, Ended, InputsOf, PlanOf, RoundOf, Shared, Turn};
use crate::{
    error::Error,
    fence::Fence,
    key::Key,
    queue::{Next, doubled},
    subject::Subject,
};

/// A plan that asked this often in a row without acting asks for something that it never uses, which is a defect, or each
/// answer is too old when it arrives.
const MOST_FETCHES: u32 = 4;
/// When a round that could not learn a fact looks again. One that asked in vain does so too, and later each time.
const UNKNOWN_LOOK: Duration = Duration::from_secs(5);

/// One round under way.
pub(super) struct Running<'a, C: Controller> {
    pub shared: &'a Arc<Shared<C>>,
    pub key: &'a Key,
    pub subject: Subject<C::Object>,
    /// With the status that is stored now.
    pub object: C::Object,
    pub observed: C::Observed,
    pub inputs: InputsOf<C>,
    pub plan: PlanOf<C>,
    /// Which facts the plan was made on.
    pub used: HashMap<C::Ask, u64>,
    pub fence: Fence,
    pub progress: Vec<Progress<C::Done>>,
    pub silent: HashSet<Peer>,
    pub error: Option<Error>,
    pub has_written: bool,
    /// Facts that steps rest on and that have to be fetched.
    pub lacking: Vec<C::Ask>,
    /// A fact that a step rests on was learnt anew after the plan was made: another plan may say otherwise.
    pub is_outdated: bool,
    /// A fact that a step rests on could not be learnt a moment ago.
    pub is_unknown: bool,
}

impl<C: Controller> Running<'_, C> {
    /// Every step in its order; a failed one stops those that need it, and a silent peer those that it is for.
    pub async fn execute(&mut self) {
        for at in 0..self.plan.steps.len() {
            self.progress[at] = match self.attempt(at).await {
                Ok(progress) => progress,
                Err(error) => {
                    let progress = error.progress();
                    // Nothing can be made in a namespace that goes: what is left would be refused one by one.
                    if error.stops_peer() || error.is_namespace_terminating() {
                        self.silent.insert(self.plan.steps[at].peer.clone());
                    }
                    if self.error.as_ref().is_none_or(|first| weight(&error) > weight(first)) {
                        self.error = Some(error);
                    }
                    progress
                }
            };
        }
    }

    async fn attempt(&mut self, at: usize) -> Result<Progress<C::Done>, Error> {
        let step = &self.plan.steps[at];
        let is_due = step.needs.iter().all(|need| self.progress[need.index()].is_done());
        if !is_due || self.silent.contains(&step.peer) || !self.rests(at) {
            return Ok(Progress::Skipped);
        }
        self.fence.check()?;
        let step = &self.plan.steps[at];
        if step.announced {
            self.shared.controller.check(&self.turn(), &step.action).await?;
            self.announce(at).await?;
            // Both took their time.
            self.fence.check()?;
            if !self.rests(at) {
                return Ok(Progress::Skipped);
            }
        }
        let step = &self.plan.steps[at];
        self.shared.facts.spoil(&step.spoils);
        let done = self.shared.controller.execute(&self.turn(), &step.action).await;
        // Also a fetch that began during the effect may have seen what was before it.
        self.shared.facts.spoil(&step.spoils);
        self.has_written = true;
        done.map(Progress::Done)
    }

    fn turn(&self) -> Turn<'_, C> {
        let (observed, inputs) = (&self.observed, &self.inputs);
        Turn { key: self.key, subject: &self.subject, observed, inputs, fence: &self.fence }
    }

    /// Whether the facts that a step rests on are still those that it was planned on; else notes what is to be done.
    fn rests(&mut self, at: usize) -> bool {
        let (facts, now) = (&self.shared.facts, self.shared.clock.instant());
        let mut rests = true;
        for want in &self.plan.steps[at].rests_on {
            let used = self.used.get(&want.ask).copied();
            if facts.is_current(want, used, now) {
                continue;
            }
            rests = false;
            match facts.get(want, now).map(|answer| answer.fact) {
                // It is fetched again when its time has come.
                Some(Fact::Unknown { .. }) => self.is_unknown = true,
                Some(Fact::Known { .. }) if used.is_some() => self.is_outdated = true,
                _ if self.lacking.contains(&want.ask) => {}
                _ => self.lacking.push(want.ask.clone()),
            }
        }
        rests
    }

    /// Stores the status that says that a step begins.
    async fn announce(&mut self, at: usize) -> Result<(), Error> {
        self.progress[at] = Progress::Begun;
        let report = self.compute(self.shared.clock.now());
        self.store(&report.status, report.fallback.as_ref()).await?;
        self.record(&report.discriminator, report.transitions);
        Ok(())
    }

    fn round(&self) -> RoundOf<'_, C> {
        Round {
            object: &self.object,
            observed: &self.observed,
            inputs: &self.inputs,
            plan: &self.plan,
            progress: &self.progress,
        }
    }

    fn compute(&self, now: Timestamp) -> Report<C::Status, C::Note> {
        self.shared.controller.report(&self.round(), now)
    }

    /// Writes the status if it differs from the stored one.
    async fn store(&mut self, status: &C::Status, fallback: Option<&C::Status>) -> Result<(), Error> {
        let must_fall_back = self.shared.refusals().must_fall_back(self.key, self.shared.clock.instant());
        let wanted = fallback.filter(|_| must_fall_back).unwrap_or(status);
        let stored = match (self.write(wanted).await, fallback) {
            (Err(error), Some(fallback)) if wanted != fallback && is_invalid(&error) => {
                tracing::warn!(
                    controller = C::NAME,
                    error = %error,
                    "the installed definition refuses the status; writing what it accepts. Update it: strata crd | kubectl apply -f -"
                );
                self.shared.refusals().refused(self.key, self.shared.clock.instant());
                self.write(fallback).await?;
                fallback
            }
            (result, fallback) => {
                let is_stored = result?;
                if is_stored && fallback.is_some_and(|fallback| fallback != wanted) {
                    self.shared.refusals().accepted(self.key);
                }
                wanted
            }
        };
        *self.object.status_mut() = Some(stored.clone());
        Ok(())
    }

    /// Whether there was anything to write.
    async fn write(&mut self, status: &C::Status) -> Result<bool, Error> {
        let none = C::Status::default();
        // Nothing reported so far and nothing to report are the same.
        let before = self.object.status().unwrap_or(&none);
        if before == status {
            return Ok(false);
        }
        self.subject.patch_status(self.shared.controller.kind(), self.key, before, status).await?;
        self.has_written = true;
        Ok(true)
    }

    pub async fn report(&mut self) -> Result<(), Error> {
        let report = self.compute(self.shared.clock.now());
        {
            let mut memory = self.shared.memory();
            let memory = memory.entry(self.key.clone()).or_default();
            (memory.uid, memory.note) = (self.object.metadata().uid.clone(), report.note);
        }
        self.record(&report.discriminator, report.done);
        if let Some(rest) = self.deferral(report.is_provisional) {
            self.plan.look_within(rest);
            self.shared.queue.put_off(self.key, rest);
            return Ok(());
        }
        let stored = match self.store(&report.status, report.fallback.as_ref()).await {
            // Deleted meanwhile: there is no object left to report to.
            Err(error) if error.is_not_found() => Ok(()),
            result => result,
        };
        if stored.is_ok() {
            self.shared.memory().entry(self.key.clone()).or_default().deferral.stored();
            self.record(&report.discriminator, report.transitions);
            self.shared.controller.reported(&self.round());
        }
        let (phase, actions) = (report.phase, self.plan.steps.len());
        // A resync of a thousand settled objects is no news.
        if self.has_written {
            tracing::info!(phase, actions, "reconciled");
        } else {
            tracing::debug!(phase, actions, "reconciled");
        }
        stored
    }

    /// How long the status may still wait. When the operator stops there is no later round to store it.
    fn deferral(&self, is_provisional: bool) -> Option<Duration> {
        let is_provisional = is_provisional && !self.shared.queue.is_paused();
        let (has_backlog, now) = (self.shared.queue.has_backlog(), self.shared.clock.instant());
        self.shared.memory().entry(self.key.clone()).or_default().deferral.rest(is_provisional, has_backlog, now)
    }

    fn record(&self, discriminator: &str, events: Vec<Event>) {
        self.subject.record(&self.shared.recorder, self.key, discriminator, events);
    }

    /// Counts a round that only asked. `Some`: it was one too many in a row although nothing that is observed changed, and
    /// the next comes after this pause.
    fn pause(&self) -> Option<Duration> {
        let mut memory = self.shared.memory();
        let asked = &mut memory.entry(self.key.clone()).or_default().asked;
        if asked.as_ref().is_none_or(|asked| asked.observed != self.observed) {
            *asked = Some(Box::new(Asked { observed: self.observed.clone(), rounds: 0, pauses: 0 }));
        }
        let asked = asked.as_mut()?;
        asked.rounds += 1;
        if asked.rounds <= MOST_FETCHES {
            return None;
        }
        asked.rounds = 0;
        asked.pauses += 1;
        // The queue's resync is the longest.
        Some(doubled(UNKNOWN_LOOK, asked.pauses - 1))
    }

    /// Fetches what is missing and says what the queue does next.
    pub fn end(mut self, reported: Result<(), Error>) -> Result<Ended, Error> {
        self.fetch_missing();
        let (next, has_acted) = self.next();
        match self.error.or(reported.err()) {
            None => Ok(Ended { next, has_acted, failure: None }),
            // It waits for a change. What the rest of the round asked for does not.
            Some(error) if error.class() == Class::Terminal && next != Next::Settled => {
                Ok(Ended { next, has_acted, failure: Some(error) })
            }
            Some(error) => Err(error),
        }
    }

    /// Fetches what the plan wants or its steps rest on, unless it never acts on what it asks for.
    fn fetch_missing(&mut self) {
        let mut missing = std::mem::take(&mut self.lacking);
        for want in &self.plan.wants {
            if !self.used.contains_key(&want.ask) && !missing.contains(&want.ask) {
                missing.push(want.ask.clone());
            }
        }
        let is_asking = !missing.is_empty() && !self.has_written;
        // Each answer brings a round: one that still waits for others does not count.
        let is_waiting = missing.iter().any(|ask| self.shared.facts.is_fetching(ask));
        if is_asking
            && !is_waiting
            && let Some(pause) = self.pause()
        {
            self.plan.look_within(pause);
            self.shared.metrics.asked_in_vain(C::NAME);
            tracing::warn!(
                controller = C::NAME,
                asks = ?missing,
                "the plan asked again and again and never acted: its answers are too old when they arrive, or it is a defect; \
                 it looks again in {} s", pause.as_secs()
            );
            return;
        }
        if !is_asking {
            self.shared.memory().entry(self.key.clone()).or_default().asked = None;
        }
        for ask in &missing {
            self.shared.fetch(ask, self.key);
        }
    }

    /// What the queue does next if nothing failed, and whether anything was written.
    fn next(&self) -> (Next, bool) {
        // What was handed over is looked at when it ends.
        let mut attempts = self.plan.steps.iter().zip(&self.progress);
        if attempts.any(|(step, progress)| !step.is_job && progress.is_done()) {
            return (Next::Again, true);
        }
        if self.is_outdated {
            return (Next::Again, self.has_written);
        }
        // What could not be learnt is asked for again, whether or not the plan thought of it.
        let is_unknown = |fact: &Fact<C::Answer>| matches!(fact, Fact::Unknown { .. });
        let is_unknown = self.is_unknown || self.inputs.facts.iter().any(is_unknown);
        let next_look = self.plan.next_look.into_iter().chain(is_unknown.then_some(UNKNOWN_LOOK)).min();
        (next_look.map_or(Next::Settled, Next::Look), self.has_written)
    }
}

/// Which of two errors decides about the retry: what stops a peer before what stopped one step, and what is worth a
/// retry before what waits for a change.
fn weight(error: &Error) -> u8 {
    u8::from(error.stops_peer()) * 2 + u8::from(error.class() != Class::Terminal)
}

/// Whether a status was refused for what it says.
fn is_invalid(error: &Error) -> bool {
    error.status().is_some_and(|status| matches!(status.code, 400 | 422))
}
