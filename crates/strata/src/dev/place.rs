//! The directory of one environment: who holds it, and the files in it.

use std::{
    collections::BTreeMap,
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{FlockOperation, fcntl_lock},
    process::{Flock, FlockType, Pid, fcntl_getlk},
};
use serde::{Serialize, de::DeserializeOwned};

use super::{
    charts::Ports,
    session::{Guest, Session},
    shards::{self, Endpoints},
};
use crate::Failure;

pub const OPERATOR_LOG: &str = "strata-operator.log";
pub const SUPERVISOR_LOG: &str = "supervisor.log";

#[derive(Clone, Debug)]
pub struct Place {
    directory: PathBuf,
}

/// Proof that this process, and no other, runs the environment. The kernel takes it back when the process ends, and
/// names its holder to others: no file with a process id can be stale or name another process.
pub struct Hold {
    _lock: File,
}

impl Hold {
    /// Leaves it to the kernel, so that a command that waits for it finds this process gone, not only about to go.
    pub fn until_the_end(self) {
        std::mem::forget(self);
    }
}

impl Place {
    pub fn choose(chosen: Option<PathBuf>, state_home: Option<PathBuf>) -> Result<Self, Failure> {
        let non_empty = |path: &PathBuf| !path.as_os_str().is_empty();
        let default = || {
            let state_home = state_home.filter(non_empty);
            let state_home = state_home.or_else(|| std::env::home_dir().map(|home| home.join(".local/state")))?;
            Some(state_home.join("strata/dev"))
        };
        let directory = chosen.filter(non_empty).or_else(default).ok_or_else(|| {
            Failure::new("no directory to keep the environment in: HOME is not set").hint("name one with --dir DIR")
        })?;
        let directory = std::path::absolute(&directory).unwrap_or(directory);
        Ok(Self { directory })
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Data, certificates and logs of our own control plane.
    pub fn control_plane(&self) -> PathBuf {
        self.directory.join("control-plane")
    }

    /// What the registry of sample charts keeps, and its log.
    pub fn charts(&self) -> PathBuf {
        self.directory.join("charts")
    }

    /// Where the zones keep what they must not lose.
    pub fn storage(&self) -> PathBuf {
        self.directory.join("storage")
    }

    /// The folders of a zone's machines.
    pub fn machines(&self, shard: &str) -> PathBuf {
        self.directory.join("machines").join(shard)
    }

    /// The simulators' own: what Hetzner's API knows, and the disks of its servers.
    pub fn cloud(&self) -> PathBuf {
        self.directory.join("cloud")
    }

    /// The files of a simulated cluster.
    pub fn cluster(&self, name: &str) -> PathBuf {
        self.clusters().join(name)
    }

    fn clusters(&self) -> PathBuf {
        self.directory.join("clusters")
    }

    /// The simulated clusters that there are.
    pub fn cluster_names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.clusters()).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }

    pub fn make_cluster(&self, name: &str) -> Result<(), Failure> {
        fs::create_dir_all(self.cluster(name)).map_err(|error| self.unusable(&error))
    }

    pub fn write_cluster(&self, cluster: &str, name: &str, text: &str) -> Result<(), Failure> {
        self.write(&format!("clusters/{cluster}/{name}"), text)
    }

    /// The operator's configuration of the machines layer; not there where there are no zones.
    pub fn machines_config(&self) -> PathBuf {
        self.file("machines.yaml")
    }

    pub fn write_machines_config(&self, config: &serde_json::Value) -> Result<(), Failure> {
        self.write("machines.yaml", &json(config))
    }

    /// Without zones the operator runs without the layer.
    pub fn forget_machines_config(&self) {
        // One that is not there is as well.
        let _ = std::fs::remove_file(self.machines_config());
    }

    /// Held by the process that runs the environment.
    pub fn lock(&self) -> PathBuf {
        self.file("lock")
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// The process that runs the environment. Not to be called while holding it: closing a file gives up all locks
    /// that this process has on it.
    pub fn holder(&self) -> Option<Pid> {
        let lock = OpenOptions::new().write(true).open(self.lock()).ok()?;
        fcntl_getlk(&lock, &Flock::from(FlockType::WriteLock)).ok()??.pid
    }

    /// Fails if a process holds the place that the kernel does not name, because it is on another machine or outside of
    /// this container: it can neither be waited for nor ended. Not to be called while holding it.
    pub fn not_held_from_afar(&self) -> Result<(), Failure> {
        // Asked twice, because a holder may have ended before it could be named, and another may have come.
        let is_unnamed = || Ok::<_, Failure>(self.hold()?.is_none() && self.holder().is_none());
        let is_afar = is_unnamed()? && is_unnamed()?;
        if !is_afar {
            return Ok(());
        }
        let directory = self.directory.display();
        Err(Failure::new(format!("{directory} is in use by a process that cannot be seen from here"))
            .hint("end it on its machine or in its container, or choose another directory with --dir DIR"))
    }

    /// Takes the place, unless another process has it. Private, because keys are kept in it.
    pub fn hold(&self) -> Result<Option<Hold>, Failure> {
        let fail = |error| self.unusable(&error);
        DirBuilder::new().recursive(true).mode(0o700).create(&self.directory).map_err(fail)?;
        let lock = OpenOptions::new().write(true).create(true).truncate(false).open(self.lock()).map_err(fail)?;
        match fcntl_lock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Hold { _lock: lock })),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::ACCESS) => Ok(None),
            Err(error) => Err(fail(error.into())),
        }
    }

    /// What runs here; `None` while it starts or when nothing does.
    pub fn session(&self) -> Option<Session> {
        self.read("session.json")
    }

    pub fn write_session(&self, session: &Session) -> Result<(), Failure> {
        self.write("session.json", &json(session))
    }

    pub fn forget_session(&self) {
        // Absent is as good as removed, and a file that cannot be removed is overwritten by the next start.
        let _ = fs::remove_file(self.file("session.json"));
    }

    /// The foreign cluster that still holds what we installed in it.
    pub fn guest(&self) -> Option<Guest> {
        self.read("guest.json")
    }

    pub fn write_guest(&self, guest: &Guest) -> Result<(), Failure> {
        self.write("guest.json", &json(guest))
    }

    pub fn forget_guest(&self) {
        let _ = fs::remove_file(self.file("guest.json"));
    }

    /// Where charts were served last time.
    pub fn chart_ports(&self) -> Option<Ports> {
        self.read("chart-ports.json")
    }

    pub fn write_chart_ports(&self, ports: Ports) -> Result<(), Failure> {
        self.write("chart-ports.json", &json(&ports))
    }

    /// Where the zones served last time.
    pub fn endpoints(&self) -> BTreeMap<String, Endpoints> {
        self.read("shard-endpoints.json").unwrap_or_default()
    }

    pub fn write_endpoints(&self, endpoints: &BTreeMap<String, Endpoints>) -> Result<(), Failure> {
        self.write("shard-endpoints.json", &json(endpoints))
    }

    /// Empties the logs of the last run; their writers append.
    pub fn empty_logs(&self) {
        let of_shards = shards::NAMES.map(shards::log);
        for name in of_shards.iter().map(String::as_str).chain([OPERATOR_LOG, SUPERVISOR_LOG]) {
            // A log that cannot be emptied just goes on.
            let _ = OpenOptions::new().write(true).truncate(true).open(self.file(name));
        }
    }

    /// Removes data, certificates, charts, zones and logs of earlier runs.
    pub fn wipe(&self) -> Result<(), Failure> {
        let simulated = [self.cloud(), self.clusters()];
        for directory in
            [self.control_plane(), self.charts(), self.storage(), self.file("machines")].into_iter().chain(simulated)
        {
            match fs::remove_dir_all(directory) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(self.unusable(&error)),
                _ => {}
            }
        }
        Ok(())
    }

    /// Replaces a file at once, so that a reader sees the old or the new text; only the owner may read it.
    pub fn write(&self, name: &str, text: &str) -> Result<(), Failure> {
        let (path, partial) = (self.file(name), self.file(&format!("{name}.new")));
        OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&partial)
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .and_then(|()| fs::rename(&partial, &path))
            .map_err(|error| self.unusable(&error))
    }

    fn read<T: DeserializeOwned>(&self, name: &str) -> Option<T> {
        serde_json::from_str(&fs::read_to_string(self.file(name)).ok()?).ok()
    }

    fn unusable(&self, error: &io::Error) -> Failure {
        Failure::new(format!("cannot use the directory {}: {error}", self.directory.display()))
            .hint("choose another with --dir DIR or STRATA_DEV_DIR")
    }
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string_pretty(value).expect("our own records have a JSON form")
}
