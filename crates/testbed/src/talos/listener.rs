//! Port 50000 of a server: TLS as the node's stage asks for it, and the machine API behind it.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use futures::StreamExt;
use jiff::{SignedDuration, Timestamp};
use rustls::{
    RootCertStore, ServerConfig,
    crypto::aws_lc_rs::default_provider,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::WebPkiClientVerifier,
};
use talos::{
    MESSAGE_LIMIT, Pair,
    certificate::{Authority, KeyKind, Subject, facts_of_der, standard_label},
    protocol::machine::machine_service_server::MachineServiceServer,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf, copy_bidirectional},
    net::{TcpListener, TcpStream},
    sync::mpsc,
    task::JoinSet,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::WaitForCancellationFutureOwned;
use tonic::transport::{Server, server::Connected};

use super::{
    Impairment,
    machine::{Calls, Machine},
    node::Node,
    service::Agent,
    world::{Inner, now},
};

/// A client that does not finish its handshake must not hold a connection for ever.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);
/// Connections whose handshake is done and that the server has not taken yet.
const BACKLOG: usize = 64;
/// Talos renews its own certificates daily; no testbed lives that long.
pub(super) const LEAF_LIFETIME: SignedDuration = SignedDuration::from_hours(365 * 24);

/// Who called.
#[derive(Clone, Debug, Default)]
pub(super) struct Caller {
    /// The organizations of its certificate.
    pub roles: Vec<String>,
}

/// Answers calls until the power is cut, or those that came before the last one are answered.
pub(super) async fn serve(
    agent: Agent,
    node: Option<Arc<Node>>,
    world: Arc<Inner>,
    listeners: Vec<TcpListener>,
    calls: Calls,
) {
    let _answered = calls.answered.drop_guard();
    let tls = match node {
        None => maintenance_tls().map(Tls::without_expiry),
        Some(node) => configured_tls(&node, &world).await,
    };
    // A running server does not keep its testbed alive.
    drop(world);
    let tls = match tls {
        Ok(tls) => tls,
        Err(why) => {
            tracing::warn!(server = agent.name(), why, "a simulated node has no certificate to serve with");
            return;
        }
    };
    let (sender, receiver) = mpsc::channel(BACKLOG);
    let machine = agent.machine().clone();
    let accept = listeners.into_iter().map(|listener| accept(listener, tls.clone(), machine.clone(), sender.clone()));
    let accept = futures::future::join_all(accept);
    let service = MachineServiceServer::new(agent)
        .max_decoding_message_size(MESSAGE_LIMIT)
        .max_encoding_message_size(MESSAGE_LIMIT);
    let incoming = ReceiverStream::new(receiver).map(Ok::<_, io::Error>);
    let server =
        Server::builder().add_service(service).serve_with_incoming_shutdown(incoming, calls.last.cancelled_owned());
    tokio::select! {
        _ = accept => {}
        _ = server => {}
    }
}

/// What a node shows, and what it shows when its certificate has expired.
#[derive(Clone)]
struct Tls {
    valid: TlsAcceptor,
    expired: TlsAcceptor,
}

impl Tls {
    /// Made at every boot, so that it never expires.
    fn without_expiry(config: ServerConfig) -> Self {
        let valid = TlsAcceptor::from(Arc::new(config));
        Self { expired: valid.clone(), valid }
    }

    fn of(&self, machine: &Machine) -> TlsAcceptor {
        let is_expired = machine.impairments.has(Impairment::CertificateExpired);
        if is_expired { self.expired.clone() } else { self.valid.clone() }
    }
}

async fn accept(listener: TcpListener, tls: Tls, machine: Arc<Machine>, sender: mpsc::Sender<Connection>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        let (tls, cut, sender) = (tls.of(&machine), machine.connections(), sender.clone());
        tokio::spawn(async move {
            let handshake = tokio::time::timeout(HANDSHAKE_LIMIT, tls.accept(stream));
            let Some(Ok(Ok(stream))) = cut.clone().run_until_cancelled_owned(handshake).await else { return };
            let caller = Caller { roles: roles(&stream) };
            let connection = Connection { stream, caller, cut: Box::pin(cut.cancelled_owned()) };
            let _ = sender.send(connection).await;
        });
    }
}

