//! A client of a shard's leader, for commands that have the storage and with it the cluster's keys.

use std::{sync::Arc, time::Duration};

use shard::{
    client::{Address, Addresses, Client, leader_ports},
    clock::Clock,
    identity::{Role, client_tls, key_pair, web_client_tls},
    store::{Store, layout::CA_CERTIFICATE},
};
use tokio::time::Instant;

use super::storage::{StorageFlags, cluster, lock};
use crate::{Failure, explained};

/// A command takes seconds; a certificate that lasts longer than its deadline is enough.
const LIFETIME: Duration = Duration::from_mins(10);

/// A leader that was killed has a successor after its timeout, which is 15 s unless configured and runs from the moment
/// that the next server is up; that one opens the shard then. On a busy machine both take their time.
const PATIENCE: Duration = Duration::from_secs(45);

/// Between two looks for a leader.
const LOOK: Duration = Duration::from_millis(200);

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
    let clock = Clock::default();
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

/// Where the shard's leader serves operators. Waits for one that is about to lead.
pub async fn leader(store: &dyn Store, shard: &str) -> Result<Addresses, Failure> {
    let no_keys = || {
        Failure::new(format!("{CA_CERTIFICATE} is missing in the storage")).hint("`strata shard init` makes the keys")
    };
    let ca = store.get(CA_CERTIFICATE).await?.ok_or_else(no_keys)?;
    let tls = web_client_tls(&String::from_utf8_lossy(&ca.body), Arc::new(Clock::default()))
        .map_err(|error| Failure::new(explained(&error)))?;
    let deadline = Instant::now() + PATIENCE;
    let mut is_first = true;
    loop {
        let why = match look(store, shard, &tls).await? {
            Ok(leader) => return Ok(leader),
            Err(why) => why,
        };
        if Instant::now() > deadline {
            return Err(Failure::new(format!("shard {shard:?} has no leader: {why}")).hint(format!(
                "start a server with `strata shard run {shard}`, or name one with --endpoint HOST:PORT"
            )));
        }
        if std::mem::take(&mut is_first) {
            anstream::eprintln!("waiting for a leader of shard {shard}: {why}");
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// The leader that the lock names, if it answers; else why there is none.
async fn look(
    store: &dyn Store,
    shard: &str,
    tls: &Arc<rustls::ClientConfig>,
) -> Result<Result<Addresses, String>, Failure> {
    let Some(lock) = lock(store, shard).await?.map_err(Failure::new)? else {
        return Ok(Err("no server ever led it".to_owned()));
    };
    if lock.released {
        return Ok(Err("the last leader has stopped".to_owned()));
    }
    let election: Address = lock.address.parse().map_err(|error: shard::client::AddressError| {
        Failure::new(format!("the lock of shard {shard:?} names no address: {error}"))
    })?;
    let ports = leader_ports(&election, Arc::clone(tls)).await;
    Ok(ports.map(|ports| Addresses::from(election.at(ports.operator))).map_err(|error| format!("{election}: {error}")))
}
