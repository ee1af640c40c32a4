//! What the API server's clock shows.
//!
//! The times in objects are the API server's (and a few a node's). Compared with our own wall clock they make every wait
//! as wrong as that clock is. Every answer of the server carries the date, and from then on our monotonic clock goes on
//! counting: so the present time of the server is known without any wall clock of ours, from the first list on.

use std::sync::{Arc, Mutex, PoisonError};

use http::{HeaderMap, header::DATE};
use jiff::{SignedDuration, Timestamp, fmt::rfc2822};
use kube::Client;
use process::Clock;
use tokio::time::Instant;

/// Clones share what was read.
#[derive(Clone, Debug, Default)]
pub struct ServerClock {
    clock: Clock,
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
        Self { clock, latest: Arc::default() }
    }

    /// The server's time, to the second; `None` until an answer carried a date.
    pub fn now(&self) -> Option<Timestamp> {
        let Reading { date, at } = (*self.latest.lock().unwrap_or_else(PoisonError::into_inner))?;
        let passed = self.clock.instant().saturating_duration_since(at);
        date.checked_add(SignedDuration::try_from(passed).ok()?).ok()
    }

    /// The same client, with the date of each of its answers read.
    pub(crate) fn read_from(&self, client: Client) -> Client {
        let (read, namespace) = (self.clone(), client.default_namespace().to_owned());
        let service = tower::service_fn(move |request| {
            let (client, read) = (client.clone(), read.clone());
            async move {
                let answer = client.send(request).await?;
                read.read(answer.headers());
                Ok::<_, kube::Error>(answer)
            }
        });
        Client::new(service, namespace)
    }

    fn read(&self, headers: &HeaderMap) {
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

    use http::{Request, Response};
    use kube::client::Body;

    use super::*;

    fn client(date: Option<&'static str>) -> Client {
        let service = tower::service_fn(move |_: Request<Body>| async move {
            let answer = Response::builder();
            let answer = date.map_or(Response::builder(), |date| answer.header(DATE, date));
            Ok::<_, kube::Error>(answer.body(Body::empty()).expect("a response"))
        });
        Client::new(service, "default")
    }

    async fn ask(client: &Client) {
        client.send(Request::new(Body::empty())).await.expect("an answer");
    }

    #[tokio::test(start_paused = true)]
    async fn the_servers_time_goes_on_whatever_our_wall_clock_does() {
        let clock = Clock::default();
        let server = ServerClock::new(clock.clone());
        ask(&server.read_from(client(None))).await;
        assert_eq!(server.now(), None, "an answer without a date");
        ask(&server.read_from(client(Some("Sun, 15 Nov 2026 21:34:04 GMT")))).await;
        assert_eq!(server.now(), Some("2026-11-15T21:34:04Z".parse().unwrap()));
        clock.step(SignedDuration::from_hours(-5));
        tokio::time::advance(Duration::from_secs(90)).await;
        assert_eq!(server.now(), Some("2026-11-15T21:35:34Z".parse().unwrap()));
        ask(&server.read_from(client(Some("yesterday")))).await;
        assert_eq!(server.now(), Some("2026-11-15T21:35:34Z".parse().unwrap()), "what cannot be read changes nothing");
    }
}
