//! `strata shard nonce`.

use std::{process::ExitCode, time::Duration};

use clap::{Args, ValueEnum};
use shard::{clock::Clock, identity::NonceOrder};

use super::storage::{StorageFlags, cluster, findings};
use crate::{Failure, config::duration, explained, output::print};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    Operator,
    Agent,
}

#[derive(Debug, Args)]
pub struct Flags {
    /// The tenant that the holder acts for
    #[arg(long, default_value = "default")]
    tenant: String,
    /// Who registers with it
    #[arg(long, value_enum, default_value = "operator")]
    kind: Kind,
    /// Of an agent: its shard
    #[arg(long, required_if_eq("kind", "agent"))]
    shard: Option<String>,
    /// Of an agent: its instance
    #[arg(long, required_if_eq("kind", "agent"), value_name = "ID")]
    instance: Option<String>,
    /// How long it can be used
    #[arg(long, value_parser = duration, default_value = "3h", value_name = "DURATION")]
    lifetime: Duration,
}

pub async fn run(flags: Flags, storage: &StorageFlags) -> Result<ExitCode, Failure> {
    let store = storage.open()?;
    let cluster = cluster(&*store).await?;
    let keys = storage.keys(&*store, &cluster).await?;
    if let Some(shard) = flags.shard.as_deref().filter(|_| flags.kind == Kind::Agent) {
        // No server would take a nonce of a shard that is not there. Whether the configuration is good does not matter here.
        findings(&*store, shard).await?;
    }
    let agent = flags.shard.as_deref().zip(flags.instance.as_deref()).filter(|_| flags.kind == Kind::Agent);
    let order = NonceOrder { cluster: &cluster, tenant: &flags.tenant, lifetime: flags.lifetime, agent };
    let token = keys.nonce(&order, Clock::default().now()).map_err(|error| Failure::new(explained(&error)))?;
    print(&format!("{token}\n"))?;
    Ok(ExitCode::SUCCESS)
}
