//! `strata group list`.

use std::process::ExitCode;

use api::condition::ConditionStatus;
use clap::Args;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::{Output, read::Reader, view::Summary};
use crate::{
    Failure,
    output::{Format, Table, age, print, print_data},
};

#[derive(Debug, Args)]
pub struct Flags {
    /// List all namespaces
    #[arg(long, short = 'A', conflicts_with = "namespace")]
    pub all_namespaces: bool,
    /// Only pools with these labels, for example app=web,tier!=test
    #[arg(long, short = 'l')]
    selector: Option<String>,
    /// json prints [{"namespace", "group", "pool", "machinePool", "shards", "static", "paused", "wanted", "current", "ready", "status", "reason", "message"}]
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
    /// Leave out the line with the names of the columns
    #[arg(long)]
    no_headers: bool,
}

const COLUMNS: [&str; 9] = ["GROUP", "SHARDS", "WANTED", "CURRENT", "READY", "STATIC", "STATUS", "AGE", "MESSAGE"];

pub async fn run(reader: &Reader, flags: &Flags) -> Result<ExitCode, Failure> {
    let groups = reader.list(flags.selector.as_deref()).await?;
    if groups.is_empty() {
        anstream::eprintln!("there is no group {}", reader.pools.place());
    }
    if flags.output == Output::Json {
        let all: Vec<_> = groups.iter().map(Summary::of).collect();
        print_data(&all, Format::Json)?;
        return Ok(ExitCode::SUCCESS);
    }
    if groups.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    let columns = flags.all_namespaces.then_some("NAMESPACE").into_iter();
    let mut table = Table::new(columns.chain(COLUMNS));
    for group in &groups {
        let summary = Summary::of(group);
        let namespace = flags.all_namespaces.then(|| summary.namespace.clone());
        table.add(namespace.into_iter().chain(row(summary, &group.pool.metadata)));
    }
    print(&table.render(!flags.no_headers))?;
    Ok(ExitCode::SUCCESS)
}

/// A message is of use only where something is not as declared.
fn row(summary: Summary, metadata: &ObjectMeta) -> [String; 9] {
    let is_ready = summary.status == Some(ConditionStatus::True);
    let created = metadata.creation_timestamp.as_ref().map(|time| time.0);
    [
        summary.group,
        summary.shards.join(","),
        summary.wanted.map(|wanted| wanted.to_string()).unwrap_or_default(),
        summary.current.to_string(),
        summary.ready.to_string(),
        if summary.is_static { "True" } else { "False" }.to_owned(),
        if summary.is_paused { "Paused".to_owned() } else { summary.reason.unwrap_or_default() },
        age(created, process::Clock::default().now()),
        summary.message.filter(|_| !is_ready).unwrap_or_default(),
    ]
}
