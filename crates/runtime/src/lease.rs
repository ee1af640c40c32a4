//! Leadership by a Lease, after client-go's rules.
//!
//! Others' expiry is judged by the time that passed on our own monotonic clock since we last saw the Lease change,
//! never by the times written in it: clocks differ and jump. Our own authority to write ends `renew_deadline` after
//! the start of the last renewal that succeeded, which is earlier than anyone else may consider the Lease expired.
//! A standby watches the Lease, so a released one is taken over at once.
//!
//! Each time of leading has an epoch, stored in the Lease before anything is done: what carries an older one comes from
//! a lead that has ended.

mod elector;
mod seen;

use std::time::Duration;

use process::Clock;
use tokio::{sync::watch, time::Instant};

pub use self::elector::Elector;

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
    Leading {
        until: Instant,
        epoch: u64,
    },
    /// Leader election is off.
    Always {
        epoch: u64,
    },
}

/// The right to write, checked before each write.
#[derive(Clone, Debug)]
pub struct Leadership {
    term: watch::Receiver<Term>,
    clock: Clock,
}

impl Leadership {
    /// For a process that is alone by arrangement. Its epoch is the time of its start: greater than those of the
    /// processes before it.
    pub fn always(clock: Clock) -> Self {
        let epoch = seen::next_epoch(0, clock.now());
        Self { term: watch::channel(Term::Always { epoch }).1, clock }
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// A lead that is not renewed.
    #[cfg(test)]
    pub(crate) fn until(until: Instant, clock: Clock) -> Self {
        let (elector, term) = watch::channel(Term::Leading { until, epoch: 1 });
        // Who would renew it is there and does not.
        std::mem::forget(elector);
        Self { term, clock }
    }

    /// How long we may still write; `None` when we may not.
    pub fn time_left(&self) -> Option<Duration> {
        match *self.term.borrow() {
            Term::Standby => None,
            // Longer than any request may take.
            Term::Always { .. } => Some(Duration::from_hours(1)),
            Term::Leading { until, .. } => {
                let left = until.saturating_duration_since(self.clock.instant());
                (!left.is_zero()).then_some(left)
            }
        }
    }

    /// The number of the present lead; `None` when we do not lead. It is greater than that of every lead before, by
    /// any replica, also if the Lease was deleted or restored in between.
    pub fn epoch(&self) -> Option<u64> {
        self.time_left()?;
        match *self.term.borrow() {
            Term::Standby => None,
            Term::Leading { epoch, .. } | Term::Always { epoch } => Some(epoch),
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
                Term::Always { .. } => return std::future::pending().await,
                Term::Leading { until, .. } => until,
            };
            let left = end.saturating_duration_since(self.clock.instant()).saturating_sub(margin);
            tokio::select! {
                () = tokio::time::sleep(left) => return,
                changed = term.changed() => if changed.is_err() { return },
            }
        }
    }

    /// Waits until a right to write that is about to end has ended, or was renewed after all.
    pub async fn decided(&self, margin: Duration) {
        let mut term = self.term.clone();
        loop {
            let Term::Leading { until: end, .. } = *term.borrow_and_update() else { return };
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

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> LeaseConfig {
        LeaseConfig { namespace: "n".into(), name: "l".into(), identity: "me".into(), duration: Duration::from_secs(6) }
    }

    fn leading(until: Instant) -> Term {
        Term::Leading { until, epoch: 7 }
    }

    #[test]
    fn authority_ends_well_before_others_may_take_over() {
        let config = config();
        assert!(config.renew_deadline() + Duration::from_secs(2) <= config.duration);
        assert!(config.renew_interval() * 3 <= config.renew_deadline());
    }

    #[tokio::test(start_paused = true)]
    async fn the_right_to_write_runs_out_by_itself() {
        let clock = Clock::default();
        let (term, receiver) = watch::channel(leading(clock.instant() + Duration::from_secs(4)));
        let leadership = Leadership { term: receiver, clock: clock.clone() };
        tokio::time::advance(Duration::from_secs(3)).await;
        assert_eq!(leadership.time_left(), Some(Duration::from_secs(1)));
        clock.step(jiff::SignedDuration::from_hours(-1));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(leadership.time_left(), None);
        term.send_replace(leading(clock.instant() + Duration::from_secs(1)));
        leadership.acquired().await;
    }

    #[tokio::test(start_paused = true)]
    async fn the_loss_of_the_lead_is_known_in_time_and_a_renewal_postpones_it() {
        let clock = Clock::default();
        let (started, second) = (clock.instant(), Duration::from_secs(1));
        let (term, receiver) = watch::channel(leading(started + 4 * second));
        let leadership = Leadership { term: receiver, clock: clock.clone() };
        let waiting = tokio::spawn({
            let leadership = leadership.clone();
            async move { leadership.lost(second).await }
        });
        tokio::time::sleep(2 * second).await;
        term.send_replace(leading(started + 6 * second));
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
        let (term, receiver) = watch::channel(leading(started + second));
        let leadership = Leadership { term: receiver, clock: clock.clone() };
        let decided = async || {
            leadership.decided(second).await;
            (clock.instant() - started, leadership.is_leading())
        };
        let renewal = async {
            tokio::time::sleep(second / 2).await;
            term.send_replace(leading(started + 4 * second));
        };
        let (renewed, ()) = tokio::join!(decided(), renewal);
        assert_eq!(renewed, (second / 2, true));
        tokio::time::sleep(3 * second).await;
        assert_eq!(decided().await, (4 * second, false));
    }

    #[tokio::test(start_paused = true)]
    async fn an_epoch_lasts_as_long_as_the_lead() {
        let clock = Clock::default();
        let (_term, receiver) = watch::channel(leading(clock.instant() + Duration::from_secs(4)));
        let leadership = Leadership { term: receiver, clock: clock.clone() };
        assert_eq!(leadership.epoch(), Some(7));
        tokio::time::advance(Duration::from_secs(4)).await;
        assert_eq!(leadership.epoch(), None);
        let first = Leadership::always(clock.clone()).epoch();
        clock.step(jiff::SignedDuration::from_millis(1));
        assert!(Leadership::always(clock).epoch() > first, "a later process has a greater epoch");
    }
}
