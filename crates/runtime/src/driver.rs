//! The one way a controller runs: queue → gather → plan → execute → report.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures::{FutureExt, future::BoxFuture};
use process::{Clock, Pulse, panic};
use tokio::{sync::Semaphore, task::JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::{
    controller::{Controller, Ended, Shared},
    error::{Chain, Class, Error},
    event::Recorder,
    key::Key,
    lease::Leadership,
    metrics::{Metrics, RoundResult},
    queue::{Next, Queue, Turn},
};

/// A controller with its types erased, so that the loop below is compiled once.
trait Rounds: Send + Sync + 'static {
    fn controller(&self) -> &'static str;
    fn span(&self, key: &Key) -> tracing::Span;
    fn keys(&self) -> Vec<Key>;
    fn round<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Ended, Error>>;
}

impl<C: Controller> Rounds for Arc<Shared<C>> {
    fn controller(&self) -> &'static str {
        C::NAME
    }

    fn span(&self, key: &Key) -> tracing::Span {
        C::span(key)
    }

    fn keys(&self) -> Vec<Key> {
        Shared::keys(self)
    }

    fn round<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Ended, Error>> {
        Shared::round(self, key).instrument(C::span(key)).boxed()
    }
}

/// Runs rounds for the keys of one queue.
pub(crate) struct Driver {
    rounds: Arc<dyn Rounds>,
    pub(crate) queue: Arc<Queue>,
    clock: Clock,
    leadership: Leadership,
    metrics: Arc<Metrics>,
    concurrency: usize,
}

impl Driver {
    pub(crate) fn new<C: Controller>(
        controller: C,
        queue: Arc<Queue>,
        clock: Clock,
        leadership: Leadership,
        recorder: Recorder,
        metrics: Arc<Metrics>,
        concurrency: usize,
    ) -> Self {
        metrics.concurrency(C::NAME, concurrency);
        queue.slots(concurrency);
        metrics.queue(C::NAME, queue.clone());
        recorder.give_way_to(queue.clone());
        let shared =
            Shared::new(controller, queue.clone(), clock.clone(), leadership.clone(), recorder, metrics.clone());
        Self { rounds: Arc::new(shared), queue, clock, leadership, metrics, concurrency }
    }

    /// Runs until `stop`, then gives running rounds `grace` to finish. What is cut off then is safe to repeat.
    pub(crate) async fn run(self, stop: CancellationToken, grace: Duration, pulse: Pulse) {
        let driver = Arc::new(self);
        let slots = Arc::new(Semaphore::new(driver.concurrency));
        let mut rounds = JoinSet::new();
        while !stop.is_cancelled() {
            while rounds.try_join_next().is_some() {}
            let turn = tokio::select! {
                () = stop.cancelled() => break,
                () = pulse.tick() => continue,
                turn = driver.turn(&slots) => turn,
            };
            let (slot, turn) = turn;
            let driver = driver.clone();
            rounds.spawn(async move {
                driver.run_one(turn).await;
                drop(slot);
            });
        }
        // What waits is for the next leader: nothing that still runs gives way to it.
        driver.queue.pause();
        let finish = async { while rounds.join_next().await.is_some() {} };
        if pulse.while_waiting(tokio::time::timeout(grace, finish)).await.is_err() {
            tracing::warn!(
                abandoned = rounds.len(),
                "rounds did not finish in the grace period; the next start repeats them"
            );
            rounds.shutdown().await;
        }
    }

    /// A free slot and a key to use it for. A standby takes none, and keeps none waiting.
    async fn turn(&self, slots: &Arc<Semaphore>) -> (tokio::sync::OwnedSemaphorePermit, Turn) {
        if !self.leadership.is_leading() {
            self.queue.pause();
            self.leadership.acquired().await;
        }
        if self.queue.is_paused() {
            self.queue.resume(self.rounds.keys());
        }
        let slot = slots.clone().acquire_owned().await.expect("the semaphore is never closed");
        (slot, self.queue.next().await)
    }

    async fn run_one(&self, turn: Turn) {
        let controller = self.rounds.controller();
        self.metrics.round_started(controller, turn.waited);
        let started = self.clock.instant();
        let round = AssertUnwindSafe(self.rounds.round(&turn.key)).catch_unwind();
        let result = round.await.unwrap_or_else(|payload| {
            self.metrics.panicked(controller);
            Err(Error::Panicked(panic::message(&*payload)))
        });
        let took = self.clock.instant().saturating_duration_since(started);
        let failed = |error: &Error| {
            let class = error.class();
            self.rounds.span(&turn.key).in_scope(|| log_failure(controller, error, class));
            RoundResult::Error(class)
        };
        let (next, has_acted, result) = match result {
            Ok(Ended { next, has_acted, failure: Some(error) }) => (next, has_acted, failed(&error)),
            Ok(Ended { next: next @ Next::Look(_), has_acted, .. }) => (next, has_acted, RoundResult::RequeueAfter),
            Ok(Ended { next, has_acted, .. }) => (next, has_acted, RoundResult::Success),
            Err(error) => (Next::Failed(error.class(), error.retry_after()), false, failed(&error)),
        };
        self.metrics.round_ended(controller, &turn.key, took, result);
        if self.queue.done(&turn.key, next, has_acted) {
            self.metrics.forget_namespace(controller, &turn.key.namespace);
        }
    }
}

/// To be called in the round's span, which says which object it was.
fn log_failure(controller: &'static str, error: &Error, class: Class) {
    let recovery = match class {
        Class::Transient => "retried with growing delay",
        Class::Conflict => "retried with a fresh view",
        Class::Invalid => "retried with growing delay; the cause is outside the operator",
        Class::Terminal => "waits for a change or the next resync",
    };
    // A conflict is everyday life with several writers, not a fault.
    if class == Class::Conflict {
        tracing::debug!(controller, error = %Chain(error), class = class.label(), recovery, "round failed");
    } else {
        tracing::error!(controller, error = %Chain(error), class = class.label(), recovery, "round failed");
    }
}
