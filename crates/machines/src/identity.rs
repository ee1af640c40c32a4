//! The operator's identity: registered by a nonce, kept in Secrets, renewed without a restart.
//!
//! Every replica uses the stored certificate; the leader alone registers, renews and stores. What to do is decided in
//! `plan::machines::identity`.

mod ask;
mod metrics;
mod stored;

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::ConfigMap;
use plan::machines::identity::{Action, Attempt, Certificate, Names, Observed, Part, Standing, decide};
use process::{Clock, explained};
use runtime::{Key, Kind, Leadership, Operator, Selection, Writer};
use shard::identity::{ClientCertificate, Role, is_authority};
use tokio::{sync::watch, time::Instant};

use self::{ask::Failure, metrics::IdentityMetrics, stored::Stored};
use crate::{
    MANAGER,
    config::{Settings, Shards},
    secrets::Secrets,
};

/// A call of a shard has ten seconds, and a write to the API server as long.
const STOP_LIMIT: Duration = Duration::from_secs(25);

/// Entries of the objects; the original's.
const CA: &str = "ca.crt";
const NONCE: &str = "nonce.jwt";
const PRIVATE_KEY: &str = "private.key";
const PUBLIC_KEY: &str = "public.key";
const CERTIFICATE: &str = "tls.crt";
const CERTIFICATE_KEY: &str = "tls.key";

/// By what the operator and the shards know each other, as PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// The certificate of the cluster's authority.
    pub authority: String,
    pub certificate: String,
    pub key: String,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Credentials")
    }
}

/// What the rest of the layer sees of it.
#[derive(Clone, Debug)]
pub struct Known {
    /// `None` until there is a certificate that can be used.
    pub credentials: watch::Receiver<Option<Arc<Credentials>>>,
    pub standing: watch::Receiver<Standing>,
}

/// The part of the process that keeps the identity.
struct Identity {
    cluster_id: String,
    tenant: String,
    keys: Keys,
    secrets: Arc<Secrets>,
    authority: Arc<Kind<ConfigMap, String>>,
    writer: Writer,
    shards: watch::Receiver<Arc<Shards>>,
    clock: Clock,
    leadership: Leadership,
    stored: Stored,
    last: Option<Tried>,
    renewed_at: Option<Instant>,
    credentials: watch::Sender<Option<Arc<Credentials>>>,
    standing: watch::Sender<Standing>,
    metrics: IdentityMetrics,
}

/// Where the objects are.
struct Keys {
    authority: Key,
    certificate: Key,
    key: Key,
    nonce: Key,
}

/// A failure, and what it rested on: where that changes, it says nothing any more.
struct Tried {
    action: Action,
    count: u32,
    failure: Failure,
    at: Instant,
    basis: Basis,
}

/// Versions of the objects, and the shards.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Basis {
    authority: Option<u64>,
    nonce: Option<u64>,
    /// Of the certificate and the key, which we write.
    own: [Option<u64>; 2],
    shards: Arc<Shards>,
}

impl Basis {
    /// After a try that began on `before`: what others changed meanwhile has not been tried.
    fn rested_on(self, before: Self) -> Self {
        Self { own: self.own, ..before }
    }
}

/// Adds it to an operator. `secrets` are those of the layer's namespace.
pub(crate) fn install(
    operator: &mut Operator,
    settings: &Settings,
    secrets: &Arc<Secrets>,
    shards: watch::Receiver<Arc<Shards>>,
) -> Known {
    let at = |name: &str| Key::new(settings.namespace.as_str(), name);
    let names = &settings.names;
    let keys = Keys {
        authority: at(&names.ca_config_map),
        certificate: at(&names.cert_secret),
        key: at(&names.key_secret),
        nonce: at(&names.nonce_secret),
    };
    let authority = Kind::new("configmaps", operator.writer(MANAGER), ca);
    operator.watch_selected(&authority, Selection::of(&keys.authority), |_| {});
    let (credentials, standing) = (watch::Sender::new(None), watch::Sender::new(Standing::unknown()));
    let known = Known { credentials: credentials.subscribe(), standing: standing.subscribe() };
    let metrics = IdentityMetrics::new(known.standing.clone());
    operator.metrics.collect(Box::new(metrics.clone()));
    let informed = known.standing.clone();
    operator.health.inform("machines identity", move || {
        let standing = informed.borrow();
        (!standing.is_registered).then(|| standing.why.message.clone())
    });
    let identity = Identity {
        cluster_id: settings.cluster_id.clone(),
        tenant: settings.tenant.clone(),
        keys,
        secrets: secrets.clone(),
        authority,
        writer: operator.writer(MANAGER),
        shards,
        clock: operator.clock.clone(),
        leadership: operator.leadership(),
        stored: Stored::default(),
        last: None,
        renewed_at: None,
        credentials,
        standing,
        metrics,
    };
    operator.part("machines identity", STOP_LIMIT, move |stop, pulse| async move {
        stop.run_until_cancelled(pulse.while_waiting(Box::pin(identity.run()))).await;
    });
    known
}

