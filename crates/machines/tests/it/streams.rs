//! What a shard's streams and lists tell, and what is asked of the shard because of it. Shards are listed so rarely here
//! that every list has another cause, and every new number is that of a new connection.

use std::time::Duration;

use anyhow::Result;
use api::machine::NstanceShardGroup;
use k8s_openapi::api::{
    core::v1::{Node, Pod},
    policy::v1::PodDisruptionBudget,
};
use kube::{Api, api::DeleteParams};
use serde_json::json;
use shard::{
    client::Watched,
    wire::{Fence, GroupConfig, UpsertGroupRequest},
};
use testbed::ControlPlane;

use crate::{
    gate::{Gate, STREAMS},
    machine::{budget, is_there, pod, settled},
    scene::Scene,
    zones::listed,
};

/// No test lasts so long.
const RARELY: Duration = Duration::from_hours(1);

/// An operator behind a gate.
async fn gated(name: &str) -> Result<(Scene, Gate)> {
    let mut scene = Scene::without_operator(name, &["a"], json!({})).await?;
    scene.poll = RARELY;
    let gate = Gate::before(&scene.zones, "a").await?;
    scene.write_addresses("config.yaml", &gate.addresses(&scene.zones))?;
    scene.start().await?;
    scene.until("the operator follows the shard", || async { Ok(gate.open() == STREAMS) }).await?;
    Ok((scene, gate))
}

/// Ends the stream of groups, and waits for the list that makes good what it may have missed.
async fn cut_groups(scene: &Scene, gate: &Gate) -> Result<()> {
    scene.until("the streams are open", || async { Ok(gate.open() == STREAMS) }).await?;
    let before = gate.count("ListGroups");
    gate.cut("WatchGroups");
    scene.until("the groups are listed", || async { Ok(gate.count("ListGroups") > before) }).await
}

/// Another hand's.
fn group(key: &str, vars: &[(&str, &str)]) -> UpsertGroupRequest {
    let vars = vars.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let config = GroupConfig { template: "web".to_owned(), vars, ..GroupConfig::default() };
    UpsertGroupRequest { key: key.to_owned(), config: Some(config), ..UpsertGroupRequest::default() }
}

#[tokio::test]
async fn a42_all_groups_are_listed_after_every_loss_of_their_stream() -> Result<()> {
    let (scene, gate) = gated("stream-groups").await?;
    for _ in 0..2 {
        cut_groups(&scene, &gate).await?;
    }
    // What happens without a stream is in the list alone.
    gate.refuse("WatchGroups");
    scene.until("it is lost", || async { Ok(!gate.open().contains(&"WatchGroups".to_owned())) }).await?;
    scene.zones.client("a")?.upsert_group(group("late", &[]), &Fence::default()).await?;
    scene.until("the group is imported", || async { Ok(scene.pool("late").await?.is_some()) }).await?;
    assert!(!gate.open().contains(&"WatchGroups".to_owned()));
    gate.admit("WatchGroups");
    scene.until("the streams are open again", || async { Ok(gate.open() == STREAMS) }).await
}

#[tokio::test]
async fn a19_a33_a90_what_was_lost_or_changed_is_asked_for_once_per_poll_and_what_is_as_declared_never() -> Result<()> {
    let (scene, gate) = gated("stream-lost").await?;
    scene.create_pool("web", &["a"], Some(0)).await?;
    let spec = json!({ "group": "api", "shards": ["a"], "template": "web", "vars": { "color": "red" } });
    scene.create_pool_with("api", spec).await?;
    scene.create_machine_pool("api", Some(0)).await?;
    for pool in ["web", "api"] {
        scene.until_pool(pool, "Ready", "True/Reconciled").await?;
    }
    let declared = gate.count("UpsertGroup");
    assert_eq!(declared, 2, "{:?}", gate.calls());

    let another = scene.zones.client("a")?;
    another.delete_group("web", &Fence::default()).await?;
    another.upsert_group(group("api", &[("color", "blue")]), &Fence::default()).await?;
    for pool in ["web", "api"] {
        scene.until_shard_group(pool, "a", "Ready", "False/Reconciling").await?;
    }
    // Lists beside the poll show the same again.
    for _ in 0..2 {
        cut_groups(&scene, &gate).await?;
    }
    assert_eq!(gate.count("UpsertGroup"), declared, "not before the next poll: {:?}", gate.calls());
    next_poll(&scene, &gate).await?;
    for pool in ["web", "api"] {
        scene.until_shard_group(pool, "a", "Ready", "True/SyncSucceeded").await?;
    }
    assert_eq!(gate.count("UpsertGroup"), declared + 2, "once each: {:?}", gate.calls());
    let groups = listed(&another).await?;
    let color = groups.iter().find(|group| group.key == "api").and_then(|group| group.vars.get("color"));
    assert_eq!((groups.len(), color.map(String::as_str)), (2, Some("red")));
    let spec = scene.pool("api").await?.and_then(|pool| pool.spec).unwrap_or_default();
    assert_eq!(spec.vars["color"], "red", "what a pool declares is its user's");

    // All is as declared: neither a list nor a poll makes a request or a write.
    let version = |group: Option<NstanceShardGroup>| group.and_then(|group| group.metadata.resource_version);
    next_poll(&scene, &gate).await?;
    scene.until_shard_group("web", "a", "Ready", "True/SyncSucceeded").await?;
    let settled = version(scene.shard_group("web", "a").await?);
    // Rounds that follow a list have run when the stream that was lost before the next one is open again.
    for _ in 0..2 {
        cut_groups(&scene, &gate).await?;
    }
    assert_eq!(gate.count("UpsertGroup"), declared + 2);
    assert_eq!(version(scene.shard_group("web", "a").await?), settled);
    Ok(())
}

