//! Live objects that differ from their release.

use anyhow::Result;
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ConfigMap, Service},
};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::{Value, json};

use crate::{
    space::{Space, condition, eventually, until},
    world::World,
};

/// Somebody changes an object by hand.
async fn by_hand(space: &Space<'_>, name: &str, patch: Value) -> Result<()> {
    let params = PatchParams { field_manager: Some("somebody".into()), ..PatchParams::default() };
    space.deployments.patch(name, &params, &Patch::Merge(patch)).await?;
    Ok(())
}

fn replicas(deployment: &Deployment) -> i32 {
    deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(-1)
}

#[tokio::test]
async fn w32_warn_reports_and_changes_nothing() -> Result<()> {
    let world = World::shared().await;
    let space = world.space("warn").await?;
    space.install("web", space.four(json!({ "driftDetection": "warn" }))).await?;
    space.condition("web", "Drifted", "False", "NoDrift").await?;
    by_hand(&space, "web", json!({ "spec": { "replicas": 2 } })).await?;
    let drifted = space.condition("web", "Drifted", "True", "DriftDetected").await?;
    let said = condition(&drifted, "Drifted")["message"].as_str().unwrap_or_default().to_owned();
    assert!(said.contains("Deployment web") && said.contains("replicas"), "{said}");
    assert_eq!(condition(&drifted, "Ready")["status"], "True");
    space.until_recorded("web", "DriftDetected").await?;
    assert_eq!(replicas(&space.deployments.get("web").await?), 2);
    by_hand(&space, "web", json!({ "spec": { "replicas": 0 } })).await?;
    space.condition("web", "Drifted", "False", "NoDrift").await?;
    space.check_history("web", "1 deployed").await
}

#[tokio::test]
async fn w32_enabled_sets_back_what_was_changed_or_deleted() -> Result<()> {
    let world = World::shared().await;
    let space = world.space("drift").await?;
    let spec = space.spec("web", "1.0.0", json!({ "driftDetection": "enabled" }));
    space.install("web", spec).await?;
    space.condition("web", "Drifted", "False", "NoDrift").await?;
    by_hand(&space, "web", json!({ "spec": { "replicas": 2 } })).await?;
    until(&space.deployments, "web", "set back", |found| replicas(found) == 1).await?;
    space.condition("web", "Drifted", "False", "DriftCorrected").await?;
    space.until_recorded("web", "DriftCorrected").await?;

    // Kinds whose objects count no generations.
    let patch = json!({ "data": { "values.json": "forged" } });
    space.config_maps.patch("web-values", &PatchParams::default(), &Patch::Merge(patch)).await?;
    let is_back = |map: &ConfigMap| map.data.as_ref().is_some_and(|data| data["values.json"] != "forged");
    until(&space.config_maps, "web-values", "set back", is_back).await?;

    let services: Api<Service> = Api::namespaced(space.client.clone(), &space.namespace);
    services.delete("web", &DeleteParams::default()).await?;
    eventually("the Service is back", || async { Ok(services.get_opt("web").await?.is_some()) }).await?;
    space.deployments.delete("web", &DeleteParams::default()).await?;
    let is_there = || async { Ok(space.deployments.get_opt("web").await?.is_some_and(|found| replicas(&found) == 1)) };
    eventually("the Deployment is back", is_there).await?;
    // What others added is theirs.
    by_hand(&space, "web", json!({ "metadata": { "labels": { "somebody": "else" } } })).await?;
    by_hand(&space, "web", json!({ "spec": { "replicas": 5 } })).await?;
    let back = until(&space.deployments, "web", "set back", |found| replicas(found) == 1).await?;
    assert_eq!(back.metadata.labels.unwrap_or_default().get("somebody").map(String::as_str), Some("else"));
    space.check_history("web", "1 deployed").await
}

#[tokio::test]
async fn w32_ignore_rules_are_respected() -> Result<()> {
    let world = World::shared().await;
    let space = world.space("ignore").await?;
    let ignore = json!([{ "paths": ["/spec/replicas"], "target": { "kind": "Deployment", "name": "web" } }]);
    space.install("web", space.four(json!({ "driftDetection": "enabled", "driftIgnore": ignore }))).await?;
    space.condition("web", "Drifted", "False", "NoDrift").await?;
    by_hand(&space, "web", json!({ "spec": { "replicas": 2 } })).await?;
    by_hand(&space, "web", json!({ "metadata": { "annotations": { "strata.dev/note": "forged" } } })).await?;
    let note = |found: &Deployment| found.metadata.annotations.as_ref().map(|all| all["strata.dev/note"].clone());
    let back = until(&space.deployments, "web", "set back", |found| note(found).as_deref() == Some("")).await?;
    assert_eq!(replicas(&back), 2);
    Ok(())
}

#[tokio::test]
async fn w32_a_correction_leaves_ignored_fields_as_the_chart_set_them() -> Result<()> {
    let world = World::shared().await;
    let space = world.space("ignored").await?;
    // The chart sets 0 replicas, and a Deployment without the field has 1.
    let ignore = json!([{ "paths": ["/spec/replicas"] }]);
    space.install("web", space.four(json!({ "driftDetection": "enabled", "driftIgnore": ignore }))).await?;
    space.condition("web", "Drifted", "False", "NoDrift").await?;
    by_hand(&space, "web", json!({ "metadata": { "annotations": { "strata.dev/note": "forged" } } })).await?;
    let note = |found: &Deployment| found.metadata.annotations.as_ref().map(|all| all["strata.dev/note"].clone());
    let back = until(&space.deployments, "web", "set back", |found| note(found).as_deref() == Some("")).await?;
    assert_eq!(replicas(&back), 0);
    Ok(())
}

#[tokio::test]
async fn w32_a_release_that_was_uninstalled_by_hand_comes_back() -> Result<()> {
    let world = World::shared().await;
    let space = world.space("byhand").await?;
    let installed = space.install("web", space.four(json!({}))).await?;
    let uid = |release: &api::workspace::HelmRelease| release.status.as_ref()?.history.first()?.secret_uid.clone();
    let helm = testbed::helm::Helm::current().await?;
    space.helm(&helm, &["uninstall", "web"]).await?;
    let is_back = |release: &api::workspace::HelmRelease| {
        uid(release).is_some() && uid(release) != uid(&installed) && condition(release, "Ready")["status"] == "True"
    };
    space.until("web", "installed again", is_back).await?;
    space.check_history("web", "1 deployed").await
}
