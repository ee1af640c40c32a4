//! `dependsOn`.

use anyhow::Result;
use serde_json::json;

use crate::{
    space::{condition, message},
    world::World,
};

#[tokio::test]
async fn w33_releases_follow_those_they_depend_on() -> Result<()> {
    let world = World::shared().await;
    let space = world.space("depend").await?;
    space.create("front", space.four(json!({ "dependsOn": ["back"] }))).await?;
    let waits = space.condition("front", "Ready", "False", "DependencyNotReady").await?;
    assert!(message(&waits).contains("back") && message(&waits).contains("not there"), "{}", message(&waits));
    space.create("back", space.four(json!({ "dependsOn": ["store"] }))).await?;
    space.create("store", space.spec("broken", "1.0.0", json!({ "values": { "fault": "template" } }))).await?;
    space.condition("store", "Ready", "False", "InstallFailed").await?;
    space.condition("back", "Ready", "False", "DependencyNotReady").await?;
    assert_eq!(space.history("back").await?, []);
    space.change("store", json!({ "values": { "fault": "" } })).await?;
    for name in ["front", "back", "store"] {
        space.ready(name).await?;
    }
    let mut made = Vec::new();
    for name in ["store", "back", "front"] {
        made.push(space.deployments.get(name).await?.metadata.creation_timestamp);
    }
    assert!(made.is_sorted(), "{made:?}");
    // A dependency in trouble later takes nothing down.
    space.change("store", json!({ "values": { "fault": "template" } })).await?;
    space.condition("store", "Ready", "False", "UpgradeFailed").await?;
    space.ready("back").await?;
    Ok(())
}

#[tokio::test]
async fn w33_a_cycle_is_shown_as_the_way_round() -> Result<()> {
    let world = World::shared().await;
    let space = world.space("cycle").await?;
    for (name, needs) in [("a", "b"), ("b", "c"), ("c", "a")] {
        space.create(name, space.four(json!({ "dependsOn": [needs] }))).await?;
    }
    for (name, text) in [("a", "cycle: a → b → c → a"), ("b", "cycle: b → c → a → b")] {
        let cycle = space.condition(name, "Ready", "False", "DependencyCycle").await?;
        assert_eq!(message(&cycle), text);
    }
    assert_eq!(space.history("a").await?, []);
    space.change("c", json!({ "dependsOn": [] })).await?;
    for name in ["c", "b", "a"] {
        let ready = space.ready(name).await?;
        assert_eq!(condition(&ready, "Ready")["reason"], "InstallSucceeded");
    }
    Ok(())
}
