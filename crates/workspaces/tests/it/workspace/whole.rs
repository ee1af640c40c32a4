//! Workspaces whole: the services are real charts, installed by the real helm.

use anyhow::{Context, Result, bail, ensure};
use api::workspace::{HelmRelease, User, Workspace, WorkspacePhase};
use futures::future::try_join_all;
use k8s_openapi::api::{
    apps::v1::{Deployment, StatefulSet},
    core::v1::{Namespace, PersistentVolumeClaim, Pod, Secret, ServiceAccount},
    rbac::v1::RoleBinding,
};
use kube::{
    Api,
    api::{DeleteParams, ListParams},
    runtime::wait::{await_condition, conditions::is_deleted},
};
use serde_json::{Value, json};
use testbed::audit::Entry;

use super::harness::{PATIENCE, Space, condition, line, user};
use crate::{
    space::{self, OPERATOR_USER},
    world::World,
};

const CHARTS: [(&str, &str); 3] = [("api", "four"), ("db", "db"), ("web", "web")];

/// Three services, all with pods, and three users.
fn spec(releases: &space::Space<'_>) -> Value {
    let service = |chart, replicas| {
        let chart = releases.chart(chart, "1.0.0");
        json!({ "chart": chart, "serviceAccountName": "deployer", "values": { "replicas": replicas } })
    };
    let (mut web, api) = (service("web", 2), service("four", 3));
    web["dependsOn"] = json!(["db"]);
    web["expose"] = json!({ "service": "web", "port": 80 });
    json!({
        "domain": "example.com",
        "services": { "api": api, "db": service("db", 1), "web": web },
        "users": [user("ana"), user("bob"), user("cyd")],
    })
}

/// A namespace with a Workspace that is ready, under both harnesses' verbs.
async fn ready(prefix: &str) -> Result<(space::Space<'static>, Space)> {
    let releases = World::shared().await.space(prefix).await?;
    let space = Space { client: releases.client.clone(), namespace: releases.namespace.clone() };
    releases.account("deployer", Some("admin")).await?;
    space.ready_workspace("team", spec(&releases)).await?;
    Ok((releases, space))
}

/// What `kubectl get` prints of a kind, a line per object.
async fn get(space: &Space, resource: &str) -> Result<Vec<String>> {
    let path = format!("/apis/workspaces.strata.dev/v1alpha1/namespaces/{}/{resource}", space.namespace);
    let request = http::Request::get(path).header("accept", "application/json;as=Table;v=v1;g=meta.k8s.io");
    let table: Value = space.client.request(request.body(Vec::new())?).await?;
    let columns = table["columnDefinitions"].as_array().context("a table")?;
    let shown: Vec<_> = (0..columns.len()).filter(|column| columns[*column]["priority"] == 0).collect();
    let text = |cell: &Value| cell.as_str().map_or_else(|| cell.to_string(), str::to_owned);
    let line = |row: &Value| shown.iter().map(|column| text(&row["cells"][*column])).collect::<Vec<_>>().join(" ");
    Ok(table["rows"].as_array().into_iter().flatten().map(line).collect())
}

