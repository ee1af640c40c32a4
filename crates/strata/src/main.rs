//! The one binary: `strata operator`, `strata crd`, `strata rbac`, `strata dev`.

mod config;
#[cfg(feature = "dev")]
mod dev;
mod manifest;
mod operator;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

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
    /// Print the CustomResourceDefinitions, ready for `kubectl apply -f -`
    Crd,
    /// Print the rights the operator needs: ServiceAccount, roles and bindings
    Rbac(manifest::RbacFlags),
    /// Run everything on this machine: a real control plane, the operator and examples
    ///
    /// Start with `strata dev up`. It builds what is missing, tells when everything runs and what to try then, and
    /// Ctrl-C ends it. In another terminal `export KUBECONFIG=$(strata dev kubeconfig)` lets kubectl and helm in, and
    /// `strata dev status` shows processes and logs. Scripts use `strata dev up --detach` and `strata dev down`.
    #[cfg(feature = "dev")]
    Dev(dev::Flags),
    /// Print the version
    Version,
}

fn main() -> ExitCode {
    // Not for people and before anything else: one of these starts with every helm process.
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().is_some_and(|first| first == "guard") {
        return workspaces::helm::guard::main(arguments);
    }
    // Several crates could bring a crypto provider; this one is ours.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let result = match Cli::parse().command {
        Command::Operator(flags) => operator::run(&flags),
        Command::Crd => manifest::print_crds(),
        Command::Rbac(flags) => manifest::print_rbac(&flags),
        #[cfg(feature = "dev")]
        Command::Dev(flags) => return exit_code(dev::run(flags)),
        Command::Version => {
            anstream::println!("strata {}", env!("CARGO_PKG_VERSION"));
            Ok(())
        }
    };
    exit_code(result.map(|()| ExitCode::SUCCESS))
}

fn exit_code(result: Result<ExitCode, Failure>) -> ExitCode {
    match result {
        Ok(code) => code,
        Err(error) => {
            anstream::eprintln!("error: {error}");
            if let Some(hint) = error.hint {
                anstream::eprintln!("hint: {hint}");
            }
            ExitCode::FAILURE
        }
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
