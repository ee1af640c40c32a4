//! A node that runs with a configuration: its services and their order.

use std::{
    collections::BTreeMap,
    fs, io,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use rustix::process::Signal;
use talos::{
    Authority, Credentials, Pair,
    certificate::{CertificateError, Subject},
    configuration::Role,
    protocol::machine::{ServiceEvent, ServiceEvents, ServiceHealth, ServiceInfo},
};
use tokio::sync::watch;
use tonic::Status;

use super::{
    Impairment, apiserver,
    applied::{Applied, ControlPlaneKeys},
    kubelet,
    listener::LEAF_LIFETIME,
    machine::Machine,
    owner::{self, Owner},
    world::{Inner, Shared, now},
};
use crate::{
    control_plane::ProgramInfo,
    pki::write_private,
    process::{self, Child, Program, RESTART_PAUSE},
};

/// How often a service that is not ready yet is asked again: invisible beside its own start.
pub(super) const POLL: Duration = Duration::from_millis(100);

/// States of a service, as Talos names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Waiting,
    Preparing,
    Running,
    Finished,
    Failed,
}

impl State {
    fn name(self) -> &'static str {
        match self {
            Self::Waiting => "Waiting",
            Self::Preparing => "Preparing",
            Self::Running => "Running",
            Self::Finished => "Finished",
            Self::Failed => "Failed",
        }
    }
}

struct ServiceRecord {
    state: State,
    message: String,
    since: Timestamp,
}

/// How the first member is to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bootstrap {
    New,
    Recover { skip_hash_check: bool },
}

/// A running node.
pub(super) struct Node {
    /// Of the server.
    pub name: String,
    pub hostname: String,
    pub id: u64,
    pub public: Ipv4Addr,
    pub private: Ipv4Addr,
    pub directory: PathBuf,
    pub applied: Applied,
    /// Of the configuration's installer, or of the last upgrade.
    pub talos_version: String,
    pub world: Shared,
    /// As whom its programs run.
    pub owner: Option<Owner>,
    /// What is wrong with the server.
    pub impaired: watch::Receiver<Vec<Impairment>>,
    pub bootstrap: watch::Sender<Option<Bootstrap>>,
    /// With which etcd is asked.
    etcd_credentials: Option<Credentials>,
    services: Mutex<BTreeMap<&'static str, ServiceRecord>>,
    etcd: Mutex<Option<Arc<Child>>>,
    apiserver: Mutex<Option<Arc<Child>>>,
}

impl Node {
    pub(super) fn new(machine: &Machine, applied: Applied, world: &Arc<Inner>) -> Arc<Self> {
        let hostname = applied.hostname.clone().unwrap_or_else(|| machine.name().to_owned());
        let etcd_credentials = applied.control_plane.as_ref().and_then(|keys| etcd_credentials(keys).ok());
        let talos_version = machine.upgraded_version().unwrap_or_else(|| applied.talos_version.clone());
        let node = Self {
            talos_version,
            name: machine.name().to_owned(),
            hostname,
            id: machine.id(),
            public: machine.public(),
            private: machine.private(),
            directory: machine.directory().to_owned(),
            applied,
            world: Arc::downgrade(world),
            owner: machine.owner(),
            impaired: machine.impairments.watch(),
            bootstrap: watch::Sender::new(None),
            etcd_credentials,
            services: Mutex::default(),
            etcd: Mutex::default(),
            apiserver: Mutex::default(),
        };
        for service in ["apid", "containerd", "cri", "machined", "syslogd", "udevd"] {
            node.report(service, State::Running, "Started");
        }
        node.report("kubelet", State::Waiting, "Waiting for the API server");
        if node.is_control_plane() {
            node.report("trustd", State::Running, "Started");
            node.report("etcd", State::Preparing, "Running pre state");
        }
        Arc::new(node)
    }

    pub(super) fn is_control_plane(&self) -> bool {
        self.applied.role == Role::ControlPlane
    }

