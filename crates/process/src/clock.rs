//! The one source of time.
//!
//! Durations and deadlines are measured on tokio's monotonic clock, which tests pause and advance. Wall time is used
//! only for what is written into objects or compared with times found in them, certificates among them; tests step it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use rustls::{pki_types::UnixTime, time_provider::TimeProvider};
use tokio::time::Instant;

/// Clones share the same offset. The default is the system's clock.
#[derive(Clone, Debug, Default)]
pub struct Clock {
    /// Where a stepped clock began. The system's clock has no beginning.
    origin: Option<(Timestamp, Instant)>,
    offset_millis: Arc<AtomicI64>,
}

impl Clock {
    /// Wall time that moves only with tokio's clock: for tests.
    #[allow(clippy::disallowed_methods, reason = "this is the one clock")]
    pub fn stepped(origin: Timestamp) -> Self {
        Self { origin: Some((origin, Instant::now())), offset_millis: Arc::default() }
    }

    /// Wall time, for timestamps in objects.
    #[allow(clippy::disallowed_methods, reason = "this is the one clock")]
    pub fn now(&self) -> Timestamp {
        let offset = SignedDuration::from_millis(self.offset_millis.load(Ordering::Relaxed));
        let base = match self.origin {
            None => Timestamp::now(),
            Some((origin, began)) => origin + began.elapsed(),
        };
        base + offset
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

/// TLS judges certificates by it.
impl TimeProvider for Clock {
    fn current_time(&self) -> Option<UnixTime> {
        let seconds = u64::try_from(self.now().as_second()).ok()?;
        Some(UnixTime::since_unix_epoch(Duration::from_secs(seconds)))
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

    #[tokio::test(start_paused = true)]
    async fn a_stepped_clock_moves_with_tokios() {
        let origin = "2026-01-01T00:00:00Z".parse().unwrap();
        let clock = Clock::stepped(origin);
        tokio::time::advance(Duration::from_hours(2)).await;
        assert_eq!(clock.now(), origin + SignedDuration::from_hours(2));
        clock.step(SignedDuration::from_hours(-1));
        assert_eq!(clock.now(), origin + SignedDuration::from_hours(1));
        let seconds = u64::try_from(clock.now().as_second()).unwrap();
        assert_eq!(clock.current_time().unwrap().as_secs(), seconds);
    }
}
