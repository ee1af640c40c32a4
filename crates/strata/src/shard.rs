//! `strata shard`: the server that owns the machines of one zone, and the commands around it.

mod conformance;
mod connect;
mod hcloud;
mod init;
mod instances;
mod machines;
mod metrics;
mod nonce;
mod serve;
mod status;
mod steer;
mod storage;
mod validate;

use std::process::ExitCode;

use clap::{Args, Subcommand};

use crate::{Failure, answer};
#[cfg(feature = "dev")]
pub use init::{commented, make};

#[derive(Debug, Args)]
pub struct Flags {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    storage: storage::StorageFlags,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make the cluster's keys and a shard's first configuration in the storage; what is there stays
    Init(init::Flags),
    /// Run a server of a shard until SIGTERM or Ctrl-C
    Run(Box<serve::Flags>),
    /// Print a nonce, a JWT by which an operator or an agent registers
    Nonce(nonce::Flags),
    /// Make the shard's leader read its configuration again
    Refresh(steer::RefreshFlags),
    /// Check configurations: that of a file, or those in the storage
    Validate(validate::Flags),
    /// List instances, as the storage has them
    Instances(instances::Flags),
    /// Show who leads, and the groups of a shard or of all
    Status(status::Flags),
    /// Set the size of a group; a group that is not there is made
    Scale(steer::ScaleFlags),
    /// Check that the server at an endpoint answers as the protocol says; it changes nothing
    Conformance(conformance::Flags),
}

pub fn run(flags: Flags) -> Result<ExitCode, Failure> {
    let storage = flags.storage;
    match flags.command {
        Command::Run(flags) => serve::run(*flags, &storage).map(|()| ExitCode::SUCCESS),
        Command::Init(flags) => answer(init::run(flags, &storage)),
        Command::Nonce(flags) => answer(nonce::run(flags, &storage)),
        Command::Refresh(flags) => answer(steer::refresh(flags, &storage)),
        Command::Validate(flags) => answer(validate::run(flags, &storage)),
        Command::Instances(flags) => answer(instances::run(flags, &storage)),
        Command::Status(flags) => answer(status::run(flags, &storage)),
        Command::Scale(flags) => answer(steer::scale(flags, &storage)),
        Command::Conformance(flags) => answer(conformance::run(flags, &storage)),
    }
}
