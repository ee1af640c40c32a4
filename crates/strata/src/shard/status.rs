//! `strata shard status`.

use std::{collections::BTreeMap, process::ExitCode};

use clap::Args;
use plan::shard::{
    election::Lock,
    group::{self, Dynamic},
};
use serde::Serialize;
use shard::{
    config::parse_groups,
    store::{Store, layout::ShardLayout},
};

use super::{
    instances::{Output, records},
    storage::{StorageFlags, config, shards},
};
use crate::{
    Failure,
    output::{Format, Table, print, print_data},
};

#[derive(Debug, Args)]
pub struct Flags {
    /// Only this shard
    shard: Option<String>,
    /// json prints [{"shard", "leader", "epoch", "problem", "groups": [{"tenant", "name", "size", "instances"}]}]
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
    groups: Vec<Group>,
}

#[derive(Debug, Serialize)]
struct Group {
    tenant: String,
    name: String,
    size: i32,
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
        if shard.groups.is_empty() {
            table.add([shard.shard, leader, "-".to_owned(), "-".to_owned(), "-".to_owned()]);
            continue;
        }
        for group in shard.groups {
            let name = format!("{}/{}", group.tenant, group.name);
            let (size, instances) = (group.size.to_string(), group.instances.to_string());
            table.add([shard.shard.clone(), leader.clone(), name, size, instances]);
        }
    }
    print(&table.render(true))?;
    Ok(ExitCode::SUCCESS)
}

async fn status(store: &dyn Store, shard: String) -> Result<Status, Failure> {
    let layout = ShardLayout::new(&shard);
    let lock = store.get(&layout.lock()).await?.map(|object| serde_json::from_slice::<Lock>(&object.body));
    let lock = lock.transpose().map_err(|error| Failure::new(format!("{} is damaged: {error}", layout.lock())))?;
    let mut counts: BTreeMap<(String, String), usize> = BTreeMap::new();
    for record in records(store, &shard).await? {
        *counts.entry((record.tenant, record.group)).or_default() += 1;
    }
    let (problem, groups) = match config(store, &shard).await {
        Ok(config) => {
            let dynamic = dynamic(store, &layout).await?;
            let of = |(tenant, name): (String, String)| {
                let size = group::effective(&config, &dynamic, &tenant, &name).map_or(0, |group| group.size);
                let instances = counts.get(&(tenant.clone(), name.clone())).copied().unwrap_or(0);
                Group { tenant, name, size, instances }
            };
            let mut names = group::all(&config, &dynamic);
            names.extend(counts.keys().cloned());
            (None, names.into_iter().map(of).collect())
        }
        Err(failure) => (Some(failure.message), Vec::new()),
    };
    let leader = lock.as_ref().filter(|lock| !lock.released).map(|lock| lock.address.clone());
    Ok(Status { shard, leader, epoch: lock.map_or(0, |lock| lock.epoch), problem, groups })
}

async fn dynamic(store: &dyn Store, layout: &ShardLayout) -> Result<Dynamic, Failure> {
    let key = layout.groups();
    let Some(object) = store.get(&key).await? else { return Ok(Dynamic::default()) };
    parse_groups(&String::from_utf8_lossy(&object.body))
        .map_err(|error| Failure::new(format!("{key} in the storage is damaged: {error}")))
}
