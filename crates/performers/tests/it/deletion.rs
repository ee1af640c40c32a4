//! The end of a Performer.

use anyhow::{Context, Result};
use api::performer::{FINALIZER, Performer, Phase};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use testbed::audit::Entry;

use crate::{
    failure::no_more_pods,
    harness::{OPERATOR_USER, World, spec},
    observe::{eventually, history, line, uid, writes},
    status::hold,
};

#[tokio::test]
async fn p32_terminating_then_clean_then_released() -> Result<()> {
    let world = World::calm().await;
    let space = world.space("delete").await;
    let before = space.create_ready("a", spec()).await?;
    let mark = world.control_plane.audit().mark()?;
    space.delete("a").await?;
    let is_terminating = |p: &Performer| p.status.as_ref().and_then(|s| s.phase) == Some(Phase::Terminating);
    history(&space.performers, "a", &before, is_terminating).await?;
    space.until_gone(&space.performers, "a", &uid(&before)).await?;
    let is_release = |entry: &Entry| {
        entry.user == OPERATOR_USER && entry.namespace == space.namespace && line(entry) == "patch performers"
    };
    let audit = world.control_plane.audit();
    let release = audit.wait_for(mark, is_release).await?.context("the finalizer was dropped")?;
    let lines: Vec<_> = writes(&world.control_plane, &space, mark)?.iter().map(line).collect();
    let expected = ["delete pods", "delete services", "patch performers/status", "patch performers"];
    // The entry of the write that made it ready may come after the mark.
    assert!(lines.ends_with(&expected.map(str::to_owned)) && lines.len() <= 5, "{lines:?}");
    // The pod was really gone when the finalizer went: its node had said so.
    let is_gone =
        |entry: &Entry| entry.user == "kwok" && entry.namespace == space.namespace && line(entry) == "delete pods";
    let gone = audit.wait_for(mark, is_gone).await?.context("the node deleted the pod")?;
    assert!(gone.received_at < release.received_at);
    Ok(())
}

#[tokio::test]
async fn p32_nothing_to_remove_is_success() -> Result<()> {
    let space = World::calm().await.space("nothing").await;
    no_more_pods(&space).await?;
    space.create("a", spec()).await?;
    let degraded = space.until_condition("a", "Degraded", "True", "PodRejected").await?;
    assert_eq!(degraded.metadata.finalizers.as_deref(), Some(&[FINALIZER.to_owned()][..]));
    space.delete_and_wait("a").await
}

#[tokio::test]
async fn a_pod_held_by_someone_else_delays_the_deletion_but_does_not_stop_it() -> Result<()> {
    let space = World::hasty().await.space("held").await;
    space.create_ready("a", spec()).await?;
    let pod = hold(&space, true).await?;
    space.delete_and_wait("a").await?;
    let left = space.pod("a").await?;
    assert_eq!(uid(&left), uid(&pod), "the holder decides about the pod");
    assert!(left.metadata.deletion_timestamp.is_some());
    hold(&space, false).await?;
    space.until_gone(&space.pods, "performer-a", &uid(&pod)).await
}

#[tokio::test]
async fn p34_a_finalizer_removed_by_hand_leaks_nothing() -> Result<()> {
    let world = World::calm().await;
    let space = world.space("by-hand").await;
    let performer = space.create_ready("a", spec()).await?;
    let pod = hold(&space, true).await?;
    space.delete("a").await?;
    space.until("a", "terminating", |p| p.status.as_ref().and_then(|s| s.phase) == Some(Phase::Terminating)).await?;
    // As the executor's tear-down does it.
    space.patch("a", json!({ "metadata": { "finalizers": null } })).await?;
    space.until_gone(&space.performers, "a", &uid(&performer)).await?;
    hold(&space, false).await?;
    space.until_gone(&space.pods, "performer-a", &uid(&pod)).await?;
    assert!(space.services.get_opt("performer-a").await?.is_none());
    check_quiet(world, &space.namespace);
    Ok(())
}

#[tokio::test]
async fn p34_cleared_at_once_garbage_collection_removes_the_rest() -> Result<()> {
    let world = World::calm().await;
    let space = world.space("collected").await;
    space.create_ready("a", spec()).await?;
    let (pod, service) = (space.pod("a").await?, space.service("a").await?);
    // A race with the operator's own clean-up: whoever wins, the rest goes.
    space.delete("a").await?;
    match space.patch("a", json!({ "metadata": { "finalizers": null } })).await {
        Err(error) if !error.to_string().contains("NotFound") => return Err(error),
        _ => {}
    }
    space.until_gone(&space.pods, "performer-a", &uid(&pod)).await?;
    space.until_gone(&space.services, "performer-a", &uid(&service)).await?;
    check_quiet(world, &space.namespace);
    Ok(())
}

/// Nothing failed in this namespace but what several writers at once are bound to run into.
fn check_quiet(world: &World, namespace: &str) {
    let metrics = world.operator.metrics.encode().expect("metrics encode");
    let failures =
        metrics.lines().filter(|line| line.starts_with("strata_reconcile_errors_total") && line.contains(namespace));
    for failure in failures {
        assert!(failure.contains("class=\"conflict\""), "{failure}");
    }
}

#[tokio::test]
async fn a_finalizer_taken_from_a_living_performer_comes_back() -> Result<()> {
    let space = World::calm().await.space("taken").await;
    space.create_ready("a", spec()).await?;
    space.patch("a", json!({ "metadata": { "finalizers": null } })).await?;
    space.until("a", "held again", |p| p.metadata.finalizers.as_deref() == Some(&[FINALIZER.to_owned()][..])).await?;
    Ok(())
}

