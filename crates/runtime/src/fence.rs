//! The right to act for one object: it ends with the lead, with the object or at a deadline.

use std::{fmt, sync::Arc, time::Duration};

use process::Clock;
use tokio::time::Instant;

use crate::{error::Error, lease::Leadership};

/// Checked before each effect, and awaited by long ones.
#[derive(Clone)]
pub struct Fence {
    leadership: Leadership,
    clock: Clock,
    /// The generation of the object that the effect was decided on; 0 where there is none.
    pub generation: i64,
    /// Of the lead that it was made in; a later lead of the same process is another.
    epoch: Option<u64>,
    deadline: Instant,
    is_current: Arc<dyn Fn() -> bool + Send + Sync>,
}

impl fmt::Debug for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fence").field("generation", &self.generation).finish_non_exhaustive()
    }
}

impl Fence {
    /// `is_current` says whether the object that the effect is for still exists.
    pub(crate) fn new(
        leadership: Leadership,
        clock: Clock,
        generation: i64,
        limit: Duration,
        is_current: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Self {
        let (deadline, epoch) = (clock.instant() + limit, leadership.epoch());
        Self { leadership, clock, generation, epoch, deadline, is_current: Arc::new(is_current) }
    }

    /// For work beside the rounds, which ends with the lead or after `limit`, whatever becomes of the object.
    pub fn of_lead(leadership: Leadership, limit: Duration) -> Self {
        let clock = leadership.clock().clone();
        Self::new(leadership, clock, 0, limit, || true)
    }

    /// Which lead this is: a later one has a larger number. It travels with effects that leave the cluster, so that
    /// their receiver can refuse those of a former leader.
    pub fn epoch(&self) -> Option<u64> {
        self.epoch
    }

    /// Time left for an effect, or why there is none.
    pub fn check(&self) -> Result<Duration, Error> {
        let lead = self.leadership.time_left().ok_or(Error::LeadLost)?;
        if self.leadership.epoch() != self.epoch {
            return Err(Error::LeadLost);
        }
        let left = self.deadline.saturating_duration_since(self.clock.instant());
        if left.is_zero() {
            return Err(Error::OutOfTime);
        }
        if (self.is_current)() { Ok(lead.min(left)) } else { Err(Error::Outdated) }
    }

    /// Waits until the fence ends by the lead, `margin` before it is lost, or by the deadline.
    pub async fn ended(&self, margin: Duration) {
        tokio::select! {
            () = self.leadership.lost(margin) => {}
            () = tokio::time::sleep_until(self.deadline) => {}
        }
    }
}
