//! The agent: it runs on an instance, registers it with its shard by a nonce, reports that it is well, and passes on
//! that its machine is about to be taken away. On request it stands for the instance's Node.

mod identity;
mod lock;
mod node;
mod notice;
mod report;
pub mod rights;

use std::{
    hash::{BuildHasher, RandomState},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use shard::{
    client::{Addresses, AgentClient, Backoff, CallError},
    clock::Clock,
    identity::TlsError,
    wire::RegisterClientRequest,
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub use identity::Certificate;
pub use node::{NodeOptions, labels};
pub use notice::Notice;

use identity::Files;

/// What an agent is started with.
pub struct Options {
    pub instance_id: String,
    /// Where it registers, and where it reports.
    pub registration: Addresses,
    pub agent: Addresses,
    /// Holds `ca.crt` and `nonce.jwt`; the agent adds `identity.key` and `identity.crt`.
    pub identity_dir: PathBuf,
    pub hostname: String,
    pub ipv4: String,
    pub ipv6: String,
    pub report_interval: Duration,
    /// A file that appears when the machine is about to be taken away, and how often to look for it.
    pub notice_file: Option<PathBuf>,
    pub notice_interval: Duration,
    /// The agent ends once no process holds a lock on this file.
    pub end_with_lock: Option<PathBuf>,
    pub node: Option<NodeOptions>,
}

/// Why an agent cannot work at all.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    #[error("{path}: {source}")]
    File { path: PathBuf, source: std::io::Error },
    #[error("{path}: {why}")]
    Damaged { path: PathBuf, why: String },
    #[error("the CA certificate, or the agent's own certificate and key, are refused")]
    Tls(#[from] TlsError),
}

/// Runs until `stop`, or until the lock it should end with is free.
pub async fn run(options: Options, clock: Clock, stop: CancellationToken) -> Result<(), AgentError> {
    let agent = Agent { files: Files::new(&options.identity_dir), options, clock };
    let result = tokio::select! {
        result = agent.work() => result,
        () = stop.cancelled() => {
            // Asked to end: the machine goes, and its Node with it.
            agent.leave().await;
            Ok(())
        }
        () = lock::released(agent.options.end_with_lock.as_deref()) => {
            tracing::info!("the environment this instance belongs to is gone");
            Ok(())
        }
    };
    tracing::info!("agent ends");
    result
}

struct Agent {
    options: Options,
    files: Files,
    clock: Clock,
}

/// A seed of this agent's own: agents that lost the same shard do not return together.
fn backoff() -> Backoff {
    Backoff::new(RandomState::new().hash_one("agent"))
}

impl Agent {
    async fn work(&self) -> Result<(), AgentError> {
        let certificate = match self.files.certificate(&self.options.instance_id, self.clock.now())? {
            Some(certificate) => certificate,
            None => self.registered().await?,
        };
        tracing::info!(instance = self.options.instance_id, "registered");
        let link = AgentClient::new(self.options.agent.clone(), self.tls(&certificate)?);
        let (changed, certificates) = watch::channel(certificate);
        let (news, notices) = watch::channel(None);
        tokio::select! {
            () = self.renew(&link, &changed) => Ok(()),
            () = report::run(&self.options, &self.clock, &link, certificates, notices) => Ok(()),
            () = notice::watch(self.options.notice_file.as_deref(), self.options.notice_interval, news) => Ok(()),
            () = self.keep_node() => Ok(()),
        }
    }

    fn tls(&self, certificate: &Certificate) -> Result<Arc<rustls::ClientConfig>, AgentError> {
        let key = self.files.key()?;
        let pair = Some((&*certificate.pem, &*key.serialize_pem()));
        Ok(shard::identity::client_tls(&self.files.ca()?, pair, Arc::new(self.clock.clone()))?)
    }

    /// Registers, however long that takes. A nonce that is refused stays refused: the agent waits for its end, because
    /// the server replaces an instance that does not register, and would replace one that ends at once again and again.
    async fn registered(&self) -> Result<Certificate, AgentError> {
        let mut backoff = backoff();
        loop {
            match self.register().await? {
                Ok(certificate) => return Ok(certificate),
                Err(CallError::Refused(status)) if status.code() != shard::client::Code::FailedPrecondition => {
                    tracing::error!(code = ?status.code(), reason = status.message(), "registration is refused");
                    return std::future::pending().await;
                }
                Err(error) => {
                    let wait = backoff.wait();
                    tracing::warn!(%error, ?wait, "not registered yet");
                    tokio::time::sleep(wait).await;
                }
            }
        }
    }

    /// The key is stored before it is used, so that a repeated registration is the same one.
    async fn register(&self) -> Result<Result<Certificate, CallError>, AgentError> {
        let key = self.files.key()?;
        let ca = self.files.ca()?;
        let request = RegisterClientRequest {
            registration_nonce_jwt: self.files.nonce()?,
            public_key_pem: key.public_key_pem().into_bytes(),
            private_ipv4: self.options.ipv4.clone(),
            private_ipv6: self.options.ipv6.clone(),
            hostname: self.options.hostname.clone(),
        };
        let tls = shard::identity::client_tls(&ca, None, Arc::new(self.clock.clone()))?;
        let registrant = shard::client::Registrant::Agent;
        match shard::client::register(self.options.registration.clone(), tls, registrant, request).await {
            Ok(answer) => self.files.store(&answer.client_certificate_pem).map(Ok),
            Err(error) => Ok(Err(error)),
        }
    }

    /// From half of the certificate's life on it registers again, with the same key and the nonce that is there then: a
    /// fresh one may have been put there. The protocol knows no other way for agents. Whatever stands in the way of that,
    /// such as a nonce that was removed after its use, the certificate that is there serves to its end.
    async fn renew(&self, link: &AgentClient, current: &watch::Sender<Certificate>) {
        loop {
            let (due, pause, expires) = {
                let (certificate, now) = (current.borrow(), self.clock.now());
                (certificate.renewal_in(now), certificate.renewal_pause(now), certificate.not_after)
            };
            if !due.is_zero() {
                tokio::time::sleep(due).await;
                continue;
            }
            match self.renewed().await {
                Ok((certificate, tls)) => {
                    link.replace_tls(tls);
                    current.send_replace(certificate);
                    tracing::info!("the certificate is renewed");
                }
                Err(error) => {
                    tracing::warn!(%error, %expires, "the certificate is not renewed; a fresh nonce.jwt would do");
                }
            }
            // After a success too: a certificate that is short-lived beside the skew of clocks is due again at once.
            tokio::time::sleep(pause).await;
        }
    }

    async fn renewed(&self) -> Result<(Certificate, Arc<rustls::ClientConfig>), String> {
        let answer = self.register().await.map_err(|error| error.to_string())?;
        let certificate = answer.map_err(|error| error.to_string())?;
        let tls = self.tls(&certificate).map_err(|error| error.to_string())?;
        Ok((certificate, tls))
    }

    async fn keep_node(&self) {
        match &self.options.node {
            Some(node) => node::keep(node, &self.clock).await,
            None => std::future::pending().await,
        }
    }

    async fn leave(&self) {
        if let Some(node) = &self.options.node {
            node::leave(node).await;
        }
    }
}
