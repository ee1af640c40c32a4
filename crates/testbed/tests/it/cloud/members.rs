//! Members of etcd that come and go, through the machine API.

use std::{fs, io};

use anyhow::{Context, Result, bail, ensure};
use futures::stream;
use talos::{Client, Error, client::Stage, protocol::machine::EtcdMember};
use testbed::{
    process::{Child, Program},
    talos::{CallFault, eventually, reaches_stage},
};
use tokio::io::AsyncReadExt;
use tokio_util::io::StreamReader;
use tonic::Code;

use super::{Node, Person};

/// The call may have been done or not: what there is now says which.
fn is_lost(reply: &Result<(), Error>) -> Result<()> {
    ensure!(reply.as_ref().is_err_and(Error::is_transient), "{reply:?}");
    Ok(())
}

/// While another member leads, or a machine is busy, etcd refuses for a moment.
async fn members(client: &Client) -> Result<Vec<EtcdMember>> {
    Ok(eventually("etcd's members", || client.etcd_members()).await?)
}

pub async fn leadership_moves(person: &Person<'_>, nodes: [&Node; 3]) -> Result<()> {
    let client = person.client(nodes[0])?;
    let members = members(&client).await?;
    ensure!(members.len() == 3 && members.iter().all(|member| !member.is_learner), "{members:?}");
    // The lead may move by itself between two questions.
    let moves = || async {
        for node in nodes {
            let client = person.client(node).map_err(|error| error.to_string())?;
            if client.etcd_forfeit_leadership().await.map_err(|error| error.to_string())?.is_some() {
                return Ok(());
            }
        }
        Err("none of them led".to_owned())
    };
    eventually("one of them leads and gives it up", moves).await?;
    let addresses = nodes.map(|node| node.machine.private().into());
    let agreed = || async {
        let answers = client.etcd_status_of(&addresses).await.map_err(|error| error.to_string())?;
        let leaders: Vec<u64> = answers.iter().filter_map(|a| a.reply.as_ref().ok()).map(|s| s.leader).collect();
        let is_agreed = leaders.len() == 3 && leaders[0] != 0 && leaders.iter().all(|leader| *leader == leaders[0]);
        if is_agreed { Ok(()) } else { Err(format!("{leaders:?}")) }
    };
    Ok(eventually("one leader", agreed).await?)
}

/// A member that was stopped alone comes back; the others go on without it.
pub async fn a_stopped_member_returns(person: &Person<'_>, first: &Node, third: &Node) -> Result<()> {
    let machine = &third.machine;
    machine.stop_etcd().await;
    let stopped = person.client(third)?;
    ensure!(stopped.etcd_status().await.is_err_and(|error| error.is_transient()));
    let services = stopped.services().await?;
    let state = services.iter().find(|service| service.id == "etcd").map(|service| service.state.as_str());
    ensure!(state == Some("Finished"), "{state:?}");
    ensure!(members(&person.client(first)?).await?.len() == 3, "two of three are a quorum");
    ensure!(members(&stopped).await?.len() == 3, "the node asks other members");
    machine.start_etcd().await?;
    let healthy = || async {
        let status = stopped.etcd_status().await.map_err(|error| error.to_string())?;
        if status.leader != 0 { Ok(()) } else { Err("no leader".to_owned()) }
    };
    eventually("the member is back", healthy).await?;
    // One that is killed from outside comes back by itself.
    let etcd = || machine.programs().into_iter().find(|program| program.name == "etcd").map(|program| program.pid);
    let before = etcd().context("etcd does not run")?;
    let log = person.stock.folder.join("kill.log");
    let kill = Program::new("kill", "/bin/kill", log).args(["-KILL", &before.to_string()]);
    ensure!(Child::start(kill)?.exited().await == 0);
    let restarted = || async { if etcd() == Some(before) { Err("the same process") } else { Ok(()) } };
    eventually("another process", restarted).await?;
    Ok(eventually("the member is back again", healthy).await?)
}

pub async fn a_running_member_refuses_recovery(person: &Person<'_>, first: &Node) -> Result<Vec<u8>> {
    let client = person.client(first)?;
    let mut snapshot = Vec::new();
    client.etcd_snapshot(&mut snapshot).await?;
    match client.etcd_recover(snapshot.as_slice()).await {
        Err(Error::Refused { code: Code::FailedPrecondition, .. }) => Ok(snapshot),
        other => bail!("etcd runs: {other:?}"),
    }
}

