//! The cluster's certificate authority: Ed25519, in storage, used by the servers of every shard.

use std::{net::IpAddr, time::Duration};

use jiff::{SignedDuration, Timestamp};
use rcgen::{
    BasicConstraints, Certificate, CertificateParams, CustomExtension, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, PKCS_ED25519, PublicKeyData, SanType,
    SerialNumber, SubjectPublicKeyInfo,
};

use x509_parser::pem::parse_x509_pem;

use super::peer::{ROLE_OID, Role};

/// Of the authority itself. Its key cannot be exchanged without registering every client anew.
const AUTHORITY_YEARS: i64 = 20;

/// Clocks of a server and its clients differ: a certificate is valid from a little before it was issued.
const CLOCK_SKEW: SignedDuration = SignedDuration::from_mins(5);

/// Why a certificate was not issued.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    #[error("the authority's certificate or key is damaged")]
    Damaged(#[source] rcgen::Error),
    #[error("the authority's certificate is not of its key")]
    Pair,
    #[error("public_key_pem: expected an Ed25519 public key in PEM (PUBLIC KEY)")]
    PublicKey,
    #[error("{0:?} is neither a DNS name nor an IP address")]
    Name(String),
    #[error("the certificate could not be signed")]
    Sign(#[source] rcgen::Error),
}

/// The certificate authority of one cluster.
pub struct Authority {
    certificate_pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate of a server and its key.
pub struct ServerIdentity {
    pub certificate_pem: String,
    pub key_pem: String,
}

/// Makes a new Ed25519 key pair.
pub fn key_pair() -> KeyPair {
    KeyPair::generate_for(&PKCS_ED25519).expect("the system has randomness")
}

impl Authority {
    /// Makes a new authority; returns its private key to be sealed and stored.
    pub fn create(cluster: &str, now: Timestamp) -> Result<(Self, String), AuthorityError> {
        let key_pem = key_pair().serialize_pem();
        Ok((Self::of_key(cluster, &key_pem, now)?, key_pem))
    }

    /// Makes the certificate of an authority whose key there is.
    pub fn of_key(cluster: &str, key_pem: &str, now: Timestamp) -> Result<Self, AuthorityError> {
        let key = KeyPair::from_pem(key_pem).map_err(AuthorityError::Damaged)?;
        let mut params = parameters(now, now + SignedDuration::from_hours(24 * 365 * AUTHORITY_YEARS));
        params.distinguished_name.push(DnType::CommonName, common_name(cluster));
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = params.self_signed(&key).map_err(AuthorityError::Sign)?;
        Self::load(&certificate.pem(), key_pem)
    }

    /// Refuses a certificate that is not of that key.
    pub fn load(certificate_pem: &str, key_pem: &str) -> Result<Self, AuthorityError> {
        let key = KeyPair::from_pem(key_pem).map_err(AuthorityError::Damaged)?;
        if !is_of_key(certificate_pem, &key) {
            return Err(AuthorityError::Pair);
        }
        let issuer = Issuer::from_ca_cert_pem(certificate_pem, key).map_err(AuthorityError::Damaged)?;
        Ok(Self { certificate_pem: certificate_pem.to_owned(), issuer })
    }

    /// Whether it is that cluster's.
    pub fn is_of(&self, cluster: &str) -> bool {
        let Ok((_, pem)) = parse_x509_pem(self.certificate_pem.as_bytes()) else { return false };
        let Ok(certificate) = pem.parse_x509() else { return false };
        let name = certificate.subject().iter_common_name().next().and_then(|name| name.as_str().ok());
        name == Some(&*common_name(cluster))
    }

    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    /// A client certificate: `CN=id, O=tenant` and the role, for the key the client keeps.
    pub fn issue_client(
        &self,
        subject: (&str, &str, Role),
        public_key_pem: &[u8],
        now: Timestamp,
        lifetime: Duration,
    ) -> Result<(String, Timestamp), AuthorityError> {
        let (id, tenant, role) = subject;
        let pem = std::str::from_utf8(public_key_pem).map_err(|_| AuthorityError::PublicKey)?;
        let key = SubjectPublicKeyInfo::from_pem(pem).map_err(|_| AuthorityError::PublicKey)?;
        if key.algorithm() != &PKCS_ED25519 {
            return Err(AuthorityError::PublicKey);
        }
        let expires_at = now.saturating_add(lifetime).unwrap_or(Timestamp::MAX);
        let mut params = parameters(now, expires_at);
        params.distinguished_name.push(DnType::CommonName, id);
        params.distinguished_name.push(DnType::OrganizationName, tenant);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.custom_extensions = vec![CustomExtension::from_oid_content(ROLE_OID, role.to_der())];
        Ok((self.sign(&params, &key)?.pem(), expires_at))
    }

    /// A server certificate for the hosts under which clients reach the server, with a new key.
    pub fn issue_server(
        &self,
        hosts: &[String],
        now: Timestamp,
        lifetime: Duration,
    ) -> Result<ServerIdentity, AuthorityError> {
        let key = key_pair();
        let mut params = parameters(now, now.saturating_add(lifetime).unwrap_or(Timestamp::MAX));
        params.distinguished_name.push(DnType::CommonName, "shard server");
        params.subject_alt_names = hosts.iter().map(|host| name(host)).collect::<Result<_, _>>()?;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let certificate_pem = self.sign(&params, &key)?.pem();
        Ok(ServerIdentity { certificate_pem, key_pem: key.serialize_pem() })
    }

    fn sign(&self, params: &CertificateParams, key: &impl PublicKeyData) -> Result<Certificate, AuthorityError> {
        params.signed_by(key, &self.issuer).map_err(AuthorityError::Sign)
    }
}

/// Whether that is a public key in PEM.
pub fn is_public_key(pem: &[u8]) -> bool {
    std::str::from_utf8(pem).is_ok_and(|pem| SubjectPublicKeyInfo::from_pem(pem).is_ok())
}

fn common_name(cluster: &str) -> String {
    format!("{cluster} cluster CA")
}

fn is_of_key(certificate_pem: &str, key: &KeyPair) -> bool {
    let Ok((_, pem)) = parse_x509_pem(certificate_pem.as_bytes()) else { return false };
    pem.parse_x509().is_ok_and(|certificate| certificate.public_key().subject_public_key.data == key.public_key_raw())
}

fn name(host: &str) -> Result<SanType, AuthorityError> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(SanType::IpAddress(ip));
    }
    let name = host.to_owned().try_into().map_err(|_| AuthorityError::Name(host.to_owned()))?;
    Ok(SanType::DnsName(name))
}

fn parameters(now: Timestamp, until: Timestamp) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    let at = |time: Timestamp| {
        let seconds = u64::try_from(time.as_second()).unwrap_or(0);
        rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(seconds)
    };
    params.not_before = at(now.saturating_sub(CLOCK_SKEW).unwrap_or(Timestamp::MIN));
    params.not_after = at(until);
    // The original's serials: the clock in nanoseconds.
    let serial = u128::try_from(now.as_nanosecond()).unwrap_or(1);
    params.serial_number = Some(SerialNumber::from(serial.to_be_bytes().to_vec()));
    params.use_authority_key_identifier_extension = true;
    params
}
