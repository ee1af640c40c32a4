//! Who is who: the cluster's certificate authority, nonces for the first certificate, and what a peer's certificate
//! says.

mod authority;
mod certificate;
mod cluster;
mod nonce;
mod peer;
mod registration;
mod secret;
mod spent;
mod tls;

pub use authority::{Authority, AuthorityError, ServerIdentity, key_pair};
pub use certificate::{CertificateError, ClientCertificate, ClientKey, is_authority};
pub use cluster::{ClusterKeys, KeysError, NonceOrder};
pub use nonce::{Claims, Kind, NonceError, Nonces};
pub use peer::{Peer, PeerError, Role};
pub use registration::{Issued, Lifetimes, LogEntry, Registrar};
pub use secret::{SealError, SealingKey};
pub(crate) use spent::expires_at as nonce_end;
pub use tls::{ServerTls, TlsError, client_tls, web_client_tls};

#[cfg(test)]
mod tests;
