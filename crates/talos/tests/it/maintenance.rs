//! A node without configuration, in both dialects.

use anyhow::{Result, bail};
use talos::{Client, Credentials, Error, Maintenance, Role, Secrets, client::Stage, talosconfig};
use testbed::talos::{CallFault, Dialect, MachineOptions, World, WorldOptions, eventually, reaches_stage};
use tonic::Code;

use crate::one_cluster;

#[tokio::test]
async fn k47_both_dialects_are_recognised_as_maintenance() -> Result<()> {
    let cluster = one_cluster::running().await?;
    for (name, dialect, version) in
        [("silent", Dialect::Silent, None), ("answers", Dialect::Answers, Some("v1.13.6".to_owned()))]
    {
        let machine = cluster.world.create(name, MachineOptions { dialect }).await?;
        let maintenance = Maintenance::new(machine.endpoint());
        assert_eq!(maintenance.stage().await?, Stage::Maintenance { version });
        assert!(maintenance.fingerprint().is_some());
        // A third answer that versions give.
        machine.fail("Version", CallFault::Refused(Code::PermissionDenied), 1);
        assert_eq!(maintenance.stage().await?, Stage::Maintenance { version: None });
        cluster.world.delete(name).await;
    }
    Ok(())
}

#[tokio::test]
async fn k47_a_configuration_is_applied_once_and_then_a_certificate_is_needed() -> Result<()> {
    let cluster = one_cluster::running().await?;
    let machine = cluster.world.create("one-w-applied", MachineOptions::default()).await?;
    let maintenance = Maintenance::new(machine.endpoint());
    match maintenance.apply("machine: [not a configuration").await {
        Err(Error::Refused { code: Code::InvalidArgument, .. }) => {}
        other => bail!("{other:?}"),
    }
    maintenance.apply(&cluster.configuration(&machine, Role::Worker)).await?;
    reaches_stage(&machine, &Stage::Configured).await?;
    match Maintenance::new(machine.endpoint()).apply(&cluster.configuration(&machine, Role::Worker)).await {
        Err(Error::CertificateRequired { .. }) => {}
        other => bail!("without a certificate: {other:?}"),
    }
    let client = cluster.client(&machine)?;
    eventually("the node answers who has a certificate", || client.version()).await?;
    // The connector met another certificate before the reboot and speaks with no other.
    match maintenance.apply(&cluster.configuration(&machine, Role::Worker)).await {
        Err(Error::OtherNode { .. }) => {}
        other => bail!("{other:?}"),
    }
    cluster.world.delete("one-w-applied").await;
    Ok(())
}

#[tokio::test]
async fn a_node_in_maintenance_serves_nothing_else() -> Result<()> {
    let cluster = one_cluster::running().await?;
    let machine = cluster.world.create("one-w-bare", MachineOptions::default()).await?;
    // A client with the cluster's certificates does not trust what such a node shows.
    match cluster.client(&machine)?.version().await {
        Err(Error::OtherCluster { .. }) => {}
        other => bail!("{other:?}"),
    }
    let calls = cluster.world.calls()?;
    assert!(calls.iter().all(|call| call.node != "one-w-bare"), "a broken handshake is no call");
    cluster.world.delete("one-w-bare").await;
    Ok(())
}

#[tokio::test]
async fn an_expired_certificate_is_a_typed_error() -> Result<()> {
    let cluster = one_cluster::running().await?;
    let long_ago = "2020-01-01T00:00:00Z".parse()?;
    let authority = cluster.secrets.os_authority()?;
    let expired = talos::Talosconfig::issue("one", &authority, talosconfig::Role::Admin, Vec::new(), long_ago)?;
    let client = Client::new(cluster.control_planes[0].endpoint(), &Credentials::from_talosconfig(&expired)?);
    match client.version().await {
        Err(Error::CertificateExpired { .. }) => Ok(()),
        other => bail!("{other:?}"),
    }
}

#[tokio::test]
async fn a_certificate_of_another_cluster_is_refused_with_a_typed_error() -> Result<()> {
    let cluster = one_cluster::running().await?;
    let now = cluster.talosconfig.certificate()?.not_before;
    let other = Secrets::generate(now)?;
    let authority = other.os_authority()?;
    let foreign = talos::Talosconfig::issue("other", &authority, talosconfig::Role::Admin, Vec::new(), now)?;
    let machine = &cluster.control_planes[0];
    // It neither trusts the node nor is trusted by it.
    match Client::new(machine.endpoint(), &Credentials::from_talosconfig(&foreign)?).version().await {
        Err(Error::OtherCluster { .. }) => {}
        other => bail!("{other:?}"),
    }
    // The right authority with a foreign certificate: the node refuses it.
    let context = foreign.current()?;
    let pair = context.pair("other")?;
    let mixed = Credentials::from_pem(&cluster.secrets.os.certificate, &pair.certificate, &pair.key)?;
    match Client::new(machine.endpoint(), &mixed).version().await {
        Err(Error::OtherCluster { .. }) => Ok(()),
        other => bail!("{other:?}"),
    }
}

#[tokio::test]
async fn nothing_is_left_of_a_testbed_that_ended() -> Result<()> {
    let world = World::start(WorldOptions::default()).await?;
    let machine = world.create("brief", MachineOptions::default()).await?;
    Maintenance::new(machine.endpoint()).stage().await?;
    let (endpoint, disk) = (machine.endpoint(), machine.directory().to_owned());
    assert!(disk.exists());
    drop((machine, world));
    let is_gone = || async {
        tokio::net::TcpListener::bind(endpoint).await.map_err(|error| error.to_string())?;
        if disk.exists() { Err(format!("{} is there", disk.display())) } else { Ok(()) }
    };
    Ok(eventually("nothing is left", is_gone).await?)
}
