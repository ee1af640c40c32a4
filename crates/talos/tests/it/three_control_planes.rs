//! Three control planes that lose and gain members.

use std::sync::Arc;

use anyhow::{Result, bail, ensure};
use talos::{Error, Role, client::Stage, snapshot::SnapshotError};
use testbed::process::{Child, Program};
use testbed::talos::{CallFault, Cluster, Machine, MachineOptions, World, WorldOptions, eventually, reaches_stage};
use tonic::Code;

/// One story, since three control planes take their time to start.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn control_planes_join_die_and_are_replaced() -> Result<()> {
    let world = World::start(WorldOptions::default()).await?;
    let mut cluster = Cluster::start(world, "ha", 3).await?;
    let [first, second, third] = [0, 1, 2].map(|number: usize| cluster.control_planes[number].clone());
    let client = cluster.client(&first)?;
    let members = client.etcd_members().await?;
    ensure!(members.len() == 3 && members.iter().all(|member| !member.is_learner), "{members:?}");
    leadership_moves(&cluster, [&first, &second, &third]).await?;
    a_stopped_member_returns(&cluster, &first, &third).await?;
    a_snapshot_that_ends_early_is_a_typed_error(&cluster, &first).await?;
    let snapshot = a_running_member_refuses_recovery(&cluster, &first).await?;
    a_dead_voter_blocks_additions_until_it_is_removed(&mut cluster, &first, &third).await?;
    a_graceful_reset_leaves_etcd(&cluster, &first, &second).await?;
    a_lost_cluster_is_recovered_from_the_snapshot(&cluster, &first, &snapshot).await?;
    let disk = first.directory().to_owned();
    drop((cluster, client));
    nothing_is_left(&first, &disk).await
}

/// Programs, addresses and files end with the testbed.
async fn nothing_is_left(machine: &Machine, disk: &std::path::Path) -> Result<()> {
    let is_free = || async {
        for port in [2379, 2380, 6443, talos::PORT] {
            tokio::net::TcpListener::bind((machine.private(), port))
                .await
                .map_err(|error| format!("{port}: {error}"))?;
        }
        if disk.exists() { Err(format!("{} is there", disk.display())) } else { Ok(()) }
    };
    Ok(eventually("nothing is left", is_free).await?)
}

/// A member that was stopped alone comes back; the others go on without it.
async fn a_stopped_member_returns(cluster: &Cluster, first: &Machine, third: &Machine) -> Result<()> {
    third.stop_etcd().await;
    let stopped = cluster.client(third)?;
    ensure!(stopped.etcd_status().await.is_err_and(|error| error.is_transient()));
    let services = stopped.services().await?;
    let state = services.iter().find(|service| service.id == "etcd").map(|service| service.state.as_str());
    ensure!(state == Some("Finished"), "{state:?}");
    ensure!(cluster.client(first)?.etcd_members().await?.len() == 3, "two of three are a quorum");
    ensure!(stopped.etcd_members().await?.len() == 3, "the node asks other members");
    third.start_etcd().await?;
    let healthy = || async {
        let status = stopped.etcd_status().await.map_err(|error| error.to_string())?;
        if status.leader != 0 { Ok(()) } else { Err("no leader".to_owned()) }
    };
    eventually("the member is back", healthy).await?;
    // One that is killed from outside comes back by itself.
    let etcd = || third.programs().into_iter().find(|program| program.name == "etcd").map(|program| program.pid);
    let before = etcd().expect("etcd runs");
    let log = third.directory().join("kill.log");
    let kill = Program::new("kill", "/bin/kill", log).args(["-KILL", &before.to_string()]);
    ensure!(Child::start(kill)?.exited().await == 0);
    let restarted = || async { if etcd() == Some(before) { Err("the same process") } else { Ok(()) } };
    eventually("another process", restarted).await?;
    Ok(eventually("the member is back again", healthy).await?)
}

async fn leadership_moves(cluster: &Cluster, machines: [&Arc<Machine>; 3]) -> Result<()> {
    let mut moved = Vec::new();
    for machine in machines {
        moved.extend(cluster.client(machine)?.etcd_forfeit_leadership().await?);
    }
    ensure!(!moved.is_empty(), "one of them led");
    let nodes = machines.map(|machine| machine.private().into());
    let agreed = || async {
        let answers = cluster.client(machines[0]).map_err(|error| error.to_string())?.etcd_status_of(&nodes).await;
        let answers = answers.map_err(|error| error.to_string())?;
        let leaders: Vec<u64> = answers.iter().filter_map(|a| a.reply.as_ref().ok()).map(|s| s.leader).collect();
        let is_agreed = leaders.len() == 3 && leaders[0] != 0 && leaders.iter().all(|leader| *leader == leaders[0]);
        if is_agreed { Ok(()) } else { Err(format!("{leaders:?}")) }
    };
    Ok(eventually("one leader", agreed).await?)
}

