//! A standby's connection to the leader: when it closes, the lock is worth a look at once.

use std::{io, pin::Pin, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Request, StatusCode, header::HOST};
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::election_port::HELD;
use crate::client::Address;

/// For TCP, TLS and the head of the answer. A leader that is slower is looked at in the lock.
const PATIENCE: Duration = Duration::from_secs(5);

/// Resolves when a held connection ended.
type Held = Pin<Box<dyn Future<Output = ()> + Send>>;

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
        let Some((_, held)) = &mut self.held else { return tokio::time::sleep(at_most).await };
        if tokio::time::timeout(at_most, held).await.is_ok() {
            self.held = None;
        }
    }
}

/// Ends when the leader does. Without a connection it ends never: the caller has its own patience.
async fn hold(leader: String, tls: Arc<rustls::ClientConfig>) {
    match tokio::time::timeout(PATIENCE, open(&leader, tls)).await {
        Ok(Ok(mut body)) => while let Some(Ok(_)) = body.frame().await {},
        Ok(Err(error)) => {
            tracing::debug!(%error, leader, "no connection to the leader");
            std::future::pending().await
        }
        Err(_) => std::future::pending().await,
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
