//! A whole cloud on this machine: Hetzner's API, and behind each of its servers a machine with Talos on its disk. It has a
//! control port of its own, through which faults are asked for; that port is no part of the simulated APIs.

mod control;
mod fault;
mod server;
mod stock;

use std::{
    fmt::Write,
    fs, io,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::{Arc, Weak},
    time::Duration,
};

pub use control::{ControlError, Reply, Request, ServerInfo, ask};
pub use fault::{Active, FaultError, Where};
use serde::{Deserialize, Serialize};
pub use stock::Stock;
use tokio_util::task::AbortOnDropHandle;

use crate::{
    control_plane::free_port,
    hetzner::{self, Access, Cidr, Forwarder, Loopback, Simulator},
    pki::{self, write_private},
    talos::{self, ControllerOptions, World, WorldOptions},
};

/// Health checks run this many times as often as asked for: three seconds, the shortest the vendor allows, become one.
const CHECK_SPEED: u32 = 3;
/// What stays the same, in the cloud's directory.
const IDENTITY: &str = "cloud.json";
/// Bytes of a token; written as hexadecimal digits it has the vendor's 64 characters.
const TOKEN_BYTES: usize = 32;

/// How long the control port waits for the rest of a request, or [`ask`] for a reply. A fault is set within
/// milliseconds; a server that is turned off is gone within a second.
const CONTROL_LIMIT: Duration = Duration::from_secs(30);

