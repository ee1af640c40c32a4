//! A client's own key and certificate, as it keeps them between its starts.

use std::sync::Arc;

use jiff::Timestamp;
use rcgen::KeyPair;
use rustls::{
    pki_types::{CertificateDer, UnixTime, pem::PemObject},
    server::WebPkiClientVerifier,
};
use x509_parser::{certificate::X509Certificate, prelude::FromDer};

use super::{
    Peer, PeerError, ServerIdentity, TlsError, key_pair,
    tls::{certified, provider, roots},
};

/// An Ed25519 key, as PEM: PKCS#8 and PKIX, as the original stores them.
#[derive(Clone)]
pub struct ClientKey {
    pub private_pem: String,
    pub public_pem: String,
}

impl ClientKey {
    pub fn make() -> Self {
        Self::of(&key_pair())
    }

    /// `None` for what is no such key.
    pub fn read(private_pem: &str) -> Option<Self> {
        let key = KeyPair::from_pem(private_pem).ok()?;
        let is_ed25519 = key.algorithm() == &rcgen::PKCS_ED25519;
        is_ed25519.then(|| Self { private_pem: private_pem.to_owned(), public_pem: key.public_key_pem() })
    }

    fn of(key: &KeyPair) -> Self {
        Self { private_pem: key.serialize_pem(), public_pem: key.public_key_pem() }
    }
}

/// Why a client's certificate is not to be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CertificateError {
    #[error("the certificate cannot be read: it is not PEM, or not a certificate")]
    Unreadable,
    #[error("the certificate of the cluster's authority cannot be read: it is not PEM, or not a certificate")]
    Authority,
    #[error("the certificate expired at {0}")]
    Expired(Timestamp),
    #[error("the certificate is not valid before {0}")]
    Early(Timestamp),
    #[error("the certificate is not of its key")]
    Pair,
    #[error("the certificate is not of the cluster's authority")]
    Chain,
    #[error(transparent)]
    Peer(#[from] PeerError),
}

/// A certificate that a server will accept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCertificate {
    pub peer: Peer,
    pub not_before: Timestamp,
    pub not_after: Timestamp,
}

impl ClientCertificate {
    /// Reads a certificate, and checks what a server would: its time, its key, its chain and what it says.
    pub fn check(pem: &str, key_pem: &str, ca_pem: &str, now: Timestamp) -> Result<Self, CertificateError> {
        let der = CertificateDer::from_pem_slice(pem.as_bytes()).map_err(|_| CertificateError::Unreadable)?;
        let (not_before, not_after) = validity(&der).ok_or(CertificateError::Unreadable)?;
        if now > not_after {
            return Err(CertificateError::Expired(not_after));
        }
        if now < not_before {
            return Err(CertificateError::Early(not_before));
        }
        let identity = ServerIdentity { certificate_pem: pem.to_owned(), key_pem: key_pem.to_owned() };
        certified(&identity).map_err(|_| CertificateError::Pair)?;
        verify(&der, ca_pem, now)?;
        Ok(Self { peer: Peer::read(Some(&der), now)?, not_before, not_after })
    }
}

/// Whether that is the certificate of an authority.
pub fn is_authority(ca_pem: &str) -> bool {
    roots(ca_pem).is_ok()
}

fn validity(der: &[u8]) -> Option<(Timestamp, Timestamp)> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let time = |seconds: i64| Timestamp::from_second(seconds).ok();
    let validity = certificate.validity();
    Some((time(validity.not_before.timestamp())?, time(validity.not_after.timestamp())?))
}

fn verify(der: &CertificateDer<'_>, ca_pem: &str, now: Timestamp) -> Result<(), CertificateError> {
    let authority = roots(ca_pem).map_err(|_: TlsError| CertificateError::Authority)?;
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(authority), provider());
    let verifier = verifier.build().map_err(|_| CertificateError::Authority)?;
    let seconds = u64::try_from(now.as_second()).unwrap_or(0);
    let at = UnixTime::since_unix_epoch(std::time::Duration::from_secs(seconds));
    verifier.verify_client_cert(der, &[], at).map(drop).map_err(|_| CertificateError::Chain)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::identity::{Authority, Role};

    const DAY: Duration = Duration::from_hours(24);

    /// As Go's crypto/x509 writes it, without the public key.
    const PLAIN_PKCS8: &str = "-----BEGIN PRIVATE KEY-----\n\
        MC4CAQAwBQYDK2VwBCIEIOeic496wUus/UPVVtHFIYUQ7dh53ONcFvp+0T9amIes\n\
        -----END PRIVATE KEY-----\n";

    fn now() -> Timestamp {
        "2026-01-01T00:00:00Z".parse().unwrap()
    }

    #[test]
    fn a_key_is_read_as_the_original_writes_it() {
        let key = ClientKey::read(PLAIN_PKCS8).unwrap();
        assert!(key.public_pem.starts_with("-----BEGIN PUBLIC KEY-----"), "{}", key.public_pem);
        let made = ClientKey::make();
        assert_eq!(ClientKey::read(&made.private_pem).unwrap().public_pem, made.public_pem);
        assert!(ClientKey::read("junk").is_none());
        let p256 = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
        assert!(ClientKey::read(&p256.serialize_pem()).is_none());
    }

    #[test]
    fn what_a_server_would_refuse_is_refused_before() {
        let (authority, _) = Authority::create("dev", now()).unwrap();
        let (other, _) = Authority::create("dev", now()).unwrap();
        let ca = authority.certificate_pem();
        for key in [ClientKey::make(), ClientKey::read(PLAIN_PKCS8).unwrap()] {
            let subject = ("dev", "acme", Role::Operator);
            let (pem, until) = authority.issue_client(subject, key.public_pem.as_bytes(), now(), DAY).unwrap();
            let check = |pem: &str, key: &str, ca: &str, at| ClientCertificate::check(pem, key, ca, at);
            let good = check(&pem, &key.private_pem, ca, now()).unwrap();
            assert_eq!((good.peer.tenant.as_str(), good.not_after), ("acme", until));
            assert!(good.not_before < now());
            let foreign = ClientKey::make().private_pem;
            for (result, error) in [
                (check("junk", &key.private_pem, ca, now()), CertificateError::Unreadable),
                (check(&pem, &foreign, ca, now()), CertificateError::Pair),
                (check(&pem, "junk", ca, now()), CertificateError::Pair),
                (check(&pem, &key.private_pem, "junk", now()), CertificateError::Authority),
                (check(&pem, &key.private_pem, other.certificate_pem(), now()), CertificateError::Chain),
                (check(&pem, &key.private_pem, ca, until + DAY), CertificateError::Expired(until)),
                (check(&pem, &key.private_pem, ca, now() - DAY), CertificateError::Early(good.not_before)),
            ] {
                assert_eq!(result.unwrap_err(), error);
            }
        }
        assert!(is_authority(ca) && !is_authority("junk"));
    }
}
