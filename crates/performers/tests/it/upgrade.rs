//! What a change of the spec does to the pod.

use anyhow::{Context, Result};
use api::performer::{Performer, Phase, VERSION_ANNOTATION};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, Service, ServiceAccount};
use kube::{
    Api,
    api::{DeleteParams, ListParams, PostParams},
};
use serde_json::{Value, json};
use testbed::kwok::Behaviour;

use crate::{
    harness::{Space, World, condition, spec, spec_with},
    observe::{create, history, uid},
    status::hold,
};

fn phases(versions: &[Performer]) -> Vec<Phase> {
    let mut phases: Vec<_> = versions.iter().filter_map(|p| p.status.as_ref()?.phase).collect();
    phases.dedup();
    phases
}

fn last_upgrade(performer: &Performer) -> Option<Timestamp> {
    performer.status.as_ref().and_then(|status| status.last_upgrade)
}

/// The status speaks of this generation and says ready.
fn is_settled(performer: &Performer, generation: Option<i64>) -> bool {
    let available = condition(performer, "Available");
    available["status"] == "True" && available["observedGeneration"] == json!(generation)
}

pub fn image(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.containers[0].image.as_deref()
}

async fn only_pod(space: &Space) -> Result<Pod> {
    let mut pods = space.pods.list(&ListParams::default()).await?.items;
    assert_eq!(pods.len(), 1);
    pods.pop().context("one pod")
}

/// Changes a ready Performer and gives every version of it until it is ready again.
async fn change(space: &Space, patch: Value) -> Result<Vec<Performer>> {
    let before = space.performers.get("a").await?;
    let former = space.pod("a").await?;
    let generation = space.patch("a", json!({ "spec": patch })).await?.metadata.generation;
    let versions = history(&space.performers, "a", &before, |p| is_settled(p, generation)).await?;
    assert_ne!(uid(&only_pod(space).await?), uid(&former), "the pod was replaced");
    Ok(versions)
}

async fn check_upgrade(patch: Value) -> Result<()> {
    let space = World::calm().await.space("upgrade").await;
    let first = space.create_ready("a", spec_with(json!({ "version": "v1" }))).await?;
    assert_eq!(last_upgrade(&first), None, "a first creation is no upgrade");
    let former = space.pod("a").await?;
    let versions = change(&space, patch).await?;
    assert_eq!(phases(&versions), [Phase::Running, Phase::Upgrading, Phase::Running]);
    let upgrading = versions.iter().filter(|p| p.status.as_ref().is_some_and(|s| s.phase == Some(Phase::Upgrading)));
    for version in upgrading {
        assert!(!version.status.as_ref().is_some_and(|status| status.ready));
        assert_eq!(condition(version, "Progressing")["reason"], "UpgradeInProgress");
        assert_eq!(condition(version, "Progressing")["status"], "True");
        assert!(last_upgrade(version).is_some(), "the time at which it began is there from its beginning");
    }
    let mut times: Vec<_> = versions.iter().filter_map(last_upgrade).collect();
    times.dedup();
    assert_eq!(times.len(), 1, "set once");
    let pod = only_pod(&space).await?;
    let created = |pod: &Pod| pod.metadata.creation_timestamp.as_ref().map(|time| time.0);
    assert!(created(&former) <= Some(times[0]) && Some(times[0]) <= created(&pod), "between the two pods: {times:?}");
    let wanted = versions.last().and_then(|performer| performer.spec.as_ref()).context("spec")?;
    assert_eq!(image(&pod), Some(wanted.image.as_str()));
    let version = pod.metadata.annotations.as_ref().and_then(|all| all.get(VERSION_ANNOTATION));
    assert_eq!(version, wanted.version.as_ref());
    Ok(())
}

#[tokio::test]
async fn p23_another_image_is_an_upgrade() -> Result<()> {
    check_upgrade(json!({ "image": "registry.test/performer:v2" })).await
}

#[tokio::test]
async fn p24_another_version_is_an_upgrade() -> Result<()> {
    check_upgrade(json!({ "version": "v2" })).await
}

