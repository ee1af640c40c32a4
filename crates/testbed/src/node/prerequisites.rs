//! What a real node needs from the machine, found before anything is started.

use std::{
    fmt, io,
    path::{Path, PathBuf},
};

use crate::packages;

/// Where distributions and upstream put the CNI plugins.
const CNI_FOLDERS: [&str; 2] = ["/usr/lib/cni", "/opt/cni/bin"];

/// The plugins that our network configuration names.
const CNI_PLUGINS: [&str; 2] = ["bridge", "host-local"];

const PACKAGES: [&str; 5] = ["runc", "containernetworking-plugins", "iproute2", "iptables", "util-linux"];

/// All that is missing, with the remedy, in one line.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub struct Missing(Vec<&'static str>);

impl fmt::Display for Missing {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (lacks, packages) = (self.0.join(", "), PACKAGES.join(" "));
        write!(formatter, "a real node needs {lacks}; as root: apt-get install {packages}")
    }
}

/// A test that may not be skipped fails with the same line.
impl fmt::Debug for Missing {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

pub(super) fn check() -> Result<(), Missing> {
    let mut missing = Vec::new();
    let mut need = |there: bool, name: &'static str| {
        if !there {
            missing.push(name);
        }
    };
    need(cfg!(target_os = "linux"), "Linux");
    need(rustix::process::geteuid().is_root(), "root");
    for program in ["runc", "ip", "iptables", "unshare", "nsenter", "mount"] {
        need(packages::is_on_path(program), program);
    }
    need(cni_folder().is_ok(), "the CNI plugins bridge and host-local");
    need(has_memory_cgroup(), "control groups with the memory controller at /sys/fs/cgroup");
    need(knows_overlay(), "the overlay file system");
    if missing.is_empty() { Ok(()) } else { Err(Missing(missing)) }
}

pub(super) fn cni_folder() -> Result<&'static Path, Missing> {
    CNI_FOLDERS
        .into_iter()
        .map(Path::new)
        .find(|folder| CNI_PLUGINS.iter().all(|plugin| folder.join(plugin).is_file()))
        .ok_or_else(|| Missing(vec!["the CNI plugins bridge and host-local"]))
}

fn has_memory_cgroup() -> bool {
    let root = PathBuf::from("/sys/fs/cgroup");
    let unified = std::fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
    unified.split_whitespace().any(|controller| controller == "memory") || root.join("memory/tasks").is_file()
}

fn knows_overlay() -> bool {
    let known = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    // A module that is not loaded yet is loaded by the first mount.
    known.contains("overlay") || Path::new("/sys/module/overlay").exists() || Path::new("/lib/modules").exists()
}

/// Installs the packages where that can be done. Does nothing where all is there.
pub fn install() -> io::Result<()> {
    if check().is_ok() { Ok(()) } else { packages::install(&PACKAGES) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_told_in_one_line_with_the_remedy() {
        let text = Missing(vec!["root", "runc"]).to_string();
        assert_eq!(
            text,
            "a real node needs root, runc; as root: apt-get install runc containernetworking-plugins iproute2 iptables \
             util-linux"
        );
    }
}
