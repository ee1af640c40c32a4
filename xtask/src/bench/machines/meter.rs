//! Counts the calls to a shard: a proxy before its operator port.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::Result;
use hyper::{Request, body::Incoming, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use shard::identity::{Role, ServerTls, client_tls, key_pair};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsAcceptor, TlsConnector};
use tokio_util::task::AbortOnDropHandle;

use super::zones::{CLUSTER, TENANT, Zones};

const DAY: Duration = Duration::from_hours(24);

/// Calls by method.
pub type Counts = BTreeMap<String, usize>;

pub struct Meter {
    pub address: SocketAddr,
    counts: Arc<Mutex<Counts>>,
    _server: AbortOnDropHandle<()>,
}

struct Relay {
    upstream: SocketAddr,
    acceptor: TlsAcceptor,
    connector: TlsConnector,
    counts: Arc<Mutex<Counts>>,
}

impl Meter {
    pub async fn start(zones: &Zones, upstream: SocketAddr) -> Result<Self> {
        let (authority, now) = (&zones.authority, zones.clock.now());
        let (ca, time) = (authority.certificate_pem(), Arc::new(zones.clock.clone()));
        let server = authority.issue_server(&["127.0.0.1".to_owned()], now, DAY)?;
        let key = key_pair();
        let subject = (CLUSTER, TENANT, Role::Operator);
        let (certificate, _) = authority.issue_client(subject, key.public_key_pem().as_bytes(), now, DAY)?;
        let identity = Some((certificate.as_str(), &*key.serialize_pem()));
        let counts = Arc::<Mutex<Counts>>::default();
        let relay = Arc::new(Relay {
            upstream,
            acceptor: TlsAcceptor::from(ServerTls::new(ca, &server, time.clone())?.mutual()?),
            connector: TlsConnector::from(client_tls(ca, identity, time)?),
            counts: counts.clone(),
        });
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let server = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let relay = relay.clone();
                tokio::spawn(async move {
                    if let Err(error) = relay.connection(stream).await {
                        eprintln!("bench: a connection to a shard ended: {error}");
                    }
                });
            }
        });
        Ok(Self { address, counts, _server: AbortOnDropHandle::new(server) })
    }

    pub fn counts(&self) -> Counts {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Relay {
    async fn connection(&self, stream: TcpStream) -> Result<()> {
        let stream = self.acceptor.accept(stream).await?;
        let upstream = TcpStream::connect(self.upstream).await?;
        let upstream = self.connector.connect(Ipv4Addr::LOCALHOST.into(), upstream).await?;
        let (sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(upstream)).await?;
        let service = service_fn(|request: Request<Incoming>| {
            let method = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
            *self.counts.lock().unwrap_or_else(PoisonError::into_inner).entry(method).or_default() += 1;
            let mut sender = sender.clone();
            async move { sender.send_request(request).await }
        });
        let serving = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
            .serve_connection(TokioIo::new(stream), service);
        tokio::select! {
            result = serving => result?,
            result = connection => result?,
        }
        Ok(())
    }
}
