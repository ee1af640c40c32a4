//! One port: TLS, HTTP/2 and one gRPC service, with every resource a client can hold bounded.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use hyper::{body::Incoming, rt::Executor, server::conn::http2};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::process::{Resource, getrlimit};
use tokio::{
    io::AsyncReadExt,
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    limits::{Clients, Limits},
    pending::Pending,
    service::GrpcService,
    stream::{Begun, PREFACE},
};
use crate::identity::Peer;

/// For TLS and the first bytes of HTTP/2 together: a client that is slower holds nothing.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// A client without a certificate asks for one, and goes: it holds its connection no longer than that call may take.
const ANONYMOUS: Duration = Duration::from_mins(1);

/// Connections of one port; a zone's agents hold one or two each.
const CONNECTIONS: usize = 30_000;

/// Of the files that the process may have open, one in so many is a connection of this port: there are three such ports,
/// and the server must read and write its storage whatever clients do.
const FILES: u64 = 4;

/// Handshakes at once. One takes milliseconds; all agents of a large zone come back within seconds.
const HANDSHAKES: usize = 1024;

/// Metadata of a call.
const HEADERS: u32 = 16 * 1024;

/// A client's certificate, for the interceptor.
#[derive(Clone)]
pub struct ClientCertificate(pub Option<Arc<[u8]>>);

/// A port that serves until it is dropped or cancelled; then its connections end at once.
pub struct Listener {
    pub address: SocketAddr,
    cancel: CancellationToken,
}

struct Port {
    tls: TlsAcceptor,
    service: GrpcService,
    limits: Limits,
    connections: Arc<Semaphore>,
    handshakes: Arc<Pending>,
    clients: Arc<Clients>,
    cancel: CancellationToken,
    tasks: TaskTracker,
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

impl Listener {
    pub async fn bind(
        address: SocketAddr,
        tls: Arc<rustls::ServerConfig>,
        limits: Limits,
        service: GrpcService,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let cancel = CancellationToken::new();
        let port = Arc::new(Port {
            tls: TlsAcceptor::from(tls),
            service,
            limits,
            connections: Arc::new(Semaphore::new(places())),
            handshakes: Pending::new(HANDSHAKES),
            clients: Arc::new(Clients::new(limits)),
            cancel: cancel.clone(),
            tasks: TaskTracker::new(),
        });
        tokio::spawn(async move {
            while let Some(accepted) = cancel_or(&port.cancel, listener.accept()).await {
                match accepted {
                    Ok((stream, from)) => accept(&port, stream, from),
                    // Out of descriptors, or the client is gone already: the next one may be fine.
                    Err(error) => {
                        tracing::warn!(%error, "a connection was not accepted");
                        tokio::time::sleep(Duration::from_millis(100)).await;
                    }
                }
            }
        });
        Ok(Self { address, cancel })
    }
}

/// How many connections the port takes.
fn places() -> usize {
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(files / FILES).unwrap_or(usize::MAX).min(CONNECTIONS)
}

async fn cancel_or<T>(cancel: &CancellationToken, work: impl Future<Output = T>) -> Option<T> {
    cancel.run_until_cancelled(work).await
}

fn accept(port: &Arc<Port>, stream: TcpStream, from: SocketAddr) {
    // Over the limit: closed at once, which a client sees as unavailable.
    let Ok(permit) = Arc::clone(&port.connections).try_acquire_owned() else { return };
    let port = Arc::clone(port);
    let cancel = port.cancel.clone();
    port.tasks.clone().spawn(async move {
        cancel_or(&cancel, serve(&port, stream, from, permit)).await;
    });
}

async fn serve(port: &Port, stream: TcpStream, from: SocketAddr, _permit: OwnedSemaphorePermit) {
    // Boxed: what a handshake needs is not held for as long as the connection lasts.
    let Some(stream) = Box::pin(begin(port, stream)).await else { return };
    let certificate = certificate(stream.get_ref());
    let Some(place) = port.clients.admit(client(certificate.as_ref(), from)) else { return };
    let is_anonymous = certificate.is_none();
    let certificate = ClientCertificate(certificate);
    let inner = port.service.clone();
    let service = hyper::service::service_fn(move |mut request: http::Request<Incoming>| {
        request.extensions_mut().insert(certificate.clone());
        place.call(inner.clone(), request)
    });
    let tasks = Tasks { tracker: port.tasks.clone(), cancel: port.cancel.clone() };
    let connection = http2::Builder::new(tasks)
        .timer(TokioTimer::new())
        .max_concurrent_streams(port.limits.calls)
        .max_header_list_size(HEADERS)
        .keep_alive_interval(port.limits.ping.0)
        .keep_alive_timeout(port.limits.ping.1)
        .serve_connection(TokioIo::new(stream), service);
    let ended = if is_anonymous {
        tokio::time::timeout(ANONYMOUS, connection).await.unwrap_or(Ok(()))
    } else {
        connection.await
    };
    if let Err(error) = ended {
        tracing::debug!(%error, %from, "a connection ended");
    }
}

/// `None` if the client is too slow, not honest, or has to give way to the next.
async fn begin(port: &Port, stream: TcpStream) -> Option<Begun<TlsStream<TcpStream>>> {
    let place = port.handshakes.begin();
    place.run(tokio::time::timeout(HANDSHAKE, handshake(port, stream))).await?.ok()?.ok()
}

/// TLS, then the first bytes: a client that sends none, or others, goes no further.
async fn handshake(port: &Port, stream: TcpStream) -> io::Result<Begun<TlsStream<TcpStream>>> {
    stream.set_nodelay(true)?;
    let mut inner = port.tls.accept(stream).await?;
    let mut preface = [0; PREFACE.len()];
    inner.read_exact(&mut preface).await?;
    if preface != *PREFACE {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok(Begun::new(inner))
}

fn certificate(stream: &TlsStream<TcpStream>) -> Option<Arc<[u8]>> {
    let (_, session) = stream.get_ref();
    session.peer_certificates().and_then(|chain| chain.first()).map(|certificate| Arc::from(certificate.as_ref()))
}

/// Whose connection it is.
fn client(certificate: Option<&Arc<[u8]>>, from: SocketAddr) -> String {
    certificate.and_then(|der| Peer::name(der)).unwrap_or_else(|| origin(from.ip()))
}

/// Of an IPv6 address its network: a host may have all addresses of it, and hosts that share one share its places.
fn origin(ip: IpAddr) -> String {
    match ip.to_canonical() {
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => {
            let [a, b, c, d, ..] = ip.segments();
            format!("{a:x}:{b:x}:{c:x}:{d:x}::/64")
        }
    }
}

/// Runs calls so that they end with their port.
#[derive(Clone)]
struct Tasks {
    tracker: TaskTracker,
    cancel: CancellationToken,
}

impl<F: Future<Output: Send> + Send + 'static> Executor<F> for Tasks {
    fn execute(&self, call: F) {
        let cancel = self.cancel.clone();
        self.tracker.spawn(async move { cancel.run_until_cancelled(call).await });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_network_are_one_client() {
        let of = |ip: &str| origin(ip.parse().unwrap());
        assert_eq!(of("2001:db8:1:2::1"), of("2001:db8:1:2:ffff::9"));
        assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
        assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
    }
}
