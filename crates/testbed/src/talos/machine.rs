//! One simulated server: its disk, its power, and what boots from the disk.

use std::{
    fs, io,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use talos::PORT;
use tokio::net::TcpListener;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use super::{
    Dialect, Error,
    addresses::Addresses,
    apiserver,
    applied::Applied,
    fault::{CallFault, CallFaults},
    impairment::{Impairment, Impairments},
    listener,
    node::{Node, lock},
    owner::{self, Owner},
    service::Agent,
    world::{Inner, Shared},
};
use crate::control_plane::ProgramInfo;

/// Attempts to boot, with a pause between them.
const BOOTS: usize = 20;
const BOOT_PAUSE: Duration = Duration::from_millis(500);
/// How long a node that goes down waits for those who called it to read their answers.
const ANSWERS_LIMIT: Duration = Duration::from_secs(5);

/// What a server is made with.
#[derive(Clone, Copy, Debug, Default)]
pub struct MachineOptions {
    /// How Talos on it answers while it has no configuration.
    pub dialect: Dialect,
}

/// A server with Talos on its disk.
pub struct Machine {
    name: String,
    id: u64,
    /// Those of the next boot; a network may come and go.
    addresses: Mutex<Addresses>,
    directory: PathBuf,
    options: MachineOptions,
    world: Shared,
    /// It turned itself off, and nothing turned it on since.
    has_halted: AtomicBool,
    pub(super) impairments: Impairments,
    /// How often its power was cut.
    cuts: AtomicU64,
    /// Held while power changes, so that two changes never mix.
    power: tokio::sync::Mutex<()>,
    running: Mutex<Option<Running>>,
    /// Broken together when a reply is to be lost.
    connections: Mutex<CancellationToken>,
    faults: CallFaults,
    node: RwLock<Option<Arc<Node>>>,
}

/// What ends when power does.
struct Running {
    tasks: Vec<AbortOnDropHandle<()>>,
    calls: Calls,
}

/// Those of the machine API, when a node goes down by itself.
#[derive(Clone, Default)]
pub(super) struct Calls {
    /// No more are taken.
    pub last: CancellationToken,
    /// All are answered, and the answers are read.
    pub answered: CancellationToken,
}

impl Machine {
    pub(super) fn new(
        name: &str,
        id: u64,
        addresses: Addresses,
        directory: PathBuf,
        options: MachineOptions,
        world: Shared,
    ) -> Result<Arc<Self>, Error> {
        fs::create_dir_all(&directory).map_err(|source| Error::Machine {
            name: name.to_owned(),
            action: format!("cannot create {}", directory.display()),
            source,
        })?;
        Ok(Arc::new(Self {
            name: name.to_owned(),
            id,
            addresses: Mutex::new(addresses),
            directory,
            options,
            world,
            has_halted: AtomicBool::new(false),
            impairments: Impairments::default(),
            cuts: AtomicU64::default(),
            power: tokio::sync::Mutex::default(),
            running: Mutex::default(),
            connections: Mutex::default(),
            faults: CallFaults::default(),
            node: RwLock::default(),
        }))
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// The cloud's number of it.
    pub fn id(&self) -> u64 {
        self.id
    }

    pub fn public(&self) -> Ipv4Addr {
        lock(&self.addresses).public
    }

    pub fn private(&self) -> Ipv4Addr {
        lock(&self.addresses).private
    }

    /// Changes what it has from its next boot on; `false` where it has these already.
    pub(crate) fn set_addresses(&self, addresses: Addresses) -> bool {
        std::mem::replace(&mut *lock(&self.addresses), addresses) != addresses
    }

    /// Where the machine API answers.
    pub fn endpoint(&self) -> SocketAddr {
        (self.public(), PORT).into()
    }

    /// As whom its programs run.
    pub(super) fn owner(&self) -> Option<Owner> {
        Owner::of(self.private())
    }

    /// Holds the disk and the logs of its programs.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    pub(super) fn dialect(&self) -> Dialect {
        self.options.dialect
    }

    pub(super) fn world(&self) -> Option<Arc<Inner>> {
        self.world.upgrade()
    }

    /// The node that runs on it; `None` while it is off or in maintenance.
    pub(super) fn node(&self) -> Option<Arc<Node>> {
        self.node.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn is_on(&self) -> bool {
        self.running().is_some()
    }

    /// Whether a call to it turned it off, and not the power.
    pub(crate) fn has_halted(&self) -> bool {
        self.has_halted.load(Ordering::Relaxed)
    }

    /// Boots from the disk; nothing where it runs already.
    pub async fn power_on(self: &Arc<Self>) -> Result<(), Error> {
        let _power = self.power.lock().await;
        let Some(world) = self.world() else { return Ok(()) };
        if self.is_on() {
            return Ok(());
        }
        self.has_halted.store(false, Ordering::Relaxed);
        self.impairments.forget(Impairment::EtcdStopped);
        let given = owner::close(&self.directory, self.owner());
        given.map_err(|source| self.failed("its disk cannot be given to it", source))?;
        let Addresses { public, private } = *lock(&self.addresses);
        let node = self.boot_configuration().map(|applied| Node::new(self, applied, &world));
        self.node.write().unwrap_or_else(PoisonError::into_inner).clone_from(&node);
        let mut listeners = Vec::new();
        for address in [Some(public), Some(private).filter(|private| *private != public)].into_iter().flatten() {
            listeners.push(self.listen(address, PORT).await?);
        }
        let mut tasks = Vec::new();
        let agent = Agent::new(self.clone());
        let calls = Calls::default();
        tasks.push(spawn(listener::serve(agent, node.clone(), world.clone(), listeners, calls.clone())));
        if let Some(node) = node {
            if node.is_control_plane() && public != private {
                let public = self.listen(public, apiserver::PORT).await?;
                tasks.push(spawn(listener::forward(public, (private, apiserver::PORT).into())));
            }
            tasks.push(spawn(node.run()));
        }
        *self.running() = Some(Running { tasks, calls });
        world.changed();
        Ok(())
    }

    /// Ends everything that runs on it at once, as a power cut does.
    pub async fn power_off(&self) {
        let _power = self.power.lock().await;
        for task in self.cut_power() {
            // Its sockets are free for the next boot when it has ended.
            task.abort();
            let _ = task.await;
        }
    }

    /// Off and on again.
    pub async fn reboot(self: &Arc<Self>) -> Result<(), Error> {
        self.power_off().await;
        self.power_on().await
    }

    /// Programs that run on it.
    pub fn programs(&self) -> Vec<ProgramInfo> {
        self.node().map(|node| node.programs()).unwrap_or_default()
    }

    /// The next `times` calls of `rpc` that this server answers meet a fault.
    pub fn fail(&self, rpc: &str, fault: CallFault, times: u32) {
        self.faults.add(rpc, fault, times);
    }

    /// Faults that wait for their calls: the call, the fault, and how often it still happens.
    pub fn faults(&self) -> Vec<(String, CallFault, u32)> {
        self.faults.list()
    }

    /// Forgets faults that met no call yet.
    pub fn clear_faults(&self) {
        self.faults.clear();
    }

    pub(super) fn take_fault(&self, rpc: &str) -> Option<CallFault> {
        self.faults.take(rpc)
    }

    /// Ends with every connection that is open now.
    pub(super) fn connections(&self) -> CancellationToken {
        lock(&self.connections).clone()
    }

    pub(super) fn break_connections(&self) {
        std::mem::take(&mut *lock(&self.connections)).cancel();
    }

    /// SIGKILL to its etcd, which stays down until [`Self::start_etcd`] or a boot.
    pub async fn stop_etcd(&self) {
        if let Some(node) = self.node() {
            node.stop_etcd().await;
        }
    }

    /// Starts an etcd that was stopped.
    pub async fn start_etcd(&self) -> Result<(), Error> {
        match self.node() {
            Some(node) => Ok(node.restart_etcd().await?),
            None => Ok(()),
        }
    }

    /// Returns the tasks that are left; they end when dropped.
    pub(super) fn cut_power(&self) -> Vec<AbortOnDropHandle<()>> {
        self.cuts.fetch_add(1, Ordering::Relaxed);
        let running = self.running().take();
        let node = self.node.write().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(node) = node {
            node.kill();
        }
        if let Some(world) = self.world() {
            world.changed();
        }
        // Their tasks are the API server's own and do not end with it.
        self.break_connections();
        running.map_or_else(Vec::new, |running| running.tasks)
    }

    /// Destroys the disk.
    pub(super) fn wipe(&self) {
        let _ = fs::remove_dir_all(&self.directory);
    }

    /// Empties the disk: what `Reset` does.
    pub(crate) fn wipe_disk(&self) -> io::Result<()> {
        self.wipe();
        fs::create_dir_all(&self.directory)
    }

    pub(super) fn write_configuration(&self, data: &[u8]) -> io::Result<()> {
        fs::write(self.directory.join("config.yaml"), data)
    }

    /// The version that the next boot runs.
    pub(super) fn write_version(&self, version: &str) -> io::Result<()> {
        fs::write(self.directory.join("talos-version"), version)
    }

    pub(super) fn upgraded_version(&self) -> Option<String> {
        fs::read_to_string(self.directory.join("talos-version")).ok()
    }

    /// Does `then` a moment later, when the caller has its answer: Talos stops to serve in order.
    pub(super) fn soon(self: &Arc<Self>, then: After) {
        let machine = self.clone();
        let delay = self.world().map(|world| world.options.reboot_delay).unwrap_or_default();
        // Not one of its own tasks: those end with the power.
        tokio::spawn(async move {
            tokio::time::sleep(delay).await;
            machine.finish_calls().await;
            machine.power_off().await;
            if then.wipes()
                && let Err(error) = machine.wipe_disk()
            {
                tracing::warn!(server = machine.name, %error, "cannot wipe a simulated disk");
            }
            machine.has_halted.store(!then.boots(), Ordering::Relaxed);
            if let Some(world) = machine.world() {
                world.changed();
            }
            if then.boots() {
                machine.boot().await;
            }
        });
    }

    async fn finish_calls(&self) {
        let Some(calls) = self.running().as_ref().map(|running| running.calls.clone()) else { return };
        calls.last.cancel();
        let _ = tokio::time::timeout(ANSWERS_LIMIT, calls.answered.cancelled()).await;
    }

    /// Again where it fails, unless its power is cut: another program may have one of its ports for a moment, and no server
    /// stays off for that.
    async fn boot(self: &Arc<Self>) {
        let cuts = self.cuts.load(Ordering::Relaxed);
        for _ in 0..BOOTS {
            if self.cuts.load(Ordering::Relaxed) != cuts {
                return;
            }
            let Err(error) = self.power_on().await else { return };
            tracing::warn!(server = self.name, %error, "a simulated server does not boot");
            tokio::time::sleep(BOOT_PAUSE).await;
        }
    }

    fn boot_configuration(&self) -> Option<Applied> {
        let data = fs::read(self.directory.join("config.yaml")).ok()?;
        // It was read before it was stored.
        Applied::read(&data).ok()
    }

    /// The cluster that its disk has a configuration of.
    pub(super) fn cluster_id(&self) -> Option<String> {
        self.boot_configuration().map(|applied| applied.cluster_id)
    }

    async fn listen(&self, address: Ipv4Addr, port: u16) -> Result<TcpListener, Error> {
        let bound = TcpListener::bind((address, port)).await;
        bound.map_err(|source| self.failed(&format!("cannot listen on {address}:{port}"), source))
    }

    fn failed(&self, action: &str, source: io::Error) -> Error {
        Error::Machine { name: self.name.clone(), action: action.to_owned(), source }
    }

    fn running(&self) -> std::sync::MutexGuard<'_, Option<Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn spawn(task: impl Future<Output = ()> + Send + 'static) -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(tokio::spawn(task))
}

/// What follows a call that takes a node down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    Reboot,
    Halt,
    WipeAndReboot,
    WipeAndHalt,
}

impl After {
    fn wipes(self) -> bool {
        matches!(self, Self::WipeAndReboot | Self::WipeAndHalt)
    }

    fn boots(self) -> bool {
        matches!(self, Self::Reboot | Self::WipeAndReboot)
    }
}
