//! Phase, readiness and the fields a client reads.

use anyhow::{Context, Result};
use api::performer::{Performer, Phase};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};
use testbed::kwok::Behaviour;

use crate::{
    failure::no_more_pods,
    harness::{Space, World, spec, spec_with},
    observe::{eventually, history},
};

fn phase(performer: &Performer) -> Option<Phase> {
    performer.status.as_ref().and_then(|status| status.phase)
}

fn is_ready(performer: &Performer) -> bool {
    performer.status.as_ref().is_some_and(|status| status.ready)
}

/// Creates a Performer whose pods do so, and waits for the phase that this must give.
async fn check_phase(behaviour: Behaviour, pod: &str, expected: Phase) -> Result<()> {
    let space = World::calm().await.space("phase").await;
    space.create("a", spec_with(json!({ "image": behaviour.image() }))).await?;
    space.until_pod("a", pod, |p| p.status.as_ref().and_then(|s| s.phase.as_deref()) == Some(pod)).await?;
    let found = space.until("a", expected.as_str(), |performer| phase(performer) == Some(expected)).await?;
    assert_eq!(is_ready(&found), expected == Phase::Running);
    Ok(())
}

#[tokio::test]
async fn p19_no_pod_is_pending() -> Result<()> {
    let space = World::calm().await.space("no-pod").await;
    no_more_pods(&space).await?;
    space.create("a", spec()).await?;
    let performer = space.until("a", "reported on", |p| p.status.is_some()).await?;
    let status = performer.status.context("status")?;
    assert_eq!((status.phase, status.ready, status.pod_name), (Some(Phase::Pending), false, None));
    assert_eq!(status.service_name.as_deref(), Some("performer-a"));
    Ok(())
}

#[tokio::test]
async fn p19_pending_pod_is_pending() -> Result<()> {
    check_phase(Behaviour::ImagePullFailed, "Pending", Phase::Pending).await
}

#[tokio::test]
async fn p19_ready_pod_is_running() -> Result<()> {
    check_phase(Behaviour::Ready, "Running", Phase::Running).await
}

#[tokio::test]
async fn p19_unready_pod_is_pending() -> Result<()> {
    check_phase(Behaviour::SlowStart, "Running", Phase::Pending).await
}

#[tokio::test]
async fn p19_failed_pod_is_failed() -> Result<()> {
    check_phase(Behaviour::Failed, "Failed", Phase::Failed).await
}

#[tokio::test]
async fn p19_succeeded_pod_is_unknown() -> Result<()> {
    check_phase(Behaviour::Succeeded, "Succeeded", Phase::Unknown).await
}

#[tokio::test]
async fn p19_silent_pod_is_unknown() -> Result<()> {
    let space = World::calm().await.space("silent").await;
    // On no node, so that nobody else writes its status.
    space.create("a", spec_with(json!({ "scheduling": { "nodeSelector": { "no": "node" } } }))).await?;
    space.until_condition("a", "Degraded", "True", "SchedulingFailed").await?;
    let silent = json!({ "status": { "phase": "Unknown" } });
    space.pods.patch_status("performer-a", &PatchParams::default(), &Patch::Merge(silent)).await?;
    space.until("a", "Unknown", |performer| phase(performer) == Some(Phase::Unknown)).await?;
    Ok(())
}

/// Lets someone else hold the pod when it is deleted.
pub async fn hold(space: &Space, is_held: bool) -> Result<Pod> {
    let finalizers = if is_held { json!(["example.com/held"]) } else { Value::Null };
    let patch = json!({ "metadata": { "finalizers": finalizers } });
    Ok(space.pods.patch("performer-a", &PatchParams::default(), &Patch::Merge(patch)).await?)
}

#[tokio::test]
async fn p19_p32_deletion_is_terminating() -> Result<()> {
    let space = World::calm().await.space("terminating").await;
    space.create_ready("a", spec()).await?;
    hold(&space, true).await?;
    space.delete("a").await?;
    let found = space.until("a", "terminating", |performer| phase(performer) == Some(Phase::Terminating)).await?;
    assert!(!is_ready(&found));
    assert!(space.services.get_opt("performer-a").await?.is_none());
    hold(&space, false).await?;
    let uid = found.metadata.uid.context("uid")?;
    space.until_gone(&space.performers, "a", &uid).await
}

/// `happens` to the pod; the first thing said about the Performer after that is that it is not ready.
async fn check_not_ready<F: Future<Output = Result<()>>>(happens: impl FnOnce(Space) -> F) -> Result<()> {
    let space = World::calm().await.space("unready").await;
    let before = space.create_ready("a", spec()).await?;
    happens(space.clone()).await?;
    let versions = history(&space.performers, "a", &before, |_| true).await?;
    assert!(!is_ready(&versions[0]), "{versions:#?}");
    assert_ne!(phase(&versions[0]), Some(Phase::Running));
    Ok(())
}

