//! The one source of time.
//!
//! Durations and deadlines are measured on tokio's monotonic clock, which tests pause and advance. Wall time is used
//! only for what is written into objects or compared with times found in them; tests step it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

/// Clones share the same offset.
#[derive(Clone, Debug, Default)]
pub struct Clock {
    offset_millis: Arc<AtomicI64>,
}

impl Clock {
    /// Wall time, for timestamps in objects.
    #[allow(clippy::disallowed_methods, reason = "this is the one clock")]
    pub fn now(&self) -> Timestamp {
        Timestamp::now() + SignedDuration::from_millis(self.offset_millis.load(Ordering::Relaxed))
    }

    /// Monotonic time, for waits and deadlines.
    #[allow(clippy::disallowed_methods, reason = "this is the one clock")]
    pub fn instant(&self) -> Instant {
        Instant::now()
    }

    /// Moves wall time by `by`, as an administrator or NTP might.
    pub fn step(&self, by: SignedDuration) {
        let millis = i64::try_from(by.as_millis()).unwrap_or(i64::MAX);
        self.offset_millis.fetch_add(millis, Ordering::Relaxed);
    }
}

/// Spreads `period` by ±10 %, so that objects made together do not come due together for ever.
///
/// The spread is derived from `seed` (a key's hash and a counter): no random source, so tests can repeat it.
pub fn jittered(period: Duration, seed: u64) -> Duration {
    // SplitMix64's finaliser: neighbouring seeds give unrelated values.
    let mut x = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    let permille = u32::try_from((x ^ (x >> 31)) % 201).unwrap_or(0);
    period * (900 + permille) / 1000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_stays_within_a_tenth_and_varies() {
        let period = Duration::from_mins(2);
        let all: Vec<_> = (0..500).map(|seed| jittered(period, seed)).collect();
        assert!(all.iter().all(|d| *d >= period * 9 / 10 && *d <= period * 11 / 10));
        assert!(all.iter().max().unwrap().saturating_sub(*all.iter().min().unwrap()) > period / 10);
    }

    #[test]
    fn a_stepped_clock_moves_wall_time_only() {
        let clock = Clock::default();
        let (wall, monotonic) = (clock.now(), clock.instant());
        clock.clone().step(SignedDuration::from_hours(-5));
        assert!(clock.now() < wall - SignedDuration::from_hours(4));
        assert!(clock.instant() >= monotonic);
    }
}
