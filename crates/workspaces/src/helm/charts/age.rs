//! How old an answer is.

use std::time::Duration;

use jiff::Timestamp;
use process::Clock;
use tokio::time::Instant;

/// When a source was last asked. The wall clock is for the file alone, which outlives the process: within the process the
/// monotonic clock decides, so that a wall clock that is set back makes no answer younger than it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Checked {
    /// For the file.
    pub at: Timestamp,
    /// `None`: too long ago, or not known.
    since: Option<Instant>,
}

impl Checked {
    pub fn now(clock: &Clock) -> Self {
        Self { at: clock.now(), since: Some(clock.instant()) }
    }

    /// From a file of an earlier process. A time in the future is one of a clock that was set back: not to be trusted.
    pub fn read(at: Timestamp, clock: &Clock) -> Self {
        let age = Duration::try_from(clock.now().duration_since(at)).ok();
        Self { at, since: age.and_then(|age| clock.instant().checked_sub(age)) }
    }

    pub fn is_recent(self, clock: &Clock, time_to_live: Duration) -> bool {
        self.since.is_some_and(|since| clock.instant().saturating_duration_since(since) < time_to_live)
    }

    /// Whether it was asked at that moment or later.
    pub fn is_after(self, moment: Instant) -> bool {
        self.since.is_some_and(|since| since >= moment)
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;

    const HOUR: Duration = Duration::from_hours(1);
    const TIME_TO_LIVE: Duration = Duration::from_mins(5);

    #[tokio::test(start_paused = true)]
    async fn a_wall_clock_that_is_set_makes_an_answer_neither_younger_nor_older() {
        let clock = Clock::default();
        let checked = Checked::now(&clock);
        clock.step(SignedDuration::from_hours(5));
        assert!(checked.is_recent(&clock, TIME_TO_LIVE));
        clock.step(SignedDuration::from_hours(-10));
        tokio::time::advance(TIME_TO_LIVE).await;
        assert!(!checked.is_recent(&clock, TIME_TO_LIVE));
        let asked = clock.instant();
        assert!(!checked.is_after(asked) && Checked::now(&clock).is_after(asked));
    }

    #[tokio::test(start_paused = true)]
    async fn what_an_earlier_process_wrote_is_as_old_as_it_says_and_what_is_ahead_is_not_believed() {
        let clock = Clock::default();
        tokio::time::advance(2 * HOUR).await;
        let now = clock.now();
        let minute = Duration::from_mins(1);
        for (at, is_recent) in [(now - minute, true), (now - HOUR, false), (now + minute, false)] {
            assert_eq!(Checked::read(at, &clock).is_recent(&clock, TIME_TO_LIVE), is_recent, "{at}");
        }
        let read = Checked::read(now - minute, &clock);
        tokio::time::advance(4 * minute).await;
        assert!(!read.is_recent(&clock, TIME_TO_LIVE), "its age goes on");
    }
}