#[expect(clippy::unnecessary_wraps, reason = "the form that every kind's filter has")]
fn ca(map: ConfigMap) -> Option<String> {
    // One without the entry is there, and of no use.
    Some(map.data.and_then(|mut data| data.remove(CA)).unwrap_or_default())
}

impl Identity {
    async fn run(mut self) {
        let (mut secrets, mut authority) = (self.secrets.news(), self.authority.news());
        loop {
            secrets.mark_unchanged();
            authority.mark_unchanged();
            self.shards.mark_unchanged();
            let is_leading = self.leadership.is_leading();
            let wait = self.turn(is_leading).await;
            let leadership = self.leadership.clone();
            let turned =
                async { if is_leading { leadership.lost(Duration::ZERO).await } else { leadership.acquired().await } };
            tokio::select! {
                _ = secrets.changed() => {}
                _ = authority.changed() => {}
                // An error means that its sender is gone with the process.
                Ok(()) = self.shards.changed() => {}
                () = turned => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// One look, and what it asks for; how long to wait before the next.
    async fn turn(&mut self, is_leading: bool) -> Duration {
        if !self.secrets.is_settled() || !self.authority.is_settled() {
            // The first list is news.
            return Duration::from_hours(1);
        }
        let observed = self.observe(is_leading).await;
        let basis = self.basis();
        if self.last.as_ref().is_some_and(|last| last.basis != basis) {
            self.last = None;
        }
        let last = self.last.as_ref().map(|last| Attempt {
            action: last.action,
            count: last.count,
            is_refused: last.failure.is_refused,
            message: last.failure.message.clone(),
            age: self.clock.instant().saturating_duration_since(last.at),
        });
        let decision = decide(&observed, last.as_ref(), self.clock.now());
        self.publish(&observed, decision.standing);
        let Some(action) = decision.action else { return decision.next_look };
        let result = self.execute(action).await;
        self.metrics.tried(action, result.is_ok());
        match result {
            Ok(()) => {
                self.last = None;
                if action == Action::Renew {
                    self.renewed_at = Some(self.clock.instant());
                }
            }
            Err(failure) => {
                tracing::warn!(?action, why = failure.message, "the operator's identity could not be brought forward");
                let count = last.filter(|last| last.action == action).map_or(0, |last| last.count) + 1;
                let at = self.clock.instant();
                self.last = Some(Tried { action, count, failure, at, basis: self.basis().rested_on(basis) });
            }
        }
        // What became of it is looked at at once.
        Duration::ZERO
    }

    async fn observe(&mut self, is_leading: bool) -> Observed {
        let keys = [&self.keys.certificate, &self.keys.key, &self.keys.nonce];
        let unfilled = [self.secrets.freshness(), self.authority.freshness()];
        // What was never listed is not absent.
        let mut unreadable = unfilled.into_iter().find_map(|freshness| match freshness.age {
            Some(_) => None,
            None => Some(freshness.interruption.unwrap_or_else(|| "not listed yet".to_owned())),
        });
        for key in keys {
            if let Err(error) = self.secrets.settle(key).await {
                unreadable = Some(explained(&error));
            }
        }
        let read = self.stored.refresh(&self.secrets, &self.writer, &self.keys).await;
        if let Some(why) = unreadable.or(read.err()) {
            let unknown = || Part::Unknown(why.clone());
            let certificate = Certificate::Unknown(why.clone());
            return self.observed(is_leading, (unknown(), certificate, unknown(), unknown()));
        }
        let authority = match self.ca() {
            None => Part::Absent,
            Some(ca) if is_authority(&ca) => Part::Present,
            Some(_) => Part::Unusable(format!("its key {CA} is not a certificate in PEM")),
        };
        let (certificate, key) = (self.certificate(), self.stored.key_part());
        let is_there = self.secrets.get(&self.keys.nonce).is_some_and(|nonce| !nonce.value.is_deleting);
        let nonce = if is_there { Part::Present } else { Part::Absent };
        self.observed(is_leading, (authority, certificate, key, nonce))
    }

    fn observed(&self, is_leading: bool, parts: (Part, Certificate, Part, Part)) -> Observed {
        let (authority, certificate, key, nonce) = parts;
        let name = |key: &Key| key.name.to_string();
        let names = Names {
            namespace: self.keys.nonce.namespace.to_string(),
            authority: name(&self.keys.authority),
            certificate: name(&self.keys.certificate),
            key: name(&self.keys.key),
            nonce: name(&self.keys.nonce),
        };
        let has_shards = !self.shards.borrow().is_empty();
        let renewed = self.renewed_at.map(|at| self.clock.instant().saturating_duration_since(at));
        Observed { is_leading, has_shards, authority, certificate, key, nonce, renewed, names }
    }

    fn ca(&self) -> Option<String> {
        self.authority.get(&self.keys.authority).map(|found| found.value.clone())
    }

    /// The authority to go by: one that is missing or cannot be read takes nothing from what is in use.
    fn authority(&self) -> Option<String> {
        let in_use = || self.credentials.borrow().as_ref().map(|credentials| credentials.authority.clone());
        self.ca().filter(|ca| is_authority(ca)).or_else(in_use)
    }

    /// How the stored certificate is.
    fn certificate(&self) -> Certificate {
        let Some((certificate, key)) = self.stored.certificate() else { return Certificate::Absent };
        let Some(ca) = self.authority() else {
            return Certificate::Unusable(
                "the certificate cannot be checked without the cluster's authority".to_owned(),
            );
        };
        match self.judge(certificate, key, &ca) {
            Ok(found) => Certificate::Valid { not_before: found.not_before, not_after: found.not_after },
            Err(why) => Certificate::Unusable(why),
        }
    }

    /// Whether the shards would know this operator by a certificate, or why not.
    fn judge(&self, certificate: &str, key: &str, ca: &str) -> Result<ClientCertificate, String> {
        let found =
            ClientCertificate::check(certificate, key, ca, self.clock.now()).map_err(|error| error.to_string())?;
        let peer = &found.peer;
        if peer.id != self.cluster_id || peer.tenant != self.tenant {
            let (ours, theirs) = ((&self.cluster_id, &self.tenant), (&peer.id, &peer.tenant));
            return Err(format!(
                "the certificate is of cluster {:?} and tenant {:?}, not {:?} and {:?}",
                theirs.0, theirs.1, ours.0, ours.1
            ));
        }
        if peer.role != Role::Operator {
            return Err("the certificate is not an operator's".to_owned());
        }
        Ok(found)
    }

    /// What cannot be read takes nothing away.
    fn publish(&self, observed: &Observed, standing: Standing) {
        let credentials = match (&observed.certificate, self.stored.certificate(), self.authority()) {
            (Certificate::Valid { .. }, Some((certificate, key)), Some(authority)) => {
                Some(Some(Credentials { authority, certificate: certificate.to_owned(), key: key.to_owned() }))
            }
            (Certificate::Absent | Certificate::Unusable(_), ..) => Some(None),
            _ => None,
        };
        if let Some(credentials) = credentials {
            self.credentials.send_if_modified(|current| {
                let is_changed = current.as_deref() != credentials.as_ref();
                if is_changed {
                    *current = credentials.map(Arc::new);
                }
                is_changed
            });
        }
        self.standing.send_if_modified(|current| {
            let is_changed = *current != standing;
            if is_changed {
                let (is_registered, why) = (standing.is_registered, &standing.why.message);
                let reason = standing.why.reason.as_str();
                if is_registered || standing.why.reason == api::condition::Reason::Registering {
                    tracing::info!(is_registered, reason, %why, "the operator's identity");
                } else {
                    tracing::warn!(is_registered, reason, %why, "the shards do not know the operator");
                }
                *current = standing;
            }
            is_changed
        });
    }

    fn basis(&self) -> Basis {
        let version = |key: &Key| self.secrets.store().version(key);
        Basis {
            authority: self.authority.store().version(&self.keys.authority),
            nonce: version(&self.keys.nonce),
            own: [version(&self.keys.certificate), version(&self.keys.key)],
            shards: self.shards.borrow().clone(),
        }
    }
}
