//! Calls to a configured node.

use anyhow::{Context, Result, bail, ensure};
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Node;
use kube::{Api, config::KubeConfigOptions};
use talos::{Client, Credentials, Error, Talosconfig, talosconfig};
use testbed::talos::{CallFault, eventually};
use tonic::Code;

use crate::one_cluster;

#[tokio::test]
async fn a_node_says_what_runs_on_it() -> Result<()> {
    let cluster = one_cluster::running().await?;
    let machine = &cluster.control_planes[0];
    let client = cluster.client(machine)?;
    let version = client.version().await?;
    assert_eq!(version.version.unwrap_or_default().tag, "v1.12.1");
    assert_eq!(client.hostname().await?, machine.name());
    let services = client.services().await?;
    for name in ["apid", "etcd", "kubelet", "trustd"] {
        let service = services.iter().find(|service| service.id == name);
        assert_eq!(service.map(|service| service.state.as_str()), Some("Running"), "{name}");
    }
    Ok(())
}

#[tokio::test]
async fn etcd_is_seen_through_the_machine_api() -> Result<()> {
    let cluster = one_cluster::running().await?;
    let machine = &cluster.control_planes[0];
    let client = cluster.client(machine)?;
    let members = client.etcd_members().await?;
    let [member] = members.as_slice() else { bail!("{members:?}") };
    assert_eq!(member.hostname, machine.name());
    assert_eq!(member.peer_urls, [format!("https://{}:2380", machine.private())]);
    let status = client.etcd_status().await?;
    assert_eq!((status.member_id, status.leader, status.is_learner), (member.id, member.id, false));
    assert!(status.protocol_version.starts_with("3.6."), "{status:?}");
    assert!(client.etcd_alarms().await?.is_empty());
    assert!(client.etcd_disarm_alarms().await?.is_empty());
    client.etcd_defragment().await?;
    match client.etcd_forfeit_leadership().await {
        Err(Error::Refused { code: Code::Unknown, .. }) => {}
        other => bail!("the only member cannot give leadership away: {other:?}"),
    }
    match client.etcd_remove_member(4711).await {
        Err(Error::Refused { code: Code::NotFound, .. }) => Ok(()),
        other => bail!("{other:?}"),
    }
}

#[tokio::test]
async fn k49_bootstrap_happens_once() -> Result<()> {
    let cluster = one_cluster::running().await?;
    let codes = || -> Result<Vec<String>> {
        let calls = cluster.world.calls()?.into_iter().filter(|call| call.rpc == "Bootstrap");
        Ok(calls.map(|call| call.code).collect())
    };
    // The first was done and its reply lost; the start went on by asking again.
    let before = codes()?;
    let done = before.iter().position(|code| code == "OK");
    ensure!(done.is_some_and(|done| before[done + 1..].iter().any(|code| code == "ALREADY_EXISTS")), "{before:?}");
    let client = cluster.client(&cluster.control_planes[0])?;
    match client.bootstrap(false).await {
        Err(Error::Refused { code: Code::AlreadyExists, .. }) => {}
        other => bail!("{other:?}"),
    }
    client.ensure_bootstrapped().await?;
    let accepted = codes()?.iter().filter(|code| *code == "OK").count();
    assert_eq!(accepted, 1);
    let members = client.etcd_members().await?;
    let [member] = members.as_slice() else { bail!("{members:?}") };
    assert_eq!(member.hostname, cluster.control_planes[0].name());
    Ok(())
}

#[tokio::test]
async fn a_snapshot_is_streamed_and_whole() -> Result<()> {
    let cluster = one_cluster::running().await?;
    let mut file = Vec::new();
    let snapshot = cluster.client(&cluster.control_planes[0])?.etcd_snapshot(&mut file).await?;
    assert_eq!(snapshot.size, file.len() as u64);
    Ok(())
}

