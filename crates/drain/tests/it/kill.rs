//! The process is killed at every write of a drain, just before and just after its commit; the next one goes on.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use drain::Progress;
use plan::drain::End;
use serde_json::json;
use testbed::fault::{ApiRequest, Calls, Fault, Injected, Verb};
use tokio::sync::watch as signal;

use crate::{
    deadline::warnings,
    engine::{Engine, ended, gone, order, until},
    place::Place,
};

static PODS: [&str; 3] = ["one", "two", "three"];

type Drain = signal::Receiver<Progress>;

/// A drain that is killed when the first of these calls stands still and these pods are evicted, and the next process.
async fn strike(
    place: &Place,
    held: &[Injected],
    evicted: &[&str],
    begin: impl AsyncFnOnce(&Engine) -> Result<Drain>,
) -> Result<Engine> {
    let mark = place.control_plane.audit().mark()?;
    let engine = Engine::start(&place.proxy).await?;
    let mut drain = begin(&engine).await?;
    held[0].reached().await?;
    place.accepted(mark, evicted).await?;
    drop(engine);
    gone(&mut drain).await?;
    held.iter().for_each(Injected::cut);
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
            let evictions = |pods: &'static [&str]| {
                let of_one = move |request: &ApiRequest| pods.iter().any(|pod| request.name.as_deref() == Some(*pod));
                Calls::of(Verb::Create, "pods/eviction").in_namespace(&place.namespace).only_if(of_one)
            };
            // Evictions are sent side by side. Another one that is on its way when the process ends may be carried out
            // after the next process has looked, which then asks again: the others are over, or have not begun.
            let (before, from) = PODS.split_at(at.saturating_sub(1));
            let (calls, after) = match at {
                0 => (Calls::of(Verb::Patch, "nodes").named(&node), from),
                _ => (evictions(&from[..1]), &from[1..]),
            };
            let proxy = &place.proxy;
            let held = [proxy.inject(calls, fault), proxy.inject(evictions(after), Fault::HoldBeforeCommit)];
            let mark = place.control_plane.audit().mark()?;
            let what = format!("{fault:?} at write {at}");
            let begin = async |engine: &Engine| Ok(engine.begin(&node, order("one"), None));
            let engine = strike(&place, &held, before, begin).await.context(what.clone())?;
            let plan = ended(&mut begin(&engine).await?).await.context(what.clone())?;
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
        let held = [place.proxy.inject(Calls::of(Verb::Create, "events"), fault)];
        // Its time is up when it is known what holds it: the warning names that.
        let begin = async |engine: &Engine| {
            let mut drain = engine.begin(&node, order("one"), Some(Duration::from_hours(1)));
            until(&mut drain, "blocked", |plan| plan.blocked().is_some()).await?;
            Ok(engine.begin(&node, order("one"), Some(Duration::ZERO)))
        };
        let engine = strike(&place, &held, &[], begin).await?;
        let plan = ended(&mut begin(&engine).await?).await?;
        ensure!(plan.end == Some(End::Expired), "{plan:?}");
        engine.stop().await?;
        ensure!(warnings(&place, &node).await?.len() == 1, "{fault:?}");
    }
    Ok(())
}
