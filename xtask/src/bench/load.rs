//! All performers from nothing to Ready.

use std::time::Instant;

use anyhow::Result;
use api::performer::Performer;
use kube::Api;
use serde::Serialize;

use super::{
    crowd,
    follow::Follower,
    ground::Ground,
    operator::{Operator, Usage},
    tally::{AllWrites, Tally},
};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Load {
    pub count: usize,
    /// From the first create to the moment at which a client's watch has seen the last one Ready.
    pub wall_seconds: f64,
    /// To the moment at which it has seen half of them Ready.
    pub half_seconds: f64,
    /// Until the last Performer was created, which is the user's own part of it.
    pub creating_seconds: f64,
    pub all_writes: AllWrites,
    pub own: Tally,
    pub cpu_ms: f64,
    pub before: Usage,
    pub after: Usage,
}

pub async fn measure(ground: &Ground, operator: &Operator, namespace: &str) -> Result<Load> {
    ground.settled().await?;
    let (mark, before) = (ground.mark()?, operator.usage()?);
    let mut performers = Follower::open(Api::<Performer>::namespaced(ground.client.clone(), namespace)).await?;
    let started = Instant::now();
    let ready = crowd::ready(ground, &mut performers);
    let create = async {
        crowd::create(ground, namespace).await?;
        Ok(Instant::now())
    };
    let (ready, created) = futures::try_join!(ready, create)?;
    ground.settled().await?;
    let (after, entries) = (operator.usage()?, ground.entries_after(mark)?);
    Ok(Load {
        count: ground.count,
        wall_seconds: ready.all.duration_since(started).as_secs_f64(),
        half_seconds: ready.half.duration_since(started).as_secs_f64(),
        creating_seconds: created.duration_since(started).as_secs_f64(),
        all_writes: AllWrites::of(&entries, ground.count),
        own: Tally::of(&entries),
        cpu_ms: after.cpu_ms - before.cpu_ms,
        before,
        after,
    })
}
