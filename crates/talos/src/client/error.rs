//! What can go wrong when a node is asked.

use std::{error::Error as _, io};

use tonic::{Code, Status};

use crate::{protocol::common::Metadata, snapshot::SnapshotError};

/// Why a call did not give what was asked for. Messages name the call and never carry a secret.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{rpc}: the node cannot be reached: {why}")]
    Unreachable { rpc: &'static str, why: String },
    #[error("{rpc}: the node asks for a client certificate: it has a configuration already; use the talosconfig")]
    CertificateRequired { rpc: &'static str },
    #[error("{rpc}: a certificate has expired; renew the talosconfig and check the clocks")]
    CertificateExpired { rpc: &'static str },
    #[error("{rpc}: the node's certificate is not of this cluster or the node does not accept ours: {why}")]
    OtherCluster { rpc: &'static str, why: String },
    #[error("{rpc}: the node shows another certificate than when it was first met; look at it again before going on")]
    OtherNode { rpc: &'static str },
    #[error("{rpc}: no answer within {seconds} s")]
    TimedOut { rpc: &'static str, seconds: u64 },
    #[error("{rpc}: the node answers {code:?}: {message}")]
    Refused { rpc: &'static str, code: Code, message: String },
    #[error("{rpc}: the reply holds no message")]
    Empty { rpc: &'static str },
    #[error("the {what} cannot be used: {why}")]
    Credentials { what: &'static str, why: String },
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    #[error("the kubeconfig the node sent is no archive with one file: {why}")]
    Kubeconfig { why: String },
    #[error("what the node sent cannot be written")]
    Write(#[source] io::Error),
    #[error("the snapshot to upload cannot be read")]
    Read(#[source] io::Error),
}

impl Error {
    /// Whether the same call may succeed later without any other change.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::TimedOut { .. } | Self::Snapshot(_) => true,
            Self::Refused { code: Code::Unknown, message, .. } => is_passing(message),
            Self::Refused { code, .. } => {
                matches!(code, Code::Unavailable | Code::DeadlineExceeded | Code::ResourceExhausted | Code::Aborted)
            }
            _ => false,
        }
    }

    /// The code the node answered with, if it answered.
    pub fn code(&self) -> Option<Code> {
        match self {
            Self::Refused { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// Tells an answer of the node from a connection that failed.
    pub(super) fn from_status(rpc: &'static str, status: &Status) -> Self {
        let Some(cause) = status.source() else {
            return Self::Refused { rpc, code: status.code(), message: status.message().to_owned() };
        };
        match tls_error(cause) {
            Some(rustls::Error::AlertReceived(rustls::AlertDescription::CertificateRequired)) => {
                Self::CertificateRequired { rpc }
            }
            Some(rustls::Error::InvalidCertificate(rustls::CertificateError::ApplicationVerificationFailure)) => {
                Self::OtherNode { rpc }
            }
            Some(
                rustls::Error::AlertReceived(rustls::AlertDescription::CertificateExpired)
                | rustls::Error::InvalidCertificate(
                    rustls::CertificateError::Expired | rustls::CertificateError::ExpiredContext { .. },
                ),
            ) => Self::CertificateExpired { rpc },
            Some(error @ (rustls::Error::InvalidCertificate(_) | rustls::Error::AlertReceived(_))) => {
                Self::OtherCluster { rpc, why: error.to_string() }
            }
            _ => Self::Unreachable { rpc, why: innermost(cause).to_string() },
        }
    }

    /// An endpoint that forwards a call answers OK and says in the message what went wrong at the node.
    pub(super) fn from_metadata(rpc: &'static str, metadata: &Metadata) -> Option<Self> {
        if metadata.error.is_empty() {
            return None;
        }
        let status = metadata.status.as_ref();
        let code = status.map_or(Code::Unknown, |status| Code::from(status.code));
        let message = status.map_or(&metadata.error, |status| &status.message).clone();
        Some(Self::Refused { rpc, code, message })
    }
}

/// A node passes on what its etcd says without a code of its own.
fn is_passing(message: &str) -> bool {
    let passing = ["unhealthy cluster", "no leader", "leader changed", "request timed out", "too many requests"];
    message.split_once("etcdserver: ").is_some_and(|(_, why)| passing.iter().any(|words| why.starts_with(words)))
}

/// How many causes deep an error is looked into; tonic, hyper and rustls together make six.
const DEPTH: usize = 16;

fn tls_error<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a rustls::Error> {
    causes(error).find_map(|cause| {
        // An I/O error shows its content only this way.
        let inner = cause.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        cause.downcast_ref().or_else(|| inner.and_then(|inner| inner.downcast_ref()))
    })
}

fn innermost<'a>(error: &'a (dyn std::error::Error + 'static)) -> &'a (dyn std::error::Error + 'static) {
    causes(error).last().unwrap_or(error)
}

fn causes<'a>(
    error: &'a (dyn std::error::Error + 'static),
) -> impl Iterator<Item = &'a (dyn std::error::Error + 'static)> {
    std::iter::successors(Some(error), |&error| error.source()).take(DEPTH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_etcd_gets_over_by_itself_is_transient() {
        let refused =
            |code, message: &str| Error::Refused { rpc: "EtcdRemoveMemberByID", code, message: message.to_owned() };
        assert!(refused(Code::Unknown, "failed to remove member: etcdserver: unhealthy cluster").is_transient());
        assert!(
            refused(Code::Unknown, "etcdserver: request timed out, possibly due to previous leader failure")
                .is_transient()
        );
        assert!(refused(Code::Unavailable, "connection error").is_transient());
        for lasting in ["etcdserver: re-configuration failed due to not enough started members", "no leader", "x"] {
            assert!(!refused(Code::Unknown, lasting).is_transient(), "{lasting}");
        }
        assert!(!refused(Code::NotFound, "etcdserver: no leader").is_transient());
    }
}
