//! How a connection to a node is made. There are two ways and this is the only place that knows them: with the
//! cluster's certificates, and to a node without configuration, which has none.

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use hyper_util::rt::TokioIo;
use rustls::{
    ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, aws_lc_rs::default_provider, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject},
};
use sha2::{Digest, Sha256};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    net::TcpStream,
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;

use super::Error;
use crate::{
    certificate::standard_label,
    talosconfig::{Talosconfig, TalosconfigError},
};

/// A node on the same continent answers in a tenth of a second; one that needs this long is not there.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// A connection whose peer vanished is noticed this soon, so that no stream waits on it.
const KEEPALIVE: Duration = Duration::from_secs(10);

/// What a client proves itself with, and what it trusts.
#[derive(Clone)]
pub struct Credentials(Arc<ClientConfig>);

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Credentials")
    }
}

impl Credentials {
    /// From PEM: the cluster's authority, the client's certificate, its key.
    pub fn from_pem(authority: &str, certificate: &str, key: &str) -> Result<Self, Error> {
        let unusable = |what: &'static str| move |error: String| Error::Credentials { what, why: error };
        let mut roots = RootCertStore::empty();
        for certificate in certificates(authority).map_err(unusable("authority"))? {
            roots.add(certificate).map_err(|error| unusable("authority")(error.to_string()))?;
        }
        let chain = certificates(certificate).map_err(unusable("certificate"))?;
        let key = PrivateKeyDer::from_pem_slice(standard_label(key).as_bytes())
            .map_err(|error| unusable("key")(error.to_string()))?;
        let config = builder()
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)
            .map_err(|error| unusable("key")(error.to_string()))?;
        Ok(Self(Arc::new(http2(config))))
    }

    /// Of the talosconfig's context in use.
    pub fn from_talosconfig(config: &Talosconfig) -> Result<Self, Error> {
        let broken = |error: TalosconfigError| Error::Credentials { what: "talosconfig", why: error.to_string() };
        let context = config.current().map_err(broken)?;
        let authority = context.authority(&config.context).map_err(broken)?;
        let pair = context.pair(&config.context).map_err(broken)?;
        Self::from_pem(&authority, &pair.certificate, &pair.key)
    }

    /// A channel that connects when it is first used; also for etcd, whose certificates come from the same secrets.
    pub fn channel(&self, address: SocketAddr) -> Channel {
        channel(address, self.0.clone())
    }
}

/// SHA-256 of a certificate that a node showed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint([u8; 32]);

impl std::fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The certificate of a node without configuration is made at its boot and signed by itself: any is accepted at the
/// first connection and no other afterwards, so that the node that was looked at is the node that is configured.
#[derive(Debug)]
pub(super) struct Pin {
    provider: Arc<CryptoProvider>,
    met: Mutex<Option<Fingerprint>>,
}

impl Pin {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { provider: Arc::new(default_provider()), met: Mutex::new(None) })
    }

    pub(super) fn met(&self) -> Option<Fingerprint> {
        *self.met.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A channel without a client certificate.
    pub(super) fn channel(self: &Arc<Self>, address: SocketAddr) -> Channel {
        let config = builder().dangerous().with_custom_certificate_verifier(self.clone()).with_no_client_auth();
        channel(address, Arc::new(http2(config)))
    }
}

impl ServerCertVerifier for Pin {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let shown = Fingerprint(Sha256::digest(end_entity).into());
        let mut met = self.met.lock().unwrap_or_else(PoisonError::into_inner);
        if *met.get_or_insert(shown) == shown {
            return Ok(ServerCertVerified::assertion());
        }
        Err(rustls::Error::InvalidCertificate(rustls::CertificateError::ApplicationVerificationFailure))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

fn builder() -> rustls::ConfigBuilder<ClientConfig, rustls::WantsVerifier> {
    ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .expect("the provider supports the default versions")
}

/// gRPC servers written in Go refuse a connection that does not ask for HTTP/2.
fn http2(mut config: ClientConfig) -> ClientConfig {
    config.alpn_protocols = vec![b"h2".to_vec()];
    config
}

fn certificates(pem: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Vec<_> =
        CertificateDer::pem_slice_iter(pem.as_bytes()).collect::<Result<_, _>>().map_err(|e| e.to_string())?;
    if found.is_empty() { Err("it holds no PEM certificate".to_owned()) } else { Ok(found) }
}

fn channel(address: SocketAddr, config: Arc<ClientConfig>) -> Channel {
    // The scheme is for tonic alone: TLS is added by the connector.
    let endpoint = Endpoint::from_shared(format!("http://{address}"))
        .expect("a socket address is a valid authority")
        .connect_timeout(CONNECT_LIMIT)
        .http2_keep_alive_interval(KEEPALIVE)
        .keep_alive_timeout(KEEPALIVE);
    endpoint.connect_with_connector_lazy(service_fn(move |_| connect(address, config.clone())))
}

async fn connect(
    address: SocketAddr,
    config: Arc<ClientConfig>,
) -> io::Result<TokioIo<BufReader<TlsStream<TcpStream>>>> {
    let name = ServerName::IpAddress(address.ip().into());
    let dial = async {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let mut stream = BufReader::new(TlsConnector::from(config).connect(name, stream).await?);
        // With TLS 1.3 a server judges the client's certificate after the handshake, and HTTP/2 would lose its reason.
        // A server speaks first: its settings, or the alert.
        if stream.fill_buf().await?.is_empty() {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the node closed the connection"));
        }
        Ok(stream)
    };
    match tokio::time::timeout(CONNECT_LIMIT, dial).await {
        Ok(stream) => stream.map(TokioIo::new),
        Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "no TLS handshake within 5 s")),
    }
}
