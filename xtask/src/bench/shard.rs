//! What a zone's server costs: its own process with the file store and machines in memory, and clients over loopback.

mod failover;
mod floor;
mod life;
mod print;
mod server;
mod zone;

use anyhow::Result;
use clap::Args;
use serde::Serialize;

use super::{
    conditions::Host,
    goal::Goal,
    operator::{self, Usage},
    printer, progress,
    times::Times,
};
use zone::Zone;

pub use server::{ServerFlags, serve};

/// The size that the goals are stated for.
const GROUPS: usize = 100;

#[derive(Args, Clone, Copy)]
pub struct Flags {
    /// How many instances, in 100 groups (one answer of 4 MiB holds about 30 000)
    #[arg(long, default_value_t = 10_000, value_name = "N", value_parser = clap::value_parser!(u32).range(100..=20_000))]
    instances: u32,
    /// Print one JSON document on standard output; progress stays on standard error
    #[arg(long)]
    pub json: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Results {
    host: Host,
    instances: usize,
    groups: usize,
    floor: Vec<floor::RawWrites>,
    load: life::Load,
    upsert: Times,
    list: Times,
    snapshot: Times,
    rest: life::Rest,
    /// Writes of records of instances that lived and were drained.
    writes_per_life: f64,
    usage: Usage,
    terminated: failover::FailOver,
    killed: failover::FailOver,
}

pub async fn measure(flags: Flags) -> Result<Results> {
    let show = printer(flags.json);
    let host = Host::read()?;
    show(print::conditions(&host));
    let folder = tempfile::tempdir()?;
    progress("floor: conditional writes of the file store");
    let floor = floor::measure(folder.path()).await?;
    show(print::floor(&floor));

    let instances = flags.instances as usize;
    let zone = Zone::create(folder.path()).await?;
    let server = zone.start("first").await?;
    let bound = server.leads().await?;
    let client = zone.client(&bound)?;
    progress("instances from nothing to running");
    let load = life::load(&client, instances, GROUPS).await?;
    progress("calls on a full shard");
    let upsert = life::upserts(&client, GROUPS).await?;
    let list = life::lists(&client).await?;
    let snapshot = life::snapshots(&client, GROUPS).await?;
    progress("at rest");
    let rest = life::rest(&server).await?;
    let usage = operator::usage(server.pid())?;
    progress("the whole life of instances");
    let writes_per_life = life::writes_per_life(&client, &server, instances / GROUPS).await?;
    show(print::life(&load, &upsert, &list, &snapshot, &rest, writes_per_life, &usage));
    progress("fail-over");
    let (terminated, killed) = failover::measure(&zone, server).await?;
    show(print::fail_over(&terminated, &killed));
    Ok(Results {
        host,
        instances,
        groups: GROUPS,
        floor,
        load,
        upsert,
        list,
        snapshot,
        rest,
        writes_per_life,
        usage,
        terminated,
        killed,
    })
}

pub fn goals(results: &Results) -> Vec<Goal> {
    let Results { upsert, list, snapshot, rest, usage, terminated, killed, .. } = results;
    let timeout_ms = killed.leader_timeout_ms;
    vec![
        Goal::new("UpsertGroup, p50", "ms", 5.0, upsert.p50_ms, None),
        Goal::new("UpsertGroup, p99", "ms", 25.0, upsert.p99_ms, None),
        Goal::new("ListGroups of 100 groups, p99", "ms", 10.0, list.p99_ms, None),
        Goal::new("snapshot of all instances (slowest)", "ms", 250.0, snapshot.slowest_ms, None),
        Goal::new("RSS", "MB", 64.0, usage.rss_mb, None),
        Goal::new("storage writes per instance life", "", 4.0, results.writes_per_life, None),
        Goal::new("storage writes at rest, locks aside", "", 0.0, super::tally::each(rest.writes, 1), None),
        Goal::new("fail-over after SIGTERM (slowest)", "ms", 500.0, terminated.slowest_ms, None),
        Goal::new("fail-over after SIGKILL (slowest)", "ms", timeout_ms + 1000.0, killed.slowest_ms, None),
    ]
}
