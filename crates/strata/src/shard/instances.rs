//! `strata shard instances`.

use std::process::ExitCode;

use clap::{Args, ValueEnum};
use plan::shard::{id::InstanceId, instance::Record};
use serde::Serialize;
use shard::{
    provider::{PROCESS, Process, Provider, node_provider_id},
    record::{self, Damaged},
    store::{Store, layout::ShardLayout},
};

use super::{
    machines,
    storage::{StorageFlags, findings, shards},
};
use crate::{
    Failure,
    output::{Format, Table, print, print_data},
};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Output {
    #[default]
    Table,
    Json,
}

#[derive(Debug, Args)]
pub struct Flags {
    /// Only the instances of this shard
    shard: Option<String>,
    /// json prints [{"instanceID", "providerID", "group", "shard", "status", "onDemand", "pid"}]
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
}

/// The form that scripts rely on.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Instance {
    #[serde(rename = "instanceID")]
    id: String,
    /// As the instance's Node has it.
    #[serde(rename = "providerID")]
    provider_id: String,
    group: String,
    shard: String,
    status: &'static str,
    on_demand: bool,
    /// Of its agent, where it runs on this machine.
    pid: Option<u32>,
}

pub async fn run(flags: Flags, storage: &StorageFlags) -> Result<ExitCode, Failure> {
    let store = storage.open()?;
    let shards = match flags.shard {
        // One that is not there is an error below, not an empty list.
        Some(shard) => vec![shard],
        None => shards(&*store).await?,
    };
    let mut instances = Vec::new();
    for shard in shards {
        // A configuration that cannot be used hides no instance.
        let (config, _) = findings(&*store, &shard).await?;
        let zone = Zone {
            machines: machines::local(&shard, config.as_ref()),
            kind: config.map_or_else(|| PROCESS.to_owned(), |config| config.shard.provider.kind),
            shard,
        };
        let shard = &zone.shard;
        let (records, damaged) = records(&*store, shard).await?;
        let known = records.iter().map(|record| zone.instance(record));
        let mut all: Vec<_> = known.collect();
        for damaged in &damaged {
            anstream::eprintln!("shard {shard}: {damaged}");
            let is_there = |id: &InstanceId| all.iter().any(|one| one.id == id.as_str());
            if let Some((_, id)) = damaged.owner.as_ref().filter(|(_, id)| !is_there(id)) {
                all.push(zone.unknown(id));
            }
        }
        all.sort_by(|one, other| one.id.cmp(&other.id));
        instances.extend(all);
    }
    if flags.output == Output::Json {
        print_data(&instances, Format::Json)?;
    } else {
        let mut table = Table::new(["INSTANCE", "SHARD", "GROUP", "STATUS", "PID"]);
        for one in instances {
            let pid = one.pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string());
            table.add([one.id, one.shard, one.group, one.status.to_owned(), pid]);
        }
        print(&table.render(true))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A shard's records without those of deleted instances, and what cannot be read among them.
pub async fn records(store: &dyn Store, shard: &str) -> Result<(Vec<Record>, Vec<Damaged>), Failure> {
    let layout = ShardLayout::new(shard);
    let (mut records, mut damaged) = (Vec::new(), Vec::new());
    for key in store.list(&layout.instances()).await? {
        // One that vanished since the list was purged.
        let Some(object) = store.get(&key).await? else { continue };
        match record::read(&layout, &key, &object.body) {
            Ok(record) => records.push(record),
            Err(error) => damaged.push(error),
        }
    }
    records.retain(|record| record.deleted_at.is_none());
    Ok((records, damaged))
}

/// What is known of all instances of a shard.
struct Zone {
    shard: String,
    /// Of its provider.
    kind: String,
    machines: Option<Process>,
}

impl Zone {
    /// An instance whose record cannot be read: it is not left out, because its machine may run.
    fn unknown(&self, id: &InstanceId) -> Instance {
        Instance {
            provider_id: node_provider_id(&self.kind, &self.shard, id.as_str(), ""),
            pid: self.pid(id.as_str()),
            id: id.to_string(),
            group: String::new(),
            shard: self.shard.clone(),
            status: "unknown",
            on_demand: false,
        }
    }

    fn instance(&self, record: &Record) -> Instance {
        let id = record.id.to_string();
        let status = match (&record.leaving, &record.machine) {
            (Some(_), _) => "deleting",
            (None, Some(_)) => "running",
            (None, None) => "pending",
        };
        Instance {
            provider_id: node_provider_id(&self.kind, &self.shard, &id, record.provider_id()),
            pid: self.pid(&id),
            id,
            group: record.group.clone(),
            shard: self.shard.clone(),
            status,
            on_demand: record.on_demand,
        }
    }

    fn pid(&self, id: &str) -> Option<u32> {
        self.machines.as_ref()?.pid(id)
    }
}
