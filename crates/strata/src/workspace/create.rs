//! `strata workspace create`.

use std::process::ExitCode;

use api::workspace::{
    API_VERSION, ChartReference, Permission, Service, Workspace, WorkspacePhase, WorkspaceSpec, WorkspaceUser,
};
use clap::Args;
use kube::api::DynamicObject;
use serde_json::json;

use super::{VIEW, judge};
use crate::{
    Failure,
    objects::Objects,
    output::{Format, OutputFlags, Shown, print_objects},
    verb::{ChangeFlags, waiting},
    wait::Progress,
};

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Flags {
    /// Name of the Workspace
    name: String,
    /// Domain of all hosts: a service at HOST.WORKSPACE.DOMAIN
    #[arg(long)]
    domain: String,
    /// A person with a code-server; may be given several times
    #[arg(long = "user", value_name = "SLUG=EMAIL", value_parser = user)]
    users: Vec<WorkspaceUser>,
    /// A service installed by Helm; may be given several times
    #[arg(long = "service", value_name = "NAME=REPO/CHART@VERSION", value_parser = service)]
    services: Vec<(String, Service)>,
    /// The ServiceAccount of this namespace that helm acts as for the services
    #[arg(long, value_name = "NAME", requires = "services")]
    service_account: Option<String>,
    /// Create nothing: let the API server check it, and print it
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    change: ChangeFlags,
}

const EXAMPLES: &str = "\
Examples:
  strata workspace create team --domain example.com --user ana=ana@example.com
  strata workspace create team --domain example.com --service db=oci://registry.example/charts/db@2.1.0 \\
      --service-account deployer
  strata workspace create team --domain example.com --dry-run > team.yaml     to keep it in Git

Without @VERSION a service follows the chart's newest release.";

fn user(text: &str) -> Result<WorkspaceUser, String> {
    let (slug, email) = text.split_once('=').ok_or("write it like ana=ana@example.com")?;
    let permissions = vec![Permission::CodeServer];
    Ok(WorkspaceUser { slug: slug.to_owned(), email: email.to_owned(), permissions, ..WorkspaceUser::default() })
}

fn service(text: &str) -> Result<(String, Service), String> {
    let advice = "write it like web=https://charts.example/web@1.2.0";
    let (name, chart) = text.split_once('=').ok_or(advice)?;
    let (repo, chart) = chart.rsplit_once('/').filter(|(repo, _)| repo.contains("://")).ok_or(advice)?;
    let (chart, version) = chart.split_once('@').map_or((chart, None), |(chart, version)| (chart, Some(version)));
    if name.is_empty() || chart.is_empty() || version.is_some_and(str::is_empty) {
        return Err(advice.to_owned());
    }
    let chart = ChartReference {
        repo: repo.to_owned(),
        name: chart.to_owned(),
        version: version.map(str::to_owned),
        ..ChartReference::default()
    };
    Ok((name.to_owned(), Service { chart, ..Service::default() }))
}

pub async fn run(workspaces: &Objects, flags: &Flags) -> Result<ExitCode, Failure> {
    let acting_as = |service| Service { service_account_name: flags.service_account.clone(), ..service };
    let spec = WorkspaceSpec {
        domain: Some(flags.domain.clone()),
        users: flags.users.clone(),
        services: flags.services.iter().cloned().map(|(name, service)| (name, acting_as(service))).collect(),
        ..WorkspaceSpec::default()
    };
    let metadata = json!({ "name": flags.name, "namespace": workspaces.namespace() });
    let object = json!({ "apiVersion": API_VERSION, "kind": Workspace::KIND, "metadata": metadata, "spec": spec });
    let object: DynamicObject = serde_json::from_value(object).expect("an object of ours has all it needs");
    let created = workspaces.create(&object, flags.dry_run).await?;
    let ChangeFlags { wait, output } = &flags.change;
    if flags.dry_run {
        // As it was sent: what the server adds does not belong into a file.
        let output = OutputFlags { output: output.output.or(Some(Format::Yaml)), ..output.clone() };
        print_objects(Shown::One(Box::new(object)), &VIEW, &output)?;
        return Ok(ExitCode::SUCCESS);
    }
    let progress = Progress::new();
    progress.line(&format!("workspace {} created", flags.name));
    let judge = |object: &DynamicObject| judge(workspaces, object, WorkspacePhase::Ready);
    let created =
        if wait.wait { waiting(workspaces, &progress, wait).until(&flags.name, &judge).await? } else { created };
    if output.output.is_some() {
        print_objects(Shown::One(Box::new(created)), &VIEW, output)?;
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_are_read_as_they_are_written() {
        for (text, repo, chart, version) in [
            ("web=https://charts.example/stable/web@^1.0", "https://charts.example/stable", "web", Some("^1.0")),
            ("web=oci://r.example:5000/charts/web", "oci://r.example:5000/charts", "web", None),
            ("web=https://a@charts.example/web@1.0.0+b", "https://a@charts.example", "web", Some("1.0.0+b")),
        ] {
            let (name, service) = service(text).unwrap();
            let read = (service.chart.repo.as_str(), service.chart.name.as_str(), service.chart.version.as_deref());
            assert_eq!((name.as_str(), read), ("web", (repo, chart, version)));
        }
        for text in
            ["web", "web=chart@1", "=https://r/c", "web=https://charts.example/", "web=https://r/c@", "web=/a/b"]
        {
            assert!(service(text).unwrap_err().contains("write it like"), "{text}");
        }
    }
}
