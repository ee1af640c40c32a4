//! `strata dev`: the whole thing on this machine.

mod charts;
mod cluster;
mod clusters;
mod credentials;
mod detach;
mod display;
mod down;
mod event;
mod example;
mod fault;
mod leave;
mod machines;
mod operator;
mod order;
mod own;
mod place;
mod restart;
mod running;
mod serving;
mod session;
mod shards;
mod status;
mod up;

use std::{path::PathBuf, process::ExitCode, time::Duration};

use clap::{Args, Subcommand};
use place::Place;

use crate::{Failure, cluster::Mode, config::duration, explained};

#[derive(Debug, Args)]
pub struct Flags {
    #[command(subcommand)]
    command: Command,
    /// Where data, certificates, kubeconfig and logs are kept; one environment per directory
    /// [default: ${XDG_STATE_HOME:-~/.local/state}/strata/dev]
    #[arg(long, env = "STRATA_DEV_DIR", value_name = "DIR", global = true)]
    dir: Option<PathBuf>,
    #[arg(long, env = "XDG_STATE_HOME", hide = true, global = true)]
    state_home: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start a control plane, simulated nodes, two zones, sample charts, the operator and the examples
    ///
    /// Builds what is missing (once, with the machine's Go, into ~/.cache/strata), starts etcd, kube-apiserver,
    /// controller-manager, scheduler, simulated nodes, a chart repository and an OCI registry on loopback, then the
    /// servers of the zones dev-1 and dev-2, Cluster API's core controllers, the operator under its own ServiceAccount
    /// and generated rights, and applies the examples. Runs until Ctrl-C, which ends everything; data stay for the next start unless --fresh.
    ///
    /// The first start takes about 15 minutes on two cores, later ones take seconds. The control plane, the
    /// operator and the performers come up before the programs that only some examples need are built.
    #[command(after_help = UP_EXAMPLES)]
    Up(UpFlags),
    /// End what `dev up` started; does nothing where nothing runs
    ///
    /// After `dev up --kubeconfig FILE` it also removes from that cluster all that `dev up` put there: examples, rights,
    /// namespaces, and each CRD unless objects of yours of its kind remain. What you made stays.
    Down,
    /// Show what runs, with process ids and logs
    Status {
        /// json prints {"kubeconfig", "auditLog", "charts": {"repository", "registry"}, "storage", "ca",
        /// "endpoints": {ZONE: {"health", "election", "registration", "operator", "agent"}},
        /// "hcloud": {"endpoint", "token", "log"}, "clusters": [{"name", "namespace", "config", "kubeconfig", "talosconfig",
        /// "talosLog", "etcd": {"ca", "cert", "key", "endpoints"}}], "programs": [{"name", "pid", "log"}]}
        #[arg(long, short, value_enum, default_value_t)]
        output: status::Output,
    },
    /// Print the path of the admin's kubeconfig
    ///
    /// Certificates are embedded, so that kubectl and helm can use it from anywhere:
    /// export KUBECONFIG=$(strata dev kubeconfig)
    Kubeconfig,
    /// Let something go wrong in a simulated cluster (`dev up --cluster`)
    #[command(subcommand)]
    Fault(fault::Command),
    /// The background half of `dev up --detach`
    #[command(hide = true)]
    Supervise(UpFlags),
}

const UP_EXAMPLES: &str = "\
Examples:
  strata dev up                          in the foreground, until Ctrl-C
  strata dev up --detach                 in the background; `strata dev down` ends it
  strata dev up --detach --fresh         the same, with nothing left of earlier runs
  strata dev up --detach --cluster ha    with a simulated cluster: three control planes and three workers
  strata dev up --kubeconfig kind.yaml   on a cluster that is already there";

