//! `strata shard refresh` and `strata shard scale`: requests to a shard's leader.

use std::process::ExitCode;

use clap::Args;
use plan::shard::config::Config;
use shard::{
    client::{Addresses, CallError, Client, Code},
    store::Store,
    wire::{self, Fence},
};

use super::{
    connect,
    storage::{StorageFlags, config, findings},
};
use crate::Failure;

#[derive(Debug, Args)]
pub struct RefreshFlags {
    /// The shard whose leader is asked
    shard: String,
    #[command(flatten)]
    endpoint: EndpointFlags,
}

#[derive(Debug, Args)]
pub struct ScaleFlags {
    /// The shard whose leader is asked
    shard: String,
    /// The group's name
    group: String,
    /// How many instances it should have
    #[arg(allow_negative_numbers = true)]
    size: i32,
    /// Whose group it is
    #[arg(long, default_value = "default")]
    tenant: String,
    /// Template of a group that is not there yet [default: the one named as the group, else the only one]
    #[arg(long)]
    template: Option<String>,
    #[command(flatten)]
    endpoint: EndpointFlags,
}

#[derive(Debug, Args)]
struct EndpointFlags {
    /// Operator port of the shard's servers: host:port, or several separated by commas [default: the leader's]
    #[arg(long, value_name = "ADDRESSES")]
    endpoint: Option<Addresses>,
}

impl EndpointFlags {
    async fn client(
        self,
        storage: &StorageFlags,
        store: &dyn Store,
        shard: &str,
        tenant: &str,
    ) -> Result<Client, Failure> {
        // First: what is wrong with the tenant or the keys does not wait for a leader.
        let tls = connect::tls(storage, store, Some(tenant)).await?;
        let endpoint = match self.endpoint {
            Some(endpoint) => endpoint,
            None => connect::leader(store, shard).await?,
        };
        Ok(Client::new(endpoint, tls))
    }
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Self {
        Self::new(error.to_string())
    }
}

pub async fn refresh(flags: RefreshFlags, storage: &StorageFlags) -> Result<ExitCode, Failure> {
    let store = storage.open()?;
    // The configuration may be one that the server refuses: that is what is asked for.
    findings(&*store, &flags.shard).await?;
    // Any tenant may ask.
    let client = flags.endpoint.client(storage, &*store, &flags.shard, "default").await?;
    let answer = match client.refresh_config().await {
        // The server quotes no configuration to a tenant; who reads the storage sees what is wrong with it.
        Err(error) if error.code() == Code::FailedPrecondition => {
            config(&*store, &flags.shard).await?;
            return Err(error.into());
        }
        answer => answer?,
    };
    let what = if answer.updated { "uses the new configuration" } else { "has this configuration already" };
    anstream::eprintln!("shard {} {what}", flags.shard);
    Ok(ExitCode::SUCCESS)
}

pub async fn scale(flags: ScaleFlags, storage: &StorageFlags) -> Result<ExitCode, Failure> {
    let store = storage.open()?;
    let config = config(&*store, &flags.shard).await?;
    let client = flags.endpoint.client(storage, &*store, &flags.shard, &flags.tenant).await?;
    let is_there = client.list_groups().await?.iter().any(|group| group.key == flags.group);
    let template = match flags.template {
        Some(template) => template,
        // Of a group that is there it stays.
        None if is_there => String::new(),
        None => template(&config, &flags.group)?,
    };
    let wanted = wire::GroupConfig { template, size: flags.size, ..wire::GroupConfig::default() };
    let request = wire::UpsertGroupRequest { key: flags.group, config: Some(wanted), remove_first: Vec::new() };
    let group = client.upsert_group(request, &Fence::default()).await?;
    anstream::eprintln!("group {} of shard {} has size {}", group.key, flags.shard, group.size);
    Ok(ExitCode::SUCCESS)
}

fn template(config: &Config, group: &str) -> Result<String, Failure> {
    let names: Vec<&String> = config.templates.keys().collect();
    match names.as_slice() {
        _ if config.templates.contains_key(group) => Ok(group.to_owned()),
        [only] => Ok((*only).clone()),
        _ => {
            let all: Vec<&str> = names.iter().map(|name| name.as_str()).collect();
            Err(Failure::new(format!("group {group:?} is new and no template is named as it"))
                .hint(format!("choose one with --template: {}", all.join(", "))))
        }
    }
}