    /// Runs the services in their order; ends when all run, and its children live on.
    pub(super) async fn run(self: Arc<Self>) {
        if self.is_control_plane() {
            if let Err(why) = self.start_control_plane().await {
                tracing::warn!(server = self.name, why, "a simulated control plane does not start");
                return;
            }
            if let Some(world) = self.world.upgrade() {
                world.changed();
                world.ensure_controllers(&self).await;
            }
        }
        let keep_etcd = self.keep_running("etcd", || self.etcd_child());
        let keep_apiserver = self.keep_running("kube-apiserver", || lock(&self.apiserver).clone());
        tokio::join!(kubelet::run(&self), keep_etcd, keep_apiserver);
    }

    /// Starts a program again that ended by itself, as Talos and the kubelet do; one that was stopped stays so.
    async fn keep_running(&self, service: &'static str, child: impl Fn() -> Option<Arc<Child>>) {
        while let Some(child) = child() {
            child.exited().await;
            let is_stopped = || self.state(service) == Some(State::Finished);
            if !is_stopped() {
                self.report(service, State::Failed, "Process exited");
            }
            tokio::time::sleep(RESTART_PAUSE).await;
            if !is_stopped() && !child.is_running() && child.restart().await.is_ok() {
                self.report(service, State::Running, "Started");
            }
        }
    }

    fn state(&self, service: &str) -> Option<State> {
        lock(&self.services).get(service).map(|record| record.state)
    }

    async fn start_control_plane(self: &Arc<Self>) -> Result<(), String> {
        let failed = |service: &'static str| {
            move |why: String| {
                self.report(service, State::Failed, &why);
                format!("{service}: {why}")
            }
        };
        self.start_etcd().await.map_err(failed("etcd"))?;
        let apiserver = apiserver::start(self).await.map_err(failed("kube-apiserver"))?;
        *lock(&self.apiserver) = Some(apiserver);
        Ok(())
    }

    /// All names and addresses under which it is called.
    pub(super) fn hosts(&self) -> Vec<String> {
        let own = [self.private.to_string(), self.public.to_string(), "127.0.0.1".to_owned(), self.hostname.clone()];
        let mut hosts: Vec<String> = own.into_iter().chain(self.applied.certificate_hosts.iter().cloned()).collect();
        hosts.sort_unstable();
        hosts.dedup();
        hosts
    }

    pub(super) fn report(&self, service: &'static str, state: State, message: &str) {
        let record = ServiceRecord { state, message: message.to_owned(), since: now() };
        lock(&self.services).insert(service, record);
    }

    pub(super) fn services(&self) -> Vec<ServiceInfo> {
        // The API server is a pod, not a service.
        let services = lock(&self.services);
        services.iter().filter(|(id, _)| **id != "kube-apiserver").map(|(id, record)| record.info(id)).collect()
    }

    pub(super) fn etcd_credentials(&self) -> Result<&Credentials, Status> {
        let only = || Status::unimplemented("etcd is only available on control plane nodes");
        self.etcd_credentials.as_ref().ok_or_else(only)
    }

    pub(super) fn etcd_child(&self) -> Option<Arc<Child>> {
        lock(&self.etcd).clone()
    }

    pub(super) fn set_etcd(&self, child: Option<Arc<Child>>) {
        *lock(&self.etcd) = child;
    }

    pub(super) async fn stop_etcd(&self) {
        if let Some(child) = self.etcd_child() {
            self.report("etcd", State::Finished, "Service finished successfully");
            let _ = child.kill().await;
        }
    }

    pub(super) async fn restart_etcd(&self) -> Result<(), process::Error> {
        let Some(child) = self.etcd_child() else { return Ok(()) };
        child.restart().await?;
        self.report("etcd", State::Running, "Started");
        Ok(())
    }

    /// Ends its programs at once.
    pub(super) fn kill(&self) {
        let children = [lock(&self.apiserver).take(), lock(&self.etcd).take()];
        for child in children.into_iter().flatten() {
            // One that has ended already is fine; what it still holds ends when it is dropped.
            let _ = child.signal(Signal::KILL);
        }
    }

    /// Its programs that were started, whether they still run or not.
    pub(super) fn programs(&self) -> Vec<ProgramInfo> {
        let children = [self.etcd_child(), lock(&self.apiserver).clone()];
        let info = |child: Arc<Child>| ProgramInfo {
            name: child.program().name.clone(),
            pid: child.pid(),
            log: child.program().log.clone(),
        };
        children.into_iter().flatten().map(info).collect()
    }

    /// Signs with an authority of the configuration and writes both parts for a program to read.
    pub(super) fn write_identity(
        &self,
        file: &str,
        authority: &Authority,
        subject: &Subject<'_>,
    ) -> Result<[PathBuf; 2], String> {
        let pair = authority.sign(subject, now(), LEAF_LIFETIME).map_err(|error| error.to_string())?;
        let certificate = self.write(&format!("{file}.crt"), &pair.certificate)?;
        Ok([certificate, self.write(&format!("{file}.key"), &pair.key)?])
    }

    /// Writes a file of the node that only its owner may read; the path is as its programs see it.
    pub(super) fn write(&self, file: &str, text: &str) -> Result<PathBuf, String> {
        let directory = self.directory.join("pki");
        let path = directory.join(file);
        let make = |error: io::Error| format!("cannot create {}: {error}", directory.display());
        fs::create_dir_all(&directory).map_err(make)?;
        write_private(&path, text).map_err(|error| error.to_string())?;
        self.give(&directory)?;
        self.give(&path)?;
        Ok(on_disk(&format!("pki/{file}")).into())
    }

    /// A file that we made for its programs.
    pub(super) fn give(&self, path: &Path) -> Result<(), String> {
        let given = self.owner.map_or(Ok(()), |owner| owner::give_one(path, owner));
        given.map_err(|error| format!("cannot give {} to its server: {error}", path.display()))
    }

    /// A program that runs on the server: on its disk, as its user. Its arguments see files from there.
    pub(super) fn program(&self, name: &str, path: &Path) -> Program {
        let program = Program::new(name, path, self.fresh_log(name));
        program.within(&self.directory).run_as(self.owner.map(|Owner(uid)| uid))
    }

    /// Of the last start: a failed one is explained by its own lines only.
    fn fresh_log(&self, program: &str) -> PathBuf {
        let path = self.directory.join(format!("{program}.log"));
        let _ = fs::remove_file(&path);
        path
    }
}

