//! A cluster that stock programs alone build in a cloud: the script of the test suite, and its surroundings.

use std::path::{Path, PathBuf};

use tokio::process::Command;

use super::Cloud;
use crate::tools;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/three-control-planes.sh");

/// A folder with the files of such a cluster. Its script is part of this repository, not of the program.
#[derive(Clone, Debug)]
pub struct Stock {
    /// The cluster's name, which those of its servers begin with.
    pub name: &'static str,
    /// Where talosconfig, kubeconfig and secrets are.
    pub folder: PathBuf,
    /// How many there are beside the three control planes.
    pub workers: usize,
}

impl Stock {
    /// Programs of the catalog that it uses, beside curl and jq.
    pub const PROGRAMS: [&str; 2] = ["talosctl", "kubectl"];

    /// Builds the cluster (`up`), replaces a control plane (`replace SERVER`) or adds a server (`add SERVER`).
    pub async fn script(&self, cloud: &Cloud, arguments: &[&str]) -> Result<Command, tools::Error> {
        let mut command = self.command(cloud, Path::new(SCRIPT)).await?;
        command.args(arguments);
        Ok(command)
    }

    /// Any program, with the environment that stock programs and the script read. It ends with the handle of its process.
    pub async fn command(&self, cloud: &Cloud, program: &Path) -> Result<Command, tools::Error> {
        let mut command = Command::new(program);
        command
            .env("HOME", &self.folder)
            .env("TALOSCONFIG", self.folder.join("talosconfig"))
            .env("KUBECONFIG", self.folder.join("kubeconfig"))
            .env("HCLOUD_ENDPOINT", cloud.endpoint())
            .env("HCLOUD_TOKEN", cloud.token())
            .env("CLUSTER", self.name)
            .env("WORKERS", self.workers.to_string())
            .env("RANGE", cloud.network().to_string())
            .env("FOLDER", &self.folder)
            .env("TALOSCTL", tools::path("talosctl").await?)
            .env("KUBECTL", tools::path("kubectl").await?)
            .kill_on_drop(true);
        Ok(command)
    }
}
