//! What a client certificate says about the client.

use jiff::Timestamp;
use tonic::Status;
use x509_parser::{
    certificate::X509Certificate,
    oid_registry::Oid,
    prelude::{FromDer, X509Name},
};

/// Of the extension that holds the role.
pub(super) const ROLE_OID: &[u64] = &[1, 3, 6, 1, 4, 1, 999_999, 1];

/// Tags of the strings a role may be written as.
const PRINTABLE_STRING: u8 = 0x13;
const UTF8_STRING: u8 = 0x0c;

/// What a client may do: each port serves one role.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    Operator,
    Agent,
}

impl Role {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Operator => "operator",
            Self::Agent => "agent",
        }
    }

    /// As the original writes it.
    pub(super) fn to_der(self) -> Vec<u8> {
        let text = self.as_str().as_bytes();
        let length = u8::try_from(text.len()).expect("a role is a short word");
        [&[PRINTABLE_STRING, length], text].concat()
    }

    /// Both string types, and the bare word.
    fn from_der(value: &[u8]) -> Option<Self> {
        let text = match value {
            [PRINTABLE_STRING | UTF8_STRING, length, text @ ..] if usize::from(*length) == text.len() => text,
            bare => bare,
        };
        [Self::Operator, Self::Agent].into_iter().find(|role| role.as_str().as_bytes() == text)
    }
}

/// A client that proved who it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The certificate's common name: the cluster's id for an operator, the instance's for an agent.
    pub id: String,
    pub tenant: String,
    pub role: Role,
}

/// Why a certificate names no client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeerError {
    #[error("a client certificate is required")]
    Missing,
    #[error("the client certificate is malformed")]
    Malformed,
    #[error("the client certificate expired or is not valid yet")]
    Expired,
    #[error("the client certificate has no single common name")]
    CommonName,
    #[error("the client certificate must have exactly one organization, the tenant")]
    Tenant,
    #[error("the client certificate has no known role")]
    Role,
    #[error("the client certificate is not for client authentication")]
    Usage,
}

impl From<PeerError> for Status {
    fn from(error: PeerError) -> Self {
        Self::unauthenticated(error.to_string())
    }
}

impl Peer {
    /// Tenant and id alone, of a certificate that may be good for nothing else.
    pub fn name(der: &[u8]) -> Option<String> {
        let (_, certificate) = X509Certificate::from_der(der).ok()?;
        let subject = certificate.subject();
        let id = single(subject, X509Name::iter_common_name)?;
        Some(format!("{}/{id}", single(subject, X509Name::iter_organization)?))
    }

    /// Reads a certificate whose chain TLS has verified. Validity is checked again, because a connection outlives its
    /// handshake.
    pub fn read(der: Option<&[u8]>, now: Timestamp) -> Result<Self, PeerError> {
        let der = der.ok_or(PeerError::Missing)?;
        let (_, certificate) = X509Certificate::from_der(der).map_err(|_| PeerError::Malformed)?;
        let validity = certificate.validity();
        let now = now.as_second();
        if now < validity.not_before.timestamp() || now > validity.not_after.timestamp() {
            return Err(PeerError::Expired);
        }
        let usage = certificate.extended_key_usage().ok().flatten();
        if !usage.is_some_and(|usage| usage.value.client_auth) {
            return Err(PeerError::Usage);
        }
        let subject = certificate.subject();
        let id = single(subject, X509Name::iter_common_name).ok_or(PeerError::CommonName)?;
        let tenant = single(subject, X509Name::iter_organization).ok_or(PeerError::Tenant)?;
        Ok(Self { id, tenant, role: role(&certificate).ok_or(PeerError::Role)? })
    }
}

fn single<'a, I>(subject: &'a X509Name<'a>, values: impl FnOnce(&'a X509Name<'a>) -> I) -> Option<String>
where
    I: Iterator<Item = &'a x509_parser::x509::AttributeTypeAndValue<'a>>,
{
    let mut values = values(subject);
    let only = values.next()?;
    if values.next().is_some() {
        return None;
    }
    only.as_str().ok().filter(|text| !text.is_empty()).map(str::to_owned)
}

fn role(certificate: &X509Certificate<'_>) -> Option<Role> {
    let oid = Oid::from(ROLE_OID).ok()?;
    let extension = certificate.get_extension_unique(&oid).ok().flatten()?;
    Role::from_der(extension.value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_is_read_as_either_string_or_bare() {
        for role in [Role::Operator, Role::Agent] {
            let printable = role.to_der();
            let mut utf8 = printable.clone();
            utf8[0] = UTF8_STRING;
            for value in [&printable[..], &utf8, role.as_str().as_bytes()] {
                assert_eq!(Role::from_der(value), Some(role));
            }
        }
        assert_eq!(Role::Operator.to_der(), b"\x13\x08operator");
        for value in [&b""[..], b"root", b"\x13\x09operator", b"\x04\x08operator", b"operator "] {
            assert_eq!(Role::from_der(value), None, "{value:?}");
        }
    }
}