/// What `dev up` is to start.
#[derive(Clone, Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the command line")]
struct UpFlags {
    /// Return once the examples run, and leave everything running in the background
    #[arg(long, short)]
    detach: bool,
    /// Delete the data of earlier runs; a running environment is ended first
    #[arg(long)]
    fresh: bool,
    /// Add a real node: kubelet and containerd, with an example whose container really runs. Needs root
    #[arg(long)]
    real_node: bool,
    /// Add a simulated cluster: Hetzner's API and Talos nodes with real etcd and kube-apiserver on this machine, for
    /// hcloud, talosctl, etcdctl and kubectl. Its servers return with their disks at the next start unless --fresh
    #[arg(long, value_enum, value_name = "SIZE")]
    cluster: Option<Mode>,
    /// Let a stand-in for Hetzner's cloud controller delete the Nodes of the simulated cluster's servers that are gone
    #[arg(long, requires = "cluster")]
    cloud_controller: bool,
    /// Use the cluster of this kubeconfig (its current context) instead of starting one; the operator's account, and with it
    /// helm, may do anything there until `dev down`
    #[arg(long, value_name = "FILE", conflicts_with_all = ["fresh", "real_node", "cluster"])]
    kubeconfig: Option<PathBuf>,
    /// How long the examples may take to be ready [default: 2m; 30s with --kubeconfig, where that is no failure]
    #[arg(long, value_parser = duration, value_name = "DURATION")]
    wait: Option<Duration>,
}

pub fn run(flags: Flags) -> Result<ExitCode, Failure> {
    let runtime = tokio::runtime::Runtime::new().map_err(|error| Failure::new(format!("cannot start: {error}")))?;
    let place = Place::choose(flags.dir, flags.state_home)?;
    let result = runtime.block_on(async {
        match flags.command {
            Command::Up(up) => up::run(&place, up).await,
            Command::Supervise(up) => detach::supervise(&place, up).await,
            Command::Down => down::run(&place).await,
            Command::Status { output } => return status::print(&place, output).await,
            Command::Fault(command) => fault::run(&place, command).await,
            Command::Kubeconfig => status::print_kubeconfig(&place),
        }
        .map(|()| ExitCode::SUCCESS)
    });
    // A blocked read of standard input must not hold up the exit.
    runtime.shutdown_background();
    result
}

/// The storage of the zones of the environment that is up.
pub fn storage(dir: Option<PathBuf>, state_home: Option<PathBuf>) -> Result<PathBuf, Failure> {
    let session = status::current(&Place::choose(dir, state_home)?)?;
    session
        .status
        .storage
        .ok_or_else(|| Failure::new("the environment that is up runs on a cluster of yours, without zones"))
}

/// Hetzner's API and the simulated clusters of the environment that is up; `None` where there are none.
pub fn clusters(
    dir: Option<PathBuf>,
    state_home: Option<PathBuf>,
) -> Option<(clusters::Hcloud, Vec<clusters::ClusterStatus>)> {
    let session = status::current(&Place::choose(dir, state_home).ok()?).ok()?;
    Some((session.status.hcloud?, session.status.clusters))
}

impl From<testbed::control_plane::Error> for Failure {
    fn from(error: testbed::control_plane::Error) -> Self {
        Self::new(explained(&error))
    }
}

impl From<testbed::tools::Error> for Failure {
    fn from(error: testbed::tools::Error) -> Self {
        Self::new(explained(&error))
    }
}

impl From<testbed::process::Error> for Failure {
    fn from(error: testbed::process::Error) -> Self {
        Self::new(explained(&error))
    }
}

impl From<testbed::charts::Error> for Failure {
    fn from(error: testbed::charts::Error) -> Self {
        Self::new(explained(&error))
    }
}

impl From<testbed::capi::Error> for Failure {
    fn from(error: testbed::capi::Error) -> Self {
        Self::new(explained(&error))
    }
}

impl From<testbed::node::NodeError> for Failure {
    fn from(error: testbed::node::NodeError) -> Self {
        Self::new(explained(&error))
    }
}
