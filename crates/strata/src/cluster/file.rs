//! The file of a cluster, `k8zner.yaml`, and what lies beside it.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use talos::Secrets;

use crate::{Failure, explained};

/// How the file is called where no other is named.
pub const FILE: &str = "k8zner.yaml";
/// Beside it: the cluster's secrets, as `talosctl gen secrets` writes them.
pub const SECRETS: &str = "secrets.yaml";

/// What new nodes run: the newest Talos that the tests run against, and the newest Kubernetes it supports.
const TALOS_VERSION: &str = "v1.12.1";
const KUBERNETES_VERSION: &str = "1.35.0";

/// A cluster as its owner describes it. Fields that nothing here needs are ignored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterFile {
    pub name: String,
    pub region: String,
    pub mode: Mode,
    pub workers: WorkersFile,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub control_plane: Option<ControlPlaneFile>,
    #[serde(default = "talos_version")]
    pub talos_version: String,
    #[serde(default = "kubernetes_version")]
    pub kubernetes_version: String,
}

/// How many control planes a cluster has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// One control plane
    Dev,
    /// Three control planes
    Ha,
    /// Five control planes
    Ha5,
}

#[cfg(feature = "dev")]
impl Mode {
    /// As the file and the command line spell it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Dev => "dev",
            Self::Ha => "ha",
            Self::Ha5 => "ha5",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkersFile {
    pub count: u32,
    pub size: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlPlaneFile {
    pub size: String,
}

fn talos_version() -> String {
    TALOS_VERSION.to_owned()
}

fn kubernetes_version() -> String {
    KUBERNETES_VERSION.to_owned()
}

impl ClusterFile {
    /// With the versions of today.
    #[cfg(feature = "dev")]
    pub fn new(name: &str, region: &str, mode: Mode, workers: WorkersFile) -> Self {
        Self {
            name: name.to_owned(),
            region: region.to_owned(),
            mode,
            workers,
            control_plane: None,
            talos_version: talos_version(),
            kubernetes_version: kubernetes_version(),
        }
    }

    pub fn read(path: &Path) -> Result<Self, Failure> {
        let cannot = |why: String| {
            Failure::new(format!("cannot read the cluster's file {}: {why}", path.display()))
                .hint("it has name, region, mode (dev, ha or ha5) and workers with count and size")
        };
        let text = std::fs::read_to_string(path).map_err(|error| cannot(error.to_string()))?;
        let first_line = |text: &str| text.lines().next().unwrap_or_default().to_owned();
        serde_saphyr::from_str(&text).map_err(|error| cannot(first_line(&error.to_string())))
    }

    /// The first file of the usual name in a folder or in those above it.
    pub fn find(folder: &Path) -> Option<PathBuf> {
        folder.ancestors().map(|folder| folder.join(FILE)).find(|path| path.is_file())
    }
}

/// The secrets beside a cluster's file.
pub fn read_secrets(file: &Path) -> Result<Secrets, Failure> {
    let path = file.with_file_name(SECRETS);
    let cannot = |why: String| Failure::new(format!("cannot read the cluster's secrets {}: {why}", path.display()));
    let text = std::fs::read_to_string(&path)
        .map_err(|error| cannot(error.to_string()).hint(format!("{SECRETS} is expected beside the cluster's file")))?;
    Secrets::from_yaml(&text).map_err(|error| cannot(explained(&error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_with_its_defaults_and_found_from_below() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        let text = "name: prod\nregion: fsn1\nmode: ha\ndomain: example.com\nworkers: {count: 2, size: cx23}\n";
        std::fs::write(&path, text).unwrap();
        let file = ClusterFile::read(&path).unwrap();
        assert_eq!((file.mode, file.workers.count), (Mode::Ha, 2));
        assert_eq!(file.talos_version, TALOS_VERSION);
        let below = folder.path().join("a/b");
        std::fs::create_dir_all(&below).unwrap();
        assert_eq!(ClusterFile::find(&below), Some(path.clone()));
        std::fs::write(&path, "name: prod\nmode: many\n").unwrap();
        let refused = ClusterFile::read(&path).unwrap_err();
        assert!(refused.message.contains(FILE) && refused.hint.is_some(), "{refused}");
        assert!(read_secrets(&path).unwrap_err().message.contains(SECRETS));
    }
}
