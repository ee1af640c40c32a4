//! A standby's connection to the leader: when it closes, the lock is worth a look at once.

use std::{io, pin::Pin, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Request, StatusCode, header::HOST};
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::{net::TcpStream, time::Instant};
use tokio_rustls::TlsConnector;

use super::election_port::HELD;
use crate::client::Address;

/// For TCP, TLS and the head of the answer. A leader that is slower is looked at in the lock.
const PATIENCE: Duration = Duration::from_secs(5);

/// Between two looks of a standby that is not connected to the leader.
const UNCONNECTED: Duration = Duration::from_secs(1);

/// Resolves when a connection ended; with `false` if there never was one.
type Held = Pin<Box<dyn Future<Output = bool> + Send>>;

/// Holds a connection to at most one leader.
pub struct Standby {
    tls: Arc<rustls::ClientConfig>,
    held: Option<(String, Held)>,
}

impl Standby {
    pub fn new(tls: Arc<rustls::ClientConfig>) -> Self {
        Self { tls, held: None }
    }

    /// Waits for that time, or less if the leader ends meanwhile.
    pub async fn wait(&mut self, leader: Option<&str>, at_most: Duration) {
        let leader = leader.filter(|leader| !leader.is_empty());
        if self.held.as_ref().map(|(address, _)| &**address) != leader {
            let hold =
                |leader: &str| (leader.to_owned(), Box::pin(hold(leader.to_owned(), Arc::clone(&self.tls))) as _);
            self.held = leader.map(hold);
        }
        let until = Instant::now() + at_most;
        let Some((_, held)) = &mut self.held else { return tokio::time::sleep_until(until).await };
        match tokio::time::timeout_at(until, held).await {
            Err(_) => {}
            Ok(true) => self.held = None,
            Ok(false) => {
                // The leader may have ended while it was connected to: then its lock is free, and no connection will
                // close. The next wait tries again.
                self.held = None;
                tokio::time::sleep_until(until.min(Instant::now() + UNCONNECTED)).await;
            }
        }
    }
}

/// Ends when the leader does; says whether there was a connection.
async fn hold(leader: String, tls: Arc<rustls::ClientConfig>) -> bool {
    match tokio::time::timeout(PATIENCE, open(&leader, tls)).await {
        Ok(Ok(mut body)) => {
            while let Some(Ok(_)) = body.frame().await {}
            true
        }
        Ok(Err(error)) => {
            tracing::debug!(%error, leader, "no connection to the leader");
            false
        }
        Err(_) => false,
    }
}

async fn open(leader: &str, tls: Arc<rustls::ClientConfig>) -> io::Result<hyper::body::Incoming> {
    let address: Address = leader.parse().map_err(io::Error::other)?;
    let stream = TcpStream::connect(leader).await?;
    let stream = TlsConnector::from(tls).connect(address.server_name(), stream).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    // Ends with the body, which the caller holds.
    tokio::spawn(connection);
    let request = Request::get(HELD).header(HOST, leader).body(Empty::<Bytes>::new()).map_err(io::Error::other)?;
    let answer = sender.send_request(request).await.map_err(io::Error::other)?;
    if answer.status() != StatusCode::OK {
        return Err(io::Error::other(format!("the election port answered {}", answer.status())));
    }
    Ok(answer.into_body())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        clock::Clock,
        identity::{Authority, web_client_tls},
    };

    #[tokio::test(start_paused = true)]
    async fn a_standby_that_is_not_connected_looks_again_soon() {
        let clock = Clock::default();
        let (authority, _) = Authority::create("dev", clock.now()).unwrap();
        let tls = web_client_tls(authority.certificate_pem(), Arc::new(clock)).unwrap();
        // A leader that has just ended: its port was open a moment ago.
        let gone = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().to_string();
        let mut standby = Standby::new(tls);
        let (began, minute) = (Instant::now(), Duration::from_mins(1));
        standby.wait(Some(&gone), minute).await;
        assert!(began.elapsed() <= PATIENCE + UNCONNECTED, "{:?}", began.elapsed());
        let began = Instant::now();
        standby.wait(None, minute).await;
        assert!(began.elapsed() >= minute, "without a leader there is nothing to connect to");
    }
}
