//! Events that reach the operator late, twice or not at all.

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Pod;
use kube::api::DeleteParams;
use runtime::Settings;
use serde_json::json;
use testbed::fault::{Calls, Fault, Verb};

use crate::{
    harness::{Space, alone, hasty, spec},
    scene::{Scene, Shared, eventually},
    turn::REQUEST_TIMEOUT,
};

/// Its operator gives no request up: what is asked once is answered once, however late.
async fn patient() -> Result<Shared> {
    let scene = Scene::lent().await?;
    let settings = Settings { request_timeout: REQUEST_TIMEOUT, ..alone() };
    let operator = scene.operator(settings, hasty()).await?;
    Ok(Shared { scene, operator })
}

/// Waits until a namespace has had some more rounds: each is a chance to act on an old view.
async fn several_rounds(shared: &Shared, space: &Space) -> Result<()> {
    let rounds = || {
        ["success", "requeue_after", "error"].map(|result| shared.rounds(&space.namespace, result)).iter().sum::<f64>()
    };
    let before = rounds();
    eventually("four more rounds", || rounds() >= before + 4.0).await
}

/// Writes to a resource in the namespace, in order.
fn verbs(shared: &Shared, space: &Space, resource: &str) -> Vec<Verb> {
    let mut writes = shared.scene.writes(&space.namespace);
    writes.retain(|seen| seen.request.resource == resource);
    writes.into_iter().map(|seen| seen.request.verb).collect()
}

fn image(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.containers.first()?.image.as_deref()
}

#[tokio::test]
async fn events_held_back_cause_no_second_create_and_no_second_delete() -> Result<()> {
    let shared = &patient().await?;
    let space = shared.scene.space("held").await?;
    let held = shared.scene.proxy.hold_events("pods");
    space.create("a", spec()).await?;
    space.until_pod("a", "there", |_| true).await?;
    several_rounds(shared, &space).await?;
    assert_eq!(verbs(shared, &space, "pods"), [Verb::Create]);
    held.release();
    space.until_ready("a").await?;

    let held = shared.scene.proxy.hold_events("pods");
    let former = space.pod("a").await?.metadata.uid.context("a uid")?;
    space.patch("a", json!({ "spec": { "image": "registry.test/performer:v2" } })).await?;
    space.until_gone(&space.pods, "performer-a", &former).await?;
    several_rounds(shared, &space).await?;
    assert_eq!(verbs(shared, &space, "pods"), [Verb::Create, Verb::Delete]);
    held.release();
    space.until_ready("a").await?;
    assert_eq!(verbs(shared, &space, "pods"), [Verb::Create, Verb::Delete, Verb::Create]);
    assert_eq!(image(&space.pod("a").await?), Some("registry.test/performer:v2"));
    Ok(())
}

#[tokio::test]
async fn a_create_whose_answer_was_lost_is_found_out_before_it_is_tried_again() -> Result<()> {
    let shared = &patient().await?;
    let space = shared.scene.space("lost").await?;
    let proxy = &shared.scene.proxy;
    let held = (proxy.hold_events("pods"), proxy.hold_events("services"));
    for resource in ["pods", "services"] {
        let lost = Calls::of(Verb::Create, resource).in_namespace(&space.namespace).at_most(1);
        proxy.inject(lost, Fault::CutAfterCommit);
    }
    space.create("a", spec()).await?;
    space.until("a", "reported", |performer| performer.status.is_some()).await?;
    several_rounds(shared, &space).await?;
    assert_eq!(verbs(shared, &space, "pods"), [Verb::Create]);
    assert_eq!(verbs(shared, &space, "services"), [Verb::Create]);
    drop(held);
    space.until_ready("a").await?;
    Ok(())
}

#[tokio::test]
async fn a_pod_that_went_before_its_deletion_was_answered_is_replaced() -> Result<()> {
    let shared = Scene::shared().await;
    let space = shared.scene.space("late").await?;
    let former = space.create_ready("a", spec()).await.and(space.pod("a").await)?.metadata.uid.context("a uid")?;
    let deletion = Calls::of(Verb::Delete, "pods").in_namespace(&space.namespace).at_most(1);
    let late = shared.scene.proxy.inject(deletion, Fault::HoldAfterCommit);
    space.patch("a", json!({ "spec": { "image": "registry.test/performer:v2" } })).await?;
    space.until_gone(&space.pods, "performer-a", &former).await?;
    // Another pod's whole start comes after the end of the first in the watch: once it is seen, so was that.
    space.create_ready("b", spec()).await?;
    late.release();
    space.until_settled("a").await?;
    assert_eq!(image(&space.pod("a").await?), Some("registry.test/performer:v2"));
    Ok(())
}

