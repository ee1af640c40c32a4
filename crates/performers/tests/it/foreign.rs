//! Pods and Services under our name that are not ours.

use anyhow::{Context, Result};
use api::performer::Phase;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Service};
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

use crate::{
    harness::{Space, World, condition, spec, until},
    observe::{create, line, uid, writes},
    status::hold,
};

const NAME: &str = "performer-a";

/// Metadata of a stranger, with a controller of its own if asked for.
async fn metadata(space: &Space, is_owned: bool) -> Result<Value> {
    let mut metadata = json!({ "name": NAME, "labels": { "whose": "mine" } });
    if is_owned {
        let maps = Api::namespaced(space.client.clone(), &space.namespace);
        let owner: ConfigMap = create(&maps, json!({ "metadata": { "name": "owner" } })).await?;
        metadata["ownerReferences"] = json!([
            { "apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": uid(&owner), "controller": true },
        ]);
    }
    Ok(metadata)
}

async fn stranger_pod(space: &Space, is_owned: bool) -> Result<Pod> {
    let containers = json!([{ "name": "performer", "image": "registry.test/stranger:1" }]);
    let metadata = metadata(space, is_owned).await?;
    create(&space.pods, json!({ "metadata": metadata, "spec": { "containers": containers } })).await
}

async fn stranger_service(space: &Space, is_owned: bool) -> Result<Service> {
    let metadata = metadata(space, is_owned).await?;
    let spec = json!({ "selector": { "app": "x" }, "ports": [{ "port": 80 }] });
    create(&space.services, json!({ "metadata": metadata, "spec": spec })).await
}

/// Told, left alone through creation, change and deletion of the Performer; afterwards the name is ours.
async fn check_pod(is_owned: bool) -> Result<()> {
    let world = World::calm().await;
    let space = world.space("stranger-pod").await;
    let stranger = stranger_pod(&space, is_owned).await?;
    let mark = world.control_plane.audit().mark()?;
    check_taken(&space, "pod").await?;
    let left = space.pods.get(NAME).await?;
    assert_eq!((uid(&left), &left.metadata.labels), (uid(&stranger), &stranger.metadata.labels));
    assert_eq!(left.metadata.owner_references, stranger.metadata.owner_references);
    let touched: Vec<_> =
        writes(&world.control_plane, &space, mark)?.iter().map(line).filter(|l| l.ends_with("pods")).collect();
    assert_eq!(touched, [""; 0], "no write to any pod");
    space.create("a", spec()).await?;
    space.until_condition("a", "Degraded", "True", "NameTaken").await?;
    space.pods.delete(NAME, &DeleteParams::default()).await?;
    space.until_ready("a").await?;
    Ok(())
}

async fn check_service(is_owned: bool) -> Result<()> {
    let world = World::calm().await;
    let space = world.space("stranger-service").await;
    let stranger = stranger_service(&space, is_owned).await?;
    let mark = world.control_plane.audit().mark()?;
    check_taken(&space, "Service").await?;
    let left = space.services.get(NAME).await?;
    assert_eq!(left.metadata.resource_version, stranger.metadata.resource_version);
    let touched: Vec<_> =
        writes(&world.control_plane, &space, mark)?.iter().map(line).filter(|l| l.ends_with("services")).collect();
    assert_eq!(touched, [""; 0], "no write to any Service");
    space.create("a", spec()).await?;
    space.until_condition("a", "Degraded", "True", "NameTaken").await?;
    space.services.delete(NAME, &DeleteParams::default()).await?;
    space.until_ready("a").await?;
    Ok(())
}

/// The whole life of a Performer beside a stranger.
async fn check_taken(space: &Space, kind: &str) -> Result<()> {
    space.create("a", spec()).await?;
    let degraded = space.until_condition("a", "Degraded", "True", "NameTaken").await?;
    let message = condition(&degraded, "Available")["message"].as_str().unwrap_or_default().to_owned();
    assert!(message.contains(kind) && message.contains(NAME), "{message}");
    assert_eq!(condition(&degraded, "Available")["reason"], "NameTaken");
    assert!(!degraded.status.context("status")?.ready, "the stranger's readiness is not ours");
    let changed = space.patch("a", json!({ "spec": { "image": "registry.test/performer:v2" } })).await?;
    let generation = json!(changed.metadata.generation);
    space.until("a", "seen", |p| condition(p, "Degraded")["observedGeneration"] == generation).await?;
    space.delete_and_wait("a").await
}

#[tokio::test]
async fn p35_a_strangers_pod_is_left_alone() -> Result<()> {
    check_pod(false).await
}

#[tokio::test]
async fn p35_an_owned_strangers_pod_is_left_alone() -> Result<()> {
    check_pod(true).await
}

#[tokio::test]
async fn p35_a_strangers_service_is_left_alone() -> Result<()> {
    check_service(false).await
}

#[tokio::test]
async fn p35_an_owned_strangers_service_is_left_alone() -> Result<()> {
    check_service(true).await
}

#[tokio::test]
async fn p35_the_pod_of_a_former_performer_is_not_ours() -> Result<()> {
    let space = World::hasty().await.space("former").await;
    space.create_ready("a", spec()).await?;
    let former = hold(&space, true).await?;
    // Held by someone, it outlives its Performer.
    space.delete_and_wait("a").await?;
    space.create("a", spec()).await?;
    let degraded = space.until_condition("a", "Degraded", "True", "NameTaken").await?;
    assert_eq!(degraded.status.context("status")?.phase, Some(Phase::Pending));
    assert_eq!(uid(&space.pod("a").await?), uid(&former));
    hold(&space, false).await?;
    space.until_ready("a").await?;
    assert_ne!(uid(&space.pod("a").await?), uid(&former));
    Ok(())
}

#[tokio::test]
async fn a_pod_stripped_of_its_owner_is_no_longer_ours() -> Result<()> {
    let space = World::calm().await.space("stripped").await;
    space.create_ready("a", spec()).await?;
    let pod = space.pod("a").await?;
    let stripped = json!({ "metadata": { "ownerReferences": null } });
    space.pods.patch(NAME, &PatchParams::default(), &Patch::Merge(stripped)).await?;
    space.until_condition("a", "Degraded", "True", "NameTaken").await?;
    assert_eq!(uid(&space.pod("a").await?), uid(&pod));
    space.pods.delete(NAME, &DeleteParams::default()).await?;
    space.until_ready("a").await?;
    Ok(())
}

#[tokio::test]
async fn a_service_stripped_of_its_owner_is_no_longer_ours() -> Result<()> {
    let space = World::calm().await.space("stripped").await;
    space.create_ready("a", spec()).await?;
    let service = space.service("a").await?;
    let stripped = json!({ "metadata": { "ownerReferences": null }, "spec": { "type": "NodePort" } });
    let stripped = space.services.patch(NAME, &PatchParams::default(), &Patch::Merge(stripped)).await?;
    space.until_condition("a", "Degraded", "True", "NameTaken").await?;
    assert_eq!(space.service("a").await?.metadata.resource_version, stripped.metadata.resource_version);
    space.services.delete(NAME, &DeleteParams::default()).await?;
    until(&space.services, NAME, "ours again", |found: &Service| uid(found) != uid(&service)).await?;
    space.until_settled("a").await?;
    Ok(())
}
