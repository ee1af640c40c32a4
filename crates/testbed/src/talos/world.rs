//! The servers of one testbed, the network they share and what they know of each other.

use std::{
    collections::BTreeMap,
    fs, io,
    net::Ipv4Addr,
    os::unix::fs::PermissionsExt,
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

use super::{
    Block, Call, ControllerOptions, Machine, MachineOptions,
    addresses::Addresses,
    controllers::Controllers,
    log::{self, CallLog},
    node::Node,
    partition::Rules,
};
use crate::{
    control_plane::{self, Directory},
    hetzner::Loopback,
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
    #[error("the programs of simulated servers cannot be put beside their disks")]
    Programs(#[source] io::Error),
    #[error("a partition needs {0}; as root: apt-get install nftables iproute2")]
    NoPartitions(String),
    #[error("the rules of a partition cannot be changed")]
    Rules(#[source] io::Error),
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
    /// Where servers have their addresses; the first free range if `None`.
    pub loopback: Option<Arc<Loopback>>,
    /// Of each cluster's controllers, which start with its first API server; none if `None`.
    pub controllers: Option<ControllerOptions>,
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
            loopback: None,
            controllers: None,
        }
    }
}

/// Paths of the programs that nodes run, as seen from a disk: a server's programs get no further than the folder of all
/// disks.
#[derive(Debug)]
pub(super) struct Programs {
    pub etcd: PathBuf,
    pub etcdutl: PathBuf,
    pub apiserver: PathBuf,
}

impl Programs {
    fn beside_disks(directory: &Path, sources: &[PathBuf]) -> io::Result<Self> {
        let folder = directory.join("bin");
        fs::create_dir_all(&folder)?;
        // Other users may go through the folder of the disks, and see nothing in it.
        fs::set_permissions(directory, fs::Permissions::from_mode(0o711))?;
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755))?;
        let put = |name: &str, source: &Path| -> io::Result<PathBuf> {
            let path = folder.join(name);
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            // The same file where both are on one file system.
            fs::hard_link(source, &path).or_else(|_| fs::copy(source, &path).map(|_| ()))?;
            Ok(Path::new("../bin").join(name))
        };
        let [etcd, etcdutl, apiserver] = sources else { unreachable!("three programs were asked for") };
        Ok(Self {
            etcd: put("etcd", etcd)?,
            etcdutl: put("etcdutl", etcdutl)?,
            apiserver: put("kube-apiserver", apiserver)?,
        })
    }
}

/// All servers of one testbed. Dropping it ends them.
pub struct World(Arc<Inner>);

pub(super) struct Inner {
    // Dropped in this order: servers first, their files last.
    machines: Mutex<BTreeMap<String, Arc<Machine>>>,
    /// By the id of their cluster.
    controllers: tokio::sync::Mutex<BTreeMap<String, Controllers>>,
    /// Made with the first partition.
    rules: Mutex<Option<Rules>>,
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
        let directory = Directory::open(options.directory.as_deref())?;
        let programs = Programs::beside_disks(&directory.path, &programs).map_err(Error::Programs)?;
        let log = CallLog::open(&directory.path.join(log::FILE)).map_err(Error::Log)?;
        let block = options.loopback.clone().map(Block::new).or_else(Block::claim);
        Ok(Self(Arc::new(Inner {
            machines: Mutex::default(),
            controllers: tokio::sync::Mutex::default(),
            rules: Mutex::default(),
            block: block.ok_or(Error::NoBlock)?,
            log,
            programs,
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
        let machine = self.add(name, number, self.0.block.next(), options)?;
        machine.power_on().await?;
        Ok(machine)
    }

    /// A server without power, under a number and addresses that are chosen elsewhere. A disk that is there already is
    /// its own.
    pub(crate) fn add(
        &self,
        name: &str,
        number: u64,
        addresses: Addresses,
        options: MachineOptions,
    ) -> Result<Arc<Machine>, Error> {
        // Held all the while: of two that are added at once under one name, only one may ever run.
        let mut machines = self.0.lock();
        if machines.contains_key(name) {
            return Err(Error::NameTaken(name.to_owned()));
        }
        let directory = self.0.directory.path.join(name);
        let machine = Machine::new(name, number, addresses, directory, options, Arc::downgrade(&self.0))?;
        machines.insert(name.to_owned(), machine.clone());
        Ok(machine)
    }

    /// Ends a server and destroys its disk.
    pub async fn delete(&self, name: &str) {
        let machine = self.0.lock().remove(name);
        if let Some(machine) = machine {
            machine.power_off().await;
            // Its rules go with it.
            if let Err(error) = machine.repair().await {
                tracing::warn!(server = name, %error, "a server that is gone leaves rules behind");
            }
            machine.wipe();
            self.0.end_idle_controllers().await;
        }
    }

    /// All servers, by name.
    pub fn machines(&self) -> Vec<Arc<Machine>> {
        self.0.lock().values().cloned().collect()
    }

    pub(super) fn shared(&self) -> Shared {
        Arc::downgrade(&self.0)
    }

    /// Counts changes of power.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.0.changes()
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
        if let Ok(mut controllers) = self.0.controllers.try_lock() {
            controllers.clear();
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

    /// Whether there is a server of this number, on or off.
    pub(super) fn has_server(&self, number: u64) -> bool {
        self.lock().values().any(|machine| machine.id() == number)
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

    /// Starts the controllers of a node's cluster, unless they run.
    pub(super) async fn ensure_controllers(&self, node: &Node) {
        let Some(options) = self.options.controllers else { return };
        let mut running = self.controllers.lock().await;
        if running.contains_key(&node.applied.cluster_id) {
            return;
        }
        match Controllers::of(node, &self.directory.path, options).await {
            Ok(controllers) => {
                running.insert(node.applied.cluster_id.clone(), controllers);
            }
            Err(error) => tracing::warn!(cluster = node.applied.cluster_name, %error, "a cluster has no controllers"),
        }
    }

    /// Ends the controllers of clusters that have no server any more.
    async fn end_idle_controllers(&self) {
        let servers: Vec<Arc<Machine>> = self.lock().values().cloned().collect();
        let clusters: Vec<String> = servers.iter().filter_map(|machine| machine.cluster_id()).collect();
        self.controllers.lock().await.retain(|cluster, _| clusters.contains(cluster));
    }

    /// Brings the rules of the machine's network in line with what is wrong with the servers.
    pub(super) async fn apply_partitions(self: &Arc<Self>) -> Result<(), Error> {
        let inner = self.clone();
        let applied = tokio::task::spawn_blocking(move || {
            let machines: Vec<Arc<Machine>> = inner.lock().values().cloned().collect();
            let mut rules = inner.rules.lock().unwrap_or_else(PoisonError::into_inner);
            if rules.is_none() {
                *rules = Some(Rules::new(inner.block.number())?);
            }
            rules.as_ref().map_or(Ok(()), |rules| rules.apply(&machines))
        });
        applied.await.unwrap_or_else(|error| Err(Error::Rules(io::Error::other(error))))
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
