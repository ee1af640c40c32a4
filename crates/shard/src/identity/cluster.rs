//! The cluster's keys in storage: made once, loaded by the servers of every shard.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use plan::shard::{id, refusal::Refusal};

use super::{Authority, AuthorityError, Claims, Nonces, SealError, SealingKey, key_pair};
use crate::store::{Expect, Store, StoreError, layout};

/// How a key that is not sealed begins.
const PEM: &[u8] = b"-----BEGIN";

/// What issues and verifies identities in one cluster.
#[derive(Clone)]
pub struct ClusterKeys {
    pub authority: Arc<Authority>,
    pub nonces: Arc<Nonces>,
}

/// Why the cluster has no keys, or none that this server can use.
#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    #[error("{0} is missing; `strata shard init` makes the cluster's keys")]
    Missing(&'static str),
    #[error("{key}: {source}; give the key file that `strata shard init` was given (--encryption-key-file)")]
    Sealed { key: &'static str, source: SealError },
    #[error("{key} is sealed; give the key file that seals it (--encryption-key-file)")]
    NoSealingKey { key: &'static str },
    #[error(
        "{key} is not sealed although a key file is given; if it is yours, `strata shard init --seal` with that file seals it"
    )]
    NotSealed { key: &'static str },
    #[error("{key} is damaged; restore it from a backup of the storage")]
    Damaged { key: &'static str, source: Box<dyn std::error::Error + Send + Sync> },
    #[error("cluster/ca.crt is not of cluster {0:?}; use another storage or prefix for each cluster")]
    OtherCluster(String),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Refused(#[from] Refusal),
}

/// A nonce to be issued.
#[derive(Clone, Debug)]
pub struct NonceOrder<'a> {
    pub cluster: &'a str,
    pub tenant: &'a str,
    pub lifetime: Duration,
    /// Of an agent: its shard and instance. `None` for an operator.
    pub agent: Option<(&'a str, &'a str)>,
}

impl ClusterKeys {
    /// Makes what is missing of the cluster's keys, and loads them. Safe to repeat, to be cut off anywhere and to run
    /// twice at once: each object is created only where there is none, and the certificate follows from the key.
    pub async fn init(
        store: &dyn Store,
        cluster: &str,
        sealing: Option<&SealingKey>,
        now: Timestamp,
    ) -> Result<Self, KeysError> {
        id::check("cluster", cluster)?;
        let ca_key = made_key(store, layout::CA_KEY, sealing).await?;
        let authority = Authority::of_key(cluster, &ca_key, now).map_err(damaged(layout::CA_KEY))?;
        put(store, layout::CA_CERTIFICATE, authority.certificate_pem().as_bytes().to_vec(), Expect::Absent).await?;
        made_key(store, layout::NONCE_KEY, sealing).await?;
        Self::load(store, cluster, sealing).await
    }

    pub async fn load(store: &dyn Store, cluster: &str, sealing: Option<&SealingKey>) -> Result<Self, KeysError> {
        let certificate = read(store, layout::CA_CERTIFICATE).await?;
        let certificate = String::from_utf8(certificate).map_err(damaged(layout::CA_CERTIFICATE))?;
        let ca_key = opened(layout::CA_KEY, read(store, layout::CA_KEY).await?, sealing)?;
        let authority = Authority::load(&certificate, &ca_key).map_err(|error| {
            let key = if matches!(error, AuthorityError::Pair) { layout::CA_CERTIFICATE } else { layout::CA_KEY };
            damaged(key)(error)
        })?;
        if !authority.is_of(cluster) {
            return Err(KeysError::OtherCluster(cluster.to_owned()));
        }
        let nonce_key = opened(layout::NONCE_KEY, read(store, layout::NONCE_KEY).await?, sealing)?;
        let nonces = Nonces::load(&nonce_key).map_err(damaged(layout::NONCE_KEY))?;
        Ok(Self { authority: Arc::new(authority), nonces: Arc::new(nonces) })
    }

    /// Seals keys that were made without a sealing key; servers need it from their next start on. A storage of another
    /// cluster is left alone. Safe to repeat and to be cut off anywhere.
    pub async fn seal(store: &dyn Store, cluster: &str, sealing: &SealingKey) -> Result<(), KeysError> {
        let certificate = String::from_utf8(read(store, layout::CA_CERTIFICATE).await?);
        let certificate = certificate.map_err(damaged(layout::CA_CERTIFICATE))?;
        let mut plain = Vec::new();
        for key in [layout::CA_KEY, layout::NONCE_KEY] {
            let object = store.get(key).await?.ok_or(KeysError::Missing(key))?;
            let is_plain = object.body.starts_with(PEM);
            let pem = opened(key, object.body, (!is_plain).then_some(sealing))?;
            if key == layout::CA_KEY && !Authority::load(&certificate, &pem).map_err(damaged(key))?.is_of(cluster) {
                return Err(KeysError::OtherCluster(cluster.to_owned()));
            }
            plain.extend(is_plain.then_some((key, pem, object.etag)));
        }
        for (key, pem, etag) in plain {
            let body = sealing.seal(pem.as_bytes()).map_err(|source| KeysError::Sealed { key, source })?;
            store.put(key, body, Expect::Content(etag)).await?;
        }
        Ok(())
    }

    /// Issues a nonce for any valid tenant.
    pub fn nonce(&self, order: &NonceOrder<'_>, now: Timestamp) -> Result<String, KeysError> {
        id::check("tenant", order.tenant)?;
        let (cluster, tenant, lifetime) = (order.cluster, order.tenant, order.lifetime);
        let claims = match order.agent {
            None => Claims::operator(cluster, tenant, now, lifetime),
            Some((shard, instance)) => {
                id::check("shard", shard)?;
                id::InstanceId::parse(instance)?;
                Claims { shard: shard.to_owned(), ..Claims::agent(cluster, tenant, instance, now, lifetime) }
            }
        };
        self.nonces.issue(&claims).map_err(damaged(layout::NONCE_KEY))
    }
}

fn damaged<E: Into<Box<dyn std::error::Error + Send + Sync>>>(key: &'static str) -> impl FnOnce(E) -> KeysError {
    move |error| KeysError::Damaged { key, source: error.into() }
}

async fn read(store: &dyn Store, key: &'static str) -> Result<Vec<u8>, KeysError> {
    Ok(store.get(key).await?.ok_or(KeysError::Missing(key))?.body)
}

/// What another process stored meanwhile stays.
async fn put(store: &dyn Store, key: &str, body: Vec<u8>, expect: Expect) -> Result<(), StoreError> {
    match store.put(key, body, expect).await {
        Err(error) if !error.is_conflict() => Err(error),
        _ => Ok(()),
    }
}

/// The key under that name, made if there is none.
async fn made_key(store: &dyn Store, key: &'static str, sealing: Option<&SealingKey>) -> Result<String, KeysError> {
    let sealed = |pem: &[u8]| match sealing {
        Some(sealing) => sealing.seal(pem).map_err(|source| KeysError::Sealed { key, source }),
        None => Ok(pem.to_vec()),
    };
    if store.get(key).await?.is_none() {
        put(store, key, sealed(key_pair().serialize_pem().as_bytes())?, Expect::Absent).await?;
    }
    opened(key, read(store, key).await?, sealing)
}

/// With a sealing key a readable one is refused: it need not be ours, and a stranger who can write to the storage would
/// issue identities with it.
fn opened(key: &'static str, body: Vec<u8>, sealing: Option<&SealingKey>) -> Result<String, KeysError> {
    let pem = match (sealing, body.starts_with(PEM)) {
        (None, true) => body,
        (Some(sealing), false) => sealing.open(&body).map_err(|source| KeysError::Sealed { key, source })?,
        (None, false) => return Err(KeysError::NoSealingKey { key }),
        (Some(_), true) => return Err(KeysError::NotSealed { key }),
    };
    String::from_utf8(pem).map_err(damaged(key))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::Kind;
    use crate::store::{Faults, FaultyStore, MemoryStore, Side};

    fn now() -> Timestamp {
        "2026-01-01T00:00:00Z".parse().unwrap()
    }

    fn sealing() -> SealingKey {
        SealingKey::read(&[7; 32]).unwrap()
    }

    #[tokio::test]
    async fn keys_are_made_once_and_every_server_loads_the_same() {
        for sealing in [None, Some(sealing())] {
            let store = MemoryStore::default();
            let first = ClusterKeys::init(&store, "dev", sealing.as_ref(), now()).await.unwrap();
            let before = store.snapshot();
            let again = ClusterKeys::init(&store, "dev", sealing.as_ref(), now()).await.unwrap();
            assert_eq!(store.snapshot(), before, "nothing is made twice");
            let loaded = ClusterKeys::load(&store, "dev", sealing.as_ref()).await.unwrap();
            for other in [&again, &loaded] {
                assert_eq!(other.authority.certificate_pem(), first.authority.certificate_pem());
            }
            let order = NonceOrder { cluster: "dev", tenant: "acme", lifetime: Duration::from_hours(3), agent: None };
            let token = first.nonce(&order, now()).unwrap();
            let claims = loaded.nonces.verify(&token, Kind::Operator, "dev", now()).unwrap();
            assert_eq!((&*claims.sub, &*claims.tenant), ("dev", "acme"));
            let plain = before.values().any(|body| String::from_utf8_lossy(body).contains("PRIVATE KEY"));
            assert_eq!(plain, sealing.is_none(), "a sealed key is not readable in storage");
        }
    }

    #[tokio::test]
    async fn an_init_that_is_cut_off_anywhere_is_finished_by_the_next() {
        let whole = FaultyStore::new(Arc::new(MemoryStore::default()), Faults::default());
        ClusterKeys::init(&whole, "dev", None, now()).await.unwrap();
        for point in 0..3 {
            for side in [Side::Before, Side::After] {
                let (store, faults) = (MemoryStore::default(), Faults::dying(point, side));
                let dying = FaultyStore::new(Arc::new(store.clone()), faults.clone());
                tokio::select! {
                    biased;
                    () = faults.death() => {}
                    _ = ClusterKeys::init(&dying, "dev", None, now()) => panic!("it dies at {point}"),
                }
                ClusterKeys::init(&store, "dev", None, now()).await.unwrap();
                ClusterKeys::load(&store, "dev", None).await.unwrap();
            }
        }
    }

    #[tokio::test]
    async fn what_is_missing_sealed_damaged_or_anothers_is_named_with_its_remedy() {
        let store = MemoryStore::default();
        let load = |cluster: &'static str, sealing: Option<SealingKey>| {
            let store = store.clone();
            async move { ClusterKeys::load(&store, cluster, sealing.as_ref()).await.err().unwrap().to_string() }
        };
        assert!(load("dev", None).await.contains("strata shard init"));
        ClusterKeys::init(&store, "dev", Some(&sealing()), now()).await.unwrap();
        assert!(load("dev", None).await.contains("--encryption-key-file"));
        let other = SealingKey::read(&[8; 32]).unwrap();
        assert!(load("dev", Some(other)).await.contains("cannot be opened with this encryption key"));
        assert!(load("prod", Some(sealing())).await.contains("not of cluster \"prod\""));
        let etag = store.get(layout::CA_CERTIFICATE).await.unwrap().unwrap().etag;
        let (foreign, _) = Authority::create("dev", now()).unwrap();
        let body = foreign.certificate_pem().as_bytes().to_vec();
        store.put(layout::CA_CERTIFICATE, body, Expect::Content(etag)).await.unwrap();
        assert!(load("dev", Some(sealing())).await.contains("cluster/ca.crt is damaged"));
    }

    #[tokio::test]
    async fn with_a_sealing_key_a_readable_key_is_refused_until_it_is_sealed() {
        let store = MemoryStore::default();
        let plain = ClusterKeys::init(&store, "dev", None, now()).await.unwrap();
        let refused = ClusterKeys::load(&store, "dev", Some(&sealing())).await.err().unwrap().to_string();
        assert!(refused.contains("cluster/secret/ca.key is not sealed"), "{refused}");
        let before = store.snapshot();
        assert!(ClusterKeys::init(&store, "dev", Some(&sealing()), now()).await.is_err());
        assert!(ClusterKeys::seal(&store, "prod", &sealing()).await.is_err(), "it is another cluster's");
        assert_eq!(store.snapshot(), before, "nothing is sealed unasked");
        ClusterKeys::seal(&store, "dev", &sealing()).await.unwrap();
        ClusterKeys::seal(&store, "dev", &sealing()).await.unwrap();
        let sealed = ClusterKeys::init(&store, "dev", Some(&sealing()), now()).await.unwrap();
        assert_eq!(sealed.authority.certificate_pem(), plain.authority.certificate_pem(), "it is the same cluster");
        let readable = |body: &Vec<u8>| String::from_utf8_lossy(body).contains("PRIVATE KEY");
        assert!(!store.snapshot().values().any(readable), "nothing is readable any more");
        let order = NonceOrder { cluster: "dev", tenant: "acme", lifetime: Duration::from_hours(3), agent: None };
        let token = plain.nonce(&order, now()).unwrap();
        let loaded = ClusterKeys::load(&store, "dev", Some(&sealing())).await.unwrap();
        loaded.nonces.verify(&token, Kind::Operator, "dev", now()).unwrap();
        // One of the two alone is enough for a stranger.
        let etag = store.get(layout::NONCE_KEY).await.unwrap().unwrap().etag;
        let body = key_pair().serialize_pem().into_bytes();
        store.put(layout::NONCE_KEY, body, Expect::Content(etag)).await.unwrap();
        let refused = ClusterKeys::load(&store, "dev", Some(&sealing())).await.err().unwrap().to_string();
        assert!(refused.contains("registration-nonce.key is not sealed"), "{refused}");
    }

    #[tokio::test]
    async fn a_nonce_is_issued_for_valid_names_only() {
        let keys = ClusterKeys::init(&MemoryStore::default(), "dev", None, now()).await.unwrap();
        let instance = id::InstanceId::new("web", 1).to_string();
        let order = |tenant, agent| NonceOrder { cluster: "dev", tenant, lifetime: Duration::from_hours(3), agent };
        assert!(keys.nonce(&order("Bad", None), now()).is_err());
        assert!(keys.nonce(&order("a", Some(("a", "x"))), now()).is_err());
        assert!(keys.nonce(&order("a", Some(("A", &instance))), now()).is_err());
        let token = keys.nonce(&order("a", Some(("zone", &instance))), now()).unwrap();
        assert_eq!(keys.nonces.verify(&token, Kind::Agent, "dev", now()).unwrap().shard, "zone");
    }
}
