//! The one way a controller runs: queue → gather → plan → execute → report.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures::{FutureExt, future::BoxFuture};
use jiff::Timestamp;
use process::{Clock, Pulse, panic};
use tokio::{sync::Semaphore, task::JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::{
    controller::{Controller, Shared},
    error::{Chain, Class, Error},
    event::Recorder,
    key::Key,
    lease::Leadership,
    metrics::{Metrics, RoundResult},
    queue::{Next, Queue, Turn},
};

/// How a round ended well: what the queue does next, and whether anything was written.
type Ended = (Next, bool);

/// A controller with its types erased, so that the loop below is compiled once.
trait Rounds: Send + Sync + 'static {
    fn controller(&self) -> &'static str;
    fn span(&self, key: &Key) -> tracing::Span;
    fn keys(&self) -> Vec<Key>;
    fn round<'a>(&'a self, key: &'a Key, now: Timestamp) -> BoxFuture<'a, Result<Ended, Error>>;
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

    fn round<'a>(&'a self, key: &'a Key, now: Timestamp) -> BoxFuture<'a, Result<Ended, Error>> {
        Shared::round(self, key, now).instrument(C::span(key)).boxed()
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
            pulse.beat();
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
        let round = AssertUnwindSafe(self.rounds.round(&turn.key, self.clock.now())).catch_unwind();
        let result = round.await.unwrap_or_else(|payload| {
            self.metrics.panicked(controller);
            Err(Error::Panicked(panic::message(&*payload)))
        });
        let took = self.clock.instant().saturating_duration_since(started);
        let (next, has_acted, result) = match result {
            Ok((next @ Next::Look(_), has_acted)) => (next, has_acted, RoundResult::RequeueAfter),
            Ok((next, has_acted)) => (next, has_acted, RoundResult::Success),
            Err(error) => {
                let class = error.class();
                self.rounds.span(&turn.key).in_scope(|| log_failure(controller, &error, class));
                (Next::Failed(class, error.retry_after()), false, RoundResult::Error(class))
            }
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use api::performer::{Performer, PerformerStatus};
    use plan::{
        fact::Never,
        round::{Plan, Report},
    };

    use process::Health;

    use super::*;
    use crate::{
        controller::{InputsOf, RoundOf, Turn as Effect},
        kind::Kind,
        scripted::Script,
        view::Json,
    };

    type Performers = Arc<Kind<Json<Performer>, Performer>>;

    /// Panics in its first two rounds of the key `shaky`.
    struct Shaky {
        performers: Performers,
        rounds: Arc<AtomicU32>,
    }

    impl Controller for Shaky {
        const NAME: &'static str = "shaky";
        type View = Json<Performer>;
        type Object = Performer;
        type Status = PerformerStatus;
        type Observed = ();
        type Action = ();
        type Done = ();
        type Note = ();
        type Ask = Never;
        type Answer = Never;

        fn kind(&self) -> &Performers {
            &self.performers
        }

        fn span(_: &Key) -> tracing::Span {
            tracing::Span::none()
        }

        async fn gather(&self, key: &Key, _: &Performer, (): &()) -> Result<(), Error> {
            if &*key.name == "shaky" {
                assert!(self.rounds.fetch_add(1, Ordering::SeqCst) >= 2, "shaken");
            }
            Ok(())
        }

        fn plan(&self, _: &Performer, (): &(), _: &InputsOf<Self>, _: Timestamp) -> Plan<()> {
            Plan::default()
        }

        async fn execute(&self, _: &Effect<'_, Self>, (): &()) -> Result<(), Error> {
            Ok(())
        }

        fn report(&self, _: &RoundOf<'_, Self>, _: Timestamp) -> Report<PerformerStatus> {
            Report {
                status: PerformerStatus::default(),
                fallback: None,
                is_provisional: false,
                done: Vec::new(),
                transitions: Vec::new(),
                discriminator: String::new(),
                phase: String::new(),
                note: (),
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_panic_ends_its_round_only_and_is_counted_and_retried() {
        let (clock, metrics) = (Clock::default(), Arc::<Metrics>::default());
        let queue = Arc::new(Queue::new(clock.clone(), Duration::from_mins(2)));
        let rounds = Arc::<AtomicU32>::default();
        // A server that answers nothing: these rounds ask for nothing.
        let (script, leadership) = (Script::default(), Leadership::always(clock.clone()));
        let (recorder, _publisher) =
            Recorder::new(script.client(), clock.clone(), leadership.clone(), "test".into(), metrics.clone());
        let performers: Performers = Kind::new("performers", script.world(None).cluster.writer("test"), |_| None);
        let controller = Shaky { performers: performers.clone(), rounds: rounds.clone() };
        let driver = Driver::new(controller, queue.clone(), clock, leadership, recorder, metrics.clone(), 1);
        for name in ["shaky", "calm"] {
            performers.store().observe(Key::new("n", name), 1, Performer::default());
            queue.changed(&Key::new("n", name));
        }
        let stop = CancellationToken::new();
        let pulse = Health::default().pulse("driver");
        let running = tokio::spawn(driver.run(stop.clone(), Duration::from_secs(5), pulse));
        // Time moves by itself while everything waits; the resync would bring further rounds after two minutes.
        tokio::time::sleep(Duration::from_secs(10)).await;
        stop.cancel();
        running.await.unwrap();
        assert_eq!(rounds.load(Ordering::SeqCst), 3);
        let text = metrics.encode().unwrap();
        for line in [
            r#"controller_runtime_reconcile_panics_total{controller="shaky"} 2"#,
            r#"controller_runtime_reconcile_errors_total{controller="shaky"} 2"#,
            r#"controller_runtime_reconcile_total{controller="shaky",result="success"} 2"#,
        ] {
            assert!(text.contains(line), "{line} is missing in\n{text}");
        }
    }
}
