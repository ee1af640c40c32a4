//! Where a shard's leader serves, asked at its election port: the lock in storage names that port alone.

use std::{io, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Request, StatusCode, header::HOST};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde::{Deserialize, Serialize};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::Address;
use crate::server::PORTS;

/// For TCP, TLS and the answer. A leader that is slower is asked again.
const PATIENCE: Duration = Duration::from_secs(5);

/// The answer is three numbers.
const LONGEST: usize = 4096;

/// The ports of a leader, on the host of its election port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaderPorts {
    pub registration: u16,
    pub operator: u16,
    pub agent: u16,
}

/// Asks the server with that election port; `tls` speaks to election ports. An error also when it does not lead.
pub async fn leader_ports(election: &Address, tls: Arc<rustls::ClientConfig>) -> io::Result<LeaderPorts> {
    let late = || io::Error::new(io::ErrorKind::TimedOut, "no answer in time");
    tokio::time::timeout(PATIENCE, ask(election, tls)).await.unwrap_or_else(|_| Err(late()))
}

async fn ask(election: &Address, tls: Arc<rustls::ClientConfig>) -> io::Result<LeaderPorts> {
    let host = election.to_string();
    let stream = TcpStream::connect(&host).await?;
    let stream = TlsConnector::from(tls).connect(election.server_name(), stream).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    let request = Request::get(PORTS).header(HOST, host).body(Empty::<Bytes>::new()).map_err(io::Error::other)?;
    let answer = async {
        let answer = sender.send_request(request).await.map_err(io::Error::other)?;
        if answer.status() != StatusCode::OK {
            return Err(io::Error::other("it does not lead"));
        }
        let body = Limited::new(answer.into_body(), LONGEST).collect().await.map_err(io::Error::other)?;
        serde_json::from_slice(&body.to_bytes()).map_err(io::Error::other)
    };
    let mut answer = std::pin::pin!(answer);
    tokio::select! {
        answer = &mut answer => return answer,
        ended = connection => ended.map_err(io::Error::other)?,
    }
    // The server hung up after its answer, which may be here already.
    answer.await
}
