//! What comes to a node while it is drained: pods, and another drain.

use std::time::Duration;

use anyhow::Result;
use plan::drain::{End, Plan, Standing, Stays};
use serde_json::json;

use crate::{
    engine::{Engine, ended, gone, order, until},
    place::Place,
};

fn is_left_out(plan: &Plan) -> bool {
    plan.pods.iter().any(|(pod, standing)| pod.name == "late" && *standing == Standing::Stays(Stays::BoundLater))
}

#[tokio::test]
async fn a_pod_bound_after_the_cordon_holds_no_drain_and_another_process_knows_it() -> Result<()> {
    let place = Place::new().await?;
    let node = place.node().await?;
    place.pod("guarded", &node, json!({})).await?;
    place.budget("web", 1, 0).await?;
    let engine = Engine::start(&place.proxy).await?;
    let mut drain = engine.begin(&node, order("one"), None);
    until(&mut drain, "blocked", |plan| plan.blocked().is_some()).await?;
    // Times in objects are whole seconds, and what is bound within two of them may have been bound before.
    tokio::time::sleep(Duration::from_millis(3_100)).await;
    place.pod("late", &node, json!({ "metadata": { "labels": { "app": "late" } } })).await?;
    until(&mut drain, "left out", is_left_out).await?;

    drop(engine);
    gone(&mut drain).await?;
    let engine = Engine::start(&place.proxy).await?;
    let mut drain = engine.begin(&node, order("one"), None);
    until(&mut drain, "left out by the next process", is_left_out).await?;
    place.set_budget("web", 0).await?;
    assert_eq!(ended(&mut drain).await?.end, Some(End::Drained));
    assert_eq!(place.evicted_once(), ["guarded"]);
    assert!(place.is_there("late").await?);

    // A drain that begins later has that pod from its beginning.
    let plan = ended(&mut engine.begin(&node, order("two"), None)).await?;
    assert_eq!(plan.end, Some(End::Drained));
    assert_eq!(place.evicted_once(), ["guarded", "late"]);
    Ok(())
}

#[tokio::test]
async fn two_processes_drain_a_node_and_each_marks_it_once() -> Result<()> {
    let place = Place::new().await?;
    let node = place.node().await?;
    place.pod("guarded", &node, json!({})).await?;
    place.budget("web", 1, 0).await?;
    let mark = place.control_plane.audit().mark()?;
    let (one, other) = (Engine::start(&place.proxy).await?, Engine::start(&place.proxy).await?);
    let mut first = one.begin(&node, order("one"), None);
    until(&mut first, "blocked", |plan| plan.blocked().is_some()).await?;
    let mut second = other.begin(&node, order("two"), None);
    until(&mut second, "blocked as well", |plan| plan.blocked().is_some()).await?;
    place.set_budget("web", 0).await?;
    for drain in [&mut first, &mut second] {
        assert_eq!(ended(drain).await?.end, Some(End::Drained));
    }
    assert_eq!(place.cordons(mark, &node)?, 2);
    Ok(())
}
