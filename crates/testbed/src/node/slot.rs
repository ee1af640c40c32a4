//! What a real node has on the machine outside its namespaces: a bridge, control groups, a folder.
//!
//! They are numbered, and whoever holds the number's abstract socket owns them. The kernel frees that socket when its
//! owner ends, however that happens, so everything under a number that can be taken is a leftover and is removed.

use std::{
    fs, io,
    net::Ipv4Addr,
    os::{
        linux::net::SocketAddrExt,
        unix::{
            fs::DirBuilderExt,
            net::{SocketAddr, UnixListener},
        },
    },
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use super::NodeError;

/// A kubelet with containerd takes 150 MB: no test machine carries more of them.
const SLOTS: u8 = 32;

/// Control groups are free a moment after their last process; far longer means that something still runs in them.
const CLEAN_LIMIT: Duration = Duration::from_secs(20);
const CLEAN_INTERVAL: Duration = Duration::from_millis(20);

const CGROUPS: &str = "/sys/fs/cgroup";

/// A number that is ours as long as this lives.
struct Claim {
    number: u8,
    _owner: UnixListener,
}

impl Claim {
    fn of(number: u8) -> Option<Self> {
        let address = SocketAddr::from_abstract_name(format!("strata-node-{number}")).ok()?;
        let owner = UnixListener::bind_addr(&address).ok()?;
        Some(Self { number, _owner: owner })
    }
}

/// A claimed number and all that is under it, removed at the end.
pub(super) struct Slot(Claim);

impl Slot {
    /// Takes the first free number and sets up bridge, groups and folder. What dead owners left under any number is
    /// removed on the way.
    pub(super) fn take() -> Result<Self, NodeError> {
        let mut taken = None;
        for claim in (0..SLOTS).filter_map(Claim::of) {
            // Cleaned by dropping it, unless it is the first.
            let slot = Self(claim);
            if taken.is_none() {
                slot.clean();
                taken = Some(slot);
            }
        }
        let slot = taken.ok_or(NodeError::NoSlot(SLOTS))?;
        slot.set_up()?;
        Ok(slot)
    }

    /// Of the node, its bridge and its control group.
    pub(super) fn name(&self) -> String {
        format!("strata-n{}", self.0.number)
    }

    pub(super) fn subnet(&self) -> String {
        format!("10.213.{}.0/24", self.0.number)
    }

    /// The node's own address in the network of its pods.
    pub(super) fn gateway(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, 213, self.0.number, 1)
    }

    /// The last address that a pod may have.
    pub(super) fn last_pod(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, 213, self.0.number, 253)
    }

    /// Of a host beside the node in the network of its pods.
    pub(super) fn neighbour(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, 213, self.0.number, 254)
    }

    pub(super) fn folder(&self) -> PathBuf {
        std::env::temp_dir().join(format!("strata-node-{}", self.0.number))
    }

    fn set_up(&self) -> Result<(), NodeError> {
        let name = self.name();
        let folder = self.folder();
        fs::DirBuilder::new()
            .mode(0o700)
            .create(&folder)
            .map_err(|source| NodeError::Io { action: format!("create {}", folder.display()), source })?;
        for group in self.groups() {
            fs::create_dir_all(&group)
                .map_err(|source| NodeError::Io { action: format!("create {}", group.display()), source })?;
        }
        ip(&["link", "add", &name, "type", "bridge"])?;
        ip(&["address", "add", &format!("{}/24", self.gateway()), "dev", &name])?;
        ip(&["link", "set", &name, "up"])
    }

    /// One group per hierarchy of version 1, one in all for version 2.
    fn groups(&self) -> Vec<PathBuf> {
        let root = Path::new(CGROUPS);
        if root.join("cgroup.controllers").exists() {
            return vec![root.join(self.name())];
        }
        let hierarchies = fs::read_dir(root).into_iter().flatten().flatten();
        hierarchies
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
            .map(|entry| entry.path().join(self.name()))
            .collect()
    }

    fn clean(&self) {
        let name = self.name();
        let mut failed = Vec::new();
        if Path::new("/sys/class/net").join(&name).exists()
            && let Err(error) = ip(&["link", "delete", &name])
        {
            failed.push(error.to_string());
        }
        let deadline = Instant::now() + CLEAN_LIMIT;
        for group in self.groups() {
            if let Err(error) = patiently(deadline, || remove_groups(&group)) {
                failed.push(format!("{}: {error}", group.display()));
            }
        }
        if let Err(error) = patiently(deadline, || absent_is_fine(fs::remove_dir_all(self.folder()))) {
            failed.push(format!("{}: {error}", self.folder().display()));
        }
        if !failed.is_empty() {
            tracing::warn!(node = name, ?failed, "a real node left something behind");
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.clean();
    }
}

/// A group can be removed when it has no groups and no processes in it.
fn remove_groups(group: &Path) -> io::Result<()> {
    let Ok(entries) = fs::read_dir(group) else {
        return Ok(());
    };
    for entry in entries.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_groups(&entry.path())?;
        }
    }
    absent_is_fine(fs::remove_dir(group))
}

fn absent_is_fine(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Processes that were killed a moment ago may still be in a group or write to a folder.
fn patiently(deadline: Instant, mut attempt: impl FnMut() -> io::Result<()>) -> io::Result<()> {
    loop {
        match attempt() {
            Err(_) if Instant::now() < deadline => std::thread::sleep(CLEAN_INTERVAL),
            other => return other,
        }
    }
}

fn ip(arguments: &[&str]) -> Result<(), NodeError> {
    let failed = |output| NodeError::Command { command: format!("ip {}", arguments.join(" ")), output };
    let output = Command::new("ip").args(arguments).output().map_err(|error| failed(error.to_string()))?;
    if output.status.success() {
        return Ok(());
    }
    Err(failed(String::from_utf8_lossy(&output.stderr).into_owned()))
}
