//! A server stream that comes back after every loss.

use std::{future::Future, pin::Pin, time::Duration};

use tokio::{sync::watch as signal, time::Instant};
use tonic::{Response, Status, Streaming};

use super::{Backoff, CallError, Client, Operator};

/// A stream that lived so long was a success even without an event: most are silent.
const SETTLED: Duration = Duration::from_secs(30);

type Opening<T> = Pin<Box<dyn Future<Output = Result<Response<Streaming<T>>, Status>> + Send>>;

/// A watch: over one connection after another, with a wait between them that grows from 1 s to 30 s.
pub struct Watch<T> {
    client: Client,
    backoff: Backoff,
    open: fn(Operator) -> Opening<T>,
    state: State<T>,
}

enum State<T> {
    /// The next attempt begins at that time, or at once.
    Waiting(Option<Instant>),
    Opening(Live<Opening<T>>),
    Open(Box<Live<Streaming<T>>>),
}

/// Something on a channel, and the sign that the channel was left.
struct Live<S> {
    inner: S,
    since: Instant,
    left: signal::Receiver<u64>,
}

/// What a watch yields.
#[derive(Debug)]
pub enum Watched<T> {
    /// A stream is open; the server's snapshot follows, without an end mark. A stock server that has nothing to send
    /// says so only with its first event.
    Connected,
    Event(T),
    /// The stream ended, cleanly or not, or could not be opened. What happened since is unknown.
    Lost(CallError),
}

impl<T: prost::Message + Default + 'static> Watch<T> {
    pub(super) fn new(client: Client, seed: u64, open: fn(Operator) -> Opening<T>) -> Self {
        Self { client, backoff: Backoff::new(seed), open, state: State::Waiting(None) }
    }

    /// The next thing that happens. Safe to drop and call again: neither an event nor an attempt is lost.
    pub async fn next(&mut self) -> Watched<T> {
        loop {
            match &mut self.state {
                State::Waiting(until) => {
                    if let Some(until) = *until {
                        tokio::time::sleep_until(until).await;
                    }
                    self.begin();
                }
                // No deadline: a stock server sends its headers with the first event, perhaps days later. A peer that
                // hangs is noticed by the deadline of other calls, which leave the channel.
                State::Opening(live) => {
                    let opened = tokio::select! {
                        opened = &mut live.inner => opened,
                        _ = live.left.changed() => Err(left()),
                    };
                    return self.opened(opened);
                }
                State::Open(live) => {
                    let message = tokio::select! {
                        message = live.inner.message() => message,
                        _ = live.left.changed() => Err(left()),
                    };
                    return match message {
                        Ok(Some(event)) => {
                            self.backoff.reset();
                            Watched::Event(event)
                        }
                        Ok(None) => self.lost(Status::unavailable("the server ended the stream")),
                        Err(status) => self.lost(status),
                    };
                }
            }
        }
    }

    fn begin(&mut self) {
        let mut left = self.client.link.generation.subscribe();
        left.mark_unchanged();
        let inner = (self.open)(self.client.operator());
        self.state = State::Opening(Live { inner, since: Instant::now(), left });
    }

    fn opened(&mut self, opened: Result<Response<Streaming<T>>, Status>) -> Watched<T> {
        match (opened, std::mem::replace(&mut self.state, State::Waiting(None))) {
            (Ok(response), State::Opening(live)) => {
                let open = Live { inner: response.into_inner(), since: live.since, left: live.left };
                self.state = State::Open(Box::new(open));
                Watched::Connected
            }
            (Ok(_), _) => self.lost(left()),
            (Err(status), state) => {
                self.state = state;
                self.lost(status)
            }
        }
    }

    fn lost(&mut self, status: Status) -> Watched<T> {
        let since = match &self.state {
            State::Waiting(_) => None,
            State::Opening(live) => Some(live.since),
            State::Open(live) => Some(live.since),
        };
        // Not at every opening: a server that accepts a stream and ends it at once is no success.
        if since.is_some_and(|since| since.elapsed() >= SETTLED) {
            self.backoff.reset();
        }
        self.state = State::Waiting(Some(Instant::now() + self.backoff.wait()));
        Watched::Lost(status.into())
    }
}

fn left() -> Status {
    Status::unavailable("the channel was left")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        clock::Clock,
        identity::{Authority, client_tls},
    };

    #[tokio::test(start_paused = true)]
    async fn a43_a_watch_of_a_shard_that_is_away_waits_longer_from_try_to_try() {
        let clock = Clock::default();
        let (authority, _) = Authority::create("dev", clock.now()).unwrap();
        let tls = client_tls(authority.certificate_pem(), None, Arc::new(clock)).unwrap();
        // The port was open a moment ago.
        let gone = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let mut watch = Client::new(gone.to_string().parse().unwrap(), tls).watch_errors(7);
        for attempt in 0..8_u32 {
            assert!(matches!(watch.next().await, Watched::Lost(CallError::Unreachable(_))));
            let State::Waiting(Some(until)) = watch.state else { panic!("it waits") };
            let (wait, whole) = (until.duration_since(Instant::now()), Duration::from_secs(1 << attempt.min(5)));
            let whole = whole.min(Duration::from_secs(30));
            assert!(wait >= (whole / 2).max(Duration::from_secs(1)) && wait <= whole, "{attempt}: {wait:?}");
        }
    }
}