#[tokio::test]
async fn p25_other_changes_replace_the_pod_without_an_upgrade() -> Result<()> {
    let space = World::calm().await.space("change").await;
    let accounts = Api::namespaced(space.client.clone(), &space.namespace);
    create::<ServiceAccount>(&accounts, json!({ "metadata": { "name": "runner" } })).await?;
    space.create_ready("a", spec()).await?;
    let changes = [
        json!({ "config": { "environment": { "A": "1" } } }),
        json!({ "config": { "environment": { "A": "2" } } }),
        json!({ "config": { "args": ["x"], "command": ["y"] } }),
        json!({ "config": { "grpcPort": 7777 } }),
        json!({ "config": { "serviceAccountName": "runner" } }),
        json!({ "resources": { "requests": { "cpu": "1m" } } }),
        json!({ "scheduling": { "nodeSelector": { "kubernetes.io/os": "linux" } } }),
        json!({ "imagePullPolicy": "Always" }),
        json!({ "imagePullSecrets": [{ "name": "s" }] }),
    ];
    for patch in changes {
        let versions = change(&space, patch.clone()).await.with_context(|| patch.to_string())?;
        assert!(!phases(&versions).contains(&Phase::Upgrading), "{patch}");
        assert_eq!(versions.last().and_then(last_upgrade), None, "{patch}");
    }
    let performer = space.performers.get("a").await?;
    let endpoint = performer.status.and_then(|status| status.grpc_endpoint).unwrap_or_default();
    assert!(endpoint.ends_with(":7777"), "{endpoint}");
    Ok(())
}

/// Changes the spec as fast as the API server takes it; the last one counts.
async fn check_flips(patches: &[Value]) -> Result<Pod> {
    let space = World::calm().await.space("flip").await;
    space.create_ready("a", spec()).await?;
    for patch in patches {
        space.patch("a", json!({ "spec": patch })).await?;
    }
    space.until_settled("a").await?;
    only_pod(&space).await
}

fn of_tag(tag: &str) -> Value {
    json!({ "image": format!("registry.test/performer:{tag}") })
}

#[tokio::test]
async fn p26_two_quick_flips_end_on_the_last_image() -> Result<()> {
    let pod = check_flips(&[of_tag("v2"), of_tag("v3")]).await?;
    assert_eq!(image(&pod), Some("registry.test/performer:v3"));
    Ok(())
}

#[tokio::test]
async fn p26_back_and_forth_and_on_ends_on_the_last_image() -> Result<()> {
    let pod = check_flips(&[of_tag("v2"), of_tag("v1"), of_tag("v3")]).await?;
    assert_eq!(image(&pod), Some("registry.test/performer:v3"));
    Ok(())
}

#[tokio::test]
async fn p26_there_and_back_ends_where_it_began() -> Result<()> {
    let pod = check_flips(&[of_tag("v2"), of_tag("v1")]).await?;
    assert_eq!(image(&pod), Some("registry.test/performer:v1"));
    Ok(())
}

#[tokio::test]
async fn quick_environment_flips_end_on_the_last_value() -> Result<()> {
    let value = |value: &str| json!({ "config": { "environment": { "MODE": value } } });
    let pod = check_flips(&[value("a"), value("b"), value("a"), value("c")]).await?;
    let env = pod.spec.context("spec")?.containers[0].env.clone().context("env")?;
    assert_eq!(env[0].value.as_deref(), Some("c"));
    Ok(())
}

#[tokio::test]
async fn an_upgrade_to_a_bad_image_is_told_and_mended_by_the_next() -> Result<()> {
    let space = World::calm().await.space("bad-upgrade").await;
    space.create_ready("a", spec()).await?;
    space.patch("a", json!({ "spec": { "image": Behaviour::ImagePullFailed.image() } })).await?;
    let degraded = space.until_condition("a", "Degraded", "True", "ImagePullFailed").await?;
    assert_eq!(degraded.status.as_ref().and_then(|status| status.phase), Some(Phase::Upgrading));
    space.patch("a", json!({ "spec": of_tag("v2") })).await?;
    let mended = space.until_settled("a").await?;
    assert_eq!(condition(&mended, "Degraded")["status"], "False");
    assert_eq!(image(&only_pod(&space).await?), Some("registry.test/performer:v2"));
    Ok(())
}

