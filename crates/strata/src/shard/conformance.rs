//! `strata shard conformance`: requests whose answers the protocol fixes, none of which changes anything.

use std::process::ExitCode;

use clap::Args;
use plan::shard::id::InstanceId;
use shard::{
    client::{Addresses, CallError, Client},
    wire::{self, Fence},
};

use super::{connect, storage::StorageFlags};
use crate::{Failure, output::print};

#[derive(Debug, Args)]
pub struct Flags {
    /// Operator port of a server of this cluster: host:port, or several separated by commas
    endpoint: Addresses,
    /// The tenant to ask as
    #[arg(long, default_value = "default")]
    tenant: String,
}

/// A name that no group, template or pool has by accident.
const ABSENT: &str = "conformance-absent";

pub async fn run(flags: Flags, storage: &StorageFlags) -> Result<ExitCode, Failure> {
    let store = storage.open()?;
    let client = connect::client(storage, &*store, &flags.tenant, flags.endpoint.clone()).await?;
    let anonymous = Client::new(flags.endpoint, connect::tls(storage, &*store, None).await?);
    let before = client.list_groups().await?;
    let mut checks = vec![
        check("a call without a certificate", "Unauthenticated", &anonymous.list_groups().await),
        check("GetConfigStatus", "Ok", &client.config_status().await),
    ];
    checks.extend(groups(&client).await);
    checks.extend(instances(&client).await);
    let is_same = client.list_groups().await? == before;
    checks.push((is_same, "ListGroups: the groups are as they were".to_owned()));
    let is_fine = checks.iter().all(|(is_fine, _)| *is_fine);
    let line = |(is_fine, what): &(bool, String)| format!("{} {what}\n", if *is_fine { "ok    " } else { "FAILED" });
    print(&checks.iter().map(line).collect::<String>())?;
    Ok(if is_fine { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn groups(client: &Client) -> Vec<(bool, String)> {
    let upsert = async |key: &str, template: &str, size| {
        let config = wire::GroupConfig { template: template.to_owned(), size, ..wire::GroupConfig::default() };
        let request = wire::UpsertGroupRequest { key: key.to_owned(), config: Some(config), remove_first: vec![] };
        client.upsert_group(request, &Fence::default()).await
    };
    let empty = wire::UpsertGroupRequest::default();
    vec![
        check("UpsertGroup of nothing", "InvalidArgument", &client.upsert_group(empty, &Fence::default()).await),
        check("UpsertGroup with size -1", "InvalidArgument", &upsert(ABSENT, ABSENT, -1).await),
        check("UpsertGroup with an unknown template", "NotFound", &upsert(ABSENT, ABSENT, 0).await),
        check("DeleteGroup of a group that is not there", "Ok", &client.delete_group(ABSENT, &Fence::default()).await),
    ]
}

async fn instances(client: &Client) -> Vec<(bool, String)> {
    let absent = InstanceId::new("zzz", 0).to_string();
    let (none, create) = (Fence::default(), wire::CreateInstanceRequest::default());
    let config = wire::InstanceConfig { group: ABSENT.to_owned(), ..wire::InstanceConfig::default() };
    let stray = wire::CreateInstanceRequest { config: Some(config), ..create.clone() };
    vec![
        check("CreateInstance of nothing", "InvalidArgument", &client.create_instance(create, &none).await),
        check("CreateInstance in an unknown group", "NotFound", &client.create_instance(stray, &none).await),
        check("DeleteInstance of an unknown instance", "Ok", &client.delete_instance(&absent, &none).await),
        check("DeleteInstance of nothing", "InvalidArgument", &client.delete_instance("", &none).await),
        check(
            "AcknowledgeDrained of an unknown instance",
            "NotFound",
            &client.acknowledge_drained(&absent, &none).await,
        ),
        check("AcknowledgeDrained of nothing", "InvalidArgument", &client.acknowledge_drained("", &none).await),
        check("GetInstanceStatus of an unknown instance", "NotFound", &client.instance_status(&absent).await),
        check("GetInstanceStatus of nothing", "InvalidArgument", &client.instance_status("").await),
    ]
}

/// Whether the answer has this code, and a line for people.
fn check<T>(what: &str, expected: &str, answer: &Result<T, CallError>) -> (bool, String) {
    let code = answer.as_ref().err().map_or_else(|| "Ok".to_owned(), |error| format!("{:?}", error.code()));
    if code == expected {
        return (true, format!("{what}: {code}"));
    }
    let text = answer.as_ref().err().map(ToString::to_string).unwrap_or_default();
    (false, format!("{what}: {code} instead of {expected} {text}"))
}