impl ServiceRecord {
    fn info(&self, id: &str) -> ServiceInfo {
        let since = timestamp(self.since);
        let event = ServiceEvent { msg: self.message.clone(), state: self.state.name().to_owned(), ts: Some(since) };
        let is_running = self.state == State::Running;
        ServiceInfo {
            id: id.to_owned(),
            state: self.state.name().to_owned(),
            events: Some(ServiceEvents { events: vec![event] }),
            health: Some(ServiceHealth {
                unknown: !is_running,
                healthy: is_running,
                last_message: String::new(),
                last_change: Some(since),
            }),
        }
    }
}

fn timestamp(at: Timestamp) -> prost_types::Timestamp {
    prost_types::Timestamp { seconds: at.as_second(), nanos: at.subsec_nanosecond() }
}

fn etcd_credentials(keys: &ControlPlaneKeys) -> Result<Credentials, CertificateError> {
    let authority = Authority::open(keys.etcd.clone())?;
    let subject = Subject { common_name: Some("talos"), ..Subject::default() };
    let Pair { certificate, key } = authority.sign(&subject, now(), LEAF_LIFETIME)?;
    Credentials::from_pem(&keys.etcd.certificate, &certificate, &key)
        .map_err(|error| CertificateError::Certificate(error.to_string()))
}

/// A file on the disk, as programs of the node see it. They make paths absolute, and the folders above the disk are closed
/// to them: this way leads there whatever is above.
pub(super) fn on_disk(file: &str) -> String {
    format!("/proc/self/cwd/{file}")
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn text(path: &Path) -> String {
    path.display().to_string()
}
