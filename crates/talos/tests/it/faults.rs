//! What a client sees when a node or the way to it fails.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use talos::{Error, Role, client::Stage};
use testbed::talos::{CallFault, MachineOptions, eventually, reaches_stage};
use tonic::Code;

use crate::one_cluster;

#[tokio::test]
async fn a_lost_reply_is_transient_and_the_call_was_done() -> Result<()> {
    let cluster = one_cluster::running().await?;
    let machine = cluster.world.create("one-w-lost", MachineOptions::default()).await?;
    machine.fail("ApplyConfiguration", CallFault::LostReply, 1);
    let maintenance = talos::Maintenance::new(machine.endpoint());
    match maintenance.apply(&cluster.configuration(&machine, Role::Worker)).await {
        Err(error) if error.is_transient() => {}
        other => bail!("{other:?}"),
    }
    reaches_stage(&machine, &Stage::Configured).await?;
    let calls = cluster.world.calls()?;
    let recorded = calls.iter().find(|call| call.node == "one-w-lost" && call.rpc == "ApplyConfiguration");
    assert_eq!(recorded.map(|call| call.code.as_str()), Some("OK"), "what the node produced, not what arrived");
    cluster.world.delete("one-w-lost").await;
    Ok(())
}

#[tokio::test]
async fn a_node_that_is_off_or_slow_or_refuses_is_told_apart() -> Result<()> {
    let cluster = one_cluster::running().await?;
    let worker = cluster.add_worker("one-w-faults").await?;
    let client = cluster.client(&worker)?;
    worker.fail("ServiceList", CallFault::Refused(Code::Unavailable), 1);
    let refused = client.services().await;
    ensure!(refused.as_ref().is_err_and(|error| error.code() == Some(Code::Unavailable)), "{refused:?}");
    worker.fail("ServiceList", CallFault::Slow(Duration::from_millis(20)), 1);
    client.services().await?;
    worker.power_off().await;
    match client.version().await {
        Err(error @ Error::Unreachable { .. }) => ensure!(error.is_transient()),
        other => bail!("{other:?}"),
    }
    worker.power_on().await?;
    eventually("the worker is back with its disk", || client.version()).await?;
    worker.fail("Upgrade", CallFault::LostReply, 1);
    let lost = client.upgrade("ghcr.io/siderolabs/installer:v1.12.2", false).await;
    ensure!(lost.as_ref().is_err_and(Error::is_transient), "{lost:?}");
    let upgraded = || async {
        let version = client.version().await.map_err(|error| error.to_string())?.version.unwrap_or_default().tag;
        if version == "v1.12.2" { Ok(()) } else { Err(version) }
    };
    eventually("the new version", upgraded).await?;
    client.shutdown(true).await?;
    let off = || async { if worker.is_on() { Err("on") } else { Ok(()) } };
    eventually("the worker is off", off).await?;
    cluster.world.delete("one-w-faults").await;
    Ok(())
}