#[tokio::test]
async fn finalizers_of_others_are_kept() -> Result<()> {
    const OTHER: &str = "example.com/other";
    let space = World::calm().await.space("others").await;
    let mut performer = space.performer("a", &spec());
    performer.metadata.finalizers = Some(vec![OTHER.to_owned()]);
    space.performers.create(&PostParams::default(), &performer).await?;
    let ready = space.until_ready("a").await?;
    assert_eq!(ready.metadata.finalizers.as_deref(), Some(&[OTHER.to_owned(), FINALIZER.to_owned()][..]));
    space.delete("a").await?;
    let released =
        space.until("a", "released by us", |p| p.metadata.finalizers.as_ref().is_some_and(|f| f.len() == 1)).await?;
    assert_eq!(released.metadata.finalizers.as_deref(), Some(&[OTHER.to_owned()][..]));
    assert!(space.pods.get_opt("performer-a").await?.is_none());
    assert!(space.services.get_opt("performer-a").await?.is_none());
    space.patch("a", json!({ "metadata": { "finalizers": null } })).await?;
    space.until_gone(&space.performers, "a", &uid(&released)).await
}

#[tokio::test]
async fn created_and_deleted_at_once_leaves_nothing() -> Result<()> {
    let space = World::calm().await.space("at-once").await;
    let mut uids = Vec::new();
    for number in 0..20 {
        let name = format!("p{number}");
        uids.push(uid(&space.create(&name, spec()).await?));
        space.delete(&name).await?;
    }
    for (number, uid) in uids.iter().enumerate() {
        space.until_gone(&space.performers, &format!("p{number}"), uid).await?;
    }
    eventually("nothing is left", || async {
        let pods = space.pods.list(&ListParams::default()).await?.items;
        let services = space.services.list(&ListParams::default()).await?.items;
        Ok(pods.is_empty() && services.is_empty())
    })
    .await
}

#[tokio::test]
async fn recreated_under_the_same_name_it_gets_its_own_pod() -> Result<()> {
    let space = World::calm().await.space("again").await;
    for _ in 0..3 {
        let performer = space.create_ready("a", spec()).await?;
        let owner = space.pod("a").await?.metadata.owner_references.context("owner")?;
        assert_eq!(owner[0].uid, uid(&performer));
        space.delete_and_wait("a").await?;
    }
    Ok(())
}

/// Deletes a namespace of five performers after `first`; it ends by itself and nothing new appears in it.
async fn check_namespace<F: Future<Output = Result<()>>>(first: impl FnOnce(crate::harness::Space) -> F) -> Result<()> {
    let world = World::calm().await;
    let space = world.space("namespace").await;
    for number in 0..5 {
        space.create_ready(&format!("p{number}"), spec()).await?;
    }
    let namespaces: Api<Namespace> = Api::all(space.client.clone());
    let deleted = namespaces.get(&space.namespace).await?;
    let mark = world.control_plane.audit().mark()?;
    namespaces.delete(&space.namespace, &DeleteParams::default()).await?;
    first(space.clone()).await?;
    space.until_gone(&namespaces, &space.namespace, &uid(&deleted)).await?;
    let created = writes(&world.control_plane, &space, mark)?;
    let created: Vec<_> = created.iter().filter(|entry| entry.verb == "create" && entry.code < 300).map(line).collect();
    assert_eq!(created, [""; 0], "nothing is created in a namespace that goes");
    Ok(())
}

#[tokio::test]
async fn a_deleted_namespace_ends_without_help() -> Result<()> {
    check_namespace(|_| async { Ok(()) }).await
}

#[tokio::test]
async fn a_deleted_namespace_ends_when_its_pods_and_services_go_first() -> Result<()> {
    check_namespace(|space| async move {
        let at_once = DeleteParams::default().grace_period(0);
        space.pods.delete_collection(&at_once, &ListParams::default()).await?;
        space.services.delete_collection(&at_once, &ListParams::default()).await?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_deleted_namespace_ends_when_its_performers_go_first() -> Result<()> {
    check_namespace(|space| async move {
        space.performers.delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn foreground_deletion_ends() -> Result<()> {
    let space = World::calm().await.space("foreground").await;
    let performer = space.create_ready("a", spec()).await?;
    space.performers.delete("a", &DeleteParams::foreground()).await?;
    space.until_gone(&space.performers, "a", &uid(&performer)).await?;
    assert!(space.pods.get_opt("performer-a").await?.is_none());
    Ok(())
}

#[tokio::test]
async fn deletion_during_an_upgrade_ends() -> Result<()> {
    let space = World::calm().await.space("mid-upgrade").await;
    let performer = space.create_ready("a", spec()).await?;
    hold(&space, true).await?;
    space.patch("a", json!({ "spec": { "image": "registry.test/performer:v2" } })).await?;
    space.until_pod("a", "going", |pod: &Pod| pod.metadata.deletion_timestamp.is_some()).await?;
    space.delete("a").await?;
    let unheld: Value = json!({ "metadata": { "finalizers": null } });
    space.pods.patch("performer-a", &PatchParams::default(), &Patch::Merge(unheld)).await?;
    space.until_gone(&space.performers, "a", &uid(&performer)).await?;
    assert!(space.pods.get_opt("performer-a").await?.is_none());
    Ok(())
}
