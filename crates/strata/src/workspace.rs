//! `strata workspace`: a team's environment.

mod create;
mod status;

use std::process::ExitCode;

use api::{
    condition::{Condition, ConditionType, Reason},
    workspace::{Workspace, WorkspacePhase, WorkspaceStatus},
};
use clap::{Args, Subcommand};
use jiff::Timestamp;
use kube::api::DynamicObject;
use serde_json::{Value, json};

use crate::{
    Failure,
    connection::ConnectionFlags,
    objects::{Objects, decode, name_of},
    output::{OutputFlags, View, object_age, one_line},
    release::list,
    verb::{ChangeFlags, Verb},
    wait::{Standing, Verdict, may_pass, summary},
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
  strata workspace create team -n team-a --domain example.com \\
      --user ana=ana@example.com --service web=https://charts.example/web@^1.0 --service-account deployer --wait
  strata workspace status team -n team-a     services, users and where they are reached
  strata workspace stop team -n team-a       everything to zero for the night; data stay
  strata workspace start team -n team-a      and back with the former replicas";

#[derive(Debug, Subcommand)]
enum Command {
    /// Create a workspace in an existing namespace
    Create(create::Flags),
    /// List workspaces with phase and readiness
    #[command(visible_alias = "ls")]
    List(list::Flags),
    /// Show one workspace: conditions, services, users, and where they are reached
    Status {
        /// Name of the Workspace
        name: String,
        #[command(flatten)]
        output: OutputFlags,
    },
    /// Scale everything of workspaces to zero; nothing is uninstalled and no data is touched
    Stop(Named),
    /// Bring stopped workspaces back with their former replicas
    Start(Named),
}

#[derive(Debug, Args)]
struct Named {
    /// Names of the Workspaces
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
    #[command(flatten)]
    change: ChangeFlags,
}

/// The columns that `kubectl get workspaces` has.
const VIEW: View = View {
    columns: &["NAME", "PHASE", "SERVICES", "USERS", "READY", "REASON", "AGE"],
    wide: &["DOMAIN", "MESSAGE"],
    row,
};

pub async fn run(flags: Flags) -> Result<ExitCode, Failure> {
    let (client, namespace) = flags.connection.connect().await?;
    let everywhere = matches!(&flags.command, Command::List(list) if list.all_namespaces);
    let workspaces = Objects::workspaces(client, (!everywhere).then_some(namespace));
    match flags.command {
        Command::List(list) => list::list(&workspaces, &list, &VIEW).await,
        Command::Create(flags) => create::run(&workspaces, &flags).await,
        Command::Status { name, output } => status::run(&workspaces, &name, &output).await,
        Command::Stop(Named { names, change }) => stop(&workspaces, &names, true, &change).await,
        Command::Start(Named { names, change }) => stop(&workspaces, &names, false, &change).await,
    }
}

async fn stop(workspaces: &Objects, names: &[String], stop: bool, flags: &ChangeFlags) -> Result<ExitCode, Failure> {
    // `null` takes the field away again.
    let patch = json!({ "spec": { "stopped": stop.then_some(true) } });
    let (summary, goal) =
        if stop { ("is stopping", WorkspacePhase::Stopped) } else { ("is starting", WorkspacePhase::Ready) };
    let patch = |_: &DynamicObject| -> Result<Value, Failure> { Ok(patch.clone()) };
    let judge = |object: &DynamicObject| judge(workspaces, object, goal);
    Verb { objects: workspaces, view: &VIEW, summary, patch: &patch, judge: &judge }.run(names, flags).await
}

/// How a workspace stands towards the phase it should come to.
fn judge(workspaces: &Objects, object: &DynamicObject, goal: WorkspacePhase) -> Result<Standing, Failure> {
    let status = decode::<Workspace>(object)?.status.unwrap_or_default();
    let ready = ready(&status);
    let phase = status.phase.map_or_else(String::new, |phase| format!("{phase:?}, "));
    let verdict = match status.phase {
        _ if status.observed_generation != object.metadata.generation => Verdict::Unseen,
        Some(phase) if phase == goal => Verdict::Done,
        // Something else may have failed long ago.
        Some(WorkspacePhase::Failed) if is_moving(&status) => Verdict::Moving,
        Some(WorkspacePhase::Failed) => Verdict::Failed(failure(workspaces, name_of(object), &status)),
        _ => Verdict::Moving,
    };
    Ok(Standing { summary: format!("{phase}{}", summary(ready)), verdict })
}

/// Whether a part of it is on its way.
fn is_moving(status: &WorkspaceStatus) -> bool {
    let services = status.services.iter().filter(|service| !service.ready).map(|service| &service.reason);
    let users = status.users.iter().filter(|user| !user.ready).map(|user| &user.reason);
    services.chain(users).flatten().any(|reason| {
        let known = Reason::ALL.iter().find(|known| known.as_str() == reason);
        // Who waits for another part moves when that does.
        known.is_none_or(|known| *known != Reason::DependencyNotReady && may_pass(*known))
    })
}

/// Every part that is not ready, with what it says: for a service that is what helm said.
fn failure(workspaces: &Objects, name: &str, status: &WorkspaceStatus) -> Failure {
    let services = status.services.iter().filter(|service| !service.ready).map(|service| {
        let (reason, message) = (service.reason.as_deref(), service.message.as_deref());
        let why: Vec<_> = [reason, message].into_iter().flatten().map(one_line).collect();
        format!("service {}: {}", service.name, why.join(": "))
    });
    let users = status.users.iter().filter(|user| !user.ready);
    let users = users.map(|user| format!("user {}: {}", user.slug, user.reason.as_deref().unwrap_or_default()));
    let what = format!("workspace {name} {} has failed: {}", workspaces.place(), summary(ready(status)));
    let text = std::iter::once(what).chain(services).chain(users).collect::<Vec<_>>().join("\n  ");
    Failure::new(text).hint(format!("{} shows the details", workspaces.status_command(name)))
}

fn ready(status: &WorkspaceStatus) -> Option<&Condition> {
    status.conditions.iter().find(|condition| condition.kind == ConditionType::Ready)
}

fn row(object: &DynamicObject, now: Timestamp) -> Result<Vec<String>, Failure> {
    let workspace: Workspace = decode(object)?;
    let status = workspace.status.unwrap_or_default();
    let ready = ready(&status);
    Ok(vec![
        name_of(object).to_owned(),
        status.phase.map(|phase| format!("{phase:?}")).unwrap_or_default(),
        status.services_ready.clone().unwrap_or_default(),
        status.users_ready.clone().unwrap_or_default(),
        ready.map(|ready| format!("{:?}", ready.status)).unwrap_or_default(),
        ready.map(|ready| ready.reason.to_string()).unwrap_or_default(),
        object_age(object, now),
        workspace.spec.and_then(|spec| spec.domain).unwrap_or_default(),
        ready.map(|ready| ready.message.clone()).unwrap_or_default(),
    ])
}
