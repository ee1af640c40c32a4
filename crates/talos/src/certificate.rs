//! Certificate authorities of a Talos cluster and what they sign.
//!
//! Talos writes Ed25519 keys under the PEM label `ED25519 PRIVATE KEY`. The content is ordinary PKCS #8, so the label
//! is exchanged on the way in and out.

use std::{fmt, net::IpAddr};

use jiff::{SignedDuration, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use x509_parser::{parse_x509_certificate, pem::parse_x509_pem, prelude::X509Certificate};

/// Talos gives its authorities ten years: they are part of every node's configuration and are not rotated in passing.
pub const AUTHORITY_LIFETIME: SignedDuration = SignedDuration::from_hours(10 * 365 * 24);

const TALOS_ED25519: &str = "ED25519 PRIVATE KEY";
const PKCS8: &str = "PRIVATE KEY";

/// Why a certificate or key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    #[error("the certificate is not PEM")]
    NotPem,
    #[error("the certificate cannot be read: {0}")]
    Certificate(String),
    #[error("the key cannot be read: {0}")]
    Key(rcgen::Error),
    #[error("the key does not belong to the certificate")]
    KeyOfAnother,
    #[error("the certificate may not sign others")]
    NoAuthority,
    #[error("the certificate cannot be made: {0}")]
    Sign(rcgen::Error),
}

/// A certificate and its key, both PEM. The key never appears in logs.
#[derive(Clone, PartialEq, Eq)]
pub struct Pair {
    pub certificate: String,
    pub key: String,
}

impl fmt::Debug for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pair").field("certificate", &self.certificate).finish_non_exhaustive()
    }
}

/// What kind of key a new authority gets; Talos uses one kind per authority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyKind {
    Ed25519,
    EcdsaP256,
}

impl KeyKind {
    fn generate(self) -> Result<KeyPair, CertificateError> {
        let algorithm = match self {
            Self::Ed25519 => &rcgen::PKCS_ED25519,
            Self::EcdsaP256 => &rcgen::PKCS_ECDSA_P256_SHA256,
        };
        KeyPair::generate_for(algorithm).map_err(CertificateError::Sign)
    }
}

/// Who a certificate is for.
#[derive(Clone, Debug, Default)]
pub struct Subject<'a> {
    pub common_name: Option<&'a str>,
    pub organization: Option<&'a str>,
    /// Names and addresses of a server; a certificate without them is for clients alone.
    pub hosts: &'a [&'a str],
}

/// An authority that can sign.
pub struct Authority {
    pair: Pair,
    kind: KeyKind,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// A new authority under the subject Talos gives it.
    pub fn found(subject: &Subject<'_>, kind: KeyKind, now: Timestamp) -> Result<Self, CertificateError> {
        let key = kind.generate()?;
        let mut params = CertificateParams::default();
        params.distinguished_name = name(subject);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        valid(&mut params, now, AUTHORITY_LIFETIME);
        let certificate = params.self_signed(&key).map_err(CertificateError::Sign)?.pem();
        Self::open(Pair { certificate, key: talos_label(&key) })
    }

    /// Reads an authority and checks that its key is its own.
    pub fn open(pair: Pair) -> Result<Self, CertificateError> {
        let key = read_key(&pair.key)?;
        with_certificate(&pair.certificate, |certificate| {
            if *certificate.public_key().subject_public_key.data != *key.public_key_raw() {
                return Err(CertificateError::KeyOfAnother);
            }
            if certificate.is_ca() { Ok(()) } else { Err(CertificateError::NoAuthority) }
        })??;
        let kind = if key.is_compatible(&rcgen::PKCS_ED25519) { KeyKind::Ed25519 } else { KeyKind::EcdsaP256 };
        let issuer = Issuer::from_ca_cert_pem(&pair.certificate, key).map_err(CertificateError::Key)?;
        Ok(Self { pair, kind, issuer })
    }

    pub fn pair(&self) -> &Pair {
        &self.pair
    }

    /// PEM of the authority's own certificate.
    pub fn certificate(&self) -> &str {
        &self.pair.certificate
    }

