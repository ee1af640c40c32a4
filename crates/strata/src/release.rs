//! `strata release`: Helm releases as the operator keeps them.

mod change;
mod diff;
mod difference;
mod helm;
mod history;
pub mod list;
mod status;

use std::process::ExitCode;

use clap::{Args, Subcommand};

use crate::{
    Failure, connection::ConnectionFlags, exit_code, objects::Objects, output::OutputFlags, verb::ChangeFlags,
};

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Flags {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    connection: ConnectionFlags,
}

const EXAMPLES: &str = "\
Examples:
  strata release list -A                       every release of the cluster
  strata release status web -n team-a          one release: conditions, history, what helm said
  strata release diff web                      what the next upgrade would change
  strata release reconcile web --wait          look for a new version now, and wait for the end
  strata release rollback web                  back to the revision before
  strata release suspend --all                 leave all releases of the namespace as they are";

#[derive(Debug, Subcommand)]
enum Command {
    /// List releases with chart, version and readiness
    #[command(visible_alias = "ls")]
    List(list::Flags),
    /// Show one release: chart, conditions, history, and what helm said when it failed
    Status {
        /// Name of the HelmRelease
        name: String,
        #[command(flatten)]
        output: OutputFlags,
    },
    /// Show what the next upgrade would change
    ///
    /// Renders the chart with the release's values by the helm program on this machine, against the cluster (a dry run
    /// on the server, with your own rights), and compares it with the manifest of the deployed revision. Data of
    /// Secrets are shown as ***. Exit code 0: nothing would change, 1: something would, above 1: an error.
    Diff(diff::Flags),
    /// List the revisions that Helm keeps, newest first
    History {
        /// Name of the HelmRelease
        name: String,
        #[command(flatten)]
        output: OutputFlags,
    },
    /// Roll back to an earlier revision
    ///
    /// The operator does it, and keeps the release there until its chart or its values change.
    Rollback {
        /// Name of the HelmRelease
        name: String,
        /// Revision to roll back to [default: the newest earlier one that was deployed]
        #[arg(value_parser = clap::value_parser!(u32).range(1..))]
        revision: Option<u32>,
        #[command(flatten)]
        change: ChangeFlags,
    },
    /// Reconcile releases now: new chart versions, changed values, drift
    Reconcile {
        /// Names of the HelmReleases
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
        /// Upgrade even if nothing changed, and again if all retries are used up
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        change: ChangeFlags,
    },
    /// Suspend releases: the operator changes nothing until `resume`
    Suspend(change::Selection),
    /// Resume suspended releases
    Resume(change::Selection),
}

pub async fn run(flags: Flags) -> Result<ExitCode, Failure> {
    // Of a diff, 1 says that there are changes.
    let failed = if matches!(flags.command, Command::Diff(_)) { 2 } else { 1 };
    Ok(exit_code(carry_out(flags).await, failed))
}

async fn carry_out(flags: Flags) -> Result<ExitCode, Failure> {
    let (client, namespace) = flags.connection.connect().await?;
    let everywhere = matches!(&flags.command, Command::List(list) if list.all_namespaces);
    let releases = Objects::releases(client.clone(), (!everywhere).then(|| namespace.clone()));
    match flags.command {
        Command::List(list) => list::list(&releases, &list, &list::VIEW).await,
        Command::Status { name, output } => status::run(&releases, &name, &output).await,
        Command::Diff(diff) => diff::run(&diff, &flags.connection, client, namespace).await,
        Command::History { name, output } => history::run(&releases, &name, &output).await,
        Command::Rollback { name, revision, change } => change::roll_back(&releases, name, revision, &change).await,
        Command::Reconcile { names, force, change } => change::reconcile(&releases, &names, force, &change).await,
        Command::Suspend(selection) => change::suspend(&releases, &selection, true).await,
        Command::Resume(selection) => change::suspend(&releases, &selection, false).await,
    }
}
