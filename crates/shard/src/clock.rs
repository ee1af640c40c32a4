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

impl TimeProvider for Clock {
    fn current_time(&self) -> Option<UnixTime> {
        let seconds = u64::try_from(self.now().as_second()).ok()?;
        Some(UnixTime::since_unix_epoch(Duration::from_secs(seconds)))
    }
}
