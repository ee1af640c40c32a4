//! `strata shard init`.

use std::{path::PathBuf, process::ExitCode};

use clap::Args;
use serde_json::{Value, json};
use shard::{
    clock::Clock,
    config::parse,
    identity::{ClusterKeys, SealingKey},
    store::{Expect, Store, layout::ShardLayout},
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
    /// Seal the cluster's keys that were made without a key file: all servers of the cluster need it from their next start on
    #[arg(long, requires = "encryption_key_file")]
    seal: bool,
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
    let store = storage.make()?;
    let sealing = storage.sealing()?;
    if let Some(sealing) = sealing.as_ref().filter(|_| flags.seal) {
        let sealed = ClusterKeys::seal(&*store, &flags.cluster, sealing).await;
        sealed.map_err(|error| Failure::new(explained(&error)))?;
        anstream::eprintln!("the keys of cluster {} are sealed; start its servers with the key file", flags.cluster);
    }
    if make(&*store, &flags.cluster, &flags.shard, text, sealing.as_ref()).await? {
        anstream::eprintln!("shard {} of cluster {} is made", flags.shard, flags.cluster);
    } else {
        anstream::eprintln!("shard {} has a configuration; it stays as it is", flags.shard);
    }
    Ok(ExitCode::SUCCESS)
}

/// Makes what is missing of the cluster's keys and the shard's configuration; `false` if the latter is there.
pub async fn make(
    store: &dyn Store,
    cluster: &str,
    shard: &str,
    config: String,
    sealing: Option<&SealingKey>,
) -> Result<bool, Failure> {
    let now = Clock::default().now();
    ClusterKeys::init(store, cluster, sealing, now).await.map_err(|error| Failure::new(explained(&error)))?;
    match store.put(&ShardLayout::new(shard).config(), config.into_bytes(), Expect::Absent).await {
        Ok(_) => Ok(true),
        Err(error) if error.is_conflict() => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// What an administrator starts from.
fn first_config(cluster: &str, shard: &str) -> String {
    let config = json!({
        "cluster": { "id": cluster },
        "shard": { "id": shard, "provider": { "kind": "process" }, "subnet_pools": { "default": ["local"] } },
        "templates": { "web": { "kind": "web", "arch": "amd64", "subnet_pool": "default" } },
    });
    commented(shard, &config)
}

/// As an administrator meets it.
pub fn commented(shard: &str, config: &Value) -> String {
    let text = serde_json::to_string_pretty(config).expect("plain data");
    format!(
        "// `strata shard validate` checks this file, `strata shard refresh {shard}` makes the server read it again.\n{text}\n"
    )
}
