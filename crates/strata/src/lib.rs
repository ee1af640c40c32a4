//! The one binary: `strata operator`, `strata agent`, `strata shard`, `strata release`, `strata workspace`, `strata group`,
//! `strata cluster`, `strata drain`, `strata crd`, `strata rbac`, `strata dev`.
//!
//! A library only so that [`layers`], the list of all layers, also serves the tests and `cargo xtask codegen`.

mod agent;
mod cluster;
mod config;
mod connection;
#[cfg(feature = "dev")]
mod dev;
mod drain;
mod group;
pub mod layers;
mod manifest;
mod objects;
mod operator;
mod output;
mod release;
mod shard;
mod verb;
mod wait;
mod workspace;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use process::explained;

/// Keeps a Kubernetes platform in its declared state.
///
/// Try it in one command: `strata dev up` starts a real control plane on this machine with the operator and examples.
/// In a cluster, install the chart `charts/strata`, or `strata crd | kubectl apply -f -` and run `strata operator`.
#[derive(Debug, Parser)]
#[command(name = "strata", version, propagate_version = true, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the operator until SIGTERM or Ctrl-C
    Operator(Box<operator::Flags>),
    /// Register an instance with its shard, report its health and keep its Node
    Agent(Box<agent::Flags>),
    /// Look at Helm releases and steer them
    #[command(visible_alias = "hr")]
    Release(Box<release::Flags>),
    /// Create workspaces, look at them, stop and start them
    #[command(visible_alias = "ws")]
    Workspace(Box<workspace::Flags>),
    /// Look at groups of machines and scale them
    Group(Box<group::Flags>),
    /// Run the server of a zone's machines, and look at zones and steer them
    Shard(Box<shard::Flags>),
    /// Look at clusters of Talos nodes on Hetzner's servers
    Cluster(Box<cluster::Flags>),
    /// Empty a node: cordon it, evict its pods within their budgets, and wait until they are gone
    Drain(Box<drain::Flags>),
    /// Print the CustomResourceDefinitions, ready for `kubectl apply -f -`
    Crd,
    /// Print the rights the operator needs: ServiceAccount, roles and bindings
    Rbac(manifest::RbacFlags),
    /// Run everything on this machine: a real control plane, the operator and examples
    ///
    /// Start with `strata dev up`. It builds what is missing, says when everything runs and what to try then, and
    /// Ctrl-C ends it. In another terminal `export KUBECONFIG=$(strata dev kubeconfig)` lets kubectl and helm in, and
    /// `strata dev status` shows processes and logs. Scripts use `strata dev up --detach` and `strata dev down`.
    #[cfg(feature = "dev")]
    Dev(dev::Flags),
    /// Print a completion script, for example `source <(strata completion bash)`
    Completion { shell: clap_complete::Shell },
    /// Print the version
    Version,
}

/// Runs the command that the process was started with.
pub fn main() -> ExitCode {
    // Not for people and before anything else: one of these starts with every helm process.
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().is_some_and(|first| first == "guard") {
        return runtime::child::guard::main(arguments);
    }
    // Several crates could bring a crypto provider; this one is ours.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let result = match Cli::parse().command {
        Command::Operator(flags) => operator::run(&flags),
        Command::Agent(flags) => agent::run(*flags),
        Command::Release(flags) => return exit_code(answer(release::run(*flags)), 1),
        Command::Workspace(flags) => return exit_code(answer(workspace::run(*flags)), 1),
        Command::Group(flags) => return exit_code(answer(group::run(*flags)), 1),
        Command::Shard(flags) => return exit_code(shard::run(*flags), 1),
        Command::Cluster(flags) => return exit_code(answer(cluster::run(*flags)), 1),
        Command::Drain(flags) => return exit_code(answer(drain::run(*flags)), 1),
        Command::Crd => manifest::print_crds(),
        Command::Rbac(flags) => manifest::print_rbac(&flags),
        #[cfg(feature = "dev")]
        Command::Dev(flags) => return exit_code(dev::run(flags), 1),
        Command::Completion { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "strata", &mut script);
            output::print(&String::from_utf8_lossy(&script))
        }
        Command::Version => {
            anstream::println!("strata {}", env!("CARGO_PKG_VERSION"));
            Ok(())
        }
    };
    exit_code(result.map(|()| ExitCode::SUCCESS), 1)
}

/// Runs a command that speaks to a cluster.
fn answer(command: impl Future<Output = Result<ExitCode, Failure>>) -> Result<ExitCode, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| Failure::new(format!("cannot start: {error}")))?.block_on(command)
}

/// The exit code, with `failed` for a failure, which is printed.
fn exit_code(result: Result<ExitCode, Failure>, failed: u8) -> ExitCode {
    result.unwrap_or_else(|failure| {
        tell(&failure);
        ExitCode::from(failed)
    })
}

fn tell(failure: &Failure) {
    anstream::eprintln!("error: {failure}");
    if let Some(hint) = &failure.hint {
        anstream::eprintln!("hint: {hint}");
    }
}

/// What a command tells the user when it fails: what, why, and the next step.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
struct Failure {
    message: String,
    hint: Option<String>,
}

impl Failure {
    fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), hint: None }
    }

    fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl From<kube::Error> for Failure {
    fn from(error: kube::Error) -> Self {
        Self::new(format!("the API server: {}", explained(&error)))
    }
}
