//! What admission webhooks make of a Performer's pod.

use anyhow::{Context, Result};
use api::performer::Performer;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::{
    failure::backed_off,
    harness::{Space, World, condition, spec, spec_with},
    observe::{more_rounds, uid},
    upgrade::{image, original_pod},
    webhook::{Verdict, Webhook},
};

/// Puts a container before all others, as meshes and secret agents do.
fn with_sidecar(_: &Pod) -> Verdict {
    let sidecar = json!({ "name": "agent", "image": "registry.test/agent:1" });
    Verdict::Patch(json!([{ "op": "add", "path": "/spec/containers/0", "value": sidecar }]))
}

fn containers(pod: &Pod) -> Vec<&str> {
    pod.spec.as_ref().map(|spec| spec.containers.iter().map(|c| c.name.as_str()).collect()).unwrap_or_default()
}

/// Writes the status of a pod as its kubelet would: containers sorted by name.
async fn report(space: &Space, agent: Value, performer: Value) -> Result<()> {
    let status = |name: &str, state: &Value| {
        let is_running = state.get("running").is_some();
        json!({
            "name": name, "state": state, "ready": is_running, "restartCount": if is_running { 0 } else { 3 },
            "image": "", "imageID": "",
        })
    };
    let statuses = [status("agent", &agent), status("performer", &performer)];
    let patch = json!({ "status": { "phase": "Running", "containerStatuses": statuses } });
    space.pods.patch_status("performer-a", &PatchParams::default(), &Patch::Merge(patch)).await?;
    Ok(())
}

#[tokio::test]
async fn a_crash_loop_behind_a_sidecar_is_told() -> Result<()> {
    let world = World::calm().await;
    let space = world.space("sidecar").await;
    let _webhook = Webhook::start(&world.control_plane, &space, with_sidecar).await?;
    // On no node, so that the test alone writes its status.
    space.create("a", spec_with(json!({ "scheduling": { "nodeSelector": { "no": "node" } } }))).await?;
    space.until_condition("a", "Degraded", "True", "SchedulingFailed").await?;
    assert_eq!(containers(&space.pod("a").await?), ["agent", "performer"]);
    let waiting = |reason: &str| json!({ "waiting": { "reason": reason, "message": "back-off" } });
    let running = json!({ "running": { "startedAt": "2026-01-01T00:00:00Z" } });
    report(&space, running.clone(), waiting("CrashLoopBackOff")).await?;
    space.until_condition("a", "Degraded", "True", "CrashLoop").await?;

    // A sidecar that never starts: the Performer's own container is well, and its pod is not ready.
    report(&space, waiting("ErrImagePull"), running).await?;
    let reported = space.until_condition("a", "Degraded", "True", "ImagePullFailed").await?;
    let message = condition(&reported, "Degraded")["message"].to_string();
    assert!(message.contains("the container agent, which admission added"), "{message}");
    Ok(())
}

#[tokio::test]
async fn a_pod_of_the_original_operator_with_a_proxy_before_it_is_kept() -> Result<()> {
    let world = World::calm().await;
    let space = world.space("proxied").await;
    let _webhook = Webhook::start(&world.control_plane, &space, with_sidecar).await?;
    let pod = original_pod(&space).await?;
    assert_eq!(containers(&pod), ["agent", "performer"]);
    let settled = space.until_settled("a").await?;
    assert_eq!(uid(&space.pod("a").await?), uid(&pod));
    assert_eq!(settled.status.context("status")?.last_upgrade, None, "it was never taken for an upgrade");
    Ok(())
}

fn message(performer: &Performer) -> String {
    condition(performer, "Available")["message"].as_str().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn p37_a_webhooks_refusal_is_told_backed_off_and_recovered_from() -> Result<()> {
    let world = World::calm().await;
    let space = world.space("refused").await;
    let refuse = |_: &Pod| Verdict::Deny("no pods on Mondays");
    let webhook = Webhook::start(&world.control_plane, &space, refuse).await?;
    let mark = world.control_plane.audit().mark()?;
    space.create("a", spec()).await?;
    let degraded = space.until_condition("a", "Degraded", "True", "PodRejected").await?;
    assert!(message(&degraded).contains("no pods on Mondays"), "the webhook's own words: {}", message(&degraded));
    assert_eq!(backed_off(world, &space, mark).await?, 1, "a failing retry alone writes no status");
    webhook.remove().await?;
    let ready = space.until_ready("a").await?;
    assert_eq!(condition(&ready, "Degraded")["status"], "False");
    Ok(())
}

#[tokio::test]
async fn p37_an_unreachable_webhook_is_told_and_the_message_follows_its_cause() -> Result<()> {
    let world = World::calm().await;
    let space = world.space("unreachable").await;
    let mut webhook = Webhook::register(&world.control_plane, &space).await?;
    let mark = world.control_plane.audit().mark()?;
    space.create("a", spec()).await?;
    let degraded = space.until_condition("a", "Degraded", "True", "PodRejected").await?;
    assert!(message(&degraded).contains("failed calling webhook"), "the server's own words: {}", message(&degraded));
    assert_eq!(backed_off(world, &space, mark).await?, 2, "that it waits, and what for");
    // The reason stays, the cause is another.
    webhook.serve(|_: &Pod| Verdict::Deny("no pods on Mondays"))?;
    space.until("a", "refused in other words", |performer| message(performer).contains("no pods on Mondays")).await?;
    webhook.remove().await?;
    space.until_ready("a").await?;
    Ok(())
}

/// Sends every image to a mirror, as registry caches do.
fn mirrored(pod: &Pod) -> Verdict {
    let image = image(pod).unwrap_or_default().replacen("registry.test", "mirror.test", 1);
    Verdict::Patch(json!([{ "op": "replace", "path": "/spec/containers/0/image", "value": image }]))
}

async fn edit(space: &Space, patch: Value) -> Result<Pod> {
    Ok(space.pods.patch("performer-a", &PatchParams::default(), &Patch::Strategic(patch)).await?)
}

#[tokio::test]
async fn an_image_that_admission_rewrote_is_no_edit_whatever_changes_later() -> Result<()> {
    let world = World::hasty().await;
    let space = world.space("mirrored").await;
    let _webhook = Webhook::start(&world.control_plane, &space, mirrored).await?;
    space.create_ready("a", spec()).await?;
    let pod = space.pod("a").await?;
    assert_eq!(image(&pod), Some("mirror.test/performer:v1"));
    let toleration = json!({ "key": "maintenance", "operator": "Exists", "effect": "NoSchedule" });
    let edited = edit(&space, json!({ "spec": { "tolerations": [toleration] } })).await?;
    assert!(edited.metadata.generation > pod.metadata.generation, "the edit counts");
    more_rounds(&world.operator, &space, 8).await?;
    assert_eq!(uid(&space.pod("a").await?), uid(&pod), "a healthy pod stays");

    // By hand, to what no webhook made of it.
    let containers = json!([{ "name": "performer", "image": "registry.test/edited:1" }]);
    edit(&space, json!({ "spec": { "containers": containers } })).await?;
    let replaced = space.until_replaced("a", &pod).await?;
    assert_eq!(image(&replaced), Some("mirror.test/performer:v1"));
    space.until_ready("a").await?;
    Ok(())
}
