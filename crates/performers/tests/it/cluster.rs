//! What the cluster and its administrators do to a Performer's pod and Service.

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{Node, Pod, Service};
use kube::{
    Api,
    api::{DeleteParams, EvictParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use testbed::kwok;

use crate::{
    harness::{Space, World, spec, spec_with, until},
    observe::{uid, writes},
};

const NAME: &str = "performer-a";

#[tokio::test]
async fn an_evicted_pod_comes_back() -> Result<()> {
    let space = World::calm().await.space("evicted").await;
    space.create_ready("a", spec()).await?;
    let former = space.pod("a").await?;
    space.pods.evict(NAME, &EvictParams::default()).await?;
    space.until_replaced("a", &former).await?;
    space.until_ready("a").await?;
    Ok(())
}

/// A node that only this test's pods tolerate.
async fn own_node(space: &Space, name: &str) -> Result<()> {
    let mut node = serde_json::to_value(kwok::node(name, 10))?;
    node["metadata"]["labels"]["for"] = json!(space.namespace);
    node["spec"] = json!({ "taints": [{ "key": "for", "value": space.namespace, "effect": "NoSchedule" }] });
    Api::<Node>::all(space.client.clone()).create(&PostParams::default(), &serde_json::from_value(node)?).await?;
    Ok(())
}

#[tokio::test]
async fn a_pod_on_a_lost_node_comes_back_on_another() -> Result<()> {
    let space = World::calm().await.space("lost").await;
    let toleration = json!({ "key": "for", "operator": "Exists" });
    let scheduling = json!({ "tolerations": [toleration], "nodeSelector": { "for": space.namespace } });
    let first = format!("first-{}", space.namespace);
    own_node(&space, &first).await?;
    space.create_ready("a", spec_with(json!({ "scheduling": scheduling }))).await?;
    let former = space.pod("a").await?;
    assert_eq!(former.spec.as_ref().and_then(|spec| spec.node_name.as_deref()), Some(first.as_str()));
    own_node(&space, &format!("second-{}", space.namespace)).await?;
    Api::<Node>::all(space.client.clone()).delete(&first, &DeleteParams::default()).await?;
    // The node is gone and with it whoever would confirm the deletion; an administrator forces it.
    space.pods.delete(NAME, &DeleteParams::default().grace_period(0)).await?;
    let pod = space.until_replaced("a", &former).await?;
    assert_eq!(pod.metadata.name.as_deref(), Some(NAME));
    space.until_ready("a").await?;
    Ok(())
}

async fn edit_pod(space: &Space, patch: Value) -> Result<Pod> {
    Ok(space.pods.patch(NAME, &PatchParams::default(), &Patch::Merge(patch)).await?)
}

#[tokio::test]
async fn a_pod_with_an_edited_image_is_replaced() -> Result<()> {
    let space = World::hasty().await.space("edited").await;
    space.create_ready("a", spec()).await?;
    let former = space.pod("a").await?;
    let mut containers = serde_json::to_value(&former.spec.as_ref().context("spec")?.containers)?;
    containers[0]["image"] = json!("registry.test/edited:1");
    edit_pod(&space, json!({ "spec": { "containers": containers } })).await?;
    let pod = space.until_replaced("a", &former).await?;
    let image = pod.spec.context("spec")?.containers[0].image.clone();
    assert_eq!(image.as_deref(), Some("registry.test/performer:v1"));
    space.until_ready("a").await?;
    Ok(())
}

#[tokio::test]
async fn labels_and_annotations_of_others_on_the_pod_are_no_reason_to_replace_it() -> Result<()> {
    let world = World::calm().await;
    let space = world.space("noted").await;
    space.create_ready("a", spec()).await?;
    let mark = world.control_plane.audit().mark()?;
    let noted =
        edit_pod(&space, json!({ "metadata": { "labels": { "x": "y" }, "annotations": { "z": "1" } } })).await?;
    // A change that the operator answers comes after it in the same watch.
    let former = space.service("a").await?;
    space.services.delete(NAME, &DeleteParams::default()).await?;
    until(&space.services, NAME, "back", |service: &Service| uid(service) != uid(&former)).await?;
    space.until_settled("a").await?;
    assert_eq!(uid(&space.pod("a").await?), uid(&noted));
    let touched = writes(&world.control_plane, &space, mark)?;
    assert!(touched.iter().all(|entry| entry.resource != "pods"), "{touched:?}");
    Ok(())
}

#[tokio::test]
async fn a_service_held_by_someone_else_delays_the_deletion_but_does_not_stop_it() -> Result<()> {
    let space = World::hasty().await.space("held-service").await;
    space.create_ready("a", spec()).await?;
    let finalizers = |list: Value| Patch::Merge(json!({ "metadata": { "finalizers": list } }));
    let params = PatchParams::default();
    let held = space.services.patch(NAME, &params, &finalizers(json!(["example.com/held"]))).await?;
    space.delete_and_wait("a").await?;
    assert!(space.pods.get_opt(NAME).await?.is_none());
    assert_eq!(uid(&space.services.get(NAME).await?), uid(&held));
    space.services.patch(NAME, &params, &finalizers(Value::Null)).await?;
    space.until_gone(&space.services, NAME, &uid(&held)).await
}

#[tokio::test]
async fn a_service_deleted_while_held_is_made_again_when_it_is_gone() -> Result<()> {
    let space = World::calm().await.space("reheld-service").await;
    space.create_ready("a", spec()).await?;
    let finalizers = |list: Value| Patch::Merge(json!({ "metadata": { "finalizers": list } }));
    let params = PatchParams::default();
    let held = space.services.patch(NAME, &params, &finalizers(json!(["example.com/held"]))).await?;
    space.services.delete(NAME, &DeleteParams::default()).await?;
    until(&space.services, NAME, "going", |s: &Service| s.metadata.deletion_timestamp.is_some()).await?;
    space.services.patch(NAME, &params, &finalizers(Value::Null)).await?;
    until(&space.services, NAME, "new", |s: &Service| uid(s) != uid(&held)).await?;
    Ok(())
}
