//! Opens the connection of a channel: the addresses in turn, TCP with keepalive, TLS with the current certificate.

use std::{
    future::Future,
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use arc_swap::ArcSwap;
use hyper_util::{client::legacy::connect::HttpConnector, rt::TokioIo};
use process::explained;
use tokio::{io::BufReader, net::TcpStream};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tonic::transport::Uri;
use tower::{Service, ServiceExt};

use super::{Address, Addresses};

/// A peer whose machine vanished is noticed by TCP; HTTP/2 pings are forbidden by the protocol.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// For TCP and TLS together. The protocol allows 30 s for a connection; a list of three addresses must fit into it.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(8);

/// TLS asks for a few KiB at a time: an answer that names ten thousand instances is read by dozens of calls to the
/// kernel with this, and by hundreds without. A client has one connection to each shard.
const READ_BUFFER: usize = 64 * 1024;

type Stream = TlsStream<BufReader<TcpStream>>;

/// Clones share the position in the list and the certificate.
#[derive(Clone)]
pub struct Connector {
    addresses: Arc<Addresses>,
    /// Where the last connection succeeded, or where the next attempt starts.
    position: Arc<AtomicUsize>,
    tls: Arc<ArcSwap<rustls::ClientConfig>>,
}

impl Connector {
    pub fn new(addresses: Addresses, tls: Arc<rustls::ClientConfig>) -> Self {
        let tls = Arc::new(ArcSwap::new(tls));
        Self { addresses: Arc::new(addresses), position: Arc::default(), tls }
    }

    pub fn replace_tls(&self, tls: Arc<rustls::ClientConfig>) {
        self.tls.store(tls);
    }

    /// Leaves the current address: the next connection starts with the one after it.
    pub fn advance(&self) {
        self.position.fetch_add(1, Ordering::Relaxed);
    }

    /// Tries each address once.
    async fn connect(self) -> io::Result<TokioIo<Stream>> {
        let all = self.addresses.as_slice();
        let start = self.position.load(Ordering::Relaxed);
        let mut failures = Vec::new();
        for offset in 0..all.len() {
            let address = &all[(start + offset) % all.len()];
            let attempt = tokio::time::timeout(CONNECT_TIMEOUT, self.open(address)).await;
            match attempt.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
                Ok(stream) => {
                    self.position.store(start + offset, Ordering::Relaxed);
                    return Ok(TokioIo::new(stream));
                }
                Err(error) => failures.push(format!("{address}: {}", explained(&error))),
            }
        }
        Err(io::Error::other(failures.join("; ")))
    }

    async fn open(&self, address: &Address) -> io::Result<Stream> {
        let uri: Uri = format!("http://{address}").parse().map_err(io::Error::other)?;
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_keepalive(Some(KEEPALIVE));
        let stream = tcp.oneshot(uri).await.map_err(io::Error::other)?.into_inner();
        let stream = BufReader::with_capacity(READ_BUFFER, stream);
        TlsConnector::from(self.tls.load_full()).connect(address.server_name(), stream).await
    }
}

impl Service<Uri> for Connector {
    type Response = TokioIo<Stream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        Box::pin(self.clone().connect())
    }
}
