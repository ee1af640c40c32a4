//! A zone for tests: a store and a cloud that outlive servers, and servers that may die at any effect.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::FutureExt;
use plan::shard::{election::Timing, instance::Record};
use prost::Message;

use crate::{
    clock::Clock,
    provider::{FaultyProvider, InProcess},
    server::{Context, Term, TermError},
    store::{Election, Expect, Faults, FaultyStore, MemoryStore, Role, Store, layout::ShardLayout},
    wire,
};

pub const CONFIG: &str = r#"{
    // Two groups: one static, and room for dynamic ones.
    "cluster": {"id": "dev"},
    "shard": {
        "id": "a",
        "provider": {"kind": "process"},
        "subnet_pools": {"one": ["s1", "s2"]},
    },
    "templates": {
        "web": {"kind": "web", "arch": "amd64", "subnet_pool": "one", "vars": {"v": "template"}},
        "listed": {"kind": "lis", "arch": "amd64", "subnet_pool": "one", "instance_types": ["big"]},
    },
    "groups": {"default": {"fixed": {"template": "web", "size": 1}}},
}"#;

pub struct World {
    pub clock: Clock,
    pub store: MemoryStore,
    pub cloud: InProcess,
    /// Whether registrations reach storage. Without them a new leader takes every agent for one that has yet to
    /// register.
    pub registers: AtomicBool,
    ids: Arc<AtomicU64>,
    servers: AtomicU64,
}

pub struct Server {
    pub term: Arc<Term>,
    pub faults: Faults,
    context: Arc<Context>,
    election: Election,
}

impl World {
    pub async fn new() -> Self {
        Self::with_config(CONFIG).await
    }

    pub async fn with_config(config: &str) -> Self {
        let clock = Clock::stepped("2026-01-01T00:00:00Z".parse().unwrap());
        let store = MemoryStore::default();
        let key = ShardLayout::new("a").config();
        store.put(&key, config.as_bytes().to_vec(), Expect::Absent).await.unwrap();
        let cloud = InProcess::new(clock.clone());
        let (ids, servers) = (Arc::new(AtomicU64::new(1)), AtomicU64::new(0));
        Self { clock, store, cloud, registers: AtomicBool::new(false), ids, servers }
    }

    /// Replaces the configuration in storage.
    pub async fn configure(&self, config: &str) {
        let key = ShardLayout::new("a").config();
        let etag = self.store.get(&key).await.unwrap().unwrap().etag;
        self.store.put(&key, config.as_bytes().to_vec(), Expect::Content(etag)).await.unwrap();
    }

    /// A server that leads.
    pub async fn start(&self) -> Server {
        self.start_with(Faults::default()).await.expect("it leads")
    }

    /// `None` if it died before it led.
    pub async fn start_with(&self, faults: Faults) -> Option<Server> {
        Some(self.try_start(faults).await?.expect("opens"))
    }

    /// The same for one that may find that it cannot lead.
    pub async fn try_start(&self, faults: Faults) -> Option<Result<Server, TermError>> {
        let number = self.servers.fetch_add(1, Ordering::Relaxed);
        let ids = Arc::clone(&self.ids);
        let store = Arc::new(FaultyStore::new(Arc::new(self.store.clone()), faults.clone()));
        let context = Arc::new(Context {
            cluster: "dev".to_owned(),
            shard: "a".to_owned(),
            layout: ShardLayout::new("a"),
            store: Arc::clone(&store) as Arc<dyn Store>,
            provider: Arc::new(FaultyProvider::new(Arc::new(self.cloud.clone()), faults.clone())),
            clock: self.clock.clone(),
            ids: Box::new(move || u128::from(ids.fetch_add(1, Ordering::Relaxed))),
        });
        let lock = ShardLayout::new("a").lock();
        let mut election = Election::new(store, &lock, &format!("s{number}"), "127.0.0.1:1", Timing::default());
        let open = async {
            loop {
                match election.look().await {
                    Ok(Role::Leader(lead)) => return Term::open(Arc::clone(&context), lead).await,
                    Ok(Role::Standby { look_in, .. }) => tokio::time::advance(look_in).await,
                    Err(error) => panic!("election: {error}"),
                }
            }
        };
        let term = alive(&faults, open).await?;
        Some(term.map(|term| Server { term: Arc::new(term), faults, context, election }))
    }