/// Why a cloud does not start.
#[derive(Debug, thiserror::Error)]
pub enum CloudError {
    #[error("cannot use {}", path.display())]
    Directory {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Write(#[from] pki::Error),
    #[error(transparent)]
    Hetzner(#[from] hetzner::Error),
    #[error(transparent)]
    Talos(#[from] talos::Error),
    #[error("the addresses of these servers, 127.{0}.0.0/16, are in use by another testbed; end it first")]
    Taken(u8),
}

/// What stays the same from run to run.
#[derive(Clone, Serialize, Deserialize)]
struct Identity {
    /// Servers come back under their addresses.
    loopback: u8,
    /// The API's own; another one where it is taken.
    port: u16,
    token: String,
}

/// A running cloud; its servers end when it is dropped, and come back with the next one in the same directory.
pub struct Cloud {
    parts: Arc<Parts>,
    control: SocketAddr,
    identity: Identity,
    log: PathBuf,
    network: Cidr,
    _tasks: Vec<AbortOnDropHandle<()>>,
}

/// The two simulators.
struct Parts {
    simulator: Simulator,
    world: Arc<World>,
}

impl Cloud {
    /// Programs that its servers need, for [`crate::tools::ensure`].
    pub const PROGRAMS: [&str; 5] =
        ["etcd36", "etcdutl", "kube-apiserver", "kube-controller-manager", "kube-scheduler"];

    /// Starts it with the servers that the directory has, which boot from their disks.
    pub async fn start(directory: &Path) -> Result<Self, CloudError> {
        Self::start_with(directory, ControllerOptions::default()).await
    }

    /// The same, with controllers of the clusters' own choice.
    pub async fn start_with(directory: &Path, controllers: ControllerOptions) -> Result<Self, CloudError> {
        let unusable = |source| CloudError::Directory { path: directory.to_owned(), source };
        fs::create_dir_all(directory).map_err(unusable)?;
        let (mut identity, loopback) = identity(directory)?;
        let disks = directory.join("servers");
        fs::create_dir_all(&disks).map_err(unusable)?;
        let log = directory.join("hcloud.log");
        for log in [&log, &disks.join(talos::LOG)] {
            begin_anew(log).map_err(unusable)?;
        }
        let (public, network) = (loopback.public(), loopback.private());
        let world = WorldOptions {
            directory: Some(disks),
            loopback: Some(Arc::new(loopback)),
            controllers: Some(controllers),
            ..WorldOptions::default()
        };
        let world = Arc::new(World::start(world).await?);
        let servers = Arc::new(server::Servers::new(world.clone()));
        let options = |port| hetzner::Options {
            address: SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
            public_range: public,
            log: Some(log.clone()),
            file: Some(directory.join("hcloud.json")),
            machines: servers.clone(),
            forwarding: Arc::new(Forwarder::new(CHECK_SPEED)),
            ..hetzner::Options::new(vec![Access::new(&identity.token, "dev")])
        };
        let simulator = match Simulator::start(options(identity.port)).await {
            // Another program has its port.
            Err(hetzner::Error::Io { .. }) => Simulator::start(options(free_port())).await?,
            started => started?,
        };
        // Also those that are off: one that nothing here knows would count as gone.
        for server in simulator.machines() {
            servers.know(&server);
        }
        identity.port = simulator.address().port();
        write_identity(directory, &identity)?;
        let parts = Arc::new(Parts { simulator, world });
        let (control, serving) = control::serve(parts.clone(), identity.token.clone()).await.map_err(unusable)?;
        let halts = tokio::spawn(report_halts(Arc::downgrade(&parts)));
        let tasks = vec![serving, AbortOnDropHandle::new(halts)];
        Ok(Self { parts, control, identity, log, network, _tasks: tasks })
    }

    /// What stock programs take as `HCLOUD_ENDPOINT`.
    pub fn endpoint(&self) -> String {
        self.parts.simulator.endpoint()
    }

    /// What stock programs take as `HCLOUD_TOKEN`.
    pub fn token(&self) -> &str {
        &self.identity.token
    }

    /// Where [`ask`] is answered; it takes the token.
    pub fn control(&self) -> SocketAddr {
        self.control
    }

    /// One line per request.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// One line per call to the machine API.
    pub fn talos_log(&self) -> &Path {
        self.parts.world.log()
    }

    /// Where private networks may be.
    pub fn network(&self) -> Cidr {
        self.network
    }

    pub fn simulator(&self) -> &Simulator {
        &self.parts.simulator
    }

    pub fn world(&self) -> &World {
        &self.parts.world
    }

    /// Turns all servers off and waits for it. What they were doing goes on with the next start.
    pub async fn stop(self) {
        let machines = self.parts.world.machines();
        futures::future::join_all(machines.iter().map(|machine| machine.power_off())).await;
    }
}

/// Servers that turned themselves off are off for the API as well.
async fn report_halts(parts: Weak<Parts>) {
    let Some(mut changes) = parts.upgrade().map(|parts| parts.world.changes()) else { return };
    while changes.changed().await.is_ok() {
        let Some(parts) = parts.upgrade() else { return };
        for machine in parts.world.machines().iter().filter(|machine| machine.has_halted()) {
            parts.simulator.power_changed(i64::try_from(machine.id()).unwrap_or_default(), false);
        }
    }
}

/// What the directory has, or a new one.
fn identity(directory: &Path) -> Result<(Identity, Loopback), CloudError> {
    let known = fs::read(directory.join(IDENTITY)).ok().and_then(|text| serde_json::from_slice::<Identity>(&text).ok());
    if let Some(known) = known {
        let loopback = Loopback::claim_number(known.loopback).ok_or(CloudError::Taken(known.loopback))?;
        return Ok((known, loopback));
    }
    let unusable = |source| CloudError::Directory { path: directory.to_owned(), source };
    let bytes = random().map_err(unusable)?;
    let seed = bytes.iter().fold(0, |seed: u64, byte| seed.rotate_left(8) ^ u64::from(*byte));
    let loopback = Loopback::claim_for(seed).ok_or(talos::Error::NoBlock)?;
    let mut token = String::with_capacity(2 * TOKEN_BYTES);
    for byte in bytes {
        let _ = write!(token, "{byte:02x}");
    }
    let identity = Identity { loopback: loopback.number(), port: free_port(), token };
    // Before anything has an address of it.
    write_identity(directory, &identity)?;
    Ok((identity, loopback))
}

fn write_identity(directory: &Path, identity: &Identity) -> Result<(), CloudError> {
    let text = serde_json::to_string(identity).expect("strings and numbers have a JSON form");
    Ok(write_private(&directory.join(IDENTITY), &text)?)
}

fn random() -> io::Result<[u8; TOKEN_BYTES]> {
    let mut bytes = [0; TOKEN_BYTES];
    io::Read::read_exact(&mut fs::File::open("/dev/urandom")?, &mut bytes)?;
    Ok(bytes)
}

/// A log is of one run.
fn begin_anew(log: &Path) -> io::Result<()> {
    match fs::remove_file(log) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
