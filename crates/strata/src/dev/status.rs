//! `strata dev status`, `strata dev kubeconfig`, and what to try next.

use std::process::ExitCode;

use serde_json::json;

use super::{
    clusters,
    place::Place,
    session::{Program, Session},
};
use crate::Failure;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Output {
    #[default]
    Table,
    Json,
}

pub async fn print(place: &Place, output: Output) -> Result<ExitCode, Failure> {
    let mut current = current(place);
    if let Ok(session) = &mut current {
        clusters::refresh(session).await;
    }
    match (current, output) {
        (Ok(session), Output::Json) => {
            let text = serde_json::to_string_pretty(&session.status).expect("a status has a JSON form");
            anstream::println!("{text}");
            Ok(ExitCode::SUCCESS)
        }
        (Ok(session), Output::Table) => {
            print_table(&session);
            Ok(ExitCode::SUCCESS)
        }
        (Err(failure), Output::Json) => {
            anstream::eprintln!("{}", json!({ "error": failure.message, "hint": failure.hint }));
            Ok(ExitCode::FAILURE)
        }
        (Err(failure), Output::Table) => Err(failure),
    }
}

pub fn print_kubeconfig(place: &Place) -> Result<(), Failure> {
    anstream::println!("{}", current(place)?.status.kubeconfig.display());
    Ok(())
}

/// What is up.
pub fn current(place: &Place) -> Result<Session, Failure> {
    let is_held = place.holder().is_some();
    match place.session().filter(|_| is_held) {
        Some(session) => Ok(session),
        None if is_held => Err(Failure::new("the environment is starting or stopping").hint(
            "the command that starts or ends it says how far it is; a first start builds programs for many minutes",
        )),
        None => Err(Failure::new(format!("nothing is up in {}", place.directory().display()))
            .hint("start it with `strata dev up`")),
    }
}

fn print_table(session: &Session) {
    let name_width = session.status.programs.iter().map(|program| program.name.len()).max().unwrap_or(0);
    anstream::println!("{:name_width$}  {:>8}  LOG", "PROGRAM", "PID");
    for Program { name, pid, log } in &session.status.programs {
        anstream::println!("{name:name_width$}  {pid:>8}  {}", log.display());
    }
    anstream::println!("\nkubeconfig  {}", session.status.kubeconfig.display());
    if let Some(log) = &session.status.audit_log {
        anstream::println!("audit log   {}", log.display());
    }
    anstream::println!("charts      {}", session.status.charts.repository);
    anstream::println!("            {}", session.status.charts.registry);
    anstream::println!("metrics     {}", session.metrics);
    for (zone, endpoints) in &session.status.endpoints {
        anstream::println!("{zone:<11} operators at {}, agents at {}", endpoints.operator, endpoints.agent);
    }
    if let Some(storage) = &session.status.storage {
        anstream::println!("zones in    {}", storage.display());
    }
    if let Some(hcloud) = &session.status.hcloud {
        anstream::println!("hcloud      {}, log {}", hcloud.endpoint, hcloud.log.display());
    }
    for cluster in &session.status.clusters {
        anstream::println!("cluster     {}", cluster.name);
        anstream::println!("            kubeconfig   {}", cluster.kubeconfig.display());
        anstream::println!(
            "            talosconfig  {}, log {}",
            cluster.talosconfig.display(),
            cluster.talos_log.display()
        );
        anstream::println!("            config       {}", cluster.config.display());
        anstream::println!("            etcd         {}", cluster.etcd.endpoints.join(","));
    }
}

/// What to try with the zones.
const ZONES: &str = "  \
  kubectl scale machinepool web -n strata-system --replicas=4 # four instances over two zones, each with its Node
  strata shard instances                                      # kill one of these processes, and see it replaced
";

/// What to try with a simulated cluster.
fn cluster_steps(session: &Session) -> String {
    let Some((cluster, hcloud)) = session.status.clusters.first().zip(session.status.hcloud.as_ref()) else {
        return String::new();
    };
    let tool = |name: &str| {
        let place = testbed::tools::place(name);
        place.map_or_else(|_| name.to_owned(), |place| place.display().to_string())
    };
    format!(
        "
  kubectl --kubeconfig {} get nodes
  {} --talosconfig {} etcd members
  export HCLOUD_ENDPOINT={} HCLOUD_TOKEN=$(strata dev status -o json | jq -r .hcloud.token)   # for hcloud
  strata dev fault node NODE --kind power-off                 # kill a server; strata dev fault --help has more

",
        cluster.kubeconfig.display(),
        tool("talosctl"),
        cluster.talosconfig.display(),
        hcloud.endpoint,
    )
}

/// What a newcomer can do now.
pub fn print_next_steps(session: &Session) {
    let operator = session.status.programs.iter().find(|program| program.name == super::operator::NAME);
    let log = operator.map(|program| program.log.display().to_string()).unwrap_or_default();
    let strata = std::env::current_exe().map_or_else(|_| "strata".to_owned(), |path| path.display().to_string());
    let kubectl = session.kubectl.as_ref().map_or_else(|| "kubectl".to_owned(), |path| path.display().to_string());
    anstream::println!(
        "\nstrata is up (operator ready after {:.1} s). Try:

  export KUBECONFIG={}
  alias kubectl={kubectl}
  alias strata={strata}
  kubectl get performers -A                                   # what runs
  kubectl delete pod performer-basic -n performers-demo       # kill one …
  kubectl get pods -n performers-demo --watch                 # … and see it come back
  kubectl patch performer basic -n performers-demo --type=merge -p '{{\"spec\":{{\"version\":\"2\"}}}}'   # an upgrade
  kubectl get ws,hr,wsuser -A                                 # a team's workspace, its releases and people
  strata workspace stop analytics -n workspaces-demo          # all of it to zero; start brings it back
  kubectl delete service greeter -n releases-demo             # drift: set back at once
{}{}  curl {}
  tail -f {log}

`strata dev status` shows what runs, `strata dev down` ends it.",
        std::time::Duration::from_millis(session.ready_after_millis).as_secs_f64(),
        session.status.kubeconfig.display(),
        if session.status.storage.is_some() { ZONES } else { "" },
        cluster_steps(session),
        session.metrics,
    );
}
