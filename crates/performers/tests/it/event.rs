//! What users read with `kubectl describe`.

use anyhow::Result;
use kube::api::ListParams;
use serde_json::json;
use testbed::kwok::Behaviour;

use crate::{
    harness::{Space, World, spec, spec_with},
    observe::{eventually, more_rounds},
};

/// Waits until these are recorded, each at least once.
async fn until_recorded(space: &Space, name: &str, reasons: &[&str]) -> Result<()> {
    let what = format!("events {reasons:?} of {name} are recorded");
    eventually(&what, || async {
        let recorded = space.event_reasons(name).await?;
        Ok(reasons.iter().all(|reason| recorded.iter().any(|t| t == reason)))
    })
    .await
}

#[tokio::test]
async fn p47_life_is_told_in_events() -> Result<()> {
    let space = World::calm().await.space("event").await;
    space.create_ready("a", spec()).await?;
    until_recorded(&space, "a", &["PodCreated", "PodReady"]).await?;
    space.patch("a", json!({ "spec": { "config": { "args": ["x"] } } })).await?;
    space.until_settled("a").await?;
    until_recorded(&space, "a", &["PodReplaced"]).await?;
    space.patch("a", json!({ "spec": { "image": "registry.test/performer:v2" } })).await?;
    space.until_settled("a").await?;
    until_recorded(&space, "a", &["UpgradeInProgress"]).await?;
    space.patch("a", json!({ "spec": { "image": Behaviour::ImagePullFailed.image() } })).await?;
    space.until_condition("a", "Degraded", "True", "ImagePullFailed").await?;
    until_recorded(&space, "a", &["ImagePullFailed"]).await?;
    space.delete_and_wait("a").await?;
    until_recorded(&space, "a", &["PodDeleted", "ServiceDeleted", "Deleted"]).await?;
    // Who recorded it, of what kind, and about what.
    for event in space.events.list(&ListParams::default()).await?.items {
        let Some(regarding) = event.regarding.filter(|regarding| regarding.kind.as_deref() == Some("Performer")) else {
            continue;
        };
        assert_eq!(event.reporting_controller.as_deref(), Some("strata.dev/operator"));
        assert_eq!(regarding.name.as_deref(), Some("a"));
        assert!(regarding.uid.is_some() && event.action.is_some() && event.note.is_some());
        let is_warning = event.reason.as_deref() == Some("ImagePullFailed");
        assert_eq!(event.type_.as_deref(), Some(if is_warning { "Warning" } else { "Normal" }), "{:?}", event.reason);
    }
    Ok(())
}

#[tokio::test]
async fn p47_nothing_is_told_again_on_resync() -> Result<()> {
    let world = World::hasty().await;
    let space = world.space("event-once").await;
    space.create_ready("a", spec()).await?;
    space.create("b", spec_with(json!({ "scheduling": { "nodeSelector": { "no": "node" } } }))).await?;
    space.until_condition("b", "Degraded", "True", "SchedulingFailed").await?;
    until_recorded(&space, "a", &["PodCreated", "PodReady"]).await?;
    until_recorded(&space, "b", &["PodCreated", "SchedulingFailed"]).await?;
    more_rounds(&world.operator, &space, 20).await?;
    for (name, expected) in [("a", "PodReady"), ("b", "SchedulingFailed")] {
        let mut recorded = space.event_reasons(name).await?;
        recorded.sort();
        let mut expected = vec!["PodCreated", expected];
        expected.sort_unstable();
        assert_eq!(recorded, expected, "{name}");
    }
    Ok(())
}
