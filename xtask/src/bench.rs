//! `cargo xtask bench`: what the operator costs, measured against a real control plane. Numbers, not pass or fail.

mod build;
mod change;
mod conditions;
mod crowd;
mod floor;
mod follow;
mod goal;
mod ground;
mod handover;
mod life;
mod load;
mod machines;
mod operator;
mod plain;
mod print;
mod releases;
mod shard;
mod tally;
mod testbed;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use serde::Serialize;

use conditions::Conditions;
use ground::Ground;
use operator::Operator;

/// A benchmark, named for its layer.
#[derive(Subcommand)]
pub enum Benchmark {
    /// Performers from nothing to Ready, at rest, changed, restarted, handed over
    Performers(Flags),
    /// Helm releases from nothing to Ready beside a bare loop of helm, and unchanged ones after a restart
    Releases(releases::Flags),
    /// A zone's server with thousands of instances in memory: calls, rest, memory, writes, fail-over
    Shard(shard::Flags),
    /// A simulated cluster of six nodes from nothing, one control plane replaced, lists of a thousand servers
    Testbed(testbed::Flags),
    /// A pool of many instances over many shards with Cluster API, at rest, and drains beside kubectl's
    Machines(machines::Flags),
    /// The server that `bench shard` measures
    #[command(hide = true)]
    ShardServer(shard::ServerFlags),
}

#[derive(Args, Clone)]
pub struct Flags {
    /// How many performers (the simulated nodes have room for 6000); several counts are measured one after another
    #[arg(long, default_value = "500", value_name = "N,…", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=6000))]
    count: Vec<u32>,
    /// Print one JSON document on standard output; progress stays on standard error
    #[arg(long)]
    json: bool,
    /// Measure this program, an earlier build for example, instead of building one
    #[arg(long, value_name = "PROGRAM")]
    operator: Option<PathBuf>,
}

/// Everything that was measured, in the order in which it was.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Results {
    conditions: Conditions,
    raw_creates: Vec<floor::RawCreates>,
    floor: floor::Floor,
    plain: plain::Plain,
    load: load::Load,
    rest: life::Rest,
    change: change::Change,
    restart: life::Restart,
    terminated: handover::HandOver,
    killed: handover::HandOver,
}

pub fn run(benchmark: &Benchmark) -> Result<()> {
    if cfg!(debug_assertions) {
        return build::go_on_optimised();
    }
    let program = match benchmark {
        Benchmark::Performers(Flags { operator: Some(given), .. })
        | Benchmark::Releases(releases::Flags { operator: Some(given), .. })
        | Benchmark::Machines(machines::Flags { operator: Some(given), .. }) => given.clone(),
        Benchmark::Performers(_) | Benchmark::Releases(_) | Benchmark::Machines(_) => build::operator()?,
        // The server is a library here, and so are the simulators.
        Benchmark::Shard(_) | Benchmark::ShardServer(_) | Benchmark::Testbed(_) => PathBuf::new(),
    };
    let runtime = match benchmark {
        // As `strata dev` runs the simulators.
        Benchmark::Testbed(_) => tokio::runtime::Runtime::new()?,
        // One thread, as the operator has: the benchmark shares the machine with what it measures.
        _ => tokio::runtime::Builder::new_current_thread().enable_all().build()?,
    };
    runtime.block_on(async {
        tokio::select! {
            result = bench(benchmark, &program) => result,
            _ = tokio::signal::ctrl_c() => bail!("interrupted; everything that was started has been ended"),
        }
    })
}

async fn bench(benchmark: &Benchmark, program: &Path) -> Result<()> {
    match benchmark {
        Benchmark::Performers(flags) => {
            let peer =
                format!("the published Go operator with {} performers on this kind of machine", goal::PEER.count);
            for count in &flags.count {
                let results = Box::pin(measure(*count as usize, flags.json, program)).await?;
                tell(&results, &goal::goals(&results), &goal::PEER, &peer, flags.json)?;
            }
            Ok(())
        }
        Benchmark::Releases(flags) => {
            let results = releases::measure(flags, program).await?;
            tell(&results, &releases::goals(&results), &releases::PEER, releases::PEER_NAME, flags.json)
        }
        Benchmark::Shard(flags) => {
            let results = shard::measure(*flags).await?;
            tell(&results, &shard::goals(&results), &(), "none: the original was not measured", flags.json)
        }
        Benchmark::Testbed(flags) => {
            let results = Box::pin(testbed::measure(*flags)).await?;
            tell(&results, &testbed::goals(&results), &(), "none", flags.json)
        }
        Benchmark::Machines(flags) => {
            let results = Box::pin(machines::measure(flags, program)).await?;
            tell(&results, &machines::goals(&results), &(), "none: the original was not measured", flags.json)
        }
        Benchmark::ShardServer(flags) => shard::serve(flags.clone()).await,
    }
}

fn tell(results: &impl Serialize, goals: &[goal::Goal], peer: &impl Serialize, name: &str, json: bool) -> Result<()> {
    if json {
        let document = serde_json::json!({ "results": results, "goals": goals, "peer": peer });
        println!("{}", serde_json::to_string_pretty(&document)?);
    } else {
        print::goals(goals, name);
    }
    Ok(())
}

async fn measure(count: usize, json: bool, program: &Path) -> Result<Results> {
    let show = |text: String| {
        if !json {
            println!("{text}");
        }
    };
    // A new control plane is quicker than removing thousands of objects from the old one.
    let start = async || {
        progress("starting a control plane");
        Ground::performers(count).await.context("the control plane did not start")
    };
    let ground = start().await?;
    let conditions = Conditions::read(&ground)?;
    show(print::conditions(&conditions));

    progress("floor one: raw ConfigMap creates");
    let raw_creates = floor::raw_creates(&ground).await?;
    show(print::raw_creates(&raw_creates));
    progress("floor two: the objects of all performers, written without an operator");
    let floor = floor::objects(&ground).await?;
    show(print::floor(&floor));
    ground.control_plane.stop().await?;
    let ground = start().await?;
    progress("floor three: the operator's requests by a plain loop");
    let plain = plain::measure(&ground).await?;
    show(print::plain(&plain, count));
    ground.control_plane.stop().await?;

    let ground = start().await?;
    let namespace = ground.control_plane.namespace("performers").await?;
    let operator = Operator::start(&ground, program, "operator").await?;
    operator.leads(&ground).await?;
    progress("performers from nothing to Ready");
    let load = load::measure(&ground, &operator, &namespace).await?;
    show(print::load(&load, &floor, &plain));
    progress(&format!("{} s at rest", life::REST.as_secs()));
    let rest = life::rest(&ground, &operator).await?;
    show(print::rest(&rest));
    progress("spec changes");
    let change = change::measure(&ground, &namespace).await?;
    show(print::change(&change));
    progress("restart");
    operator.stop().await?;
    let restart = life::restart(&ground, program).await?;
    show(print::restart(&restart));

    progress("two replicas: hand-over");
    let (terminated, killed) = handover::measure(&ground, program).await?;
    show(print::hand_over("SIGTERM", &terminated));
    show(print::hand_over("SIGKILL", &killed));
    progress("ending the control plane");
    ground.control_plane.stop().await?;
    Ok(Results { conditions, raw_creates, floor, plain, load, rest, change, restart, terminated, killed })
}

fn progress(what: &str) {
    eprintln!("bench: {what} …");
}
