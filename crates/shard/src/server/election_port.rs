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

use super::{
    pending::{Begun, Pending},
    standing::Standing,
};
use crate::client::LeaderPorts;

/// A standby asks for this and gets an answer that ends with the lead.
pub(super) const HELD: &str = "/leader/watch";

/// Where the leader serves clients: `{"registration": 8992, "operator": 8993, "agent": 8994}`, on the host of this port.
pub(crate) const PORTS: &str = "/leader/ports";

/// For TLS, and for the head of a request: a client that is slower holds nothing.
const PATIENCE: Duration = Duration::from_secs(10);

/// Probes of load balancers and standbys that have not asked yet; each is done in milliseconds.
const ASKING: usize = 64;

/// A few standbys. One that finds no place looks at the lock at intervals.
const STANDBYS: usize = 16;

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
        let (asking, standbys) = (Pending::new(ASKING), Arc::new(Semaphore::new(STANDBYS)));
        let closed = port.closed.clone();
        let answers = Answers { standing, ended: port.ended.subscribe(), standbys };
        let tls = TlsAcceptor::from(tls);
        tokio::spawn(async move {
            while let Some(accepted) = closed.run_until_cancelled(listener.accept()).await {
                let Ok((stream, _)) = accepted else {
                    // Out of descriptors, or the client is gone already: the next one may be fine.
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                };
                let (closed, tls, answers, begun) = (closed.clone(), tls.clone(), answers.clone(), asking.begin());
                tokio::spawn(async move {
                    let begun = Arc::new(begun);
                    closed.run_until_cancelled(begun.run(serve(tls, stream, answers, Arc::clone(&begun)))).await;
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

/// What answers are made of.
#[derive(Clone)]
struct Answers {
    standing: Standing,
    ended: watch::Receiver<u64>,
    standbys: Arc<Semaphore>,
}

async fn serve(tls: TlsAcceptor, stream: TcpStream, answers: Answers, begun: Arc<Begun>) {
    let Ok(Ok(stream)) = tokio::time::timeout(PATIENCE, tls.accept(stream)).await else { return };
    let answer = service_fn(move |request| {
        let answer = answer(&request, &answers, &begun);
        async move { Ok::<_, Infallible>(answer) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        // A probe that comes again connects again: what is open asks for something.
        .keep_alive(false)
        .header_read_timeout(PATIENCE)
        .max_buf_size(HEAD)
        .serve_connection(TokioIo::new(stream), answer);
    if let Err(error) = connection.await {
        tracing::debug!(%error, "a connection to the election port ended");
    }
}

fn answer(request: &Request<Incoming>, answers: &Answers, begun: &Begun) -> Answer {
    let (standing, mut ended) = (&answers.standing, answers.ended.clone());
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
    let Ok(place) = Arc::clone(&answers.standbys).try_acquire_owned() else {
        return text(StatusCode::TOO_MANY_REQUESTS, "too many standbys\n");
    };
    begun.done();
    let held = futures::stream::once(async move {
        let _ = ended.changed().await;
        drop(place);
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