#[tokio::test]
async fn k50_the_kubeconfig_works() -> Result<()> {
    let cluster = one_cluster::running().await?;
    let machine = &cluster.control_planes[0];
    let alone = one_cluster::KUBECONFIG.lock().await;
    machine.fail("Kubeconfig", CallFault::EndsEarly { after: 200 }, 1);
    match cluster.client(machine)?.kubeconfig().await {
        Err(Error::Kubeconfig { .. }) => {}
        other => bail!("half of a stream is no kubeconfig: {other:?}"),
    }
    drop(alone);
    let kubeconfig = cluster.client(machine)?.kubeconfig().await?;
    testbed::install_crypto();
    let config = kube::config::Kubeconfig::from_yaml(&kubeconfig)?;
    let config = kube::Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await?;
    let node = Api::<Node>::all(testbed::patient(config)?).get(machine.name()).await?;
    let spec = node.spec.unwrap_or_default();
    assert_eq!(spec.provider_id, Some(format!("hcloud://{}", machine.id())));
    let info = node.status.and_then(|status| status.node_info);
    assert_eq!(info.map(|info| info.kubelet_version), Some("v1.35.0".to_owned()));
    Ok(())
}

#[tokio::test]
async fn k51_a_renewed_talosconfig_opens_the_node_for_the_same_role() -> Result<()> {
    let cluster = one_cluster::running().await?;
    let machine = &cluster.control_planes[0];
    let now = cluster.talosconfig.certificate()?.not_before;
    let os = cluster.secrets.os_authority()?;
    // Nine months of its year are over.
    let old = now.checked_sub(SignedDuration::from_hours(24 * 275))?;
    let issued = Talosconfig::issue("one", &os, talosconfig::Role::Reader, Vec::new(), old)?;
    let renewed = issued.renewed(&os, now)?.context("it is renewed")?;
    ensure!(renewed.certificate()?.not_after > issued.certificate()?.not_after, "{renewed:?}");
    for config in [&issued, &renewed] {
        let reader = Client::new(machine.endpoint(), &Credentials::from_talosconfig(config)?);
        reader.version().await?;
        ensure!(reader.reboot().await.is_err_and(|error| error.code() == Some(Code::PermissionDenied)));
    }
    Ok(())
}

#[tokio::test]
async fn a_reader_reads_and_is_denied_the_rest() -> Result<()> {
    let cluster = one_cluster::running().await?;
    let machine = &cluster.control_planes[0];
    let admin = cluster.client(machine)?;
    let hour = std::time::Duration::from_hours(1);
    let issued = admin.client_configuration(talosconfig::Role::Reader, hour).await?;
    let config = Talosconfig::from_yaml(std::str::from_utf8(&issued.talosconfig)?)?;
    let reader = Client::new(machine.endpoint(), &Credentials::from_talosconfig(&config)?);
    reader.version().await?;
    reader.etcd_members().await?;
    for denied in [reader.reboot().await, reader.reset(false, true).await, reader.bootstrap(false).await] {
        ensure!(denied.as_ref().is_err_and(|error| error.code() == Some(Code::PermissionDenied)), "{denied:?}");
    }
    ensure!(reader.kubeconfig().await.is_err_and(|error| error.code() == Some(Code::PermissionDenied)));
    let calls = cluster.world.calls()?;
    assert!(calls.iter().any(|call| call.rpc == "Reset" && call.code == "PERMISSION_DENIED"));
    Ok(())
}

#[tokio::test]
async fn calls_are_forwarded_to_other_nodes() -> Result<()> {
    let cluster = one_cluster::running().await?;
    let machine = &cluster.control_planes[0];
    let worker = cluster.add_worker("one-w-forward").await?;
    let client = cluster.client(machine)?;
    let through = client.on(worker.private().into());
    assert_eq!(through.hostname().await?, "one-w-forward");
    ensure!(through.etcd_status().await.is_err_and(|error| error.code() == Some(Code::Unimplemented)));
    let nobody = "127.0.0.9".parse()?;
    let nodes = [machine.private().into(), worker.private().into(), nobody];
    let answers = client.etcd_status_of(&nodes).await?;
    let codes: Vec<_> = answers.iter().map(|answer| answer.reply.as_ref().map(|_| ()).map_err(Error::code)).collect();
    assert_eq!(codes, [Ok(()), Err(Some(Code::Unimplemented)), Err(Some(Code::Unavailable))]);
    assert_eq!(answers[0].node, machine.private().to_string());
    // A worker that is reset gracefully comes back without a configuration.
    through.reset(true, true).await?;
    let stage = talos::client::Stage::Maintenance { version: None };
    testbed::talos::reaches_stage(&worker, &stage).await?;
    cluster.world.delete("one-w-forward").await;
    let gone = || async {
        match through.version().await {
            Err(error) if error.code() == Some(Code::Unavailable) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    };
    eventually("the worker is gone", gone).await?;
    Ok(())
}
