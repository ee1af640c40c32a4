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
mod times;

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::{Value, json};

use build::Program;
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
    /// Print one JSON array on standard output, with one element for each count; progress stays on standard error
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
    load: load::Load,
    rest: life::Rest,
    change: change::Change,
    restart: life::Restart,
    terminated: handover::HandOver,
    killed: handover::HandOver,
    plain: plain::Plain,
}

pub fn run(benchmark: &Benchmark) -> Result<()> {
    if cfg!(debug_assertions) {
        return build::go_on_optimised();
    }
    let runtime = match benchmark {
        // As `strata dev` runs the simulators.
        Benchmark::Testbed(_) => tokio::runtime::Runtime::new()?,
        // One thread, as the operator has: the benchmark shares the machine with what it measures.
        _ => tokio::runtime::Builder::new_current_thread().enable_all().build()?,
    };
    runtime.block_on(async {
        tokio::select! {
            result = bench(benchmark) => result,
            _ = tokio::signal::ctrl_c() => bail!("interrupted; everything that was started has been ended"),
        }
    })
}

async fn bench(benchmark: &Benchmark) -> Result<()> {
    match benchmark {
        Benchmark::Performers(flags) => {
            let program = Program::find(flags.operator.as_deref())?;
            let peer =
                format!("the published Go operator with {} performers on this kind of machine", goal::PEER.count);
            let mut documents = Vec::new();
            for count in &flags.count {
                let results = Box::pin(measure(*count as usize, flags.json, &program)).await?;
                let goals = goal::goals(&results);
                if flags.json {
                    documents.push(document(&results, &goals, &goal::PEER));
                } else {
                    print::goals(&goals, &peer);
                }
            }
            if flags.json { print_json(&documents) } else { Ok(()) }
        }
        Benchmark::Releases(flags) => {
            let program = Program::find(flags.operator.as_deref())?;
            let results = releases::measure(flags, &program).await?;
            report(&results, &releases::goals(&results), &releases::PEER, releases::PEER_NAME, flags.json)
        }
        Benchmark::Shard(flags) => {
            let results = shard::measure(*flags).await?;
            report(&results, &shard::goals(&results), &(), "none: the original was not measured", flags.json)
        }
        Benchmark::Testbed(flags) => {
            let results = Box::pin(testbed::measure(*flags)).await?;
            report(&results, &testbed::goals(&results), &(), "none", flags.json)
        }
        Benchmark::Machines(flags) => {
            let program = Program::find(flags.operator.as_deref())?;
            let results = Box::pin(machines::measure(flags, &program)).await?;
            report(&results, &machines::goals(&results), &(), "none: the original was not measured", flags.json)
        }
        Benchmark::ShardServer(flags) => shard::serve(flags.clone()).await,
    }
}

fn report(results: &impl Serialize, goals: &[goal::Goal], peer: &impl Serialize, name: &str, json: bool) -> Result<()> {
    if json {
        return print_json(&document(results, goals, peer));
    }
    print::goals(goals, name);
    Ok(())
}

fn document(results: &impl Serialize, goals: &[goal::Goal], peer: &impl Serialize) -> Value {
    json!({ "results": results, "goals": goals, "peer": peer })
}

fn print_json(document: &impl Serialize) -> Result<()> {
    println!("{}", serde_json::to_string_pretty(document)?);
    Ok(())
}

async fn measure(count: usize, json: bool, program: &Program) -> Result<Results> {
    let show = printer(json);
    // A new control plane is quicker than removing thousands of objects from the old one.
    let start = async || {
        progress("starting a control plane");
        Ground::performers(count).await.context("the control plane did not start")
    };
    let ground = start().await?;
    let conditions = Conditions::read(&ground, program)?;
    show(print::conditions(&conditions));

    progress("floor one: raw ConfigMap creates");
    let raw_creates = floor::raw_creates(&ground).await?;
    show(print::raw_creates(&raw_creates));
    progress("floor two: the objects of all performers, written without an operator");
    let floor = floor::objects(&ground).await?;
    show(print::floor(&floor));
    ground.control_plane.stop().await?;

    let ground = start().await?;
    let namespace = ground.control_plane.namespace("performers").await?;
    let operator = Operator::start(&ground, &program.path, "operator").await?;
    operator.leads(&ground).await?;
    progress("performers from nothing to Ready");
    let load = load::measure(&ground, &operator, &namespace).await?;
    show(print::load(&load, &floor));
    progress(&format!("{} s at rest", life::REST.as_secs()));
    let rest = life::rest(&ground, &operator).await?;
    show(print::rest(&rest));
    progress("spec changes");
    let change = change::measure(&ground, &namespace).await?;
    show(print::change(&change));
    progress("restart");
    operator.stop().await?;
    let restart = life::restart(&ground, &program.path).await?;
    show(print::restart(&restart));

    progress("two replicas: hand-over");
    let (terminated, killed) = handover::measure(&ground, &program.path).await?;
    show(print::hand_over("SIGTERM", &terminated));
    show(print::hand_over("SIGKILL", &killed));
    ground.control_plane.stop().await?;

    // Last, because it makes as many requests as the operator was counted to make.
    let ground = start().await?;
    progress("floor three: the operator's requests by a plain loop");
    let plain = plain::measure(&ground, &load.own).await?;
    show(print::plain(&plain, &load));
    progress("ending the control plane");
    ground.control_plane.stop().await?;
    Ok(Results { conditions, raw_creates, floor, load, rest, change, restart, terminated, killed, plain })
}

/// Prints for people, unless standard output is for JSON.
fn printer(json: bool) -> impl Fn(String) {
    move |text: String| {
        if !json {
            println!("{text}");
        }
    }
}

fn progress(what: &str) {
    eprintln!("bench: {what} …");
}
