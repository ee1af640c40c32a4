//! Hetzner's API on one machine, over its real protocol.
//!
//! A request goes through `http` (token, rate limit, faults, log) to the kind it names, which reads and changes the
//! `state`. What a change does after its answer is an action, and `life` carries it out: it moves servers through their
//! states and calls the `machines` behind them. `docs/reference/simulators.md` says what differs from the original.

mod action;
mod balancer;
mod balancer_service;
mod catalogue;
mod certificate;
mod cidr;
mod fault;
mod firewall;
mod forward;
mod http;
mod image;
mod life;
mod limit;
pub mod log;
mod loopback;
mod machines;
mod network;
mod placement_group;
mod probe;
mod query;
mod refusal;
mod selector;
mod server;
mod server_action;
mod server_view;
mod ssh_key;
mod state;
mod volume;

use std::{
    collections::BTreeMap,
    fmt, fs, io,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::net::TcpListener;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub use balancer_service::{HealthCheck, HttpCheck, Service};
pub use cidr::Cidr;
pub use fault::{BadFault, Fault, Faults, Kind};
pub use forward::{Forwarded, Forwarder, Forwarding, Health, NoForwarding};
use limit::Bucket;
pub use limit::REQUESTS_PER_HOUR;
pub use loopback::Loopback;
pub use machines::{Failed, Machine, Machines, NoMachines};
use state::State;

/// A token and what it opens.
#[derive(Clone)]
pub struct Access {
    pub token: String,
    pub project: String,
    pub is_read_only: bool,
}

impl Access {
    /// Reads and writes.
    pub fn new(token: &str, project: &str) -> Self {
        Self { token: token.to_owned(), project: project.to_owned(), is_read_only: false }
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { token: _, project, is_read_only } = self;
        f.debug_struct("Access").field("project", project).field("is_read_only", is_read_only).finish_non_exhaustive()
    }
}

/// How a simulator runs.
pub struct Options {
    /// Where it listens.
    pub address: SocketAddr,
    pub access: Vec<Access>,
    /// Public addresses of servers and load balancers are taken from it.
    pub public_range: Cidr,
    /// How long an action runs, its machine's part not counted.
    pub action_time: Duration,
    /// The rate limit of each project.
    pub requests_per_hour: u32,
    /// One line per request.
    pub log: Option<PathBuf>,
    /// What there is survives the simulator here.
    pub file: Option<PathBuf>,
    pub machines: Arc<dyn Machines>,
    pub forwarding: Arc<dyn Forwarding>,
}

impl Options {
    pub fn new(access: Vec<Access>) -> Self {
        Self {
            address: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            access,
            public_range: Cidr::new(Ipv4Addr::new(127, 40, 0, 0), 16).expect("host bits are zero"),
            // Long enough that a client which does not wait for its actions meets `locked`.
            action_time: Duration::from_millis(50),
            requests_per_hour: REQUESTS_PER_HOUR,
            log: None,
            file: None,
            machines: Arc::new(NoMachines),
            forwarding: Arc::new(NoForwarding),
        }
    }
}

/// Why the simulator does not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot {action}: {source}")]
    Io { action: String, source: io::Error },
    #[error("{path} is not a file of the Hetzner simulator: {source}; delete it to start with an empty project")]
    File { path: PathBuf, source: serde_json::Error },
}

/// A running simulator; it ends when dropped.
pub struct Simulator {
    shared: Arc<Shared>,
    address: SocketAddr,
}

struct Shared {
    options: Options,
    base: String,
    state: Mutex<State>,
    buckets: Mutex<BTreeMap<String, Bucket>>,
    faults: Faults,
    log: log::Log,
    tasks: TaskTracker,
    ends: CancellationToken,
}