/// The first list of a connection counts as a poll.
async fn next_poll(scene: &Scene, gate: &Gate) -> Result<()> {
    // A stream that is not open cannot be lost.
    scene.until("the streams are open", || async { Ok(gate.open() == STREAMS) }).await?;
    gate.refuse("ListGroups");
    gate.cut("WatchGroups");
    scene.until_shard_group("web", "a", "ShardReachable", "False/ShardUnreachable").await?;
    gate.admit("ListGroups");
    scene.until_shard_group("web", "a", "ShardReachable", "True/Connected").await?;
    Ok(())
}

#[tokio::test]
async fn a48_a52_a_drain_that_was_announced_unheard_or_to_another_operator_is_taken_up() -> Result<()> {
    let (mut scene, gate) = gated("stream-drain").await?;
    scene.create_pool("web", &["a"], Some(1)).await?;
    let victim = settled(&scene, 1).await?.remove(0);
    pod(&scene, "one", &victim).await?;
    budget(&scene).await?;
    // The stream is away while the shard announces the deletion.
    gate.refuse("WatchInstances");
    let mut heard = scene.zones.client("a")?.watch_instances(1);
    scene.zones.cloud.give_notice(&victim);
    while !matches!(heard.next().await, Watched::Event(event) if event.instance_id == victim) {}
    drop(heard);
    let nodes = Api::<Node>::all(scene.client.clone());
    let is_cordoned = || async {
        let node = nodes.get(&victim).await?;
        Ok(node.spec.and_then(|spec| spec.unschedulable) == Some(true))
    };
    assert!(!is_cordoned().await?);
    gate.admit("WatchInstances");
    scene.until("the snapshot begins the drain", is_cordoned).await?;
    // Announced once more, it is the same drain.
    let opened = gate.count("WatchInstances");
    gate.cut("WatchInstances");
    scene.until("the stream is open again", || async { Ok(gate.count("WatchInstances") > opened) }).await?;
    scene.until("all streams are open", || async { Ok(gate.open() == STREAMS) }).await?;
    assert_eq!(gate.count("AcknowledgeDrained"), 0);

    scene.kill().await?;
    scene.api::<PodDisruptionBudget>().delete("all", &DeleteParams::default()).await?;
    assert!(is_there(&scene, &victim), "its shard waits");
    assert!(scene.api::<Pod>().get("one").await?.metadata.deletion_timestamp.is_none());
    scene.start().await?;
    let is_gone = || async {
        if is_there(&scene, &victim) {
            return Ok(false);
        }
        assert!(scene.api::<Pod>().get_opt("one").await?.is_none(), "the instance went before its pod");
        Ok(true)
    };
    scene.until("the next operator drains and acknowledges", is_gone).await?;
    assert!(gate.count("AcknowledgeDrained") > 0);
    let mut log = ControlPlane::shared().await?.audit().entries()?;
    log.retain(|entry| entry.namespace == scene.namespace && entry.subresource == "eviction");
    let evicted: Vec<_> = log.iter().map(|entry| (entry.name.as_str(), entry.code)).collect();
    assert_eq!(evicted, [("one", 201)], "one call for the pod, by whichever operator");
    Ok(())
}
