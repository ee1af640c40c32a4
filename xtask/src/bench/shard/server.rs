//! The server under measurement, in a process of its own: this program, started once more.

use std::{
    collections::BTreeMap,
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result};
use clap::Args;
use plan::shard::{election::Timing, instance::Record};
use serde::{Deserialize, Serialize};
use shard::{
    clock::{Clock, uuid},
    identity::{ClusterKeys, Lifetimes},
    provider::{InProcess, Order, Provider},
    server::{Bound, Context, Identity, Options, Ports, Standing, run},
    store::{Etag, Expect, FileStore, Object, Store, StoreError, layout::ShardLayout},
};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
};
use tokio_util::sync::CancellationToken;

use super::zone::{CLUSTER, SHARD};

/// How often the counts of writes reach their file, which is no part of the storage.
const COUNTS: Duration = Duration::from_millis(200);

#[derive(Args, Clone)]
pub struct ServerFlags {
    /// Holds the storage, and what the server writes about itself
    #[arg(long)]
    folder: PathBuf,
    /// The name of this server
    #[arg(long)]
    holder: String,
}

/// Where a leader listens.
#[derive(Serialize, Deserialize)]
pub struct Listening {
    pub operator: SocketAddr,
}

/// Writes and deletions in storage since the server started.
#[derive(Clone, Copy, Default, Serialize, Deserialize)]
pub struct Writes {
    pub records: usize,
    pub groups: usize,
    pub locks: usize,
    pub other: usize,
}

/// Runs until it is terminated.
pub async fn serve(flags: ServerFlags) -> Result<()> {
    let clock = Clock::default();
    let files = FileStore::open(flags.folder.join("storage"))?;
    let keys = ClusterKeys::load(&files, CLUSTER, None).await?;
    let machines = InProcess::new(clock.clone());
    adopt(&files, &machines).await?;
    let store = Arc::new(Counted { files, counts: Arc::default() });
    let counts = Arc::clone(&store.counts);
    let ids = clock.clone();
    let context = Context {
        cluster: CLUSTER.to_owned(),
        shard: SHARD.to_owned(),
        layout: ShardLayout::new(SHARD),
        store,
        provider: Arc::new(machines),
        clock,
        ids: Box::new(move || uuid(&ids)),
    };
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let options = Options {
        context: Arc::new(context),
        identity: Identity { authority: keys.authority, nonces: keys.nonces, lifetimes: Lifetimes::default() },
        ports: Ports { election: any, registration: any, operator: any, agent: any },
        hosts: vec![Ipv4Addr::LOCALHOST.to_string()],
        holder: flags.holder.clone(),
        timing: Timing::default(),
        standing: Standing::default(),
    };
    let (sender, bound) = watch::channel(None);
    let (stop, mut terminated) = (CancellationToken::new(), signal(SignalKind::terminate())?);
    put(&file(&flags, "writes"), &Writes::default())?;
    let stopper = stop.clone();
    tokio::spawn(async move {
        terminated.recv().await;
        stopper.cancel();
    });
    tokio::select! {
        ran = run(options, sender, stop) => Ok(ran?),
        failed = publish(&flags, bound, &counts) => failed,
    }
}

fn file(flags: &ServerFlags, what: &str) -> PathBuf {
    flags.folder.join(format!("{}.{what}.json", flags.holder))
}

/// Writes where the server listens once it leads, and how often it wrote.
async fn publish(flags: &ServerFlags, mut bound: watch::Receiver<Option<Bound>>, counts: &Counts) -> Result<()> {
    let operator = bound.wait_for(Option::is_some).await?.as_ref().map(|bound| bound.operator);
    let operator = operator.context("it does not listen any more")?;
    put(&file(flags, "listening"), &Listening { operator })?;
    loop {
        put(&file(flags, "writes"), &counts.read())?;
        tokio::time::sleep(COUNTS).await;
    }
}

/// Machines in memory end with their process: what storage knows is made again, so that the next leader finds it.
async fn adopt(store: &FileStore, machines: &InProcess) -> Result<()> {
    for key in store.list(&ShardLayout::new(SHARD).instances()).await? {
        let object = store.get(&key).await?.context("a record vanished")?;
        let record: Record = serde_json::from_slice(&object.body)?;
        if record.deleted_at.is_none() {
            machines.create(&order(&record)).await?;
        }
    }
    Ok(())
}

fn order(record: &Record) -> Order {
    Order {
        instance_id: record.id.to_string(),
        cluster: CLUSTER.to_owned(),
        shard: SHARD.to_owned(),
        tenant: record.tenant.clone(),
        group: record.group.clone(),
        instance_type: record.instance_type.clone(),
        arch: String::new(),
        subnet: record.subnet.clone(),
        userdata: String::new(),
        vars: BTreeMap::new(),
        args: serde_json::Map::new(),
        ..Order::default()
    }
}

/// Whole, or not at all: another process reads it.
fn put(path: &Path, content: &impl Serialize) -> Result<()> {
    let beside = path.with_extension("new");
    fs::write(&beside, serde_json::to_vec(content)?)?;
    Ok(fs::rename(&beside, path)?)
}

#[derive(Default)]
struct Counts {
    records: AtomicUsize,
    groups: AtomicUsize,
    locks: AtomicUsize,
    other: AtomicUsize,
}

impl Counts {
    fn add(&self, key: &str) {
        let counter = match key {
            _ if key.contains("/instance/") => &self.records,
            _ if key.ends_with("/groups.jsonc") => &self.groups,
            _ if key.ends_with("leader.json") => &self.locks,
            _ => &self.other,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    fn read(&self) -> Writes {
        let get = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
        Writes {
            records: get(&self.records),
            groups: get(&self.groups),
            locks: get(&self.locks),
            other: get(&self.other),
        }
    }
}

/// The file store, with every write counted.
struct Counted {
    files: FileStore,
    counts: Arc<Counts>,
}

#[async_trait::async_trait]
impl Store for Counted {
    async fn get(&self, key: &str) -> Result<Option<Object>, StoreError> {
        self.files.get(key).await
    }

    async fn get_many(&self, keys: &[String]) -> Result<Vec<Option<Object>>, StoreError> {
        self.files.get_many(keys).await
    }

    async fn put(&self, key: &str, body: Vec<u8>, expect: Expect) -> Result<Etag, StoreError> {
        self.counts.add(key);
        self.files.put(key, body, expect).await
    }

    async fn delete(&self, key: &str) -> Result<(), StoreError> {
        self.counts.add(key);
        self.files.delete(key).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        self.files.list(prefix).await
    }
}
