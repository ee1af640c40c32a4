//! The process is killed at every write of a drain, just before and just after its commit; the next one goes on.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use plan::drain::End;
use serde_json::json;
use testbed::fault::{Calls, Fault, Verb};

use crate::{
    deadline::warnings,
    engine::{Engine, ended, order},
    place::Place,
};

const PODS: [&str; 3] = ["one", "two", "three"];

/// Drains a node, killed at one of its writes, and a second time to the end.
async fn strike(place: &Place, calls: Calls, fault: Fault, node: &str, limit: Option<Duration>) -> Result<Engine> {
    let held = place.proxy.inject(calls, fault);
    let engine = Engine::start(&place.proxy).await?;
    let _drain = engine.begin(node, order("one"), limit);
    held.reached().await?;
    drop(engine);
    held.cut();
    place.proxy.clear();
    Engine::start(&place.proxy).await
}

#[tokio::test]
async fn killed_at_any_write_a_drain_ends_the_same_and_evicts_each_pod_once() -> Result<()> {
    let mut points = 0;
    for fault in [Fault::HoldBeforeCommit, Fault::HoldAfterCommit] {
        for at in 0..=PODS.len() {
            let place = Place::new().await?;
            let node = place.node().await?;
            for name in PODS {
                place.pod(name, &node, json!({})).await?;
            }
            let evictions = Calls::of(Verb::Create, "pods/eviction").in_namespace(&place.namespace);
            let calls = match at {
                0 => Calls::of(Verb::Patch, "nodes").named(&node),
                nth => evictions.nth(u64::try_from(nth)?),
            };
            let mark = place.control_plane.audit().mark()?;
            let what = format!("{fault:?} at write {at}");
            let engine = strike(&place, calls, fault, &node, None).await.context(what.clone())?;
            let plan = ended(&mut engine.begin(&node, order("one"), None)).await.context(what.clone())?;
            ensure!(plan.end == Some(End::Drained), "{what}: {plan:?}");
            let accepted = place.accepted(mark, &PODS).await?;
            ensure!(accepted == ["one", "three", "two"], "{what}: {accepted:?}");
            ensure!(place.cordons(mark, &node)? == 1, "{what}: cordoned more or less than once");
            points += 1;
        }
    }
    println!("killed at {points} points");
    Ok(())
}

#[tokio::test]
async fn killed_at_the_warning_it_is_recorded_once() -> Result<()> {
    for fault in [Fault::HoldBeforeCommit, Fault::HoldAfterCommit] {
        let place = Place::new().await?;
        let node = place.node().await?;
        place.pod("one", &node, json!({})).await?;
        place.budget("web", 1, 0).await?;
        let limit = Some(Duration::from_secs(3));
        let engine = strike(&place, Calls::of(Verb::Create, "events"), fault, &node, limit).await?;
        let plan = ended(&mut engine.begin(&node, order("one"), limit)).await?;
        ensure!(plan.end == Some(End::Expired), "{plan:?}");
        engine.stop().await?;
        ensure!(warnings(&place, &node).await?.len() == 1, "{fault:?}");
    }
    Ok(())
}
