//! Every kind of write of a Workspace and its Users fails in every way that a call can fail.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context, Result, ensure};
use api::workspace::{HelmRelease, User, Workspace, WorkspacePhase};
use futures::future::try_join_all;
use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{ConfigMap, PersistentVolumeClaim, Secret, Service, ServiceAccount},
    networking::v1::{Ingress, NetworkPolicy},
    rbac::v1::{Role, RoleBinding},
};
use serde_json::{Value, json};
use testbed::fault::{Calls, Fault, Injected};
use workspaces::workspace;

use super::harness::{Object, PATIENT_TIMEOUT, Space, World, chart, eventually, uid, user};

/// Longer than the request timeout of the shared world.
const SLOW: Duration = Duration::from_secs(10);

const FAULTS: [(&str, Fault); 8] = Fault::of_a_write(SLOW);

/// Everything that is written when a Workspace comes to be; all but finalizers and statuses is derived.
const WRITTEN: [&str; 15] = [
    "workspaces",
    "workspaces/status",
    "users",
    "users/status",
    "helmreleases",
    "secrets",
    "configmaps",
    "networkpolicies",
    "ingresses",
    "statefulsets",
    "services",
    "serviceaccounts",
    "roles",
    "rolebindings",
    "events",
];

fn spec() -> Value {
    let expose = json!({ "service": "web", "port": 80 });
    json!({
        "domain": "example.com",
        "configs": { "settings": { "data": { "a": "1" } } },
        "services": { "db": { "chart": chart("db") }, "web": { "chart": chart("web"), "expose": expose } },
        "users": [with_settings("ana", "1"), user("bob")],
    })
}

/// A user whose code-server reads the config.
fn with_settings(slug: &str, value: &str) -> Value {
    let mut user = user(slug);
    user["codeServer"] = json!({
        "env": [{ "name": "A", "value": value }], "envFrom": [{ "kind": "ConfigMap", "name": "settings" }],
    });
    user
}

/// The first write of each kind meets the fault.
fn inject(world: &World, space: &Space, fault: Fault) -> Vec<Injected> {
    let calls = |resource: &str| Calls::writes(resource).in_namespace(&space.namespace).at_most(1);
    WRITTEN.iter().map(|resource| world.proxy.inject(calls(resource), fault)).collect()
}

/// The faults are over; how many calls met them.
fn end(injected: Vec<Injected>) -> u64 {
    injected.iter().inspect(|injected| injected.end()).map(Injected::hits).sum()
}

async fn is_empty<K: Object>(space: &Space) -> Result<bool> {
    Ok(space.names::<K>().await?.is_empty())
}

/// A Workspace is created, changed, loses users and services, and goes, all under one kind of fault.
async fn live_through(world: &World, (name, fault): (&str, Fault)) -> Result<()> {
    let space = world.space(name).await?;
    let mark = world.mark()?;
    let injected = inject(world, &space, fault);
    space.ready_workspace("team", spec()).await.context("create")?;
    for (injected, resource) in injected.iter().zip(WRITTEN) {
        injected.reached().await.with_context(|| format!("nothing was written of {resource}"))?;
    }
    end(injected);
    let claims = (uid(&space.claim("ana").await?), uid(&space.claim("bob").await?));

    // A user and a service come, one of each changes, and so does the config.
    let injected = inject(world, &space, fault);
    let change = json!({
        "configs": { "settings": { "data": { "a": "2" } } },
        "services": { "api": { "chart": chart("api") }, "db": { "values": { "note": "b" } } },
        "users": [with_settings("ana", "2"), user("bob"), user("cyd")],
    });
    space.change("team", change).await?;
    space.until_phase("team", WorkspacePhase::Ready).await.context("change")?;
    assert!(end(injected) >= 5, "users, statefulsets, helmreleases, configmaps and statuses are written");

    let injected = inject(world, &space, fault);
    let (bob, db): (User, HelmRelease) = (space.get("bob").await?, space.get("db").await?);
    let change = json!({ "services": { "db": null }, "users": [with_settings("ana", "2"), user("cyd")] });
    space.change("team", change).await?;
    tokio::try_join!(space.until_gone(&bob), space.until_gone(&db)).context("removal")?;
    space.until_phase("team", WorkspacePhase::Ready).await?;
    assert!(end(injected) >= 3, "users and helmreleases are deleted and the status is written");
    eventually("old configs are collected", async || Ok(space.names::<ConfigMap>().await?.len() == 1)).await?;
    eventually("each user has one password", async || Ok(space.names::<Secret>().await?.len() == 2)).await?;

    let injected = inject(world, &space, fault);
    let team = space.delete::<Workspace>("team").await?;
    space.until_gone(&team).await.context("deletion")?;
    assert!(end(injected) > 0);
    eventually("nothing is left but volumes", async || {
        Ok(is_empty::<User>(&space).await?
            && is_empty::<HelmRelease>(&space).await?
            && is_empty::<StatefulSet>(&space).await?
            && is_empty::<Service>(&space).await?
            && is_empty::<ServiceAccount>(&space).await?
            && is_empty::<Secret>(&space).await?
            && is_empty::<ConfigMap>(&space).await?
            && is_empty::<NetworkPolicy>(&space).await?
            && is_empty::<Ingress>(&space).await?
            && is_empty::<Role>(&space).await?
            && is_empty::<RoleBinding>(&space).await?)
    })
    .await?;
    assert_eq!((uid(&space.claim("ana").await?), uid(&space.claim("bob").await?)), claims, "volumes stay");
    assert_eq!(space.names::<PersistentVolumeClaim>().await?.len(), 3);
    check_log(world, &space, mark)
}

/// Each derived object was made once, and no claim was ever deleted.
fn check_log(world: &World, space: &Space, mark: testbed::audit::Mark) -> Result<()> {
    let mut made = BTreeMap::<String, u32>::new();
    for entry in world.requests(space, mark)? {
        ensure!(!(entry.resource == "persistentvolumeclaims" && entry.verb.starts_with("delete")), "{entry:?}");
        if entry.code == 201 {
            // Passwords and configs are named by their content.
            let name = if entry.resource == "secrets" {
                entry.name.rsplit_once('-').map_or("", |(n, _)| n)
            } else {
                &entry.name
            };
            *made.entry(format!("{} {name}", entry.resource)).or_default() += 1;
        }
    }
    let twice: Vec<_> = made.iter().filter(|(_, times)| **times > 1).collect();
    ensure!(twice.is_empty(), "made more than once: {twice:?}");
    ensure!(made.len() > 30, "hardly anything was made: {made:?}");
    Ok(())
}

#[tokio::test]
async fn w02_every_write_of_a_workspace_survives_every_fault_and_nothing_is_made_twice() -> Result<()> {
    let quick = World::shared().await;
    let patient = &World::with_timeout(workspace::Config::default(), PATIENT_TIMEOUT).await?;
    let live = async |fault: (&'static str, Fault)| {
        // Each call that meets one of these two lasts until it is given up.
        let world = if matches!(fault.1, Fault::Latency(_) | Fault::HoldAfterCommit) { quick } else { patient };
        Box::pin(live_through(world, fault)).await.with_context(|| format!("{fault:?}"))
    };
    try_join_all(FAULTS.map(live)).await?;
    Ok(())
}