/// What the stock kubectl prints.
async fn kubectl(releases: &space::Space<'_>, arguments: &[&str]) -> Result<String> {
    let cache = tempfile::tempdir()?;
    #[expect(clippy::disallowed_methods, reason = "the program that users have")]
    let mut kubectl = tokio::process::Command::new(testbed::tools::path("kubectl").await?);
    kubectl.args(arguments).args(["--namespace", &releases.namespace, "--kubeconfig"]);
    kubectl.arg(releases.control_plane.kubeconfig()).arg("--cache-dir").arg(cache.path());
    let output = kubectl.kill_on_drop(true).output().await?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

#[tokio::test]
async fn w02_three_real_charts_and_three_users_converge_and_kubectl_tells_it() -> Result<()> {
    let (releases, space) = ready("whole").await?;
    let team: Workspace = space.get("team").await?;
    let status = team.status.clone().unwrap_or_default();
    assert_eq!((status.services_ready.as_deref(), status.users_ready.as_deref()), (Some("3/3"), Some("3/3")));
    for kind in ["Ready", "ServicesReady", "UsersReady", "NetworkReady"] {
        assert!(condition(&team, kind).starts_with("True Succeeded"), "{}", condition(&team, kind));
    }
    for (name, _) in CHARTS {
        releases.check_history(name, "1 deployed").await?;
    }
    let pods = space.api::<Pod>().list(&ListParams::default()).await?.items;
    let is_ready = |pod: &Pod| {
        let status = pod.status.clone().unwrap_or_default();
        status.conditions.iter().flatten().any(|found| found.type_ == "Ready" && found.status == "True")
    };
    assert_eq!(pods.iter().filter(|pod| is_ready(pod)).count(), 3 + 1 + 2 + 3, "{pods:?}");
    let teams = get(&space, "workspaces").await?;
    assert!(teams.len() == 1 && teams[0].starts_with("team Ready 3/3 3/3"), "{teams:?}");
    let listed = get(&space, "helmreleases").await?;
    for ((name, chart), line) in CHARTS.into_iter().zip(&listed) {
        assert!(line.starts_with(name) && line.contains(chart) && line.contains("True"), "{listed:?}");
    }
    let listed = get(&space, "users").await?;
    for (slug, line) in ["ana", "bob", "cyd"].into_iter().zip(&listed) {
        assert!(
            line.starts_with(slug) && line.contains(&format!("Ready http://{slug}.team.example.com")),
            "{listed:?}"
        );
    }
    // The same as users ask for it, by the short names.
    let story = kubectl(&releases, &["get", "ws,hr,wsuser", "--no-headers"]).await?;
    let objects: Vec<_> = story.lines().filter_map(|line| line.split_whitespace().next()).collect();
    let of = |kind: &str, names: [&str; 3]| names.map(|name| format!("{kind}.workspaces.strata.dev/{name}"));
    let expected = [of("helmrelease", ["api", "db", "web"]), of("user", ["ana", "bob", "cyd"])].concat();
    assert_eq!(objects, [vec!["workspace.workspaces.strata.dev/team".to_owned()], expected].concat(), "{story}");
    assert!(story.lines().all(|line| line.contains(" True ")), "{story}");
    let explained = kubectl(&releases, &["explain", "ws.spec.services.expose.access"]).await?;
    assert!(explained.contains("authenticated") && !explained.contains("<empty>"), "{explained}");
    Ok(())
}

/// Replicas of everything that has pods.
async fn replicas(space: &Space) -> Result<Vec<(String, i32)>> {
    let all = ListParams::default();
    let deployments = space.api::<Deployment>().list(&all).await?.items.into_iter();
    let sets = space.api::<StatefulSet>().list(&all).await?.items.into_iter();
    let deployments = deployments.map(|found| (found.metadata.name, found.spec.and_then(|spec| spec.replicas)));
    let sets = sets.map(|found| (found.metadata.name, found.spec.and_then(|spec| spec.replicas)));
    let all = deployments.chain(sets).map(|(name, count)| (name.unwrap_or_default(), count.unwrap_or(-1)));
    let mut all: Vec<_> = all.collect();
    all.sort();
    Ok(all)
}

/// Claims with their identity, and Helm's revisions.
async fn kept(releases: &space::Space<'_>, space: &Space) -> Result<Vec<(String, String)>> {
    let claims = space.api::<PersistentVolumeClaim>().list(&ListParams::default()).await?.items.into_iter();
    let mut kept: Vec<_> =
        claims.map(|claim| (claim.metadata.name.unwrap_or_default(), claim.metadata.uid.unwrap_or_default())).collect();
    for (name, _) in CHARTS {
        kept.push((name.to_owned(), format!("{:?}", releases.history(name).await?)));
    }
    Ok(kept)
}

#[tokio::test]
async fn w08_a_stopped_workspace_of_real_charts_has_no_pods_and_keeps_releases_data_and_replicas() -> Result<()> {
    let (releases, space) = ready("stop").await?;
    let (before, former) = (kept(&releases, &space).await?, replicas(&space).await?);
    assert_eq!(before.len(), 2 + 3 + 3, "the claims of db and of the users, and the releases");
    space.change("team", json!({ "stopped": true })).await?;
    space.until_phase("team", WorkspacePhase::Stopped).await?;
    let now = replicas(&space).await?;
    assert!(now.len() == former.len() && now.iter().all(|(_, count)| *count == 0), "{now:?}");
    space::eventually("there is no pod", || async {
        Ok(space.api::<Pod>().list(&ListParams::default()).await?.items.is_empty())
    })
    .await?;
    assert_eq!(kept(&releases, &space).await?, before);
    space.change("team", json!({ "stopped": false })).await?;
    space.until_phase("team", WorkspacePhase::Ready).await?;
    assert_eq!(replicas(&space).await?, former);
    assert_eq!(kept(&releases, &space).await?, before);
    Ok(())
}

/// What goes before the rest of a namespace.
#[derive(Clone, Copy, Debug)]
enum First {
    Nothing,
    Account,
    Binding,
    Storage,
}

/// Deletes the namespace and waits until it is gone; what the operator tried to make in it meanwhile.
async fn delete_namespace(first: First) -> Result<Vec<Entry>> {
    let (releases, space) = ready("end").await?;
    let mark = releases.mark().await?;
    match first {
        First::Nothing => {}
        First::Account => drop(space.delete::<ServiceAccount>("deployer").await?),
        First::Binding => drop(space.delete::<RoleBinding>("deployer").await?),
        First::Storage => drop(space.delete::<Secret>("sh.helm.release.v1.web.v1").await?),
    }
    let (namespaces, uid) = (Api::<Namespace>::all(space.client.clone()), space.namespace().await?.metadata.uid);
    namespaces.delete(&space.namespace, &DeleteParams::default()).await?;
    let uid = uid.context("a namespace has an identity")?;
    let gone = await_condition(namespaces.clone(), &space.namespace, is_deleted(&uid));
    if tokio::time::timeout(PATIENCE, gone).await.is_err() {
        let left = space.api::<HelmRelease>().list(&ListParams::default()).await?.items;
        let users = space.api::<User>().list(&ListParams::default()).await?.items;
        bail!("{first:?}: the namespace does not go; left are {:#} {:#}", json!(left), json!(users));
    }
    let mut entries = releases.control_plane.audit().entries_after(mark)?;
    let is_end =
        |entry: &Entry| entry.verb == "delete" && entry.resource == "namespaces" && entry.name == space.namespace;
    // Before that the namespace still takes what is made in it.
    let ended_at = entries.iter().find(|entry| is_end(entry)).context("the deletion is in the log")?.answered_at;
    let is_attempt = |entry: &Entry| {
        entry.user == OPERATOR_USER
            && entry.namespace == space.namespace
            && entry.received_at >= ended_at
            && (entry.verb == "create" || matches!(entry.code, 201 | 403))
    };
    entries.retain(is_attempt);
    Ok(entries)
}

#[tokio::test]
async fn w39_a_workspaces_namespace_goes_whatever_of_it_goes_first_and_nothing_is_made_in_it() -> Result<()> {
    let orders = [First::Nothing, First::Account, First::Binding, First::Storage];
    let attempts = try_join_all(orders.map(delete_namespace)).await?;
    for (first, attempts) in orders.into_iter().zip(attempts) {
        // One event about each thing that was under way, which the server refuses.
        let (events, others): (Vec<_>, Vec<_>) = attempts.iter().partition(|entry| entry.resource == "events");
        assert!(events.len() <= 12 && events.iter().all(|entry| entry.code == 403), "{first:?}: {events:#?}");
        assert_eq!(others.iter().map(|entry| line(entry)).collect::<Vec<_>>(), [""; 0], "{first:?}");
    }
    Ok(())
}
