//! Registration and renewal: a nonce or an older certificate becomes a certificate.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use plan::shard::config::{Certificates, Lifetime};
use process::explained;
use serde::{Deserialize, Serialize};
use tonic::Status;

use super::{
    Authority, AuthorityError, Claims, Kind, NonceError, Nonces, Peer, Role, authority::is_public_key, nonce::digest,
    spent,
};
use crate::store::{
    Expect, Store, StoreError,
    layout::{ShardLayout, operator_nonce},
};

/// Issues certificates to clients of one shard.
pub struct Registrar {
    pub store: Arc<dyn Store>,
    pub authority: Arc<Authority>,
    pub nonces: Arc<Nonces>,
    pub cluster: String,
    pub shard: String,
    pub layout: ShardLayout,
    /// Asked for every certificate: a refresh of the configuration may change them.
    pub lifetimes: Box<dyn Fn() -> Lifetimes + Send + Sync>,
}

/// How long certificates last.
#[derive(Clone, Copy, Debug)]
pub struct Lifetimes {
    pub operator: Duration,
    pub agent: Duration,
}

impl Default for Lifetimes {
    /// A day for an operator, which renews at half of it; a year for an agent, which cannot renew.
    fn default() -> Self {
        Self { operator: Duration::from_hours(24), agent: Duration::from_hours(24 * 365) }
    }
}

impl Lifetimes {
    /// What the configuration says is laid over it.
    #[must_use]
    pub fn configured(self, certificates: &Certificates) -> Self {
        let hours =
            |lifetime: Lifetime, default| lifetime.ttl.map_or(default, |hours| Duration::from_hours(u64::from(hours)));
        Self { operator: hours(certificates.operator, self.operator), agent: hours(certificates.agent, self.agent) }
    }
}

/// A certificate and when it ends.
#[derive(Clone, Debug)]
pub struct Issued {
    pub certificate_pem: Vec<u8>,
    pub expires_at: Timestamp,
}

/// The object that says that a nonce was used.
struct Used {
    name: String,
    body: Vec<u8>,
}

/// An entry of the certificate log.
#[derive(Debug, Serialize, Deserialize)]
pub struct LogEntry {
    pub id: String,
    pub tenant: String,
    pub role: String,
    pub issued_at: Timestamp,
    pub expires_at: Timestamp,
}

impl Registrar {
    /// What a nonce says, if it is a good one of this shard.
    pub fn claims(&self, kind: Kind, token: &str, now: Timestamp) -> Result<Claims, Status> {
        let claims = self.nonces.verify(token, kind, &self.cluster, now).map_err(refused)?;
        if kind == Kind::Agent && claims.shard != self.shard {
            return Err(Status::invalid_argument("registration_nonce_jwt: shard is another shard's"));
        }
        Ok(claims)
    }

    /// Registers the holder of a nonce. Again with the same key it gives a fresh certificate, so that a client may
    /// retry; with another key it is refused.
    pub async fn register(&self, kind: Kind, token: &str, key: &[u8], now: Timestamp) -> Result<Issued, Status> {
        let claims = self.claims(kind, token, now)?;
        let (role, used) = match kind {
            Kind::Operator => {
                let ends = Timestamp::from_second(claims.exp).unwrap_or(Timestamp::MAX);
                (Role::Operator, Used { name: operator_nonce(&digest(token)), body: spent::object(key, ends) })
            }
            Kind::Agent => (Role::Agent, Used { name: self.layout.agent_key(&claims.sub), body: key.to_vec() }),
        };
        // Before the nonce is spent: a bad key must not use it up.
        let issued = self.issue((&claims.sub, &claims.tenant, role), key, now)?;
        self.spend(used).await?;
        self.log((&claims.sub, &claims.tenant, role), now, issued.expires_at).await?;
        Ok(issued)
    }

    /// A new certificate for a client that has one.
    pub async fn renew(&self, peer: &Peer, key: &[u8], now: Timestamp) -> Result<Issued, Status> {
        if key.is_empty() {
            return Err(Status::invalid_argument("public_key_pem: must not be empty"));
        }
        let subject = (&*peer.id, &*peer.tenant, peer.role);
        let issued = self.issue(subject, key, now)?;
        self.log(subject, now, issued.expires_at).await?;
        Ok(issued)
    }

    fn issue(&self, subject: (&str, &str, Role), key: &[u8], now: Timestamp) -> Result<Issued, Status> {
        let Lifetimes { operator, agent } = (self.lifetimes)();
        let lifetime = match subject.2 {
            Role::Operator => operator,
            Role::Agent => agent,
        };
        let (pem, expires_at) =
            self.authority.issue_client(subject, key, now, lifetime).map_err(|error| match error {
                AuthorityError::PublicKey => Status::invalid_argument(error.to_string()),
                other => internal(&other),
            })?;
        Ok(Issued { certificate_pem: pem.into_bytes(), expires_at })
    }

    async fn spend(&self, used: Used) -> Result<(), Status> {
        let key = spent::key(&used.body).to_vec();
        match self.store.put(&used.name, used.body, Expect::Absent).await {
            Ok(_) => return Ok(()),
            Err(error) if error.is_conflict() => {}
            Err(error) => return Err(unavailable(&error)),
        }
        let first = self.store.get(&used.name).await.map_err(|error| unavailable(&error))?;
        let first = first.as_ref().map(|object| spent::key(&object.body));
        if first == Some(&*key) {
            return Ok(());
        }
        if first.is_some_and(|first| !is_public_key(first)) {
            let remedy = "restore it from a backup of the storage, or remove it, and its client may register again";
            tracing::error!(object = used.name, "the key that used a nonce is damaged; {remedy}");
            return Err(Status::internal("an object in storage is damaged; the server's log names it"));
        }
        Err(Status::unauthenticated("registration_nonce_jwt: used with another key; issue a new nonce"))
    }

    async fn log(&self, subject: (&str, &str, Role), now: Timestamp, expires_at: Timestamp) -> Result<(), Status> {
        let (id, tenant, role) = subject;
        let key = self.layout.certificate(tenant, now.as_second(), id);
        let entry = LogEntry {
            id: id.to_owned(),
            tenant: tenant.to_owned(),
            role: role.as_str().to_owned(),
            issued_at: now,
            expires_at,
        };
        let body = serde_json::to_vec_pretty(&entry).expect("plain data");
        match self.store.put(&key, body, Expect::Absent).await {
            // A retry within the same second.
            Err(error) if !error.is_conflict() => Err(unavailable(&error)),
            _ => Ok(()),
        }
    }
}

fn refused(error: NonceError) -> Status {
    match error {
        NonceError::Claims(_) => Status::invalid_argument(error.to_string()),
        NonceError::Forged | NonceError::Expired | NonceError::Kind => Status::unauthenticated(error.to_string()),
    }
}

fn internal(error: &AuthorityError) -> Status {
    tracing::error!(error = %explained(error), "no certificate was issued");
    Status::internal("the certificate could not be issued; the server's log says why")
}

fn unavailable(error: &StoreError) -> Status {
    tracing::warn!(error = %explained(error), "registration: storage");
    Status::unavailable("storage is unavailable; try again")
}
