//! `strata shard status`.

use std::{
    collections::{BTreeMap, BTreeSet},
    process::ExitCode,
};

use clap::Args;
use plan::shard::{
    config::Config,
    group::{self, Dynamic},
};
use serde::Serialize;
use shard::{
    config::{CORRECT, RESTORE, parse_groups},
    store::{Store, layout::ShardLayout},
};

use super::{
    instances::{Output, records},
    storage::{StorageFlags, config, lock, shards},
};
use crate::{
    Failure,
    output::{Format, Table, print, print_data},
};

#[derive(Debug, Args)]
pub struct Flags {
    /// Only this shard
    shard: Option<String>,
    /// json prints [{"shard", "leader", "epoch", "problem", "damaged", "groups": [{"tenant", "name", "size", "instances"}]}]
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
}

#[derive(Debug, Serialize)]
struct Status {
    shard: String,
    /// Where the election port of the last leader is; null when it released the lock.
    leader: Option<String>,
    epoch: u64,
    /// Why the configuration cannot be used.
    problem: Option<String>,
    /// Each object that cannot be read, why, and what to do about it.
    damaged: Vec<String>,
    groups: Vec<Group>,
}

#[derive(Debug, Serialize)]
struct Group {
    tenant: String,
    name: String,
    /// Null while what is stored of it cannot be read, or names a template that the configuration does not have.
    size: Option<i32>,
    instances: usize,
}

pub async fn run(flags: Flags, storage: &StorageFlags) -> Result<ExitCode, Failure> {
    let store = storage.open()?;
    let names = match flags.shard {
        Some(shard) => {
            // One that is not there is an error.
            super::storage::findings(&*store, &shard).await?;
            vec![shard]
        }
        None => shards(&*store).await?,
    };
    let mut all = Vec::new();
    for shard in names {
        all.push(status(&*store, shard).await?);
    }
    if flags.output == Output::Json {
        print_data(&all, Format::Json)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new(["SHARD", "LEADER", "GROUP", "SIZE", "INSTANCES"]);
    for shard in all {
        let leader = shard.leader.unwrap_or_else(|| "-".to_owned());
        if let Some(problem) = &shard.problem {
            anstream::eprintln!("shard {}: {problem}", shard.shard);
        }
        for damaged in &shard.damaged {
            anstream::eprintln!("shard {}: {damaged}", shard.shard);
        }
        if shard.groups.is_empty() {
            table.add([shard.shard, leader, "-".to_owned(), "-".to_owned(), "-".to_owned()]);
            continue;
        }
        for group in shard.groups {
            let name = format!("{}/{}", group.tenant, group.name);
            let size = group.size.map_or_else(|| "-".to_owned(), |size| size.to_string());
            let instances = group.instances.to_string();
            table.add([shard.shard.clone(), leader.clone(), name, size, instances]);
        }
    }
    print(&table.render(true))?;
    Ok(ExitCode::SUCCESS)
}

async fn status(store: &dyn Store, shard: String) -> Result<Status, Failure> {
    let (records, unreadable) = records(store, &shard).await?;
    let mut damaged: Vec<String> = unreadable.iter().map(ToString::to_string).collect();
    let lock = lock(store, &shard).await?.unwrap_or_else(|why| {
        damaged.push(why);
        None
    });
    let config = config(store, &shard).await;
    let dynamic = dynamic(store, &shard, config.as_ref().ok()).await?.map_err(|why| damaged.push(why)).ok();
    let mut counts: BTreeMap<(String, String), usize> = BTreeMap::new();
    for record in records {
        *counts.entry((record.tenant, record.group)).or_default() += 1;
    }
    let (problem, groups) = match config {
        Ok(config) => {
            let key = ShardLayout::new(&shard).groups();
            let unknown = dynamic.iter().flat_map(|dynamic| unknown(&config, dynamic));
            damaged.extend(unknown.map(|why| format!("{key}: {why}")));
            (None, groups(&config, dynamic.as_ref(), &counts))
        }
        Err(failure) => (Some(failure.message), Vec::new()),
    };
    let leader = lock.as_ref().filter(|lock| !lock.released).map(|lock| lock.address.clone());
    Ok(Status { shard, leader, epoch: lock.map_or(0, |lock| lock.epoch), problem, damaged, groups })
}

/// Why it is not known what a group, or a tenant's groups, should be, and what to do about it.
pub fn unknown(config: &Config, dynamic: &Dynamic) -> Vec<String> {
    let names = group::all(config, dynamic);
    let groups = names.iter().filter_map(|(tenant, name)| group::unknown(config, dynamic, tenant, name));
    let all: BTreeSet<String> = dynamic.tenant_damages().chain(groups).collect();
    let remedy = "correct it there or in the configuration, or restore it from a backup of the storage";
    all.iter().map(|why| format!("{why}; {remedy}")).collect()
}

/// `dynamic` is absent where it cannot be read: then no size is known, of a static group neither.
fn groups(config: &Config, dynamic: Option<&Dynamic>, counts: &BTreeMap<(String, String), usize>) -> Vec<Group> {
    let none = Dynamic::default();
    let mut names = group::all(config, dynamic.unwrap_or(&none));
    names.extend(counts.keys().cloned());
    let of = |(tenant, name): (String, String)| {
        let size = |dynamic| group::effective(config, dynamic, &tenant, &name).map_or(0, |group| group.size);
        let is_known = |dynamic: &&Dynamic| group::unknown(config, dynamic, &tenant, &name).is_none();
        let size = dynamic.filter(is_known).map(size);
        let instances = counts.get(&(tenant.clone(), name.clone())).copied().unwrap_or(0);
        Group { tenant, name, size, instances }
    };
    names.into_iter().map(of).collect()
}

/// The groups of requests, or why they cannot be read.
pub async fn dynamic(
    store: &dyn Store,
    shard: &str,
    config: Option<&Config>,
) -> Result<Result<Dynamic, String>, Failure> {
    let layout = ShardLayout::new(shard);
    let key = layout.groups();
    let damaged = |why: String, remedy: &str| Err(format!("{key} is damaged: {why}; {remedy}"));
    if let Some(object) = store.get(&key).await? {
        let text = std::str::from_utf8(&object.body).map_err(|error| error.to_string());
        return Ok(text.and_then(parse_groups).or_else(|why| damaged(why, CORRECT)));
    }
    let is_written = store.get(&layout.groups_written()).await?.is_some();
    let (records, _) = records(store, shard).await?;
    let lost = group::lost(config, is_written, &records);
    Ok(lost.map_or_else(|| Ok(Dynamic::default()), |why| damaged(why, RESTORE)))
}
