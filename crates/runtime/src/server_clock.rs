//! What the API server's clock shows.
//!
//! The times in objects are the API server's (and a few a node's). Compared with our own wall clock they make every wait
//! as wrong as that clock is. Every answer of the server carries the date, and from then on our monotonic clock goes on
//! counting: so the present time of the server is known without any wall clock of ours, from the first list on.

use std::sync::{Arc, Mutex, PoisonError};

use http::{HeaderMap, header::DATE};
use jiff::{SignedDuration, Timestamp, fmt::rfc2822};
use plan::Clocks;
use process::Clock;
use tokio::time::Instant;

/// Clones share what was read.
#[derive(Clone, Debug)]
pub struct ServerClock {
    clock: Clock,
    /// By our monotonic clock.
    started: Instant,
    latest: Arc<Mutex<Option<Reading>>>,
}

/// A date and when it arrived.
#[derive(Clone, Copy, Debug)]
struct Reading {
    date: Timestamp,
    at: Instant,
}

impl ServerClock {
    pub(crate) fn new(clock: Clock) -> Self {
        Self { started: clock.instant(), clock, latest: Arc::default() }
    }

    /// What waits are measured by.
    pub fn clocks(&self) -> Clocks {
        let uptime = self.clock.instant().saturating_duration_since(self.started);
        Clocks { server: self.now(), uptime }
    }

    /// The server's time, to the second; `None` until an answer carried a date.
    pub fn now(&self) -> Option<Timestamp> {
        let Reading { date, at } = (*self.latest.lock().unwrap_or_else(PoisonError::into_inner))?;
        let passed = self.clock.instant().saturating_duration_since(at);
        date.checked_add(SignedDuration::try_from(passed).ok()?).ok()
    }

    /// Reads the date of an answer.
    pub(crate) fn read(&self, headers: &HeaderMap) {
        let date = headers.get(DATE).and_then(|date| date.to_str().ok());
        let Some(date) = date.and_then(|date| rfc2822::DateTimeParser::new().parse_timestamp(date).ok()) else {
            return;
        };
        let reading = Reading { date, at: self.clock.instant() };
        *self.latest.lock().unwrap_or_else(PoisonError::into_inner) = Some(reading);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http::HeaderValue;

    use super::*;

    fn headers(date: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(DATE, HeaderValue::from_static(date))])
    }

    #[tokio::test(start_paused = true)]
    async fn the_servers_time_goes_on_whatever_our_wall_clock_does() {
        let clock = Clock::default();
        let server = ServerClock::new(clock.clone());
        server.read(&HeaderMap::new());
        assert_eq!(server.now(), None, "an answer without a date");
        server.read(&headers("Sun, 15 Nov 2026 21:34:04 GMT"));
        assert_eq!(server.now(), Some("2026-11-15T21:34:04Z".parse().unwrap()));
        clock.step(SignedDuration::from_hours(-5));
        tokio::time::advance(Duration::from_secs(90)).await;
        assert_eq!(server.now(), Some("2026-11-15T21:35:34Z".parse().unwrap()));
        server.read(&headers("yesterday"));
        assert_eq!(server.now(), Some("2026-11-15T21:35:34Z".parse().unwrap()), "what cannot be read changes nothing");
    }
}
