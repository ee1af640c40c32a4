//! TLS 1.3 between shard and clients. Certificates are exchanged while connections live.

use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    crypto::{CryptoProvider, aws_lc_rs},
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier},
    sign::CertifiedKey,
    time_provider::TimeProvider,
    version::TLS13,
};

use super::ServerIdentity;

/// What gRPC speaks over; stock peers insist that it is agreed on.
const PROTOCOL: &[u8] = b"h2";

/// What probes of load balancers speak.
const WEB_PROTOCOL: &[u8] = b"http/1.1";

/// Why TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("{0}: not PEM, or not what it should be")]
    Pem(&'static str),
    #[error("certificate and key are refused")]
    Refused(#[from] rustls::Error),
    #[error("the cluster's CA certificate is refused")]
    Authority(#[from] rustls::server::VerifierBuilderError),
}

/// A server's side: one certificate for all its ports.
#[derive(Clone)]
pub struct ServerTls {
    current: Arc<Current>,
    authority: Arc<RootCertStore>,
    time: Arc<dyn TimeProvider>,
}

#[derive(Debug)]
struct Current(ArcSwap<CertifiedKey>);

impl ResolvesServerCert for Current {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.load_full())
    }
}

impl ServerTls {
    pub fn new(ca_pem: &str, identity: &ServerIdentity, time: Arc<dyn TimeProvider>) -> Result<Self, TlsError> {
        let current = Arc::new(Current(ArcSwap::from_pointee(certified(identity)?)));
        Ok(Self { current, authority: Arc::new(roots(ca_pem)?), time })
    }

    /// New connections get the new certificate; those that are open stay open.
    pub fn replace(&self, identity: &ServerIdentity) -> Result<(), TlsError> {
        self.current.0.store(Arc::new(certified(identity)?));
        Ok(())
    }

    /// For ports that ask for a client certificate. None is allowed here, so that the interceptor can answer with a
    /// code; one of another authority fails the handshake.
    pub fn mutual(&self) -> Result<Arc<ServerConfig>, TlsError> {
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::clone(&self.authority), provider());
        let verifier = verifier.allow_unauthenticated().build()?;
        let config = ServerConfig::builder_with_details(provider(), Arc::clone(&self.time))
            .with_protocol_versions(&[&TLS13])?
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(Arc::clone(&self.current) as Arc<dyn ResolvesServerCert>);
        Ok(speaking_h2(config))
    }

    /// For the registration port, where clients have no certificate yet.
    pub fn open(&self) -> Result<Arc<ServerConfig>, TlsError> {
        let config = ServerConfig::builder_with_details(provider(), Arc::clone(&self.time))
            .with_protocol_versions(&[&TLS13])?
            .with_no_client_auth()
            .with_cert_resolver(Arc::clone(&self.current) as Arc<dyn ResolvesServerCert>);
        Ok(speaking_h2(config))
    }

    /// For the election port, which speaks plain HTTP and serves anyone.
    pub fn web(&self) -> Result<Arc<ServerConfig>, TlsError> {
        let mut config = ServerConfig::clone(&*self.open()?);
        config.alpn_protocols = vec![WEB_PROTOCOL.to_vec()];
        Ok(Arc::new(config))
    }
}

fn speaking_h2(mut config: ServerConfig) -> Arc<ServerConfig> {
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    Arc::new(config)
}

/// A client's side for another server's election port.
pub fn web_client_tls(ca_pem: &str, time: Arc<dyn TimeProvider>) -> Result<Arc<ClientConfig>, TlsError> {
    let mut config = ClientConfig::clone(&*client_tls(ca_pem, None, time)?);
    config.alpn_protocols = vec![WEB_PROTOCOL.to_vec()];
    Ok(Arc::new(config))
}

/// A client's side: trusts the cluster's authority alone. Without an identity it can only register.
pub fn client_tls(
    ca_pem: &str,
    identity: Option<(&str, &str)>,
    time: Arc<dyn TimeProvider>,
) -> Result<Arc<ClientConfig>, TlsError> {
    let builder = ClientConfig::builder_with_details(provider(), time)
        .with_protocol_versions(&[&TLS13])?
        .with_root_certificates(roots(ca_pem)?);
    let mut config = match identity {
        Some((certificate, key)) => builder.with_client_auth_cert(chain(certificate)?, private(key)?)?,
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    Ok(Arc::new(config))
}

pub(super) fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

pub(super) fn roots(ca_pem: &str) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in chain(ca_pem)? {
        roots.add(certificate)?;
    }
    Ok(roots)
}

pub(super) fn certified(identity: &ServerIdentity) -> Result<CertifiedKey, TlsError> {
    Ok(CertifiedKey::from_der(chain(&identity.certificate_pem)?, private(&identity.key_pem)?, &provider())?)
}

fn chain(pem: &str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    all.ok().filter(|all| !all.is_empty()).ok_or(TlsError::Pem("certificate"))
}

fn private(pem: &str) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_slice(pem.as_bytes()).map_err(|_| TlsError::Pem("private key"))
}
