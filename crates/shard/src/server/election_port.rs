//! The election port: HTTPS that says who leads, and holds the standbys' connections for as long as this server does.

use std::{convert::Infallible, io, net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, StreamBody, combinators::BoxBody};
use hyper::{
    body::{Frame, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Semaphore, watch},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::standing::Standing;
use crate::client::LeaderPorts;

/// A standby asks for this and gets an answer that ends with the lead.
pub(super) const HELD: &str = "/leader/watch";

/// Where the leader serves clients: `{"registration": 8992, "operator": 8993, "agent": 8994}`, on the host of this port.
pub(crate) const PORTS: &str = "/leader/ports";

/// For TLS, and for the head of a request: a client that is slower holds nothing.
const PATIENCE: Duration = Duration::from_secs(10);

/// A few standbys, and probes of load balancers. A standby that finds no place looks at the lock at intervals.
const CONNECTIONS: usize = 64;

/// Enough for a request of a probe.
const HEAD: usize = 16 * 1024;

type Answer = Response<BoxBody<Bytes, Infallible>>;

/// Serves until it is dropped.
pub struct ElectionPort {
    pub address: SocketAddr,
    /// Counts leads that ended: connections that were held for one end with it.
    ended: watch::Sender<u64>,
    closed: CancellationToken,
}

impl Drop for ElectionPort {
    fn drop(&mut self) {
        self.closed.cancel();
    }
}

impl ElectionPort {
    pub async fn bind(address: SocketAddr, tls: Arc<rustls::ServerConfig>, standing: Standing) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let port =
            Self { address: listener.local_addr()?, ended: watch::Sender::new(0), closed: CancellationToken::new() };
        let places = Arc::new(Semaphore::new(CONNECTIONS));
        let (closed, ended) = (port.closed.clone(), port.ended.subscribe());
        let tls = TlsAcceptor::from(tls);
        tokio::spawn(async move {
            while let Some(accepted) = closed.run_until_cancelled(listener.accept()).await {
                let Ok((stream, _)) = accepted else {
                    // Out of descriptors, or the client is gone already: the next one may be fine.
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                };
                let Ok(place) = Arc::clone(&places).try_acquire_owned() else { continue };
                let (closed, tls, standing, ended) = (closed.clone(), tls.clone(), standing.clone(), ended.clone());
                tokio::spawn(async move {
                    closed.run_until_cancelled(serve(tls, stream, standing, ended)).await;
                    drop(place);
                });
            }
        });
        Ok(port)
    }

    /// The lead ended: standbys notice.
    pub fn hang_up(&self) {
        self.ended.send_modify(|count| *count += 1);
    }
}

async fn serve(tls: TlsAcceptor, stream: TcpStream, standing: Standing, ended: watch::Receiver<u64>) {
    let Ok(Ok(stream)) = tokio::time::timeout(PATIENCE, tls.accept(stream)).await else { return };
    let answer = service_fn(move |request| {
        let answer = answer(&request, &standing, ended.clone());
        async move { Ok::<_, Infallible>(answer) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .max_buf_size(HEAD)
        .serve_connection(TokioIo::new(stream), answer);
    if let Err(error) = connection.await {
        tracing::debug!(%error, "a connection to the election port ended");
    }
}

fn answer(request: &Request<Incoming>, standing: &Standing, mut ended: watch::Receiver<u64>) -> Answer {
    // Before the lead is looked at: one that ends in between is noticed.
    ended.mark_unchanged();
    if request.method() != Method::GET {
        return text(StatusCode::METHOD_NOT_ALLOWED, "GET only\n");
    }
    if request.uri().path() == PORTS {
        return ports(standing);
    }
    let leads = match request.uri().path() {
        "/leader/health" | "/health/leadership/shard" | HELD => standing.leads_shard(),
        "/health/leadership/cluster" => standing.leads_cluster(),
        _ => return text(StatusCode::NOT_FOUND, "no such page\n"),
    };
    if !leads {
        return text(StatusCode::SERVICE_UNAVAILABLE, "not the leader\n");
    }
    if request.uri().path() != HELD {
        return text(StatusCode::OK, "ok");
    }
    let held = futures::stream::once(async move {
        let _ = ended.changed().await;
        Ok::<_, Infallible>(Frame::data(Bytes::from_static(b"ended\n")))
    });
    Response::new(StreamBody::new(held).boxed())
}

fn ports(standing: &Standing) -> Answer {
    let Some(bound) = standing.bound() else { return text(StatusCode::SERVICE_UNAVAILABLE, "not the leader\n") };
    let ports = LeaderPorts {
        registration: bound.registration.port(),
        operator: bound.operator.port(),
        agent: bound.agent.port(),
    };
    let body = serde_json::to_vec(&ports).expect("three numbers");
    Response::new(Full::new(Bytes::from(body)).boxed())
}

fn text(status: StatusCode, body: &'static str) -> Answer {
    let mut answer = Response::new(Full::new(Bytes::from_static(body.as_bytes())).boxed());
    *answer.status_mut() = status;
    answer
}