#[tokio::test]
async fn p20_not_ready_when_the_pod_is_gone() -> Result<()> {
    check_not_ready(|space| async move {
        space.pods.delete("performer-a", &DeleteParams::default().grace_period(0)).await?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn p20_not_ready_while_the_pod_is_being_deleted() -> Result<()> {
    check_not_ready(|space| async move {
        hold(&space, true).await?;
        space.pods.delete("performer-a", &DeleteParams::default()).await?;
        // The pod itself still says ready; that must not count.
        space.until_pod("a", "held", |pod| pod.metadata.deletion_timestamp.is_some()).await?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn p20_not_ready_when_the_pod_is_not() -> Result<()> {
    check_not_ready(|space| async move {
        Behaviour::NotReady.set(&space.pods, "performer-a").await?;
        Ok(())
    })
    .await
}

/// Since when the pod is as ready as it is.
fn ready_since(pod: &Pod) -> Option<Timestamp> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let ready = conditions.iter().find(|condition| condition.type_ == "Ready")?;
    ready.last_transition_time.as_ref().map(|time| time.0)
}

#[tokio::test]
async fn p21_ready_time_is_of_the_present_pod() -> Result<()> {
    let space = World::calm().await.space("ready-time").await;
    let time = |performer: &Performer| performer.status.as_ref().and_then(|status| status.ready_time);
    space.create("a", spec_with(json!({ "image": Behaviour::SlowStart.image() }))).await?;
    let starting = space.until("a", "reported on", |p| p.status.is_some()).await?;
    assert_eq!(time(&starting), None);
    Behaviour::Ready.set(&space.pods, "performer-a").await?;
    let first = space.until_ready("a").await?;
    let ready_at = ready_since(&space.pod("a").await?);
    assert!(ready_at.is_some());
    assert_eq!(time(&first), ready_at, "the moment at which the pod became ready");
    // A short loss.
    Behaviour::NotReady.set(&space.pods, "performer-a").await?;
    let lost = space.until("a", "not ready", |p| !is_ready(p)).await?;
    assert_eq!(time(&lost), time(&first));
    Behaviour::Ready.set(&space.pods, "performer-a").await?;
    let back = space.until_ready("a").await?;
    assert_eq!(time(&back), time(&first));
    // Another pod: the time goes with the old one and comes with the new.
    let former = space.pod("a").await?;
    space.pods.delete("performer-a", &DeleteParams::default()).await?;
    let pod = space.until_replaced("a", &former).await?;
    space.until("a", "without a time", |p| time(p).is_none()).await?;
    Behaviour::Ready.set(&space.pods, "performer-a").await?;
    let second = space.until_ready("a").await?;
    assert_eq!(time(&second), ready_since(&space.pod("a").await?));
    assert!(time(&second) >= pod.metadata.creation_timestamp.map(|created| created.0));
    Ok(())
}

#[tokio::test]
async fn p22_endpoint_has_port_and_namespace_before_the_pod_is_ready() -> Result<()> {
    let space = World::calm().await.space("endpoint").await;
    let fields = json!({ "image": Behaviour::SlowStart.image(), "config": { "grpcPort": 7001 } });
    space.create("a", spec_with(fields)).await?;
    let performer = space.until("a", "reported on", |p| p.status.is_some()).await?;
    let expected = format!("performer-a.{}.svc.cluster.local:7001", space.namespace);
    assert_eq!(performer.status.context("status")?.grpc_endpoint, Some(expected));
    Ok(())
}

#[tokio::test]
async fn a_wiped_status_is_restored() -> Result<()> {
    let space = World::calm().await.space("wiped").await;
    let before = space.create_ready("a", spec()).await?.status.context("status")?;
    let wiped = json!({ "status": null });
    space.performers.patch_status("a", &PatchParams::default(), &Patch::Merge(wiped)).await?;
    let after = space.until_ready("a").await?.status.context("status")?;
    assert_eq!(after.grpc_endpoint, before.grpc_endpoint);
    assert_eq!(after.ready_time, before.ready_time);
    assert_eq!(after.conditions.len(), 3);
    Ok(())
}

#[tokio::test]
async fn a_status_with_foreign_words_is_put_right() -> Result<()> {
    let space = World::calm().await.space("foreign-status").await;
    let before = space.create_ready("a", spec()).await?;
    let foreign = json!({ "status": { "phase": "Failed", "ready": false, "podName": "x", "conditions": [
        { "type": "Strange", "status": "Unknown", "reason": "Who", "message": "", "lastTransitionTime": "2020-01-01T00:00:00Z" },
    ] } });
    space.performers.patch_status("a", &PatchParams::default(), &Patch::Merge(foreign)).await?;
    eventually("the status is ours again", || async {
        let status = space.performers.get("a").await?.status.context("status")?;
        let ours = before.status.as_ref().context("status")?;
        Ok(status.phase == ours.phase && status.pod_name == ours.pod_name && status.conditions.len() == 3)
    })
    .await
}
