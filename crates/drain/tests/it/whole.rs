//! A drain from end to end.

use anyhow::{Context, Result};
use plan::drain::{End, Holds, Standing, Stays};
use serde_json::json;
use testbed::{
    fault::{Seen, Verb},
    kwok::Behaviour,
};

use crate::{
    engine::{Engine, ended, order, until},
    place::Place,
};

#[tokio::test]
async fn a44_a45_a_node_is_cordoned_and_emptied_by_one_eviction_per_pod_and_no_read() -> Result<()> {
    let place = Place::new().await?;
    let node = place.node().await?;
    for name in ["one", "two", "three"] {
        place.pod(name, &node, json!({})).await?;
    }
    let daemon = place.daemon("daemon", &node).await?.metadata.name.unwrap();
    place
        .pod("static", &node, json!({ "metadata": { "annotations": { "kubernetes.io/config.mirror": "x" } } }))
        .await?;
    let completed = json!([{ "name": "main", "image": Behaviour::Succeeded.image() }]);
    place.pod("completed", &node, json!({ "spec": { "restartPolicy": "Never", "containers": completed } })).await?;
    place.pod("skipped", &node, json!({ "metadata": { "labels": { "cluster.x-k8s.io/drain": "skip" } } })).await?;

    let engine = Engine::start(&place.proxy).await?;
    let plan = ended(&mut engine.begin(&node, order("one"), None)).await?;
    assert_eq!(plan.end, Some(End::Drained), "{plan:?}");
    assert_eq!(place.evicted_once(), ["one", "three", "two"]);
    assert_eq!(place.reads(), 0);
    let stays: Vec<_> = plan.pods.iter().map(|(pod, standing)| (pod.name.as_str(), standing.clone())).collect();
    let stay = |name, why| (name, Standing::Stays(why));
    let expected = [
        stay("completed", Stays::Completed),
        stay(daemon.as_str(), Stays::DaemonSet),
        stay("skipped", Stays::Labelled),
        stay("static", Stays::Mirror),
    ];
    assert_eq!(stays, expected);
    for (name, _) in stays {
        assert!(place.is_there(name).await?, "{name}");
    }
    let drained = place.nodes.get(&node).await?;
    assert_eq!(drained.spec.unwrap().unschedulable, Some(true));
    assert_eq!(drained.metadata.annotations.unwrap()["strata.dev/drain"], "one");
    Ok(())
}

#[tokio::test]
async fn a47_a48_a_node_that_is_gone_or_drained_already_costs_no_eviction() -> Result<()> {
    let place = Place::new().await?;
    let node = place.node().await?;
    place.pod("one", &node, json!({})).await?;
    let engine = Engine::start(&place.proxy).await?;
    let plan = ended(&mut engine.begin("there-is-none", order("one"), None)).await?;
    assert_eq!(plan.end, Some(End::NodeGone));

    for _ in 0..2 {
        let plan = ended(&mut engine.begin(&node, order("one"), None)).await?;
        assert_eq!(plan.end, Some(End::Drained));
        engine.drains.release(&node);
    }
    assert_eq!(place.evicted_once(), ["one"]);
    // One that the node's own report came before is refused and repeated.
    let is_cordon = |seen: &&Seen| seen.request.verb == Verb::Patch && seen.code == Some(200);
    assert_eq!(place.proxy.requests().iter().filter(is_cordon).count(), 1);
    assert!(engine.drains.progress(&node).is_none());
    Ok(())
}

#[tokio::test]
async fn a51_many_nodes_are_drained_at_once() -> Result<()> {
    let place = Place::new().await?;
    let engine = Engine::start(&place.proxy).await?;
    let mut nodes = Vec::new();
    for number in 0..5 {
        let node = place.node().await?;
        for pod in 0..8 {
            let free = json!({ "metadata": { "labels": { "app": "free" } } });
            place.create(&format!("pod-{number}-{pod}"), &node, free).await?;
        }
        nodes.push(node);
    }
    place.pod("held", &nodes[0], json!({})).await?;
    place.budget("web", 1, 0).await?;
    let mut drains: Vec<_> = nodes.iter().map(|node| engine.begin(node, order("all"), None)).collect();
    let (first, others) = drains.split_first_mut().context("five drains")?;
    until(first, "the first one held", |plan| plan.blocked().is_some()).await?;
    for drain in others {
        assert_eq!(ended(drain).await?.end, Some(End::Drained));
    }
    assert_eq!(first.borrow().plan.end, None, "the others did not wait for its end");
    place.set_budget("web", 0).await?;
    assert_eq!(ended(first).await?.end, Some(End::Drained));
    assert_eq!((place.evicted_once().len(), place.reads()), (41, 0));
    Ok(())
}

#[tokio::test]
async fn a_preview_changes_nothing() -> Result<()> {
    let place = Place::new().await?;
    let node = place.node().await?;
    place.pod("one", &node, json!({})).await?;
    place.pod("two", &node, json!({})).await?;
    place.budget("web", 1, 1).await?;
    let engine = Engine::start(&place.proxy).await?;
    let plan = engine.drains.preview(&node, &order("one")).await;
    let [(_, Standing::Holds(first)), (_, Standing::Holds(second))] = plan.pods.as_slice() else {
        panic!("{plan:?}");
    };
    assert_eq!(*first, Holds::Due);
    assert!(matches!(second, Holds::Blocked { .. }), "{second}");
    assert!(plan.cordon.is_some() && plan.evictions.is_empty());
    assert_eq!(place.nodes.get(&node).await?.spec.unwrap().unschedulable, None);
    assert_eq!(engine.drains.preview("none", &order("one")).await.end, Some(End::NodeGone));
    Ok(())
}
