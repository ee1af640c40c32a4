//! Helm releases: what the operator takes beside a bare loop of helm, and what unchanged ones cost it.

mod bare;
mod children;
mod load;
mod print;
mod requests;
mod unchanged;

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use serde::Serialize;
use testbed::charts::{Access, ChartRepository, sample};

use super::{
    build::Program, conditions::Conditions, goal::Goal, ground::Ground, operator::Operator, print::conditions, printer,
    progress,
};

/// The chart of four objects, none of which starts a pod.
const CHART: (&str, &str) = ("four", "1.0.0");
/// What the operator's default budget admits at once; the bare loop does the same.
const PARALLEL: usize = 4;

#[derive(Args, Clone)]
pub struct Flags {
    /// How many releases
    #[arg(long, default_value_t = 100, value_name = "N", value_parser = clap::value_parser!(u32).range(8..=2000))]
    count: u32,
    /// Restart with this many unchanged releases as well; those beyond N are copies of an installed one (its HelmRelease
    /// with status and its storage Secret), not installed themselves
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=20000))]
    unchanged: Option<u32>,
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
    bare: bare::Bare,
    load: load::Load,
    children: children::Children,
    restart: unchanged::Unchanged,
    copied: Option<unchanged::Unchanged>,
}

/// Flux helm-controller 1.6 with 100 releases of such a chart on this kind of machine.
pub const PEER: Peer = Peer { wall_seconds: 16.9, rss_mb: 242.0, recheck_seconds: 2.4, recheck_cpu_ms: 8.4 };
pub const PEER_NAME: &str = "Flux helm-controller 1.6 with 100 releases on this kind of machine";

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Peer {
    wall_seconds: f64,
    rss_mb: f64,
    recheck_seconds: f64,
    recheck_cpu_ms: f64,
}

pub fn goals(results: &Results) -> Vec<Goal> {
    let Results { bare, load, children, restart, copied, .. } = results;
    let peer = |value| (load.count == 100).then_some(value);
    let rechecked = copied.as_ref().unwrap_or(restart);
    // A thousand in 0.3 s; fewer in as much less, but never below what any process takes to start.
    let limit = (0.3 * super::tally::each(rechecked.count, 1000)).max(0.25);
    // The first process has its peak during the watched upgrades or before them.
    let peaks = [children.operator_peak_mb, restart.usage.peak_mb, rechecked.usage.peak_mb];
    let peak = peaks.into_iter().fold(0.0, f64::max);
    vec![
        Goal::new("wall to all Ready", "s", bare.wall_seconds, load.wall_seconds, peer(PEER.wall_seconds)),
        Goal::new("operator's memory, most", "MB", 32.0, peak, peer(PEER.rss_mb)),
        Goal::new("unchanged ones re-checked", "s", limit, rechecked.checked_seconds, peer(PEER.recheck_seconds)),
        Goal::new("writes and helm requests for it", "", 0.0, super::tally::each(rechecked.disturbance(), 1), None),
        Goal::new("CPU per unchanged one", "ms", 1.0, rechecked.cpu_ms_each, peer(PEER.recheck_cpu_ms)),
    ]
}

pub async fn measure(flags: &Flags, program: &Program) -> Result<Results> {
    let count = flags.count as usize;
    let show = printer(flags.json);
    progress("starting the control plane");
    let ground = Ground::releases(count).await.context("the control plane did not start")?;
    let conditions_read = Conditions::read(&ground, program)?;
    show(conditions(&conditions_read));
    let archive = sample(CHART.0, CHART.1).await?;
    let repository = ChartRepository::start(Access::Anyone).await?;
    repository.publish(archive)?;

    // One half before and one after, so that a load that comes or goes strikes both.
    progress("the bare loop, first half");
    let first = bare::measure(&ground, &archive.path, count.div_ceil(2)).await?;
    let operator = Operator::start(&ground, &program.path, "operator").await?;
    operator.leads(&ground).await?;
    progress("releases from nothing to Ready");
    let namespace = ground.control_plane.namespace("releases").await?;
    let load = load::measure(&ground, &operator, &namespace, &repository.url()).await?;
    progress("the bare loop, second half");
    let bare = first.and(&bare::measure(&ground, &archive.path, count / 2).await?);
    show(print::bare(&bare));
    show(print::load(&load, &bare));
    progress("memory of helm processes");
    let children = children::measure(&ground, &operator, &namespace).await?;
    show(print::children(&children));
    operator.stop().await?;

    progress("restart");
    let restart = unchanged::measure(&ground, &program.path, count).await?;
    show(print::unchanged(&restart));
    let copied = match flags.unchanged.map(|wanted| wanted as usize).filter(|wanted| *wanted > count) {
        None => None,
        Some(wanted) => {
            progress("copies of an installed release");
            unchanged::copy(&ground, &namespace, wanted - count).await?;
            progress("restart with the copies");
            Some(unchanged::measure(&ground, &program.path, wanted).await?)
        }
    };
    show(copied.as_ref().map(print::unchanged).unwrap_or_default());
    progress("ending the control plane");
    ground.control_plane.stop().await?;
    Ok(Results { conditions: conditions_read, bare, load, children, restart, copied })
}
