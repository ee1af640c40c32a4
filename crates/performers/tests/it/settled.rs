//! What a Performer costs when nothing happens.

use std::time::Duration;

use anyhow::Result;
use jiff::Timestamp;
use performers::Config;
use serde_json::json;
use testbed::kwok::Behaviour;

use crate::{
    harness::{OPERATOR_USER, World, hasty, spec, spec_with},
    observe::{eventually, more_rounds},
};

#[tokio::test]
async fn p18_ten_resyncs_of_settled_performers_write_and_read_nothing() -> Result<()> {
    let world = World::hasty().await;
    let space = world.space("settled").await;
    space.create_ready("ready", spec()).await?;
    space.create("stuck", spec_with(json!({ "scheduling": { "nodeSelector": { "no": "node" } } }))).await?;
    space.create("never.named", spec()).await?;
    space.create("slow", spec_with(json!({ "image": Behaviour::SlowStart.image() }))).await?;
    space.until_condition("stuck", "Degraded", "True", "SchedulingFailed").await?;
    space.until_condition("never.named", "Degraded", "True", "InvalidName").await?;
    space.until_condition("slow", "Available", "False", "Scheduled").await?;
    let is_recorded =
        async || Ok::<_, anyhow::Error>(space.event_reasons("stuck").await?.iter().any(|r| r == "SchedulingFailed"));
    eventually("all is recorded", is_recorded).await?;
    // The slow one's first status may be overtaken by its pod's; one resync of all settles that.
    more_rounds(&world.operator, &space, 8).await?;
    let rounds = || {
        let lines = world.logs.of_namespace(&space.namespace);
        ["ready", "stuck", "never.named", "slow"].map(|name| {
            let key = format!("{}/{name}", space.namespace);
            lines.iter().filter(|line| line["message"] == "reconciled" && line["span"]["performer"] == *key).count()
        })
    };
    let (mark, before) = (world.control_plane.audit().mark()?, rounds());
    // Ten for each, with room for the jitter between them.
    more_rounds(&world.operator, &space, 48).await?;
    let made: Vec<_> = rounds().into_iter().zip(before).map(|(now, before)| now - before).collect();
    assert!(made.iter().all(|rounds| *rounds >= 10), "every one of them had its ten: {made:?}");
    let mut entries = world.control_plane.audit().entries_after(mark)?;
    entries.retain(|entry| entry.user == OPERATOR_USER && entry.namespace == space.namespace);
    assert_eq!(entries, [], "neither writes, nor reads, nor events");
    Ok(())
}

/// The resync of the original operator.
pub const PERIOD: Duration = Duration::from_mins(2);
/// What a woken round takes until it is seen from outside, on a machine with other work.
const WAKING: Duration = Duration::from_millis(200);

#[tokio::test]
async fn p40_the_resync_comes_with_its_period() -> Result<()> {
    assert_eq!(Config::default().resync, PERIOD);
    let world = World::hasty().await;
    let space = world.space("resync").await;
    space.create_ready("a", spec()).await?;
    more_rounds(&world.operator, &space, 2).await?;
    more_rounds(&world.operator, &space, 10).await?;
    let times: Vec<Timestamp> = world
        .logs
        .of_namespace(&space.namespace)
        .iter()
        .filter(|line| line["message"] == "reconciled" && line["phase"] == "Running" && line["actions"] == 0)
        .filter_map(|line| line["timestamp"].as_str()?.parse().ok())
        .collect();
    // The first of them was caused by the pod's readiness, the others by nothing but time.
    let pauses: Vec<_> = times[1..].windows(2).map(|pair| pair[1].duration_since(pair[0]).unsigned_abs()).collect();
    let period = hasty().resync;
    assert!(pauses.len() >= 9);
    assert!(pauses.iter().all(|pause| *pause >= period * 9 / 10), "not sooner, but for jitter: {pauses:?}");
    // A busy machine makes some of them late, not all of ten.
    let shortest = pauses.iter().min().copied().unwrap_or_default();
    assert!(shortest <= period * 11 / 10 + WAKING, "nor later, but for jitter: {pauses:?}");
    Ok(())
}
