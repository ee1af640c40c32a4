//! `strata cluster`: commands for a cluster of Talos nodes on Hetzner's servers.

mod file;
mod node;
mod project;
mod versions;

use std::{path::PathBuf, process::ExitCode};

use clap::{Args, Subcommand};
pub use file::ClusterFile;
#[cfg(feature = "dev")]
pub use file::{FILE, Mode, SECRETS, WorkersFile};
#[cfg(feature = "dev")]
pub use node::ROLE_LABEL;
pub use node::Surroundings;
#[cfg(feature = "dev")]
pub use project::balancer_name;
#[cfg(feature = "dev")]
pub use versions::{Versions, public_address};

use crate::{Failure, output::print};

#[derive(Debug, Args)]
pub struct Flags {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print a node's machine configuration, as the node gets it when it is created
    ///
    /// It is computed from the cluster's file, the secrets beside it (secrets.yaml) and what Hetzner's API says about the
    /// server, the network and the load balancer. It contains the keys of the cluster: keep it private.
    ///
    /// The versions of Talos and Kubernetes are those that the control planes run. Those of the file are used while no
    /// control plane answers, which is reported on standard error.
    #[command(after_help = CONFIG_EXAMPLES)]
    Config {
        /// Name of the server, which is the Node's name as well
        node: String,
        #[command(flatten)]
        cluster: ClusterFlags,
    },
}

const CONFIG_EXAMPLES: &str = "\
Examples:
  strata cluster config prod-cp-a1b2c -c k8zner.yaml > node.yaml
  talosctl apply-config --insecure -n ADDRESS -f node.yaml";

/// Which cluster, and how to reach the project it is in.
#[derive(Debug, Args)]
pub struct ClusterFlags {
    /// The cluster's file [default: k8zner.yaml in this folder or one above, else that of `strata dev`]
    #[arg(long, short, value_name = "FILE")]
    config: Option<PathBuf>,
    // From the environment: arguments are seen by every user of the machine.
    #[arg(long, env = "HCLOUD_TOKEN", hide = true, hide_env_values = true)]
    hcloud_token: Option<String>,
    #[arg(long, env = "HCLOUD_ENDPOINT", hide = true)]
    hcloud_endpoint: Option<String>,
    #[cfg(feature = "dev")]
    #[arg(long, env = "STRATA_DEV_DIR", hide = true)]
    dev_dir: Option<PathBuf>,
    #[cfg(feature = "dev")]
    #[arg(long, env = "XDG_STATE_HOME", hide = true)]
    state_home: Option<PathBuf>,
}

pub async fn run(flags: Flags) -> Result<ExitCode, Failure> {
    let Command::Config { node, cluster } = flags.command;
    let project = cluster.open()?;
    print(&project.machine_configuration(&node).await?)?;
    Ok(ExitCode::SUCCESS)
}

impl From<hetzner::Error> for Failure {
    fn from(error: hetzner::Error) -> Self {
        Self::new(format!("Hetzner's API: {}", crate::explained(&error)))
    }
}