    /// A certificate for `subject`, valid from a little before `now`. Its key is of the authority's own kind.
    pub fn sign(
        &self,
        subject: &Subject<'_>,
        now: Timestamp,
        lifetime: SignedDuration,
    ) -> Result<Pair, CertificateError> {
        let mut params = CertificateParams::default();
        params.distinguished_name = name(subject);
        params.subject_alt_names = subject.hosts.iter().map(|host| alternative_name(host)).collect::<Result<_, _>>()?;
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        if !subject.hosts.is_empty() {
            params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
        }
        valid(&mut params, now, lifetime);
        let key = self.kind.generate()?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(CertificateError::Sign)?.pem();
        Ok(Pair { certificate, key: talos_label(&key) })
    }
}

/// What a client's or server's certificate says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    pub common_name: Option<String>,
    pub organizations: Vec<String>,
    pub not_before: Timestamp,
    pub not_after: Timestamp,
}

/// Reads the facts of a PEM certificate.
pub fn facts(pem: &str) -> Result<Facts, CertificateError> {
    with_certificate(pem, facts_of)?
}

/// Reads the facts of a DER certificate, as TLS hands it over.
pub fn facts_of_der(der: &[u8]) -> Result<Facts, CertificateError> {
    let (_, certificate) =
        parse_x509_certificate(der).map_err(|error| CertificateError::Certificate(error.to_string()))?;
    facts_of(&certificate)
}

fn facts_of(certificate: &X509Certificate<'_>) -> Result<Facts, CertificateError> {
    let second = |at: i64| Timestamp::from_second(at).map_err(|error| CertificateError::Certificate(error.to_string()));
    let subject = certificate.subject();
    Ok(Facts {
        common_name: subject.iter_common_name().find_map(|name| name.as_str().ok()).map(str::to_owned),
        organizations: subject
            .iter_organization()
            .filter_map(|organization| organization.as_str().ok())
            .map(str::to_owned)
            .collect(),
        not_before: second(certificate.validity().not_before.timestamp())?,
        not_after: second(certificate.validity().not_after.timestamp())?,
    })
}

/// Reads a private key of any form that Talos or Kubernetes writes.
pub(crate) fn read_key(pem: &str) -> Result<KeyPair, CertificateError> {
    KeyPair::from_pem(&standard_label(pem)).map_err(CertificateError::Key)
}

/// The key under the label that every TLS library reads.
pub fn standard_label(pem: &str) -> String {
    pem.replace(TALOS_ED25519, PKCS8)
}

fn talos_label(key: &KeyPair) -> String {
    let pem = key.serialize_pem();
    if key.is_compatible(&rcgen::PKCS_ED25519) { pem.replace(PKCS8, TALOS_ED25519) } else { pem }
}

fn with_certificate<T>(pem: &str, read: impl FnOnce(&X509Certificate<'_>) -> T) -> Result<T, CertificateError> {
    let (_, pem) = parse_x509_pem(pem.as_bytes()).map_err(|_| CertificateError::NotPem)?;
    let certificate = pem.parse_x509().map_err(|error| CertificateError::Certificate(error.to_string()))?;
    Ok(read(&certificate))
}

fn alternative_name(host: &str) -> Result<SanType, CertificateError> {
    match host.parse::<IpAddr>() {
        Ok(address) => Ok(SanType::IpAddress(address)),
        Err(_) => host.try_into().map(SanType::DnsName).map_err(CertificateError::Sign),
    }
}

fn name(subject: &Subject<'_>) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    if let Some(organization) = subject.organization {
        name.push(DnType::OrganizationName, organization);
    }
    if let Some(common_name) = subject.common_name {
        name.push(DnType::CommonName, common_name);
    }
    name
}

/// Clocks of nodes differ: a certificate must not be from the future for the node that reads it.
const CLOCK_SKEW: SignedDuration = SignedDuration::from_mins(5);

fn valid(params: &mut CertificateParams, now: Timestamp, lifetime: SignedDuration) {
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    let since_epoch = |at: Timestamp| std::time::Duration::from_secs(at.as_second().try_into().unwrap_or(0));
    let (from, until) = (now.saturating_sub(CLOCK_SKEW), now.saturating_add(lifetime));
    params.not_before = epoch + since_epoch(from.unwrap_or(Timestamp::MIN));
    params.not_after = epoch + since_epoch(until.unwrap_or(Timestamp::MAX));
}
