//! Drains whose time is up.

use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::events::v1::Event;
use kube::{Api, api::ListParams};
use plan::drain::End;
use serde_json::json;

use crate::{
    engine::{Engine, ended, order, until},
    place::Place,
};

/// The warnings about a node; events of nodes are in `default`.
pub async fn warnings(place: &Place, node: &str) -> Result<Vec<Event>> {
    let events = Api::<Event>::namespaced(place.client.clone(), "default").list(&ListParams::default()).await?;
    let is_about = |event: &Event| event.regarding.as_ref().and_then(|it| it.name.as_deref()) == Some(node);
    let is_ours = |event: &Event| event.reason.as_deref() == Some("DrainTimedOut") && is_about(event);
    Ok(events.items.into_iter().filter(is_ours).collect())
}

#[tokio::test]
async fn a98_past_the_deadline_a_warning_names_the_pods_left() -> Result<()> {
    let place = Place::new().await?;
    let node = place.node().await?;
    place.pod("one", &node, json!({})).await?;
    place.pod("free", &node, json!({ "metadata": { "labels": { "app": "other" } } })).await?;
    place.budget("web", 1, 0).await?;
    let engine = Engine::start(&place.proxy).await?;
    let mut drain = engine.begin(&node, order("one"), Some(Duration::from_hours(1)));
    until(&mut drain, "one is held, the other gone", |plan| plan.blocked().is_some() && plan.left().count() == 1)
        .await?;
    engine.begin(&node, order("one"), Some(Duration::ZERO));
    assert_eq!(ended(&mut drain).await?.end, Some(End::Expired));
    engine.stop().await?;
    let [warning] = <[Event; 1]>::try_from(warnings(&place, &node).await?).ok().context("one warning")?;
    let note = warning.note.context("a note")?;
    assert_eq!(warning.type_.as_deref(), Some("Warning"));
    let name = format!("{}/one", place.namespace);
    assert!(note.contains(&name) && note.contains(&format!("PodDisruptionBudget {}/web", place.namespace)), "{note}");
    assert!(place.is_there("one").await? && !place.is_there("free").await?);
    assert_eq!(place.evicted_once(), ["free"]);
    Ok(())
}

#[tokio::test]
async fn a48_the_same_drain_asked_for_again_only_learns_its_deadline() -> Result<()> {
    let place = Place::new().await?;
    let node = place.node().await?;
    place.pod("one", &node, json!({})).await?;
    place.budget("web", 1, 0).await?;
    let engine = Engine::start(&place.proxy).await?;
    let mut drain = engine.begin(&node, order("one"), Some(Duration::from_hours(1)));
    until(&mut drain, "blocked", |plan| plan.blocked().is_some()).await?;
    let before = place.proxy.requests().len();
    engine.begin(&node, order("one"), Some(Duration::ZERO));
    assert_eq!(ended(&mut drain).await?.end, Some(End::Expired));
    let sent = place.proxy.requests();
    assert!(sent[before..].iter().all(|seen| seen.request.resource == "events"), "{:?}", &sent[before..]);

    // And with more time it goes on.
    place.set_budget("web", 0).await?;
    let mut drain = engine.begin(&node, order("one"), None);
    until(&mut drain, "drained", |plan| plan.end == Some(End::Drained)).await?;
    assert_eq!(place.evicted_once(), ["one"]);
    Ok(())
}
