//! The servers of one testbed, the network they share and what they know of each other.

use std::{
    collections::BTreeMap,
    io,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use jiff::Timestamp;
use talos::{Authority, Pair, configuration::Role};
use tokio::sync::watch;

use super::{Block, Call, Machine, MachineOptions, log::CallLog, node::Node};
use crate::{
    control_plane::{self, Directory},
    process, tools,
};

/// Why a simulated server cannot be made or run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Tool(#[from] tools::Error),
    #[error(transparent)]
    Process(#[from] process::Error),
    #[error(transparent)]
    Directory(#[from] control_plane::Error),
    #[error("all loopback networks of simulated servers are in use; end another testbed")]
    NoBlock,
    #[error("there is a server called {0} already")]
    NameTaken(String),
    #[error("server {name}: {action}")]
    Machine {
        name: String,
        action: String,
        #[source]
        source: io::Error,
    },
    #[error("cannot open the record of calls")]
    Log(#[source] io::Error),
}

/// How servers of a testbed behave.
#[derive(Clone, Debug)]
pub struct WorldOptions {
    /// Where disks and logs are kept between runs; a temporary directory, removed at the end, if `None`.
    pub directory: Option<PathBuf>,
    /// Whether etcd waits for the disk. Tests that measure nothing are quicker without.
    pub fsync: bool,
    /// Between a call that reboots a node and the moment it stops answering.
    pub reboot_delay: Duration,
    /// How often the stand-in kubelets renew their leases.
    pub lease_interval: Duration,
}

impl Default for WorldOptions {
    fn default() -> Self {
        Self {
            directory: None,
            fsync: false,
            // Long enough for the reply to leave, short enough not to be waited for.
            reboot_delay: Duration::from_millis(100),
            // A third of the time after which a shortened controller-manager calls a node unknown.
            lease_interval: Duration::from_secs(3),
        }
    }
}

/// Paths of the programs that nodes run.
#[derive(Debug)]
pub(super) struct Programs {
    pub etcd: PathBuf,
    pub etcdutl: PathBuf,
    pub apiserver: PathBuf,
}

/// All servers of one testbed. Dropping it ends them.
pub struct World(Arc<Inner>);

pub(super) struct Inner {
    // Dropped in this order: servers first, their files last.
    machines: Mutex<BTreeMap<String, Arc<Machine>>>,
    pub(super) block: Block,
    pub(super) log: CallLog,
    pub(super) programs: Programs,
    pub(super) options: WorldOptions,
    next_id: AtomicU64,
    /// Counts every change that another node may wait for.
    changes: watch::Sender<u64>,
    directory: Directory,
}

impl World {
    /// Programs that its servers need, for [`tools::ensure`].
    pub const PROGRAMS: [&str; 3] = ["etcd36", "etcdutl", "kube-apiserver"];

    /// An empty testbed. Missing programs are built first.
    pub async fn start(options: WorldOptions) -> Result<Self, Error> {
        let programs = tools::ensure(&Self::PROGRAMS, &tools::Plain::default()).await?;
        let Ok([etcd, etcdutl, apiserver]) = <[PathBuf; 3]>::try_from(programs) else {
            unreachable!("three programs were asked for")
        };
        let directory = Directory::open(options.directory.as_deref())?;
        let log = CallLog::open(&directory.path.join("talos.log")).map_err(Error::Log)?;
        Ok(Self(Arc::new(Inner {
            machines: Mutex::default(),
            block: Block::claim().ok_or(Error::NoBlock)?,
            log,
            programs: Programs { etcd, etcdutl, apiserver },
            options,
            // Hetzner's numbers are large and never reused.
            next_id: AtomicU64::new(1001),
            changes: watch::Sender::new(0),
            directory,
        })))
    }

    /// A new server with an empty disk: it boots into maintenance.
    pub async fn create(&self, name: &str, options: MachineOptions) -> Result<Arc<Machine>, Error> {
        let number = self.0.next_id.fetch_add(1, Ordering::Relaxed);
        let directory = self.0.directory.path.join(name);
        if self.machine(name).is_some() {
            return Err(Error::NameTaken(name.to_owned()));
        }
        let machine = Machine::new(name, number, self.0.block.next(), directory, options, Arc::downgrade(&self.0))?;
        self.0.lock().insert(name.to_owned(), machine.clone());
        machine.power_on().await?;
        Ok(machine)
    }

    /// Ends a server and destroys its disk.
    pub async fn delete(&self, name: &str) {
        let machine = self.0.lock().remove(name);
        if let Some(machine) = machine {
            machine.power_off().await;
            machine.wipe();
        }
    }

    pub fn machine(&self, name: &str) -> Option<Arc<Machine>> {
        self.0.lock().get(name).cloned()
    }

    /// Holds the disks of servers and all logs.
    pub fn directory(&self) -> &Path {
        &self.0.directory.path
    }

    /// Where private addresses are, as a machine configuration wants to know.
    pub fn node_cidr(&self) -> String {
        self.0.block.private()
    }

    /// Calls that nodes answered so far.
    pub fn calls(&self) -> io::Result<Vec<Call>> {
        self.0.log.calls()
    }

    /// The file that [`Self::calls`] reads.
    pub fn log(&self) -> &Path {
        self.0.log.path()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // Servers and their tasks know each other; without this they would live on.
        let machines = std::mem::take(&mut *self.0.lock());
        for machine in machines.into_values() {
            drop(machine.cut_power());
        }
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Machine>>> {
        self.machines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The server that has this address.
    pub(super) fn at(&self, address: Ipv4Addr) -> Option<Arc<Machine>> {
        self.lock().values().find(|machine| [machine.private(), machine.public()].contains(&address)).cloned()
    }

    /// Configured control planes of a cluster.
    pub(super) fn control_planes(&self, cluster_id: &str) -> Vec<Arc<Node>> {
        let machines = self.lock();
        let nodes = machines.values().filter_map(|machine| machine.node());
        nodes.filter(|node| node.applied.role == Role::ControlPlane && node.applied.cluster_id == cluster_id).collect()
    }

    /// The authority with this certificate, which only control planes can sign for: what trustd does for workers.
    pub(super) fn authority(&self, pair: &Pair, of: impl Fn(&Node) -> &Pair) -> Option<Authority> {
        if !pair.key.is_empty() {
            return Authority::open(pair.clone()).ok();
        }
        let machines = self.lock();
        let mut nodes = machines.values().filter_map(|machine| machine.node());
        let signer = nodes.find(|node| !of(node).key.is_empty() && of(node).certificate == pair.certificate)?;
        Authority::open(of(&signer).clone()).ok()
    }

    /// Wakes those who wait for another node.
    pub(super) fn changed(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }
}

/// What a task of a server holds: it must not keep the testbed alive.
pub(super) type Shared = Weak<Inner>;

pub(super) fn now() -> Timestamp {
    Timestamp::now()
}
