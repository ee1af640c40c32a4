//! `strata group`: groups of machines as Cluster API's pools, over all of their shards.

mod list;
mod read;
mod scale;
mod status;
mod view;

use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum};

use crate::{Failure, connection::ConnectionFlags};

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Flags {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    connection: ConnectionFlags,
}

const EXAMPLES: &str = "\
A group is a number of like instances in one or more zones. Three kinds of objects stand for it:
  MachinePool          how many instances there shall be; the one thing to scale
  NstanceMachinePool   which group, on which shards, from which template
  NstanceShardGroup    the share of one shard; the operator keeps them
All of them are in the operator's namespace: name it with -n, or list with -A.

Examples:
  strata group list -A                           every group of the cluster
  strata group status web -n strata-system       shards, instances, and what waits for what
  strata group scale web 5 -n strata-system      five instances over all shards of the group
  strata group scale web 5 --wait --timeout 10m  and wait until five nodes are ready";

#[derive(Debug, Subcommand)]
enum Command {
    /// List groups with wanted, current and ready instances
    #[command(visible_alias = "ls")]
    List(list::Flags),
    /// Set how many instances a group has, over all of its shards
    Scale(scale::Flags),
    /// Show one group: its shards, conditions, instances, and what waits for what
    Status(status::Flags),
}

/// Data of several objects in a form of its own; the objects themselves are kubectl's to print.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Output {
    #[default]
    Table,
    Json,
}

pub async fn run(flags: Flags) -> Result<ExitCode, Failure> {
    let (client, namespace) = flags.connection.connect().await?;
    let everywhere = matches!(&flags.command, Command::List(list) if list.all_namespaces);
    let reader = read::Reader::new(client, (!everywhere).then_some(namespace.as_str()));
    match flags.command {
        Command::List(flags) => list::run(&reader, &flags).await,
        Command::Scale(flags) => scale::run(&reader, &flags).await,
        Command::Status(flags) => status::run(&reader, &flags).await,
    }
}