#[tokio::test]
async fn older_events_once_more_bring_no_ghost() -> Result<()> {
    let shared = Scene::shared().await;
    let space = shared.scene.space("ghost").await?;
    space.create_ready("a", spec()).await?;
    space.delete_and_wait("a").await?;
    space.create_ready("b", spec()).await?;
    let before = shared.scene.writes(&space.namespace).len();
    let of_us = |event: &serde_json::Value| event["object"]["metadata"]["namespace"] == space.namespace.as_str();
    for resource in ["performers", "pods", "services"] {
        // Another test cuts watches: for a moment there may be none.
        let replay = || shared.scene.proxy.replay_events(resource, |event| of_us(event) && event["type"] != "DELETED");
        eventually(&format!("{resource} are watched"), || replay() == 1).await?;
    }
    // A later change of the same kinds comes after the replayed ones: once it is seen, so were they.
    space.create_ready("c", spec()).await?;
    several_rounds(shared, &space).await?;
    let of_c = |seen: &&testbed::fault::Seen| seen.request.name.as_deref().is_some_and(|name| name.ends_with('c'));
    let writes = shared.scene.writes(&space.namespace);
    let others: Vec<_> = writes[before..].iter().filter(|seen| !of_c(seen)).collect();
    assert!(others.is_empty(), "{others:?}");
    assert!(space.performers.get_opt("a").await?.is_none());
    Ok(())
}

#[tokio::test]
async fn cut_and_expired_watches_lose_nothing() -> Result<()> {
    let shared = Scene::shared().await;
    let space = shared.scene.space("watches").await?;
    let proxy = &shared.scene.proxy;
    space.create_ready("a", spec()).await?;
    for (fault, new) in [("cut", "b"), ("expire", "c"), ("cut", "d")] {
        for resource in ["performers", "pods", "services"] {
            match fault {
                "cut" => proxy.cut_watches(resource),
                _ => proxy.expire_watches(resource),
            };
        }
        // These fall into the gap: the watches are down or being started again.
        let former = space.pod("a").await?;
        space.pods.delete("performer-a", &DeleteParams::default()).await?;
        space.services.delete("performer-a", &DeleteParams::default()).await?;
        space.create_ready(new, spec()).await?;
        space.until_replaced("a", &former).await?;
        space.until_ready("a").await?;
    }
    // The server itself refuses to go on from where we were.
    let refused = proxy.inject(Calls::of(Verb::Watch, "pods").at_most(2), Fault::Status(410));
    proxy.cut_watches("pods");
    refused.reached_times(2).await?;
    let former = space.pod("a").await?;
    space.pods.delete("performer-a", &DeleteParams::default()).await?;
    space.until_replaced("a", &former).await?;
    space.until_ready("a").await?;
    Ok(())
}

/// The first list of a restarted operator comes from an API server that lags behind: its Performer is the one before
/// the last change, while its pod is the one after.
#[tokio::test]
async fn an_old_performer_in_the_first_list_does_not_cost_the_newer_pod() -> Result<()> {
    let scene = Scene::lent().await?;
    let space = scene.space("lagging").await?;
    let first = scene.operator(alone(), hasty()).await?;
    space.create_ready("a", spec()).await?;
    space.patch("a", json!({ "spec": { "config": { "args": ["-v"] } } })).await?;
    space.until_settled("a").await?;
    first.stop().await?;
    let (pod, before) = (space.pod("a").await?, scene.writes(&space.namespace).len());

    let held = scene.proxy.hold_events("performers");
    let second = scene.operator(alone(), hasty()).await?;
    let is_past = |event: &serde_json::Value| {
        let meta = &event["object"]["metadata"];
        meta["annotations"]["k8s.io/initial-events-end"] == "true" || meta["generation"] == 1
    };
    eventually("the list is there", || scene.proxy.replay_events("performers", is_past) == 1).await?;
    let rounds = || {
        let of = |result| {
            let labels = format!(r#"controller="performer",namespace="{}",result="{result}""#, space.namespace);
            second.metric(&format!("strata_reconcile_total{{{labels}}}"))
        };
        ["success", "requeue_after", "error"].map(of).iter().sum::<f64>()
    };
    eventually("some rounds", || rounds() >= 4.0).await?;
    held.release();
    space.until_settled("a").await?;
    assert_eq!(scene.writes(&space.namespace).split_off(before), [], "all was as it should be");
    assert_eq!(space.pod("a").await?.metadata.uid, pod.metadata.uid);
    second.stop().await
}
