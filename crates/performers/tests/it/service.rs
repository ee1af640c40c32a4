//! The Service, and what happens when someone touches it or the pod.

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Service;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

use crate::{
    harness::{Space, World, spec, until},
    observe::uid,
};

const SERVICE: &str = "performer-a";

/// The fields that are ours.
fn shape(service: &Service) -> Value {
    let spec = serde_json::to_value(&service.spec).expect("a Service is JSON");
    json!([spec["type"], spec["selector"], spec["ports"]])
}

fn expected() -> Value {
    let port = json!({ "name": "grpc", "port": 9090, "targetPort": "grpc", "protocol": "TCP" });
    json!(["ClusterIP", { "hourglass.eigenlayer.io/performer": "a" }, [port]])
}

async fn ready(prefix: &str) -> Result<Space> {
    let space = World::calm().await.space(prefix).await;
    space.create_ready("a", spec()).await?;
    Ok(space)
}

async fn edit(space: &Space, patch: &Value) -> Result<Service> {
    Ok(space.services.patch(SERVICE, &PatchParams::default(), &Patch::Merge(patch)).await?)
}

#[tokio::test]
async fn p16_type_selector_and_port_are_exact() -> Result<()> {
    let space = ready("service").await?;
    let service = space.service("a").await?;
    assert_eq!(shape(&service), expected());
    assert_eq!(service.metadata.labels, None);
    Ok(())
}

/// The next resync is far away: only the watch event can be what repairs.
async fn check_repair(what: &str, spec: Value) -> Result<()> {
    let space = ready("repair").await?;
    let before = space.service("a").await?;
    let edited = edit(&space, &json!({ "metadata": { "labels": { "team": "x" } }, "spec": spec })).await?;
    assert_ne!(shape(&edited), expected(), "the edit does something");
    let repaired = until(&space.services, SERVICE, what, |service: &Service| shape(service) == expected()).await?;
    assert_eq!(uid(&repaired), uid(&before), "repaired, not replaced");
    let cluster_ip = |service: &Service| service.spec.as_ref().and_then(|spec| spec.cluster_ip.clone());
    assert_eq!(cluster_ip(&repaired), cluster_ip(&before));
    let labels = repaired.metadata.labels.context("labels")?;
    assert_eq!(labels.get("team").map(String::as_str), Some("x"), "what is not ours stays");
    Ok(())
}

#[tokio::test]
async fn p17_service_port_edit_is_repaired() -> Result<()> {
    check_repair("its port again", json!({ "ports": [{ "name": "grpc", "port": 1234, "targetPort": "grpc" }] })).await
}

#[tokio::test]
async fn p17_service_target_port_edit_is_repaired() -> Result<()> {
    check_repair("its target again", json!({ "ports": [{ "name": "grpc", "port": 9090, "targetPort": 80 }] })).await
}

#[tokio::test]
async fn p17_service_selector_edit_is_repaired() -> Result<()> {
    let selector = json!({ "hourglass.eigenlayer.io/performer": "other", "more": "narrow" });
    check_repair("its selector again", json!({ "selector": selector })).await
}

#[tokio::test]
async fn p17_service_type_edit_is_repaired() -> Result<()> {
    check_repair("a ClusterIP again", json!({ "type": "NodePort" })).await
}

#[tokio::test]
async fn p17_extra_service_port_is_removed() -> Result<()> {
    let ports = json!([{ "name": "grpc", "port": 9090, "targetPort": "grpc" }, { "name": "debug", "port": 6060 }]);
    check_repair("down to one port", json!({ "ports": ports })).await
}

#[tokio::test]
async fn p17_deleted_pod_comes_back() -> Result<()> {
    let space = ready("pod-deleted").await?;
    let former = space.pod("a").await?;
    space.pods.delete("performer-a", &DeleteParams::default()).await?;
    space.until_replaced("a", &former).await?;
    space.until_ready("a").await?;
    Ok(())
}

#[tokio::test]
async fn p17_deleted_service_comes_back() -> Result<()> {
    let space = ready("service-deleted").await?;
    let former = space.service("a").await?;
    space.services.delete(SERVICE, &DeleteParams::default()).await?;
    let found = until(&space.services, SERVICE, "back", |service: &Service| uid(service) != uid(&former)).await?;
    assert_eq!(shape(&found), expected());
    Ok(())
}

#[tokio::test]
async fn p17_pod_without_its_label_is_replaced() -> Result<()> {
    let space = ready("label-removed").await?;
    let former = space.pod("a").await?;
    let patch = json!({ "metadata": { "labels": { "hourglass.eigenlayer.io/performer": null } } });
    space.pods.patch("performer-a", &PatchParams::default(), &Patch::Merge(patch)).await?;
    space.until_replaced("a", &former).await?;
    space.until_ready("a").await?;
    Ok(())
}

#[tokio::test]
async fn labels_and_annotations_of_others_on_the_service_survive() -> Result<()> {
    let space = ready("extra").await?;
    let extra = json!({ "metadata": { "labels": { "team": "x" }, "annotations": { "note": "kept" } } });
    let edited = edit(&space, &extra).await?;
    // A spec change makes the operator look at everything again and move the port.
    space.patch("a", json!({ "spec": { "config": { "grpcPort": 7000 } } })).await?;
    space.until_settled("a").await?;
    let service = space.service("a").await?;
    assert_eq!(service.spec.context("spec")?.ports.context("ports")?[0].port, 7000);
    assert_eq!(service.metadata.labels, edited.metadata.labels);
    assert_eq!(service.metadata.annotations, edited.metadata.annotations);
    Ok(())
}
