//! The machines layer: a pool that grows from nothing over many shards, what the operator costs then, and drains beside
//! those of kubectl.

mod drain;
mod meter;
mod print;
mod rest;
mod scale;
mod zones;

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use serde::Serialize;

use super::{
    build::Program, conditions::Conditions, goal::Goal, ground::Ground, operator::Operator, print::conditions, printer,
    progress, tally::each,
};
pub use zones::Zones;

#[derive(Args, Clone)]
pub struct Flags {
    /// How many instances, in one pool
    #[arg(long, default_value_t = 1000, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=5000))]
    instances: u32,
    /// Over how many shards
    #[arg(long, default_value_t = 10, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    shards: u32,
    /// How many nodes of 20 pods are drained at once
    #[arg(long, default_value_t = 100, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=200))]
    nodes: u32,
    /// Print one JSON document on standard output; progress stays on standard error
    #[arg(long)]
    pub json: bool,
    /// Measure this program, an earlier build for example, instead of building one
    #[arg(long, value_name = "PROGRAM")]
    pub operator: Option<PathBuf>,
}

/// Everything that was measured.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Results {
    conditions: Conditions,
    shards: usize,
    scale: scale::Scale,
    rest: rest::Rest,
    drains: Vec<drain::Drain>,
}

pub async fn measure(flags: &Flags, program: &Program) -> Result<Results> {
    let (count, shards) = (flags.instances as usize, flags.shards as usize);
    let show = printer(flags.json);
    progress("starting the control plane, Cluster API and the shards");
    let zones = Zones::start(shards).await?;
    let ground = Ground::machines(count, &zones).await.context("the control plane did not start")?;
    let conditions_read = Conditions::read(&ground.ground, program)?;
    show(conditions(&conditions_read));
    let operator = Operator::start(&ground.ground, &program.path, "operator").await?;
    operator.leads(&ground.ground).await?;
    progress("one pool from nothing to all provider IDs");
    let scale = scale::measure(&ground.ground, &operator, &zones).await?;
    show(print::scale(&scale, shards));
    progress("at rest");
    let rest = rest::measure(&ground.ground, &operator, &zones).await?;
    show(print::rest(&rest));
    operator.stop().await?;
    ground.stop().await?;

    let drains = drain::measure(flags.nodes as usize).await?;
    show(print::drains(&drains));
    Ok(Results { conditions: conditions_read, shards, scale, rest, drains })
}

pub fn goals(results: &Results) -> Vec<Goal> {
    let Results { scale, rest, drains, .. } = results;
    let mut goals = vec![
        Goal::new("replicas patch to all provider IDs", "s", 30.0, scale.published_seconds, None),
        Goal::new("operator's memory, all of it", "MB", 48.0, rest.usage.rss_mb, None),
        Goal::new("API requests at rest, lease and watches aside", "", 0.0, each(rest.other_requests, 1), None),
        Goal::new("ListGroups per shard and 30 s", "", 1.0, rest.lists_each, None),
        Goal::new("other calls to shards at rest", "", 0.0, each(rest.other_calls, 1), None),
    ];
    for drain in drains.iter().filter(|drain| drain.is_ours) {
        let of = |what: &str| format!("{what}, {}", drain.what);
        goals.push(Goal::new(of("evictions per pod"), "", 1.0, drain.evictions_each, None));
        goals.push(Goal::new(of("GETs per pod"), "", 0.0, drain.gets_each, None));
        goals.push(Goal::new(of("beyond the last pod"), "ms", 250.0, drain.beyond_ms, None));
    }
    goals
}
