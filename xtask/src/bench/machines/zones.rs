//! Shards in this process, with storage and machines in memory.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result};
use plan::shard::election::Timing;
use serde_json::{Value, json};
use shard::{
    clock::{Clock, uuid},
    identity::{Authority, Claims, Lifetimes, Nonces, key_pair},
    provider::InProcess,
    server::{Bound, Context, Identity, Options, Ports, Standing, run},
    store::{Expect, MemoryStore, Store, layout::ShardLayout},
};
use tokio::sync::watch;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

pub const CLUSTER: &str = "bench";
pub const TENANT: &str = "default";
/// Also of the pool and of the group.
pub const TEMPLATE: &str = "web";

const DAY: Duration = Duration::from_hours(24);

pub struct Zones {
    pub cloud: InProcess,
    pub authority: Arc<Authority>,
    pub clock: Clock,
    pub bound: BTreeMap<String, Bound>,
    nonces: Arc<Nonces>,
    folder: tempfile::TempDir,
    servers: Vec<AbortOnDropHandle<()>>,
}

impl Zones {
    /// Starts a server for each shard, and waits until each leads.
    pub async fn start(count: usize) -> Result<Self> {
        let (clock, store) = (Clock::default(), MemoryStore::default());
        let (authority, _) = Authority::create(CLUSTER, clock.now())?;
        let nonces = Nonces::load(&key_pair().serialize_pem())?;
        let mut zones = Self {
            cloud: InProcess::new(clock.clone()),
            authority: Arc::new(authority),
            clock,
            bound: BTreeMap::new(),
            nonces: Arc::new(nonces),
            folder: tempfile::tempdir()?,
            servers: Vec::new(),
        };
        for number in 0..count {
            zones.serve(&format!("zone-{number:02}"), &store).await?;
        }
        Ok(zones)
    }

    async fn serve(&mut self, shard: &str, store: &MemoryStore) -> Result<()> {
        // No agent reports: none may be deleted for not registering.
        let config = json!({
            "cluster": { "id": CLUSTER },
            "shard": {
                "id": shard, "provider": { "kind": "process" }, "subnet_pools": { "one": ["s1"] },
                "garbage_collection": { "registration_timeout": "1000h" },
            },
            "templates": { TEMPLATE: { "kind": "web", "arch": "amd64", "subnet_pool": "one" } },
        });
        let layout = ShardLayout::new(shard);
        store.put(&layout.config(), config.to_string().into_bytes(), Expect::Absent).await?;
        let clock = self.clock.clone();
        let context = Context {
            cluster: CLUSTER.to_owned(),
            shard: shard.to_owned(),
            layout,
            store: Arc::new(store.clone()),
            provider: Arc::new(self.cloud.clone()),
            clock: self.clock.clone(),
            ids: Box::new(move || uuid(&clock)),
        };
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let options = Options {
            context: Arc::new(context),
            identity: Identity {
                authority: self.authority.clone(),
                nonces: self.nonces.clone(),
                lifetimes: Lifetimes::default(),
            },
            ports: Ports { election: any, registration: any, operator: any, agent: any },
            hosts: vec!["127.0.0.1".to_owned()],
            holder: shard.to_owned(),
            timing: Timing::default(),
            standing: Standing::default(),
        };
        let (sender, mut bound) = watch::channel(None);
        let server = tokio::spawn(async move {
            if let Err(error) = run(options, sender, CancellationToken::new()).await {
                eprintln!("bench: a shard ended: {error}");
            }
        });
        let bound = bound.wait_for(Option::is_some).await.context("the server ended")?.context("just seen")?;
        self.bound.insert(shard.to_owned(), bound);
        self.servers.push(AbortOnDropHandle::new(server));
        Ok(())
    }

    pub fn names(&self) -> Vec<&String> {
        self.bound.keys().collect()
    }

    /// Where the operator reads its shards.
    pub fn config_file(&self) -> PathBuf {
        self.folder.path().join("config.yaml")
    }

    /// Writes that file; `operator` says at which address an operator reaches each.
    pub fn write_config(&self, operator: impl Fn(&str, &Bound) -> SocketAddr) -> Result<()> {
        let one = |(shard, bound): (&String, &Bound)| {
            let address = json!({
                "registration_addr": bound.registration.to_string(),
                "operator_addr": operator(shard, bound).to_string(),
            });
            (shard.clone(), address)
        };
        let shards: serde_json::Map<String, Value> = self.bound.iter().map(one).collect();
        let config = json!({ "cluster_id": CLUSTER, "tenant": TENANT, "shards": shards });
        Ok(std::fs::write(self.config_file(), config.to_string())?)
    }

    /// What an administrator makes before the operator starts.
    pub fn objects(&self, namespace: &str) -> Result<Vec<Value>> {
        let nonce = self.nonces.issue(&Claims::operator(CLUSTER, TENANT, self.clock.now(), DAY))?;
        let metadata = |name: &str| json!({ "name": name, "namespace": namespace });
        Ok(vec![
            json!({
                "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata("nstance-cluster-ca"),
                "data": { "ca.crt": self.authority.certificate_pem() },
            }),
            json!({
                "apiVersion": "v1", "kind": "Secret", "metadata": metadata("nstance-operator-nonce"),
                "stringData": { "nonce.jwt": nonce },
            }),
        ])
    }
}
