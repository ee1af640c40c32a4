//! The shard's source of wall time. Waits and deadlines use tokio's monotonic clock, which tests pause and advance.

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

/// Clones share the same time.
#[derive(Clone, Debug)]
pub struct Clock {
    /// Where a stepped clock began. The system's clock has no beginning.
    origin: Option<(Timestamp, Instant)>,
    offset_millis: Arc<AtomicI64>,
}

impl Clock {
    pub fn system() -> Self {
        Self { origin: None, offset_millis: Arc::default() }
    }

    /// Wall time that moves only with tokio's clock: for tests.
    pub fn stepped(origin: Timestamp) -> Self {
        Self { origin: Some((origin, Instant::now())), offset_millis: Arc::default() }
    }

    pub fn now(&self) -> Timestamp {
        let offset = SignedDuration::from_millis(self.offset_millis.load(Ordering::Relaxed));
        let base = match self.origin {
            #[allow(clippy::disallowed_methods, reason = "this is the one clock")]
            None => Timestamp::now(),
            Some((origin, began)) => origin + began.elapsed(),
        };
        base + offset
    }

    /// Moves wall time by `by`, as an administrator or NTP might.
    pub fn step(&self, by: SignedDuration) {
        let millis = i64::try_from(by.as_millis()).unwrap_or(i64::MAX);
        self.offset_millis.fetch_add(millis, Ordering::Relaxed);
    }
}

/// A UUID of version 7: ids sort by creation.
pub fn uuid(clock: &Clock) -> u128 {
    let mut random = [0; 10];
    aws_lc_rs::rand::fill(&mut random).expect("the system has randomness");
    let millis = u64::try_from(clock.now().as_millisecond()).unwrap_or(0);
    uuid::Builder::from_unix_timestamp_millis(millis, &random).into_uuid().as_u128()
}

impl TimeProvider for Clock {
    fn current_time(&self) -> Option<UnixTime> {
        let seconds = u64::try_from(self.now().as_second()).ok()?;
        Some(UnixTime::since_unix_epoch(Duration::from_secs(seconds)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn ids_are_of_version_seven_and_sort_by_time() {
        let clock = Clock::stepped("2026-01-01T00:00:00Z".parse().unwrap());
        let first = uuid(&clock);
        assert_eq!((first >> 76) & 0xf, 7);
        assert_eq!(i64::try_from(first >> 80).unwrap(), clock.now().as_millisecond());
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(uuid(&clock) > first);
    }
}