    /// What its registration leaves in storage, which the next leader reads.
    fn register(&self, id: &str) {
        if !self.registers.load(Ordering::Relaxed) {
            return;
        }
        let key = ShardLayout::new("a").agent_key(id);
        // One that is there stays. A store in memory does not wait.
        let _ = self.store.put(&key, b"key".to_vec(), Expect::Absent).now_or_never();
    }

    /// Everything that is stored of instances.
    pub fn records(&self) -> BTreeMap<String, Record> {
        let folder = ShardLayout::new("a").instances();
        let objects = self.store.snapshot();
        let ours = objects.iter().filter(|(key, _)| key.starts_with(&folder));
        let records = ours.map(|(_, body)| serde_json::from_slice::<Record>(body).expect("readable"));
        records.map(|record| (record.id.to_string(), record)).collect()
    }

    /// What must hold when nothing is under way: machines and living records are the same, and nothing vanished without
    /// its end being stored.
    #[track_caller]
    pub fn consistent(&self) {
        let records = self.records();
        let living: BTreeSet<_> = records
            .values()
            .filter(|record| record.deleted_at.is_none())
            .map(|record| (record.id.to_string(), record.provider_id().to_owned()))
            .collect();
        let machines: BTreeSet<_> =
            self.cloud.machines().into_iter().map(|machine| (machine.instance_id, machine.provider_id)).collect();
        assert_eq!(living, machines, "machines and living records are the same");
        for record in records.values().filter(|record| record.deleted_at.is_some()) {
            assert!(record.leaving.is_some(), "a deletion has its reason: {record:?}");
        }
    }
}

/// What a process does until it dies.
pub async fn alive<T>(faults: &Faults, work: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        () = faults.death() => None,
        done = work => Some(done),
    }
}

impl Term {
    /// Settles the groups that are due, one after the other, as often as one is.
    pub async fn settle_due(&self) -> Result<(), TermError> {
        loop {
            let due = std::mem::take(&mut *self.due.lock().unwrap_or_else(PoisonError::into_inner));
            if due.is_empty() {
                return Ok(());
            }
            for (tenant, key) in &due {
                self.settle(tenant, key).await?;
            }
        }
    }
}

impl Server {
    /// Time passes; the leader renews, the agents of running machines report unless they are silent.
    pub async fn pass(&mut self, world: &World, time: Duration, silent: &BTreeSet<String>) -> Result<(), TermError> {
        let mut left = time;
        while !left.is_zero() {
            let step = left.min(Duration::from_secs(5));
            left -= step;
            tokio::time::advance(step).await;
            self.renew().await?;
        }
        self.report(world, silent);
        Ok(())
    }

    pub async fn renew(&mut self) -> Result<(), TermError> {
        if let Ok(Role::Leader(lead)) = self.election.look().await
            && lead.epoch() != self.term.lead().epoch()
        {
            self.term = Arc::new(Term::open(Arc::clone(&self.context), lead).await?);
        }
        Ok(())
    }

    /// All agents report.
    pub fn report(&self, world: &World, silent: &BTreeSet<String>) {
        for machine in world.cloud.machines() {
            if !silent.contains(&machine.instance_id) {
                // An orphan's agent is refused: its instance is not known.
                if self.term.report_health("default", &machine.instance_id, None).is_ok() {
                    world.register(&machine.instance_id);
                }
            }
        }
    }

    /// What a client would read.
    pub fn groups(&self, tenant: &str) -> Vec<wire::GroupStatus> {
        let sent = self.term.list_groups(tenant).encode_to_vec();
        wire::ListGroupsResponse::decode(&*sent).expect("an answer").groups
    }

    /// Looks at the machines and carries everything out that is due.
    pub async fn settle(&self, world: &World) -> Result<(), TermError> {
        self.term.observe().await?;
        self.term.settle_due().await?;
        self.report(world, &BTreeSet::new());
        self.term.settle_due().await?;
        Ok(())
    }
}