/// Passes connections on: a program that can listen on one address only is reached under another.
pub(super) async fn forward(listener: TcpListener, to: SocketAddr) {
    // Ends all of them when it ends.
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((mut near, _)) = accepted else { continue };
                connections.spawn(async move {
                    let mut far = TcpStream::connect(to).await?;
                    copy_bidirectional(&mut near, &mut far).await
                });
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

fn roles(stream: &TlsStream<TcpStream>) -> Vec<String> {
    let (_, session) = stream.get_ref();
    let certificate = session.peer_certificates().and_then(<[_]>::first);
    certificate.and_then(|der| facts_of_der(der).ok()).map(|facts| facts.organizations).unwrap_or_default()
}

/// A certificate made at boot, signed by itself; no client certificate is asked for.
fn maintenance_tls() -> Result<ServerConfig, String> {
    let subject = Subject { organization: Some("talos"), ..Subject::default() };
    let authority = Authority::found(&subject, KeyKind::Ed25519, now()).map_err(|error| error.to_string())?;
    let subject = Subject { common_name: Some("maintenance-service.talos.dev"), hosts: &["127.0.0.1"], ..subject };
    let pair = authority.sign(&subject, now(), LEAF_LIFETIME).map_err(|error| error.to_string())?;
    let (chain, key) = identity(&pair)?;
    let config = builder()?.with_no_client_auth().with_single_cert(chain, key).map_err(|error| error.to_string())?;
    Ok(http2(config))
}

/// A certificate of the cluster's authority, and clients must have one too. A worker waits for a control plane that
/// signs it.
async fn configured_tls(node: &Node, world: &Inner) -> Result<Tls, String> {
    let mut changes = world.changes();
    let authority = loop {
        if let Some(authority) = world.authority(&node.applied.os, |node| &node.applied.os) {
            break authority;
        }
        changes.changed().await.map_err(|error| error.to_string())?;
    };
    let hosts = node.hosts();
    let hosts: Vec<&str> = hosts.iter().map(String::as_str).collect();
    let subject = Subject { common_name: Some(&node.hostname), hosts: &hosts, ..Subject::default() };
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(authority.certificate().as_bytes()) {
        roots.add(certificate.map_err(|error| error.to_string())?).map_err(|error| error.to_string())?;
    }
    let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::new(default_provider()))
        .build()
        .map_err(|error| error.to_string())?;
    let acceptor = |from: Timestamp| -> Result<TlsAcceptor, String> {
        let pair = authority.sign(&subject, from, LEAF_LIFETIME).map_err(|error| error.to_string())?;
        let (chain, key) = identity(&pair)?;
        let config = builder()?.with_client_cert_verifier(clients.clone()).with_single_cert(chain, key);
        Ok(TlsAcceptor::from(Arc::new(http2(config.map_err(|error| error.to_string())?))))
    };
    // It ended when the valid one began.
    let expired = acceptor(now() - LEAF_LIFETIME - SignedDuration::from_hours(1))?;
    Ok(Tls { valid: acceptor(now())?, expired })
}

fn identity(pair: &Pair) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), String> {
    let chain = CertificateDer::pem_slice_iter(pair.certificate.as_bytes()).collect::<Result<_, _>>();
    let key = PrivateKeyDer::from_pem_slice(standard_label(&pair.key).as_bytes());
    Ok((chain.map_err(|error| error.to_string())?, key.map_err(|error| error.to_string())?))
}

/// Talos serves TLS 1.3 alone.
fn builder() -> Result<rustls::ConfigBuilder<ServerConfig, rustls::WantsVerifier>, String> {
    ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| error.to_string())
}

fn http2(mut config: ServerConfig) -> ServerConfig {
    config.alpn_protocols = vec![b"h2".to_vec()];
    config
}

/// A connection that breaks when the power is cut.
pub(super) struct Connection {
    stream: TlsStream<TcpStream>,
    caller: Caller,
    cut: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl Connection {
    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        match self.cut.as_mut().poll(context) {
            Poll::Ready(()) => Err(io::ErrorKind::ConnectionReset.into()),
            Poll::Pending => Ok(()),
        }
    }
}

impl Connected for Connection {
    type ConnectInfo = Caller;

    fn connect_info(&self) -> Caller {
        self.caller.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(context)?;
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