impl Simulator {
    pub async fn start(options: Options) -> Result<Self, Error> {
        let io = |action: String| move |source| Error::Io { action, source };
        let listener =
            TcpListener::bind(options.address).await.map_err(io(format!("listen on {}", options.address)))?;
        let address = listener.local_addr().map_err(io("read the address".to_owned()))?;
        let log = log::Log::open(options.log.as_deref()).map_err(io("open the log".to_owned()))?;
        let state = match &options.file {
            Some(path) => load(path)?,
            None => None,
        };
        let state = state.unwrap_or_else(|| State::new(options.public_range));
        let shared = Arc::new(Shared {
            base: format!("http://{address}/v1"),
            state: Mutex::new(state),
            buckets: Mutex::default(),
            faults: Faults::default(),
            log,
            tasks: TaskTracker::new(),
            ends: CancellationToken::new(),
            options,
        });
        shared.resume();
        shared.changed(&mut shared.state());
        shared.spawn(http::serve(Arc::clone(&shared), listener));
        Ok(Self { shared, address })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What stock programs take as `HCLOUD_ENDPOINT`.
    pub fn endpoint(&self) -> String {
        self.shared.base.clone()
    }

    pub fn faults(&self) -> &Faults {
        &self.shared.faults
    }

    /// The servers' machines, by the servers' names, of all projects.
    pub fn machines(&self) -> Vec<Machine> {
        let state = self.shared.state();
        state.projects.values().flat_map(|project| project.servers.values()).map(server::Server::machine).collect()
    }

    /// A machine turned itself on or off. One that an action changes is the action's.
    pub fn power_changed(&self, server: i64, is_on: bool) {
        let mut state = self.shared.state();
        let settled = if is_on { server::Status::Off } else { server::Status::Running };
        let servers = state.projects.values_mut().filter_map(|project| project.servers.get_mut(&server));
        for server in servers.filter(|server| server.status == settled) {
            server.status = if is_on { server::Status::Running } else { server::Status::Off };
        }
        self.shared.changed(&mut state);
    }

    /// The server is gone without a request, as after a loss on the vendor's side. `false` where there was none.
    pub async fn lose(&self, name: &str) -> bool {
        let lost = self.machines().into_iter().find(|machine| machine.name == name);
        let Some(machine) = lost else { return false };
        if let Err(error) = self.shared.options.machines.deleted(&machine).await {
            tracing::warn!(name, error, "the machine of a lost server did not end");
        }
        let mut state = self.shared.state();
        let projects: Vec<String> = state.projects.keys().cloned().collect();
        for project in projects {
            server::Server::remove(&mut state.world(&project), machine.id);
        }
        self.shared.changed(&mut state);
        true
    }

    /// Leaves the token's project so many requests: others used the rest.
    pub fn spend_all_but(&self, token: &str, left: u32) {
        if let Some(access) = self.shared.options.access.iter().find(|access| access.token == token) {
            self.shared.spend_all_but(&access.project, left);
        }
    }

    /// Running servers without requests and machines, for measuring lists. `false` where the token opens nothing.
    pub fn add_servers(&self, token: &str, prefix: &str, count: usize) -> bool {
        let Some(access) = self.shared.options.access.iter().find(|access| access.token == token) else { return false };
        let mut state = self.shared.state();
        let mut world = state.world(&access.project);
        let made = (0..count).all(|number| server::Server::add(&mut world, &format!("{prefix}-{number}")).is_ok());
        self.shared.changed(&mut state);
        made
    }

    /// Ends the simulator and waits for its tasks.
    pub async fn stop(self) {
        self.shared.ends.cancel();
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
    }
}

impl Drop for Simulator {
    fn drop(&mut self) {
        self.shared.ends.cancel();
        self.shared.options.forwarding.configure(&[]);
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn spawn(self: &Arc<Self>, task: impl Future<Output = ()> + Send + 'static) {
        let ends = self.ends.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                () = ends.cancelled() => {}
                () = task => {}
            }
        });
    }

    /// After every change: the file is written before the change is answered, and load balancers follow.
    fn changed(&self, state: &mut State) {
        if let Some(path) = &self.options.file
            && let Err(error) = save(path, state)
        {
            tracing::warn!(path = %path.display(), %error, "the Hetzner simulator cannot be saved");
        }
        let balancers = state.projects.values();
        let balancers = balancers.flat_map(|project| project.balancers.values().map(|of| of.forwarded(project)));
        self.options.forwarding.configure(&balancers.collect::<Vec<_>>());
    }

    fn refresh_health(&self, state: &mut State) {
        let balancers = state.projects.values_mut().flat_map(|project| project.balancers.values_mut());
        balancers.for_each(|balancer| balancer.health = self.options.forwarding.health(balancer.base.id));
    }
}

fn load(path: &Path) -> Result<Option<State>, Error> {
    match fs::read(path) {
        Ok(text) => {
            let read = serde_json::from_slice(&text);
            read.map(Some).map_err(|source| Error::File { path: path.to_owned(), source })
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(Error::Io { action: format!("read {}", path.display()), source }),
    }
}

/// Whole or not at all, and readable by its owner alone.
fn save(path: &Path, state: &State) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let file = tempfile::NamedTempFile::new_in(folder)?;
    serde_json::to_writer(io::BufWriter::new(file.as_file()), state)?;
    file.persist(path)?;
    Ok(())
}
