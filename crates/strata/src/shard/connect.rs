//! A client of a shard's leader, for commands that have the storage and with it the cluster's keys.

use std::{sync::Arc, time::Duration};

use plan::shard::election::Lock;
use shard::{
    client::{Address, Addresses, Client},
    clock::Clock,
    identity::{Role, client_tls, key_pair},
    store::{Store, layout::ShardLayout},
};

use super::storage::{StorageFlags, cluster};
use crate::{Failure, explained};

/// A command takes seconds; a certificate that lasts longer than its deadline is enough.
const LIFETIME: Duration = Duration::from_mins(10);

/// The operator port is so far from the election port where a server has the ports of the original.
const OPERATOR_PORT: i32 = 2;

/// A client that acts for a tenant, with a certificate that the cluster's authority issues for this command.
pub async fn client(
    storage: &StorageFlags,
    store: &dyn Store,
    tenant: &str,
    endpoint: Addresses,
) -> Result<Client, Failure> {
    Ok(Client::new(endpoint, tls(storage, store, Some(tenant)).await?))
}

/// Without a tenant it has no certificate.
pub async fn tls(
    storage: &StorageFlags,
    store: &dyn Store,
    tenant: Option<&str>,
) -> Result<Arc<rustls::ClientConfig>, Failure> {
    let fail = |error: &dyn std::error::Error| Failure::new(explained(error));
    let clock = Clock::system();
    let cluster = cluster(store).await?;
    let keys = storage.keys(store, &cluster).await?;
    let identity = match tenant {
        Some(tenant) => {
            plan::shard::id::check("tenant", tenant).map_err(|refusal| Failure::new(refusal.message))?;
            let key = key_pair();
            let subject = (&*cluster, tenant, Role::Operator);
            let public = key.public_key_pem();
            let issued = keys.authority.issue_client(subject, public.as_bytes(), clock.now(), LIFETIME);
            Some((issued.map_err(|error| fail(&error))?.0, key.serialize_pem()))
        }
        None => None,
    };
    let identity = identity.as_ref().map(|(certificate, key)| (&**certificate, &**key));
    client_tls(keys.authority.certificate_pem(), identity, Arc::new(clock)).map_err(|error| fail(&error))
}

/// Where the shard's leader serves operators, by its lock.
pub async fn leader(store: &dyn Store, shard: &str) -> Result<Addresses, Failure> {
    let none = || {
        Failure::new(format!("shard {shard:?} has no leader"))
            .hint(format!("start a server with `strata shard run {shard}`, or name one with --endpoint HOST:PORT"))
    };
    let object = store.get(&ShardLayout::new(shard).lock()).await?.ok_or_else(none)?;
    let lock: Lock = serde_json::from_slice(&object.body)
        .map_err(|error| Failure::new(format!("the lock of shard {shard:?} is damaged: {error}")))?;
    if lock.released {
        return Err(none());
    }
    let election: Address = lock.address.parse().map_err(|error: shard::client::AddressError| {
        Failure::new(format!("the lock of shard {shard:?} names no address: {error}"))
    })?;
    election.neighbour(OPERATOR_PORT).map(Addresses::from).ok_or_else(none)
}
