//! Storage, keys, and servers as processes of their own.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use serde::de::DeserializeOwned;
use shard::{
    client::Client,
    clock::Clock,
    identity::{ClusterKeys, Role, client_tls, key_pair},
    store::{Expect, FileStore, Store, layout::ShardLayout},
};
use testbed::process::{Child, Program};

use super::server::{Listening, Writes};

pub const CLUSTER: &str = "bench";
pub const SHARD: &str = "zone";
const TENANT: &str = "default";

/// Far above any start that was seen.
const START_PATIENCE: Duration = Duration::from_mins(2);

/// Files have no event; this is the resolution of fail-over times.
const LOOK: Duration = Duration::from_millis(2);

/// Instances have no agents here: none may be deleted for not registering.
const CONFIG: &str = r#"{
    "cluster": {"id": "bench"},
    "shard": {
        "id": "zone",
        "provider": {"kind": "process"},
        "subnet_pools": {"one": ["s1"]},
        "garbage_collection": {"registration_timeout": "1000h"},
    },
    "templates": {"web": {"kind": "web", "arch": "amd64", "subnet_pool": "one"}},
}"#;

pub struct Zone {
    folder: PathBuf,
    keys: ClusterKeys,
}

impl Zone {
    pub async fn create(folder: &Path) -> Result<Self> {
        let store = FileStore::open(folder.join("storage"))?;
        let keys = ClusterKeys::init(&store, CLUSTER, None, Clock::default().now()).await?;
        store.put(&ShardLayout::new(SHARD).config(), CONFIG.as_bytes().to_vec(), Expect::Absent).await?;
        Ok(Self { folder: folder.to_owned(), keys })
    }

    /// Starts this program once more, as a server.
    pub async fn start(&self, name: &str) -> Result<Server> {
        let log = self.folder.join(format!("{name}.log"));
        let program = Program::new(name, std::env::current_exe()?, log)
            .args(["bench", "shard-server", "--holder", name, "--folder"])
            .args([self.folder.as_os_str()]);
        let server = Server { child: Child::start(program)?, folder: self.folder.clone(), name: name.to_owned() };
        // It counts its writes from the time its storage is open.
        server.file::<Writes>("writes").await?;
        Ok(server)
    }

    pub fn client(&self, listening: &Listening) -> Result<Client> {
        let (clock, key) = (Clock::default(), key_pair());
        let subject = (CLUSTER, TENANT, Role::Operator);
        let (public, day) = (key.public_key_pem(), Duration::from_hours(24));
        let (certificate, _) = self.keys.authority.issue_client(subject, public.as_bytes(), clock.now(), day)?;
        let pair = Some((&*certificate, &*key.serialize_pem()));
        let tls = client_tls(self.keys.authority.certificate_pem(), pair, Arc::new(clock))?;
        Ok(Client::new(listening.operator.to_string().parse()?, tls))
    }
}

pub struct Server {
    child: Child,
    folder: PathBuf,
    name: String,
}

impl Server {
    pub fn pid(&self) -> u32 {
        self.child.pid()
    }

    pub fn child(&self) -> &Child {
        &self.child
    }

    /// Waits until it leads.
    pub async fn leads(&self) -> Result<Listening> {
        self.file("listening").await
    }

    pub async fn writes(&self) -> Result<Writes> {
        self.file("writes").await
    }

    /// What it wrote about itself.
    async fn file<T: DeserializeOwned>(&self, what: &str) -> Result<T> {
        let path = self.folder.join(format!("{}.{what}.json", self.name));
        let deadline = Instant::now() + START_PATIENCE;
        loop {
            if let Ok(text) = fs::read(&path) {
                return serde_json::from_slice(&text).with_context(|| format!("{} is not as expected", path.display()));
            }
            if !self.child.is_running() || Instant::now() > deadline {
                bail!("the server {} did not write {what}; the end of its log:\n{}", self.name, self.child.log_tail());
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}