async fn a_snapshot_that_ends_early_is_a_typed_error(cluster: &Cluster, first: &Machine) -> Result<()> {
    first.fail("EtcdSnapshot", CallFault::EndsEarly { after: 10_000 }, 1);
    match cluster.client(first)?.etcd_snapshot(&mut tokio::io::sink()).await {
        Err(Error::Snapshot(SnapshotError::EndedEarly { size: 10_000 })) => Ok(()),
        other => bail!("{other:?}"),
    }
}

async fn a_running_member_refuses_recovery(cluster: &Cluster, first: &Machine) -> Result<Vec<u8>> {
    let client = cluster.client(first)?;
    let mut snapshot = Vec::new();
    client.etcd_snapshot(&mut snapshot).await?;
    match client.etcd_recover(snapshot.as_slice()).await {
        Err(Error::Refused { code: Code::FailedPrecondition, .. }) => Ok(snapshot),
        other => bail!("etcd runs: {other:?}"),
    }
}

/// etcd 3.6.7 refuses every addition while a voter is unreachable; so the dead one goes first.
async fn a_dead_voter_blocks_additions_until_it_is_removed(
    cluster: &mut Cluster,
    first: &Machine,
    third: &Machine,
) -> Result<()> {
    let client = cluster.client(first)?;
    let dead = client.etcd_members().await?.into_iter().find(|member| member.hostname == third.name());
    let dead = dead.expect("it was a member").id;
    cluster.world.delete(third.name()).await;
    let answers = client.etcd_status_of(&[third.private().into()]).await?;
    ensure!(answers[0].reply.as_ref().is_err_and(|error| error.code() == Some(Code::Unavailable)), "{answers:?}");
    let newcomer = cluster.world.create("ha-cp-fresh", MachineOptions::default()).await?;
    let configuration = cluster.configuration(&newcomer, Role::ControlPlane);
    talos::Maintenance::new(newcomer.endpoint()).apply(&configuration).await?;
    let refused = || async {
        let services = cluster.client(&newcomer).map_err(|error| error.to_string())?.services().await;
        let services = services.map_err(|error| error.to_string())?;
        let etcd = services.into_iter().find(|service| service.id == "etcd").unwrap_or_default();
        let said = etcd.events.unwrap_or_default().events.into_iter().map(|event| event.msg).collect::<String>();
        if said.contains("unhealthy cluster") { Ok(()) } else { Err(said) }
    };
    eventually("etcd refuses the newcomer", refused).await?;
    client.etcd_remove_member(dead).await?;
    let voters = || async {
        let members = client.etcd_members().await.map_err(|error| error.to_string())?;
        let is_voter = members.iter().any(|member| member.hostname == "ha-cp-fresh" && !member.is_learner);
        if is_voter && members.len() == 3 { Ok(()) } else { Err(format!("{members:?}")) }
    };
    Ok(eventually("the newcomer votes", voters).await?)
}

async fn a_graceful_reset_leaves_etcd(cluster: &Cluster, first: &Machine, second: &Machine) -> Result<()> {
    cluster.client(second)?.reset(true, true).await?;
    reaches_stage(second, &Stage::Maintenance { version: None }).await?;
    let members = cluster.client(first)?.etcd_members().await?;
    ensure!(members.len() == 2 && members.iter().all(|member| member.hostname != second.name()), "{members:?}");
    Ok(())
}

/// Both remaining members lose their data; one starts anew from the snapshot.
async fn a_lost_cluster_is_recovered_from_the_snapshot(
    cluster: &Cluster,
    first: &Machine,
    snapshot: &[u8],
) -> Result<()> {
    cluster.world.delete("ha-cp-fresh").await;
    cluster.client(first)?.reset(false, true).await?;
    reaches_stage(first, &Stage::Maintenance { version: None }).await?;
    let configuration = cluster.configuration(first, Role::ControlPlane);
    talos::Maintenance::new(first.endpoint()).apply(&configuration).await?;
    let client = cluster.client(first)?;
    eventually("the node is configured again", || client.version()).await?;
    ensure!(client.bootstrap(true).await.is_err_and(|error| error.code() == Some(Code::FailedPrecondition)));
    client.etcd_recover(snapshot).await?;
    client.bootstrap(true).await?;
    let alone = || async {
        let members = client.etcd_members().await.map_err(|error| error.to_string())?;
        if members.len() == 1 { Ok(()) } else { Err(format!("{members:?}")) }
    };
    Ok(eventually("one member with the old data", alone).await?)
}
