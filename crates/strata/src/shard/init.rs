//! `strata shard init`.

use std::{path::PathBuf, process::ExitCode};

use clap::Args;
use serde_json::json;
use shard::{
    clock::Clock,
    config::parse,
    identity::ClusterKeys,
    store::{Expect, layout::ShardLayout},
};

use super::{storage::StorageFlags, validate};
use crate::{Failure, explained};

#[derive(Debug, Args)]
pub struct Flags {
    /// The shard to make
    shard: String,
    /// The cluster it belongs to
    #[arg(long, value_name = "ID")]
    cluster: String,
    /// Its first configuration [default: machines as processes, one template `web`, no group]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

pub async fn run(flags: Flags, storage: &StorageFlags) -> Result<ExitCode, Failure> {
    let text = match &flags.config {
        Some(file) => std::fs::read_to_string(file)
            .map_err(|error| Failure::new(format!("cannot read {}: {error}", file.display())))?,
        None => first_config(&flags.cluster, &flags.shard),
    };
    let (config, findings) = parse(&text);
    let Some(config) = config.filter(|_| findings.problems.is_empty()) else {
        validate::tell("the configuration", &findings)?;
        return Err(Failure::new("the configuration cannot be used; nothing was made"));
    };
    if config.cluster.id != flags.cluster || config.shard.id != flags.shard {
        return Err(Failure::new(format!(
            "the configuration is of shard {:?} of cluster {:?}, not of {:?} of {:?}",
            config.shard.id, config.cluster.id, flags.shard, flags.cluster
        )));
    }
    let store = storage.open()?;
    let sealing = storage.sealing()?;
    let now = Clock::system().now();
    ClusterKeys::init(&*store, &flags.cluster, sealing.as_ref(), now)
        .await
        .map_err(|error| Failure::new(explained(&error)))?;
    match store.put(&ShardLayout::new(&flags.shard).config(), text.into_bytes(), Expect::Absent).await {
        Ok(_) => anstream::eprintln!("shard {} of cluster {} is made", flags.shard, flags.cluster),
        Err(error) if error.is_conflict() => {
            anstream::eprintln!("shard {} has a configuration; it stays as it is", flags.shard);
        }
        Err(error) => return Err(error.into()),
    }
    Ok(ExitCode::SUCCESS)
}

/// What an administrator starts from.
fn first_config(cluster: &str, shard: &str) -> String {
    let config = json!({
        "cluster": { "id": cluster },
        "shard": { "id": shard, "provider": { "kind": "process" }, "subnet_pools": { "default": ["local"] } },
        "templates": { "web": { "kind": "web", "arch": "amd64", "subnet_pool": "default" } },
    });
    let text = serde_json::to_string_pretty(&config).expect("plain data");
    format!(
        "// `strata shard validate` checks this file, `strata shard refresh {shard}` makes the server read it again.\n{text}\n"
    )
}