#[tokio::test]
async fn an_upgrade_waits_for_a_held_pod_and_deletes_it_once() -> Result<()> {
    let world = World::calm().await;
    let space = world.space("held-upgrade").await;
    space.create_ready("a", spec()).await?;
    let held = hold(&space, true).await?;
    let mark = world.control_plane.audit().mark()?;
    space.patch("a", json!({ "spec": of_tag("v2") })).await?;
    let is_going = |pod: &Pod| pod.metadata.deletion_timestamp.is_some();
    space.until_pod("a", "going away", is_going).await?;
    let waiting = space.until("a", "upgrading", |p| phases(std::slice::from_ref(p)) == [Phase::Upgrading]).await?;
    assert!(!waiting.status.context("status")?.ready, "the old pod's readiness does not count");
    // A further change while it waits.
    space.patch("a", json!({ "spec": of_tag("v3") })).await?;
    space
        .until("a", "seen", |p| condition(p, "Available")["observedGeneration"] == json!(p.metadata.generation))
        .await?;
    hold(&space, false).await?;
    let pod = space.until_replaced("a", &held).await?;
    assert_eq!(image(&pod), Some("registry.test/performer:v3"));
    space.until_settled("a").await?;
    let writes = crate::observe::writes(&world.control_plane, &space, mark)?;
    let deletions = writes.iter().filter(|entry| entry.verb == "delete" && entry.resource == "pods").count();
    assert_eq!(deletions, 1, "not deleted again while it goes");
    Ok(())
}

#[tokio::test]
async fn p49_a_whole_object_put_that_drops_affinity_is_a_normal_change() -> Result<()> {
    let space = World::calm().await.space("put").await;
    let terms = json!([{ "matchExpressions": [{ "key": "kubernetes.io/os", "operator": "In", "values": ["linux"] }] }]);
    let affinity =
        json!({ "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": terms } } });
    let fields = json!({ "version": "v1", "scheduling": { "affinity": affinity, "nodeSelector": { "kubernetes.io/os": "linux" } } });
    let before = space.create_ready("a", spec_with(fields)).await?;
    let former = space.pod("a").await?;
    assert!(former.spec.as_ref().is_some_and(|spec| spec.affinity.is_some()));
    // As the executor does it: read, change image and version, write all back, without what its types lack.
    let mut put = before.clone();
    let put_spec = put.spec.as_mut().context("spec")?;
    put_spec.image = "registry.test/performer:v2".to_owned();
    put_spec.version = Some("v2".to_owned());
    put_spec.scheduling.as_mut().context("scheduling")?.affinity = None;
    let generation = space.performers.replace("a", &PostParams::default(), &put).await?.metadata.generation;
    let versions = history(&space.performers, "a", &before, |p| is_settled(p, generation)).await?;
    assert_eq!(phases(&versions), [Phase::Running, Phase::Upgrading, Phase::Running]);
    let pod = only_pod(&space).await?.spec.context("spec")?;
    assert_eq!(pod.affinity, None);
    assert!(pod.node_selector.is_some());
    Ok(())
}

/// A Performer whose pod the original operator has made, with what it knows of it.
pub async fn original_pod(space: &Space) -> Result<Pod> {
    // A stranger's Service keeps us from making the pod first.
    let service = json!({ "metadata": { "name": "performer-a" }, "spec": { "ports": [{ "port": 1 }] } });
    create::<Service>(&space.services, service).await?;
    let performer = space.create("a", spec()).await?;
    space.until_condition("a", "Degraded", "True", "NameTaken").await?;
    let owner = json!({
        "apiVersion": "hourglass.eigenlayer.io/v1alpha1", "kind": "Performer", "name": "a", "uid": uid(&performer),
        "controller": true, "blockOwnerDeletion": true,
    });
    let theirs = json!({
        "metadata": { "name": "performer-a", "ownerReferences": [owner],
            "labels": { "app": "hourglass-performer", "hourglass.eigenlayer.io/performer": "a" } },
        "spec": { "containers": [{ "name": "performer", "image": "registry.test/performer:v1" }] },
    });
    let pod = create::<Pod>(&space.pods, theirs).await?;
    space.services.delete("performer-a", &DeleteParams::default()).await?;
    Ok(pod)
}

#[tokio::test]
async fn a_pod_of_the_original_operator_is_kept() -> Result<()> {
    let space = World::calm().await.space("original").await;
    let pod = original_pod(&space).await?;
    space.until_settled("a").await?;
    assert_eq!(uid(&only_pod(&space).await?), uid(&pod));
    // Compared by image alone: another image replaces it, other changes do not.
    space.patch("a", json!({ "spec": { "config": { "args": ["x"] } } })).await?;
    space.until_settled("a").await?;
    assert_eq!(uid(&only_pod(&space).await?), uid(&pod));
    space.patch("a", json!({ "spec": of_tag("v2") })).await?;
    space.until_settled("a").await?;
    assert_eq!(image(&only_pod(&space).await?), Some("registry.test/performer:v2"));
    Ok(())
}
