//! Shards on loopback: servers in this process, with storage and machines in memory.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use shard::{
    client::Client,
    clock::{Clock, uuid},
    identity::{Authority, Claims, Lifetimes, Nonces, Role, client_tls, key_pair},
    provider::InProcess,
    server::{Context, Identity, Options, Ports, RunError, Standing, run},
    store::{Expect, MemoryStore, Store, layout::ShardLayout},
    wire::GroupStatus,
};
use testbed::{Looks, control_plane::free_ports};
use tokio::{sync::watch, task::JoinHandle, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::zone::STEADY;

pub const CLUSTER: &str = "dev";
pub const TENANT: &str = "default";

const DAY: Duration = Duration::from_hours(24);

/// A server on a loaded machine may lose its lead for a moment; it takes it again within seconds.
const SHARD_PATIENCE: Duration = Duration::from_mins(3);

/// All shards of one cluster, and the cloud that they share.
pub struct Zones {
    pub cloud: InProcess,
    pub authority: Arc<Authority>,
    store: MemoryStore,
    nonces: Arc<Nonces>,
    pub clock: Clock,
    pub ports: BTreeMap<String, Ports>,
    running: Mutex<BTreeMap<String, Running>>,
}

struct Running {
    stop: CancellationToken,
    task: JoinHandle<Result<(), RunError>>,
}

impl Zones {
    /// Starts a server for each.
    pub async fn start(shards: &[&str], groups: &Value) -> Result<Self> {
        // Another test of this process may have been first.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let (clock, store) = (Clock::default(), MemoryStore::default());
        let (authority, _) = Authority::create(CLUSTER, clock.now())?;
        let nonces = Nonces::load(&key_pair().serialize_pem())?;
        let mut ports = BTreeMap::new();
        for shard in shards {
            ports.insert((*shard).to_owned(), addresses());
        }
        let cloud = InProcess::new(clock.clone());
        let (authority, nonces) = (Arc::new(authority), Arc::new(nonces));
        let zones = Self { cloud, authority, store, nonces, clock, ports, running: Mutex::default() };
        for shard in shards {
            zones.configure(shard, groups).await?;
            zones.run(shard).await?;
        }
        Ok(zones)
    }

    /// Gives a shard's configuration these static groups.
    pub async fn configure(&self, shard: &str, groups: &Value) -> Result<()> {
        // What becomes of machines is seen within a second, and none is deleted because no agent registers.
        let config = json!({
            "cluster": { "id": CLUSTER },
            "shard": {
                "id": shard, "provider": { "kind": "process" }, "subnet_pools": { "one": ["s1"] },
                // What the cloud did by itself is found by this, and no test waits for the two minutes of the default.
                "garbage_collection": { "interval": "1s", "registration_timeout": "10h" },
            },
            "templates": {
                "web": { "kind": "web", "arch": "amd64", "subnet_pool": "one" },
                // Of the original's example.
                "test": { "kind": "tst", "arch": "amd64", "subnet_pool": "one" },
                "typed": { "kind": "typ", "arch": "amd64", "subnet_pool": "one", "instance_types": ["small"] },
            },
            "groups": { TENANT: groups },
        });
        let key = ShardLayout::new(shard).config();
        let expect = match self.store.get(&key).await {
            Ok(Some(object)) => Expect::Content(object.etag),
            _ => Expect::Absent,
        };
        self.store.put(&key, config.to_string().into_bytes(), expect).await?;
        Ok(())
    }

    /// Starts the server of a shard, and waits until it leads.
    pub async fn run(&self, shard: &str) -> Result<()> {
        let clock = self.clock.clone();
        let ids = move || uuid(&clock);
        let context = Context {
            cluster: CLUSTER.to_owned(),
            shard: shard.to_owned(),
            layout: ShardLayout::new(shard),
            store: Arc::new(self.store.clone()),
            provider: Arc::new(self.cloud.clone()),
            clock: self.clock.clone(),
            ids: Box::new(ids),
        };
        let identity = Identity {
            authority: self.authority.clone(),
            nonces: self.nonces.clone(),
            lifetimes: Lifetimes::default(),
        };
        let options = Options {
            context: Arc::new(context),
            identity,
            ports: self.ports[shard],
            hosts: vec!["127.0.0.1".to_owned()],
            holder: format!("{shard}-{:x}", uuid(&self.clock)),
            // All servers here are stopped in order, and one that does so leaves its lock free: none waits for a lapse.
            timing: STEADY,
            standing: Standing::default(),
        };
        let (sender, mut bound) = watch::channel(None);
        let stop = CancellationToken::new();
        let task = tokio::spawn(run(options, sender, stop.clone()));
        let leads = tokio::time::timeout(SHARD_PATIENCE, bound.wait_for(Option::is_some));
        leads
            .await
            .with_context(|| format!("shard {shard} does not lead; its log says why"))?
            .context("the server ended")?;
        self.running.lock().unwrap().insert(shard.to_owned(), Running { stop, task });
        Ok(())
    }

    /// Ends the server of a shard as SIGTERM would.
    pub async fn stop(&self, shard: &str) {
        let running = self.running.lock().unwrap().remove(shard);
        if let Some(Running { stop, task }) = running {
            stop.cancel();
            let _ = task.await;
        }
    }

    /// As the operator's configuration has them.
    pub fn addresses(&self) -> BTreeMap<String, Value> {
        let one = |(shard, ports): (&String, &Ports)| {
            let address = json!({
                "registration_addr": ports.registration.to_string(), "operator_addr": ports.operator.to_string(),
            });
            (shard.clone(), address)
        };
        self.ports.iter().map(one).collect()
    }

    /// A certificate for an operator with this key.
    pub fn certificate(&self, public_pem: &str) -> Result<String> {
        let subject = (CLUSTER, TENANT, Role::Operator);
        Ok(self.authority.issue_client(subject, public_pem.as_bytes(), self.clock.now(), DAY)?.0)
    }

    pub fn nonce(&self) -> Result<String> {
        Ok(self.nonces.issue(&Claims::operator(CLUSTER, TENANT, self.clock.now(), DAY))?)
    }

    /// A client beside the operator's, with rights of its own.
    pub fn client(&self, shard: &str) -> Result<Client> {
        let key = key_pair();
        let certificate = self.certificate(&key.public_key_pem())?;
        let identity = Some((certificate.as_str(), &*key.serialize_pem()));
        let tls = client_tls(self.authority.certificate_pem(), identity, Arc::new(self.clock.clone()))?;
        Ok(Client::new(self.ports[shard].operator.to_string().parse()?, tls))
    }
}

/// The groups of a shard.
pub async fn listed(shard: &Client) -> Result<Vec<GroupStatus>> {
    let (deadline, mut looks) = (Instant::now() + SHARD_PATIENCE, Looks::default());
    loop {
        match shard.list_groups().await {
            Err(error) if Instant::now() < deadline => {
                println!("a shard is asked again: {error}");
                looks.next().await;
            }
            result => return Ok(result?),
        }
    }
}

/// Addresses that stay free while their server is down: outgoing connections do not take ports of this range.
fn addresses() -> Ports {
    let [election, registration, operator, agent] =
        free_ports().map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    Ports { election, registration, operator, agent }
}
