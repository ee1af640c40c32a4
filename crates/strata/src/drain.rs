//! `strata drain`: empties a node, with the user's own rights.

mod show;

use std::{path::PathBuf, process::ExitCode, time::Duration};

use ::drain::{Drains, Progress, Request};
use clap::Args;
use plan::{
    drain::{End, Holds, Order, Plan},
    fact::{Class, Failure as Cause},
};
use process::Clock;
use runtime::{Alone, Cluster, Recorder, alone};

use self::show::Reporter;
use crate::{Failure, config::duration, connection::client_config, output::print};

/// One answer of an API server that works comes well within this; a person should not sit before a dead one for longer.
const ANSWER_PATIENCE: Duration = Duration::from_secs(30);
/// The exit code for a drain whose time was up; 2 is that of a wrong command line.
const TIME_UP: u8 = 3;

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Flags {
    /// Name of the Node
    node: String,
    /// How long to try; the pods left then are named, and the node stays cordoned [default: no limit]
    #[arg(long, value_parser = duration, value_name = "DURATION")]
    timeout: Option<Duration>,
    /// Show what would become of each pod, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Also evict pods that nothing creates again elsewhere
    #[arg(long)]
    force: bool,
    /// Also wait until the volumes of evicted pods are detached from the node
    #[arg(long)]
    wait_for_volumes: bool,
    /// Kubeconfig file [default: $KUBECONFIG or ~/.kube/config]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig [default: its current one]
    #[arg(long)]
    context: Option<String>,
}

const EXAMPLES: &str = "\
What happens:
  1. The node is cordoned: nothing new is scheduled there.
  2. Its pods are evicted, each once and within its PodDisruptionBudget: ordinary pods first,
     then those of the class system-cluster-critical, then system-node-critical. A pod that
     its budget blocks goes when the budget allows it.
  3. The command ends when the last of them is gone.
  These stay, and are not waited for: pods of DaemonSets, static pods, completed pods, pods
  with the label cluster.x-k8s.io/drain=skip, and pods that came after the cordon.

Exit codes: 0 drained, 1 an error, 3 not drained before --timeout.
Ctrl-C ends the command and leaves the node cordoned: run it again to go on, or
`kubectl uncordon NODE` to go back.

Examples:
  strata drain worker-1 --dry-run        what would become of each pod
  strata drain worker-1 --timeout 10m    give up after ten minutes, and name what was in the way";

pub async fn run(flags: Flags) -> Result<ExitCode, Failure> {
    let config = client_config(flags.kubeconfig.as_deref(), flags.context.as_deref()).await?;
    let client = runtime::connect(config)
        .map_err(|error| Failure::new(format!("cannot make a client for the API server: {error}")))?;
    let identity = Alone { instance: "strata-cli".to_owned(), request_timeout: ANSWER_PATIENCE };
    let clock = Clock::default();
    alone(client, clock.clone(), identity, async |cluster, recorder| carry_out(&flags, cluster, recorder, clock).await)
        .await
}

async fn carry_out(flags: &Flags, cluster: Cluster, recorder: Recorder, clock: Clock) -> Result<ExitCode, Failure> {
    // Each run is a drain of its own: it evicts what came to the node since the last one.
    let order =
        Order { id: format!("cli-{}", clock.now()), rules: Vec::new(), waits_for_volumes: flags.wait_for_volumes };
    let drains = Drains::new(cluster, recorder, clock.clone());
    let preview = tokio::time::timeout(ANSWER_PATIENCE, drains.preview(&flags.node, &order)).await;
    let preview = preview.map_err(|_| {
        Failure::new(format!("the API server does not answer within {} s", ANSWER_PATIENCE.as_secs()))
            .hint("check with `kubectl get nodes`")
    })?;
    check(flags, &preview)?;
    if flags.dry_run {
        print(&show::table(&preview))?;
        return Ok(ExitCode::SUCCESS);
    }
    let deadline = flags.timeout.map(|timeout| clock.instant() + timeout);
    let mut progress = drains.ensure(&flags.node, Request { order, deadline }, || {});
    let mut reporter = Reporter::new(&flags.node);
    loop {
        let now = progress.borrow_and_update().clone();
        reporter.report(&now.plan);
        give_up(flags, &now)?;
        if let Some(end) = now.plan.end {
            return finish(flags, &now.plan, end, &reporter);
        }
        if progress.changed().await.is_err() {
            return Err(Failure::new("the drain ended without a result").hint("run it again"));
        }
    }
}

/// Whether a drain can and should begin.
fn check(flags: &Flags, preview: &Plan) -> Result<(), Failure> {
    let node = &flags.node;
    if preview.end == Some(End::NodeGone) {
        return Err(Failure::new(format!("there is no Node {node}")).hint("`kubectl get nodes` lists them"));
    }
    if let Some(unknown) = preview.unknown.first() {
        return Err(Failure::new(format!("cannot read {unknown}"))
            .hint("a drain needs list and watch of nodes, pods and poddisruptionbudgets, patch of nodes and create of pods/eviction"));
    }
    if preview.unmanaged.is_empty() || flags.force || flags.dry_run {
        return Ok(());
    }
    let names: Vec<String> = preview.unmanaged.iter().map(|name| format!("\n  {name}")).collect();
    Err(Failure::new(format!("nothing would create these pods again elsewhere:{}", names.concat()))
        .hint("delete them yourself, label them cluster.x-k8s.io/drain=skip, or evict them as well with --force"))
}

/// What trying again does not change.
fn give_up(flags: &Flags, progress: &Progress) -> Result<(), Failure> {
    if let Some(Cause { class: Class::Invalid | Class::Terminal, message }) = &progress.cordon_failure {
        return Err(Failure::new(format!("cannot cordon node {}: {message}", flags.node))
            .hint("a drain needs the right to patch nodes"));
    }
    let mut forbidden = progress.plan.left().map(|(pod, holds)| match holds {
        Holds::Failed { message, is_forbidden: true } => Some((pod, message)),
        _ => None,
    });
    let first = forbidden.next().flatten();
    if let Some((pod, message)) = first.filter(|_| forbidden.all(|other| other.is_some())) {
        return Err(Failure::new(format!("cannot evict pod {pod}: {message}"))
            .hint("a drain needs the right to create pods/eviction; the node stays cordoned"));
    }
    Ok(())
}

fn finish(flags: &Flags, plan: &Plan, end: End, reporter: &Reporter) -> Result<ExitCode, Failure> {
    let node = &flags.node;
    match end {
        End::Drained => {
            reporter.line(&format!("{} pods are gone, {} stay", reporter.gone(), plan.pods.len()));
            print(&format!("node/{node} drained\n"))?;
        }
        End::NodeGone => print(&format!("node/{node} is gone\n"))?,
        End::Expired => {
            let waited = api::workspace::Span(flags.timeout.unwrap_or_default());
            let left = plan.left().map(|(pod, holds)| format!("\n  {pod}: {holds}"));
            let volumes = plan.volumes.iter().map(|volume| format!("\n  volume {volume}: still attached"));
            let unknown = plan.unknown.iter().map(|unknown| format!("\n  not known: {unknown}"));
            let left: String = left.chain(volumes).chain(unknown).collect();
            let failure = Failure::new(format!("node {node} is not drained after {waited}:{left}")).hint(format!(
                "the node stays cordoned: run it again to go on, or `kubectl uncordon {node}` to go back"
            ));
            crate::tell(&failure);
            return Ok(ExitCode::from(TIME_UP));
        }
    }
    Ok(ExitCode::SUCCESS)
}
