//! Faults on every write and watch of a drain.

use std::time::Duration;

use anyhow::Result;
use futures::future::try_join_all;
use plan::drain::End;
use serde_json::json;
use testbed::fault::{Calls, Fault, Verb};

use crate::{
    engine::{Engine, ended, order, until},
    place::Place,
};

/// Longer than a request may take.
const SLOW: Duration = Duration::from_secs(20);

#[tokio::test]
async fn every_fault_of_an_eviction_is_survived_and_no_pod_is_evicted_twice() -> Result<()> {
    let place = Place::new().await?;
    let node = place.node().await?;
    for (name, fault) in Fault::of_a_write(SLOW) {
        place.pod(name, &node, json!({})).await?;
        let calls = Calls::of(Verb::Create, "pods/eviction").in_namespace(&place.namespace).named(name).at_most(1);
        place.proxy.inject(calls, fault);
    }
    let mark = place.control_plane.audit().mark()?;
    let engine = Engine::hasty(&place.proxy).await?;
    assert_eq!(ended(&mut engine.begin(&node, order("one"), None)).await?.end, Some(End::Drained));
    place.proxy.clear();
    let mut expected = Fault::of_a_write(SLOW).map(|(name, _)| name);
    expected.sort_unstable();
    assert_eq!(place.accepted(mark, &expected).await?, expected);
    Ok(())
}

#[tokio::test]
async fn every_fault_of_a_cordon_is_survived() -> Result<()> {
    let place = Place::new().await?;
    let engine = Engine::hasty(&place.proxy).await?;
    let drains = Fault::of_a_write(SLOW).map(|(name, fault)| {
        let (place, engine) = (&place, &engine);
        async move {
            let node = place.node().await?;
            place.pod(name, &node, json!({})).await?;
            place.proxy.inject(Calls::of(Verb::Patch, "nodes").named(&node).at_most(1), fault);
            let plan = ended(&mut engine.begin(&node, order("one"), None)).await?;
            anyhow::ensure!(plan.end == Some(End::Drained), "{name}: {plan:?}");
            Ok(())
        }
    });
    try_join_all(drains).await?;
    assert_eq!(place.evicted_once().len(), 8);
    Ok(())
}

#[tokio::test]
async fn a_namespace_whose_evictions_hang_delays_no_other() -> Result<()> {
    let (place, other) = (Place::new().await?, Place::new().await?);
    let (full, node) = (place.node().await?, place.node().await?);
    // More than are evicted at once in a whole cluster.
    for number in 0..40 {
        place.create(&format!("pod-{number}"), &full, json!({})).await?;
    }
    other.pod("one", &node, json!({})).await?;
    let calls = Calls::of(Verb::Create, "pods/eviction").in_namespace(&place.namespace);
    let held = place.proxy.inject(calls, Fault::HoldBeforeCommit);
    // Longer than the test takes: what hangs is not given up before its end.
    let engine = Engine::with(&place.proxy, Duration::from_mins(10)).await?;
    let _hangs = engine.begin(&full, order("one"), None);
    held.reached_times(8).await?;
    assert_eq!(ended(&mut engine.begin(&node, order("one"), None)).await?.end, Some(End::Drained));
    assert_eq!(held.hits(), 8, "none of them was given up meanwhile, and no other was sent");
    Ok(())
}

#[tokio::test]
async fn watches_that_break_or_expire_lose_nothing() -> Result<()> {
    let place = Place::new().await?;
    let node = place.node().await?;
    for name in ["one", "two", "three"] {
        place.pod(name, &node, json!({})).await?;
    }
    place.budget("web", 3, 0).await?;
    let engine = Engine::start(&place.proxy).await?;
    let mut drain = engine.begin(&node, order("one"), None);
    until(&mut drain, "blocked", |plan| plan.blocked().is_some()).await?;
    assert!(place.proxy.cut_watches("*") >= 3);
    place.set_budget("web", 2).await?;
    until(&mut drain, "one is gone", |plan| plan.left().count() == 2 && plan.unknown.is_empty()).await?;
    assert!(place.proxy.expire_watches("*") >= 1);
    place.set_budget("web", 0).await?;
    assert_eq!(ended(&mut drain).await?.end, Some(End::Drained));
    assert_eq!(place.evicted_once(), ["one", "three", "two"]);
    Ok(())
}
