//! Pods on simulated nodes: the real scheduler places them, each behaviour does what its name says, claims
//! are bound by the real controller-manager.

use anyhow::{Context, Result, bail};
use futures::StreamExt;
use k8s_openapi::api::core::v1::{ContainerStatus, PersistentVolume, PersistentVolumeClaim, Pod};
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams},
};
use serde_json::json;
use testbed::{
    ControlPlane,
    audit::{Entry, Mark},
    kwok::Behaviour,
};

use crate::{PATIENCE, eventually};

#[tokio::test]
async fn a_pod_becomes_ready_through_the_real_scheduler() -> Result<()> {
    let pods = create("registry.test/anything:1").await?;
    let pod = eventually(&pods, "pod", is_ready(true)).await?.unwrap();
    assert!(pod.spec.unwrap().node_name.unwrap().starts_with("simulated-"));
    let status = pod.status.unwrap();
    assert_eq!(status.phase.as_deref(), Some("Running"));
    assert!(status.pod_ip.unwrap().starts_with("10."));
    Ok(())
}

#[tokio::test]
async fn image_pull_failure_backs_off_and_recovers() -> Result<()> {
    let pods = empty().await?;
    let before = pods.list(&ListParams::default()).await?.metadata.resource_version.context("a version")?;
    pods.create(&PostParams::default(), &pod("pod", &Behaviour::ImagePullFailed.image())).await?;
    // It lasts half a second: all that happened since before the pod was there is looked at.
    let mut changes = pods.watch(&WatchParams::default(), &before).await?.boxed();
    let failed = async {
        while let Some(change) = changes.next().await {
            if let WatchEvent::Modified(pod) = change?
                && waits_in("ErrImagePull")(Some(&pod))
            {
                return Ok(());
            }
        }
        bail!("the watch ended")
    };
    tokio::time::timeout(PATIENCE, failed).await??;
    let pod = eventually(&pods, "pod", waits_in("ImagePullBackOff")).await?.unwrap();
    assert_eq!(pod.status.unwrap().phase.as_deref(), Some("Pending"));
    Behaviour::Ready.set(&pods, "pod").await?;
    eventually(&pods, "pod", is_ready(true)).await?;
    Ok(())
}

#[tokio::test]
async fn an_invalid_image_name_is_reported() -> Result<()> {
    let pods = create(&Behaviour::ImageNameInvalid.image()).await?;
    eventually(&pods, "pod", waits_in("InvalidImageName")).await?;
    Ok(())
}

#[tokio::test]
async fn an_image_that_is_never_pulled_is_reported() -> Result<()> {
    let pods = create(&Behaviour::ImageNeverPulled.image()).await?;
    eventually(&pods, "pod", waits_in("ErrImageNeverPull")).await?;
    Ok(())
}

#[tokio::test]
async fn a_crash_loop_counts_its_restarts() -> Result<()> {
    let pods = create(&Behaviour::CrashLoop.image()).await?;
    eventually(&pods, "pod", waits_in("CrashLoopBackOff")).await?;
    let has_restarted_twice = |pod: Option<&Pod>| container(pod).is_some_and(|container| container.restart_count >= 2);
    let pod = eventually(&pods, "pod", has_restarted_twice).await?.unwrap();
    let last = container(Some(&pod)).and_then(|container| container.last_state.as_ref()?.terminated.as_ref());
    assert_eq!(last.map(|ended| ended.exit_code), Some(1));
    Ok(())
}

#[tokio::test]
async fn a_slow_start_lasts_until_it_is_told_otherwise() -> Result<()> {
    let pods = create(&Behaviour::SlowStart.image()).await?;
    let pod = eventually(&pods, "pod", is_ready(false)).await?.unwrap();
    assert_eq!(pod.status.unwrap().phase.as_deref(), Some("Running"));
    Behaviour::Ready.set(&pods, "pod").await?;
    eventually(&pods, "pod", is_ready(true)).await?;
    Ok(())
}

#[tokio::test]
async fn readiness_is_lost_and_comes_back() -> Result<()> {
    let pods = create("registry.test/anything:1").await?;
    eventually(&pods, "pod", is_ready(true)).await?;
    Behaviour::NotReady.set(&pods, "pod").await?;
    eventually(&pods, "pod", is_ready(false)).await?;
    Behaviour::Ready.set(&pods, "pod").await?;
    eventually(&pods, "pod", is_ready(true)).await?;
    Ok(())
}

#[tokio::test]
async fn a_ready_pod_can_fail() -> Result<()> {
    let pods = create("registry.test/anything:1").await?;
    eventually(&pods, "pod", is_ready(true)).await?;
    Behaviour::Failed.set(&pods, "pod").await?;
    let pod = eventually(&pods, "pod", has_phase("Failed")).await?.unwrap();
    assert!(is_ready(false)(Some(&pod)));
    Ok(())
}

#[tokio::test]
async fn a_pod_can_succeed() -> Result<()> {
    let pods = create(&Behaviour::Succeeded.image()).await?;
    eventually(&pods, "pod", has_phase("Succeeded")).await?;
    Ok(())
}

#[tokio::test]
async fn deletion_is_quick_unless_it_is_held() -> Result<()> {
    let pods = create(&Behaviour::HeldDeletion.image()).await?;
    eventually(&pods, "pod", is_ready(true)).await?;
    pods.delete("pod", &DeleteParams::default()).await?;
    // A second pod comes and goes meanwhile: whoever deletes pods has seen the first one by then.
    let other = pod("other", "registry.test/anything:1");
    pods.create(&PostParams::default(), &other).await?;
    eventually(&pods, "other", is_ready(true)).await?;
    pods.delete("other", &DeleteParams::default()).await?;
    eventually(&pods, "other", |pod: Option<&Pod>| pod.is_none()).await?;
    assert!(pods.get("pod").await?.metadata.deletion_timestamp.is_some());
    Behaviour::Ready.set(&pods, "pod").await?;
    eventually(&pods, "pod", |pod: Option<&Pod>| pod.is_none()).await?;
    Ok(())
}

