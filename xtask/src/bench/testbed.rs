//! What a simulated cluster costs: from nothing to six Nodes that are ready, a control plane replaced by hand, and lists of
//! Hetzner's API. Stock programs do it all, by the script that builds the testbed of the test suite.

mod cluster;
mod list;
mod memory;
mod print;

use std::collections::BTreeMap;

use anyhow::Result;
use clap::Args;
use serde::Serialize;
use testbed::{
    cloud::{Cloud, Stock},
    tools::Tool,
};

use super::{conditions::Host, goal::Goal, printer, progress};

#[derive(Args, Clone, Copy)]
pub struct Flags {
    /// Print one JSON document on standard output; progress stays on standard error
    #[arg(long)]
    pub json: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Results {
    host: Host,
    programs: BTreeMap<&'static str, &'static str>,
    etcd_fsync: bool,
    cluster: cluster::Built,
    replacement: cluster::Replaced,
    list: list::Listed,
}

pub async fn measure(flags: Flags) -> Result<Results> {
    let show = printer(flags.json);
    let host = Host::read()?;
    let names = Cloud::PROGRAMS.into_iter().chain(Stock::PROGRAMS);
    let programs: BTreeMap<_, _> = names.filter_map(|name| Some((name, Tool::named(name)?.version()))).collect();
    // Programs that are missing are built before any clock starts.
    let wanted: Vec<&str> = programs.keys().copied().collect();
    testbed::tools::ensure(&wanted, &testbed::tools::Plain::default()).await?;
    show(print::conditions(&host, &programs));

    progress("lists of Hetzner's API");
    let list = list::measure().await?;
    show(print::list(&list));
    let folder = tempfile::tempdir()?;
    progress("a cluster of three control planes and three workers from nothing");
    let running = cluster::Running::start(folder.path()).await?;
    show(print::cluster(&running.built));
    progress("one control plane replaced by hand");
    let replacement = running.replace().await?;
    show(print::replacement(&replacement));
    progress("ending the cluster");
    let built = running.stop().await;
    Ok(Results { host, programs, etcd_fsync: cluster::FSYNC, cluster: built, replacement, list })
}

pub fn goals(results: &Results) -> Vec<Goal> {
    let Results { cluster, replacement, list, .. } = results;
    let calls = super::tally::each(list.calls_per_list, 1);
    vec![
        Goal::new("HA cluster, nothing to six Nodes Ready", "s", 60.0, cluster.wall_seconds, None),
        Goal::new("RSS of all its processes, most", "GiB", 3.0, cluster.most_gib.max(replacement.most_gib), None),
        Goal::new("one control plane replaced", "s", 20.0, replacement.wall_seconds, None),
        Goal::new("calls for a list of 1000 servers", "", 20.0, calls, None),
        Goal::new("one of those calls, p99", "ms", 20.0, list.call.p99_ms, None),
    ]
}
