//! Restarts, standbys, and locks that others left.

use anyhow::Result;
use futures::future::try_join_all;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use testbed::{charts, helm::Helm};

use crate::{
    space::{Space, condition, eventually, message},
    world::{Running, Vacant, World, config, lease},
};

const RELEASES: u32 = 100;
/// So few at once that each is ready in time on a busy machine.
const BATCH: usize = 25;

#[tokio::test]
async fn w28_a_restart_with_a_hundred_unchanged_releases_starts_no_helm_and_writes_nothing() -> Result<()> {
    let place = Vacant::take().await?;
    let space = place.space("unchanged").await?;
    let first = Running::start(place.config().await?, None).await?;
    space.secret("more", json!({ "values.yaml": "note: a" })).await?;
    let sources =
        json!([{ "kind": "Secret", "name": "more" }, { "kind": "ConfigMap", "name": "none", "optional": true }]);
    let names: Vec<_> = (0..RELEASES).map(|number| format!("web-{number}")).collect();
    let install = async |(number, name): (usize, &String)| {
        // Some of everything that is remembered.
        let version = if number % 2 == 0 { "1.0.0" } else { "^1.0" };
        space.install(name, space.spec("four", version, json!({ "wait": false, "valuesFrom": sources }))).await
    };
    for batch in names.chunks(BATCH) {
        try_join_all(batch.iter().enumerate().map(install)).await?;
    }
    first.stop().await?;
    let (mark, requests) = (space.mark().await?, place.repository.requests().len());
    let second = Running::start(place.config().await?, None).await?;
    let rounds = || second.metric("strata_reconcile_total", &["helmrelease", &space.namespace]);
    eventually("every release was looked at", || async { Ok(rounds() >= f64::from(RELEASES)) }).await?;
    assert_eq!(space.writes(mark)?, []);
    assert!(second.helm_processes() < 1.0);
    assert_eq!(place.repository.requests().len(), requests);
    // Not even a read beside the caches' own.
    let is_ours = |entry: &testbed::audit::Entry| {
        entry.user == crate::space::OPERATOR_USER && entry.namespace == space.namespace && entry.verb == "get"
    };
    let reads: Vec<_> = place.control_plane.audit().entries_after(mark)?.into_iter().filter(is_ours).collect();
    assert_eq!(reads, []);
    space.change("web-0", json!({ "values": { "note": "b" } })).await?;
    space.ready("web-0").await?;
    let helms = second.helm_processes();
    assert!((1.0..2.0).contains(&helms), "{helms}");
    second.stop().await
}

#[tokio::test]
async fn a_standby_starts_no_helm_until_it_leads() -> Result<()> {
    let place = Vacant::take().await?;
    let space = place.space("standby").await?;
    let folder = |name: &str| place.directory.path().join(name);
    let first = Running::start(config(&place.control_plane, &folder("a")).await?, Some(lease("a"))).await?;
    space.install("web", space.four(json!({}))).await?;
    let second = Running::start(config(&place.control_plane, &folder("b")).await?, Some(lease("b"))).await?;
    space.install("other", space.four(json!({}))).await?;
    assert!(second.helm_processes() < 1.0);
    first.stop().await?;
    space.change("web", json!({ "values": { "note": "b" } })).await?;
    space.ready("web").await?;
    assert!(second.helm_processes() >= 1.0);
    second.stop().await
}

/// A stock helm that dies in an install: it is killed when it is dropped.
async fn die_in_install(space: &Space<'_>, name: &str) -> Result<()> {
    let helm = Helm::current().await?;
    tokio::select! {
        ended = install_slowly(space, &helm, name) => anyhow::bail!("helm ended: {ended:?}"),
        result = pending(space, name) => result,
    }
}

/// Ready when somebody says so to its pods.
async fn install_slowly(space: &Space<'_>, helm: &Helm, name: &str) -> Result<String> {
    let archive = charts::sample("broken", "1.0.0").await?.path.display().to_string();
    space.helm(helm, &["install", name, &archive, "--set", "fault=slow-start", "--wait", "--timeout", "5m"]).await
}

async fn pending(space: &Space<'_>, name: &str) -> Result<()> {
    let is_pending = || async { Ok(space.history(name).await? == [(1, "pending-install".to_owned())]) };
    eventually("helm is at work", is_pending).await
}

#[tokio::test]
async fn w27_a_lock_that_a_dead_helm_left_is_taken_over_after_a_while() -> Result<()> {
    let world = World::shared().await;
    let space = world.space("lock").await?;
    tokio::try_join!(die_in_install(&space, "web"), die_in_install(&space, "spoilt"))?;
    let patch = json!({ "data": { "release": "bm90IGEgcmVjb3Jk" } });
    let secret = "sh.helm.release.v1.spoilt.v1";
    space.secrets.patch(secret, &PatchParams::default(), &Patch::Merge(patch)).await?;
    let spec = space.spec("broken", "1.0.0", json!({}));
    // It lasts a few seconds: watched for from before the release is there.
    let locked = space.condition("web", "Ready", "False", "Locked");
    let (locked, _, _) = tokio::try_join!(locked, space.create("web", spec.clone()), space.create("spoilt", spec))?;
    assert!(message(&locked).contains("pending-install"), "{}", message(&locked));
    space.ready("web").await?;
    space.until_recorded("web", "Locked").await?;
    space.check_history("web", "1 deployed").await?;
    // What cannot be read is said, and it is said what helps.
    let spoilt = space.condition("spoilt", "Ready", "False", "StateUnknown").await?;
    assert!(message(&spoilt).contains(secret), "{}", message(&spoilt));
    space.secrets.delete(secret, &kube::api::DeleteParams::default()).await?;
    space.ready("spoilt").await?;
    Ok(())
}

#[tokio::test]
async fn w27_a_helm_of_somebody_else_that_is_at_work_is_left_alone() -> Result<()> {
    let world = World::lenient().await;
    let space = world.space("live").await?;
    let helm = Helm::current().await?;
    let interfere = async {
        pending(&space, "web").await?;
        space.create("web", space.spec("broken", "1.0.0", json!({}))).await?;
        space.condition("web", "Ready", "False", "Locked").await?;
        let mark = space.mark().await?;
        space.annotate("web", "example.test/touched", "1").await?;
        space.until("web", "still locked", |release| condition(release, "Ready")["reason"] == "Locked").await?;
        assert_eq!(space.writes(mark)?, []);
        // Its pods are ready now.
        let pods: kube::Api<k8s_openapi::api::core::v1::Pod> =
            kube::Api::namespaced(space.client.clone(), &space.namespace);
        let ready = json!({ "metadata": { "annotations": { testbed::kwok::BEHAVIOUR_ANNOTATION: "ready" } } });
        for pod in pods.list(&kube::api::ListParams::default()).await? {
            pods.patch(&pod.metadata.name.unwrap_or_default(), &PatchParams::default(), &Patch::Merge(&ready)).await?;
        }
        anyhow::Ok(())
    };
    let (ended, interfered) = tokio::join!(install_slowly(&space, &helm, "web"), interfere);
    interfered?;
    ended?;
    space.ready("web").await?;
    space.check_history("web", "1 superseded, 2 deployed").await
}
