//! A wall clock that jumps while something is waited for.

use std::time::Duration;

use anyhow::Result;
use jiff::SignedDuration;
use performers::Config;
use plan::performers::Policy;
use serde_json::json;
use testbed::kwok::Behaviour;

use crate::{
    failure::replacements,
    harness::{World, hasty, spec, spec_with},
    observe::{more_rounds, uid},
    status::hold,
};

/// Longer than the test lasts, and shorter than the clock's step.
const LONG: Duration = Duration::from_mins(30);
const STEP: SignedDuration = SignedDuration::from_hours(24);

#[tokio::test]
async fn a_stepped_clock_neither_cuts_waits_short_nor_stretches_them() -> Result<()> {
    let policy = Policy { pending_limit: LONG, deletion_margin: LONG, ..hasty().policy };
    let world = World::start(Config { policy, ..hasty() }).await?;
    let space = world.space("stepped").await;
    space.create("pulling", spec_with(json!({ "image": Behaviour::ImagePullFailed.image() }))).await?;
    space.until_condition("pulling", "Degraded", "True", "ImagePullFailed").await?;
    let pulling = space.pod("pulling").await?;
    space.create_ready("a", spec()).await?;
    hold(&space, true).await?;
    space.delete("a").await?;
    space.until_condition("a", "Progressing", "True", "Terminating").await?;

    world.operator.clock.step(STEP);
    more_rounds(&world.operator, &space, 8).await?;
    assert_eq!(uid(&space.pod("pulling").await?), uid(&pulling), "replaced before its time");
    let leaving = space.performers.get("a").await?;
    assert!(leaving.metadata.finalizers.is_some_and(|finalizers| !finalizers.is_empty()), "released before its time");

    // Nor is what is first seen under the wrong clock any older than the server says.
    space.create("late", spec_with(json!({ "image": Behaviour::ImagePullFailed.image() }))).await?;
    space.until_condition("late", "Degraded", "True", "ImagePullFailed").await?;
    let late = space.pod("late").await?;
    more_rounds(&world.operator, &space, 8).await?;
    assert_eq!((uid(&space.pod("late").await?), replacements(&late)), (uid(&late), 0), "replaced before its time");

    world.operator.clock.step(-STEP * 2);
    space.create("failing", spec_with(json!({ "image": Behaviour::Failed.image() }))).await?;
    space.until_pod("failing", "replaced twice", |pod| replacements(pod) == 2).await?;
    Ok(())
}