#[tokio::test]
async fn a_node_deletes_a_pod_once_also_one_that_a_foreign_finalizer_holds() -> Result<()> {
    let control_plane = ControlPlane::shared().await?;
    let namespace = control_plane.namespace("finalizer").await?;
    let pods = Api::<Pod>::namespaced(control_plane.client().await?, &namespace);
    let mut held = pod("held", "registry.test/anything:1");
    held.metadata.finalizers = Some(vec!["example.test/hold".to_owned()]);
    pods.create(&PostParams::default(), &held).await?;
    eventually(&pods, "held", is_ready(true)).await?;
    pods.delete("held", &DeleteParams::default()).await?;
    let is_without_grace =
        |pod: Option<&Pod>| pod.and_then(|pod| pod.metadata.deletion_grace_period_seconds) == Some(0);
    eventually(&pods, "held", is_without_grace).await?;

    let release = json!({ "metadata": { "finalizers": null } });
    pods.patch("held", &PatchParams::default(), &Patch::Merge(release)).await?;
    eventually(&pods, "held", |pod: Option<&Pod>| pod.is_none()).await?;
    let audit = control_plane.audit();
    let is_delete = |entry: &Entry| entry.namespace == namespace && entry.verb == "delete";
    // The log is written after the answer, which may be after the change that others see.
    for is_nodes in [false, true] {
        let fits = |entry: &Entry| is_delete(entry) && entry.user.starts_with("kwok") == is_nodes;
        audit.wait_for(Mark::default(), fits).await?.context("a deletion is logged")?;
    }
    let entries = audit.entries()?;
    let deletes = entries.iter().filter(|entry| is_delete(entry));
    // Ours and the node's: a second one, which goes by the name, could meet the next pod.
    assert_eq!(deletes.count(), 2, "{entries:#?}");
    Ok(())
}

#[tokio::test]
async fn a_claim_is_bound_on_first_use_and_its_volume_goes_with_it() -> Result<()> {
    let control_plane = ControlPlane::shared().await?;
    let namespace = control_plane.namespace("claim").await?;
    let client = control_plane.client().await?;
    let claims = Api::<PersistentVolumeClaim>::namespaced(client.clone(), &namespace);
    let claim = serde_json::from_value(json!({
        "metadata": { "name": "data" },
        "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } },
    }))?;
    claims.create(&PostParams::default(), &claim).await?;
    let pods = Api::namespaced(client.clone(), &namespace);
    let mut pod = pod("pod", "registry.test/anything:1");
    let volume = json!({ "name": "data", "persistentVolumeClaim": { "claimName": "data" } });
    pod.spec.as_mut().unwrap().volumes = Some(vec![serde_json::from_value(volume)?]);
    pods.create(&PostParams::default(), &pod).await?;
    eventually(&pods, "pod", is_ready(true)).await?;

    // The pod may run as soon as the claim names its volume; that it is bound is written after that.
    let is_bound = |claim: Option<&PersistentVolumeClaim>| {
        claim.and_then(|claim| claim.status.as_ref()?.phase.as_deref()) == Some("Bound")
    };
    let claim = eventually(&claims, "data", is_bound).await?.unwrap();
    let volume = claim.spec.unwrap().volume_name.unwrap();
    pods.delete("pod", &DeleteParams::default()).await?;
    claims.delete("data", &DeleteParams::default()).await?;
    eventually(&Api::all(client), &volume, |volume: Option<&PersistentVolume>| volume.is_none()).await?;
    Ok(())
}

/// The pods of a new namespace.
async fn empty() -> Result<Api<Pod>> {
    let control_plane = ControlPlane::shared().await?;
    let namespace = control_plane.namespace("pods").await?;
    Ok(Api::namespaced(control_plane.client().await?, &namespace))
}

/// Creates `pod` with this image in a namespace of its own.
async fn create(image: &str) -> Result<Api<Pod>> {
    let pods = empty().await?;
    pods.create(&PostParams::default(), &pod("pod", image)).await?;
    Ok(pods)
}

fn pod(name: &str, image: &str) -> Pod {
    serde_json::from_value(json!({
        "metadata": { "name": name },
        "spec": { "containers": [{ "name": "main", "image": image }] },
    }))
    .unwrap()
}

fn container(pod: Option<&Pod>) -> Option<&ContainerStatus> {
    pod?.status.as_ref()?.container_statuses.as_ref()?.first()
}

fn is_ready(expected: bool) -> impl Fn(Option<&Pod>) -> bool {
    move |pod| {
        let conditions = pod.and_then(|pod| pod.status.as_ref()?.conditions.as_ref());
        let ready = conditions.and_then(|all| all.iter().find(|condition| condition.type_ == "Ready"));
        ready.is_some_and(|ready| (ready.status == "True") == expected)
    }
}

fn has_phase(phase: &str) -> impl Fn(Option<&Pod>) -> bool {
    move |pod| pod.and_then(|pod| pod.status.as_ref()?.phase.as_deref()) == Some(phase)
}

fn waits_in(reason: &str) -> impl Fn(Option<&Pod>) -> bool {
    move |pod| {
        let waiting = container(pod).and_then(|container| container.state.as_ref()?.waiting.as_ref());
        waiting.and_then(|waiting| waiting.reason.as_deref()) == Some(reason)
    }
}
