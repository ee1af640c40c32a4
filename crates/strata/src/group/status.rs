//! `strata group status`: one group on a page.

use std::process::ExitCode;

use clap::Args;
use jiff::Timestamp;
use serde::Serialize;

use super::{
    Output,
    read::{Reader, Whole},
    view::{InstanceView, ShardView, Summary, Wait, paused},
};
use crate::{
    Failure,
    output::{Format, Table, age, conditions, facts, print, print_data},
};

#[derive(Debug, Args)]
pub struct Flags {
    /// The group's key, or the name of its NstanceMachinePool
    group: String,
    /// json prints what `list` does of one group, with "shards" as [{"shard", "wanted", "current", "ready", "silentSince", "reason", "message"}], "instances" as [{"instance", "shard", "node", "providerID", "ready", "isGoing", "reason", "message"}] and "waits" as [{"what", "why"}]
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
}

/// Its shards in place of their names.
#[derive(Serialize)]
struct Document {
    #[serde(flatten)]
    summary: serde_json::Map<String, serde_json::Value>,
    shards: Vec<ShardView>,
    instances: Vec<InstanceView>,
    waits: Vec<Wait>,
}

pub async fn run(reader: &Reader, flags: &Flags) -> Result<ExitCode, Failure> {
    let whole = reader.whole(reader.find(&flags.group).await?).await?;
    match flags.output {
        Output::Json => print_data(&document(&whole)?, Format::Json)?,
        Output::Table => print(&page(&whole, process::Clock::default().now()))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn document(whole: &Whole) -> Result<Document, Failure> {
    let summary = serde_json::to_value(Summary::of(&whole.group));
    let summary = summary.map_err(|error| Failure::new(format!("cannot print: {error}")))?;
    let mut summary = summary.as_object().cloned().unwrap_or_default();
    summary.remove("shards");
    Ok(Document { summary, shards: whole.shards(), instances: whole.instances(), waits: whole.waits() })
}

fn page(whole: &Whole, now: Timestamp) -> String {
    let mut text = head(whole, now);
    text.push_str(&shards(whole, now).section());
    let status = whole.group.pool.status.as_ref();
    text.push_str(&conditions(status.map_or(&[], |status| &status.conditions), now).section());
    text.push_str(&instances(whole).section());
    let mut waits = Table::new(["WAITS", "WHY"]);
    for wait in whole.waits() {
        waits.add([wait.what, wait.why]);
    }
    text.push_str(&waits.section());
    text
}

fn head(whole: &Whole, now: Timestamp) -> String {
    let group = &whole.group;
    let summary = Summary::of(group);
    let (spec, status) = (group.pool.spec.clone().unwrap_or_default(), group.pool.status.clone().unwrap_or_default());
    let machine_pool = group.machine_pool.as_ref();
    let is_static =
        status.is_static.then(|| "yes: the shards' configuration decides template, subnets and shards".into());
    let created = group.pool.metadata.creation_timestamp.as_ref().map(|time| time.0);
    facts([
        ("GROUP", Some(summary.group.clone())),
        ("NAMESPACE", Some(summary.namespace.clone())),
        ("POOL", Some(format!("NstanceMachinePool {}", summary.pool))),
        ("MACHINE POOL", machine_pool.map(|pool| format!("{} of Cluster {}", pool.name(), pool.spec.cluster_name))),
        ("TEMPLATE", status.template.or(spec.template)),
        ("INSTANCE TYPE", spec.instance_type),
        ("SUBNET POOL", status.subnet_pool.or(spec.subnet_pool)),
        ("STATIC", is_static),
        ("PAUSED", paused(group)),
        ("INSTANCES", Some(summary.counts())),
        ("AGE", Some(age(created, now))),
    ])
}

fn shards(whole: &Whole, now: Timestamp) -> Table {
    let mut table = Table::new(["SHARD", "WANTED", "CURRENT", "READY", "SILENT FOR", "REASON"]);
    for shard in whole.shards() {
        let numbers = [shard.wanted.to_string(), shard.current.to_string(), shard.ready.to_string()];
        let rest = [age(shard.silent_since, now), shard.reason.unwrap_or_default()];
        table.add(std::iter::once(shard.shard).chain(numbers).chain(rest));
    }
    table
}

fn instances(whole: &Whole) -> Table {
    let mut table = Table::new(["INSTANCE", "SHARD", "NODE", "READY", "GOING", "REASON"]);
    let word = |is_so: bool| if is_so { "True" } else { "False" }.to_owned();
    for one in whole.instances() {
        let [shard, node, reason] = [one.shard, one.node, one.reason].map(Option::unwrap_or_default);
        // No word that has a colour: that it goes is neither good nor bad.
        let going = if one.is_going { "yes".to_owned() } else { String::new() };
        table.add([one.instance, shard, node, word(one.ready), going, reason]);
    }
    table
}