/// etcd 3.6.7 refuses every addition while a voter is unreachable; so the dead one goes first.
pub async fn a_dead_voter_blocks_additions_until_it_is_removed(
    person: &Person<'_>,
    first: &Node,
    dead: &Node,
) -> Result<()> {
    let client = person.client(first)?;
    let member = members(&client).await?.into_iter().find(|member| member.hostname == dead.name);
    let member = member.context("it was a member")?.id;
    let answers = client.etcd_status_of(&[dead.machine.private().into()]).await?;
    ensure!(answers[0].reply.as_ref().is_err_and(|error| error.code() == Some(Code::Unavailable)), "{answers:?}");
    person.script(&["add", "stock-cp-late"]).await?;
    let newcomer = person.client(&Node::named(person.cloud, "stock-cp-late")?)?;
    let refused = || async {
        let services = newcomer.services().await.map_err(|error| error.to_string())?;
        let etcd = services.into_iter().find(|service| service.id == "etcd").unwrap_or_default();
        let said = etcd.events.unwrap_or_default().events.into_iter().map(|event| event.msg).collect::<String>();
        if said.contains("unhealthy cluster") { Ok(()) } else { Err(said) }
    };
    eventually("etcd refuses the newcomer", refused).await?;
    first.machine.fail("EtcdRemoveMemberByID", CallFault::LostReply, 1);
    is_lost(&client.etcd_remove_member(member).await)?;
    // The broken connection may cost the next call as well.
    let done = || async {
        match client.etcd_remove_member(member).await {
            Err(Error::Refused { code: Code::NotFound, .. }) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    };
    eventually("another call learns that it was done", done).await?;
    let voters = || async {
        let members = client.etcd_members().await.map_err(|error| error.to_string())?;
        let is_voter = members.iter().any(|member| member.hostname == "stock-cp-late" && !member.is_learner);
        if is_voter && members.len() == 3 { Ok(()) } else { Err(format!("{members:?}")) }
    };
    Ok(eventually("the newcomer votes", voters).await?)
}

pub async fn a_graceful_reset_leaves_etcd(person: &Person<'_>, first: &Node, leaving: &Node) -> Result<()> {
    leaving.machine.fail("Reset", CallFault::LostReply, 1);
    is_lost(&person.client(leaving)?.reset(true, true).await)?;
    reaches_stage(&leaving.machine, &Stage::Maintenance { version: None }).await?;
    let members = members(&person.client(first)?).await?;
    ensure!(members.len() == 2 && members.iter().all(|member| member.hostname != leaving.name), "{members:?}");
    Ok(())
}

/// Until the node stores what is sent to it. A fault that is asked for from then on is not of this call.
async fn is_stored(first: &Node) {
    let is_there = || async {
        let mut files = fs::read_dir(first.machine.directory()).map_err(|error| error.to_string())?;
        let is_there =
            files.any(|file| file.is_ok_and(|file| file.path().extension().is_some_and(|kind| kind == "part")));
        if is_there { Ok(()) } else { Err("no part of it is there".to_owned()) }
    };
    eventually("the node stores a snapshot", is_there).await.expect("it stores one");
}

/// Both remaining members lose their data; one starts anew from the snapshot.
pub async fn a_lost_cluster_is_recovered_from_the_snapshot(
    person: &Person<'_>,
    first: &Node,
    snapshot: &[u8],
) -> Result<()> {
    let late = Node::named(person.cloud, "stock-cp-late")?;
    person.fault_of(&late, "delete").await?;
    ensure!(!late.machine.directory().exists(), "the disk goes with its server");
    let client = person.client(first)?;
    client.reset(false, true).await?;
    reaches_stage(&first.machine, &Stage::Maintenance { version: None }).await?;
    person.script(&["configure", &first.name]).await?;
    eventually("the node is configured again", || client.version()).await?;
    let nothing_is_uploaded = async || {
        let refused = client.bootstrap(true).await;
        let is_missing = refused.as_ref().is_err_and(|error| error.code() == Some(Code::FailedPrecondition));
        ensure!(is_missing, "{refused:?}");
        Ok(())
    };
    nothing_is_uploaded().await?;
    let breaks = Box::pin(stream::once(async {
        is_stored(first).await;
        Err::<&[u8], _>(io::Error::other("it broke"))
    }));
    let broken = client.etcd_recover(snapshot[..snapshot.len() / 2].chain(StreamReader::new(breaks))).await;
    ensure!(matches!(broken, Err(Error::Read(_))), "{broken:?}");
    nothing_is_uploaded().await?;
    first.machine.fail("EtcdRecover", CallFault::LostReply, 1);
    is_lost(&client.etcd_recover(snapshot).await)?;
    eventually("the node answers again", || client.version()).await?;
    client.etcd_recover(snapshot).await?;
    client.bootstrap(true).await?;
    let alone = || async {
        let members = client.etcd_members().await.map_err(|error| error.to_string())?;
        if members.len() == 1 { Ok(()) } else { Err(format!("{members:?}")) }
    };
    Ok(eventually("one member with the old data", alone).await?)
}

/// Programs and addresses end with the cloud.
pub async fn nothing_runs(node: &Node) -> Result<()> {
    let is_free = || async {
        for port in [2379, 2380, 6443, talos::PORT] {
            let bound = tokio::net::TcpListener::bind((node.machine.private(), port)).await;
            bound.map_err(|error| format!("{port}: {error}"))?;
        }
        Ok::<_, String>(())
    };
    Ok(eventually("nothing runs", is_free).await?)
}
