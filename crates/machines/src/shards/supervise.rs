//! Which shards are followed: those of the configuration, with the certificate that there is, while the operator leads.
//! A server has one stream of each kind for an operator: one of a standby would take the leader's place.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use process::explained;
use runtime::{Leadership, Operator};
use shard::{client::Client, identity::client_tls};

use super::{Shards, follow::Session};
use crate::{config::ShardAddress, identity::Credentials};

/// It only drops connections.
const STOP_LIMIT: Duration = Duration::from_secs(1);

pub(super) fn install(operator: &mut Operator, shards: &Shards) {
    let (shards, leadership) = (shards.clone(), operator.leadership());
    operator.part("shards", STOP_LIMIT, move |stop, pulse| async move {
        stop.run_until_cancelled(pulse.while_waiting(run(shards, leadership))).await;
    });
}

/// What is followed now, and with what.
#[derive(Default)]
struct Followed {
    shards: BTreeMap<String, ShardAddress>,
    credentials: Option<Arc<Credentials>>,
}

async fn run(shards: Shards, leadership: Leadership) {
    loop {
        leadership.acquired().await;
        lead(&shards, &leadership).await;
        for shard in shards.0.sources.peers() {
            shards.leave(&shard);
        }
    }
}

/// Follows while the lead lasts.
async fn lead(shards: &Shards, leadership: &Leadership) {
    let (mut addresses, mut credentials) = (shards.0.inputs.addresses.clone(), shards.0.inputs.credentials.clone());
    let mut followed = Followed::default();
    loop {
        addresses.mark_unchanged();
        credentials.mark_unchanged();
        shards.follow(&mut followed);
        tokio::select! {
            () = leadership.lost(Duration::ZERO) => return,
            // An error means that its sender is gone with the process.
            Ok(()) = addresses.changed() => {}
            Ok(()) = credentials.changed() => {}
        }
    }
}

impl Shards {
    fn follow(&self, followed: &mut Followed) {
        let wanted = self.0.inputs.addresses.borrow().clone();
        let gone: Vec<_> = followed.shards.keys().filter(|shard| !wanted.contains_key(*shard)).cloned().collect();
        for shard in gone {
            followed.shards.remove(&shard);
            self.leave(&shard);
        }
        // Without a certificate, connections that are open stay.
        let Some(credentials) = self.0.inputs.credentials.borrow().clone() else { return self.notify_all() };
        let identity = Some((credentials.certificate.as_str(), credentials.key.as_str()));
        let tls = match client_tls(&credentials.authority, identity, Arc::new(self.0.clock.clone())) {
            Ok(tls) => tls,
            Err(error) => {
                tracing::warn!(error = explained(&error), "the certificate for shards cannot be used");
                return;
            }
        };
        if followed.credentials.as_ref() != Some(&credentials) {
            self.0.clients.lock().values().for_each(|client| client.replace_tls(tls.clone()));
            followed.credentials = Some(credentials);
        }
        for (shard, address) in wanted.iter() {
            if followed.shards.get(shard) != Some(address) {
                let client = Client::new(address.operator.clone(), tls.clone());
                followed.shards.insert(shard.clone(), address.clone());
                self.0.clients.lock().insert(shard.clone(), client.clone());
                let session = Session::new(shard, client, self);
                self.0.sources.set(shard.clone(), move |feed| session.clone().run(feed));
            }
        }
        self.notify_all();
    }

    /// From now on the shard is not followed, and what it said is forgotten.
    fn leave(&self, shard: &String) {
        self.0.sources.remove(shard);
        self.0.clients.lock().remove(shard);
        self.notify(shard);
    }

    /// What waits for a shard to be configured or for a certificate has to look.
    fn notify_all(&self) {
        self.names().iter().for_each(|shard| self.notify(shard));
    }
}
