//! Children end with the process that started them, whatever ends it.

use std::{
    net::SocketAddrV4,
    path::PathBuf,
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use serde::de::DeserializeOwned;
use testbed::{
    ControlPlane, Options,
    hetzner::Loopback,
    talos::{Impairment, MachineOptions, World, WorldOptions},
};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
};

use crate::PATIENCE;

const MARKER: &str = "PROGRAMS ";

/// The victim: run by the test below in a process of its own.
#[tokio::test]
#[ignore = "started and killed by children_end_with_a_killed_parent"]
async fn victim() -> Result<()> {
    let control_plane = ControlPlane::start(Options::bare()).await?;
    // A stopped process must end as well.
    control_plane.etcd().pause()?;
    let pids: Vec<_> = control_plane.programs().iter().map(|program| program.pid).collect();
    println!("\n{MARKER}{}", serde_json::to_string(&(pids, control_plane.directory()))?);
    std::future::pending().await
}

/// Starts a victim, and reads what it printed of itself when it was ready to be killed.
async fn started<T: DeserializeOwned>(victim: &str) -> Result<(Child, T)> {
    let mut victim = Command::new(std::env::current_exe()?)
        .args([victim, "--exact", "--ignored", "--nocapture"])
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let mut lines = BufReader::new(victim.stdout.take().context("stdout is piped")?).lines();
    loop {
        let line = lines.next_line().await?.context("the victim ended too early")?;
        if let Some(said) = line.strip_prefix(MARKER) {
            return Ok((victim, serde_json::from_str(said)?));
        }
    }
}

#[tokio::test]
async fn children_end_with_a_killed_parent() -> Result<()> {
    let (mut victim, (pids, directory)): (_, (Vec<u32>, PathBuf)) = started("lifetime::victim").await?;
    assert!(pids.len() == 2 && pids.iter().all(|&pid| is_alive(pid)), "{pids:?}");
    victim.kill().await?;
    eventually("children live on", || !pids.iter().any(|&pid| is_alive(pid))).await?;
    eventually("the directory is still there", || !directory.exists()).await
}

/// A testbed of servers, one of which is cut off: run by the test below in a process of its own.
#[tokio::test]
#[ignore = "started and killed by nothing_is_left_of_a_killed_testbed_of_servers"]
async fn victim_with_servers() -> Result<()> {
    let world = World::start(WorldOptions::default()).await?;
    let server = world.create("victim", MachineOptions::default()).await?;
    if testbed::talos::partitions_here().is_ok() {
        server.impair(Impairment::Partition).await?;
    }
    println!("\n{MARKER}{}", serde_json::to_string(&(server.endpoint(), world.directory()))?);
    std::future::pending().await
}

#[tokio::test]
async fn nothing_is_left_of_a_killed_testbed_of_servers() -> Result<()> {
    let (mut victim, said) = started("lifetime::victim_with_servers").await?;
    let (endpoint, directory): (SocketAddrV4, PathBuf) = said;
    let number = endpoint.ip().octets()[1];
    let table = format!("strata_{number}");
    assert!(directory.exists() && Loopback::claim_number(number).is_none());
    assert_eq!(tables()?.contains(&table), testbed::talos::partitions_here().is_ok());
    victim.kill().await?;
    eventually("the directory is still there", || !directory.exists()).await?;
    eventually("the rules are still there", || tables().is_ok_and(|tables| !tables.contains(&table))).await?;
    eventually("the address is still in use", || std::net::TcpListener::bind(endpoint).is_ok()).await?;
    eventually("the range is still claimed", || Loopback::claim_number(number).is_some()).await
}

/// Of nftables; none where that is not installed.
fn tables() -> Result<Vec<String>> {
    let Ok(listed) = std::process::Command::new("nft").args(["list", "tables"]).output() else { return Ok(Vec::new()) };
    let text = String::from_utf8(listed.stdout)?;
    Ok(text.lines().filter_map(|line| line.split_whitespace().last()).map(str::to_owned).collect())
}

#[tokio::test]
async fn a_dropped_control_plane_leaves_nothing_behind() -> Result<()> {
    let control_plane = ControlPlane::start(Options::bare()).await?;
    let pids: Vec<_> = control_plane.programs().iter().map(|program| program.pid).collect();
    let directory = control_plane.directory().to_owned();
    drop(control_plane);
    assert!(!pids.iter().any(|&pid| is_alive(pid)), "{pids:?}");
    eventually("the directory is still there", || !directory.exists()).await
}

/// Processes and files of others give no event to wait for.
async fn eventually(complaint: &str, is_done: impl Fn() -> bool) -> Result<()> {
    let started = Instant::now();
    while !is_done() {
        if started.elapsed() > PATIENCE {
            bail!("{complaint} after {} s", PATIENCE.as_secs());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

/// A zombie is dead, only not yet collected by whoever inherited it.
fn is_alive(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    status.rsplit(") ").next().is_some_and(|fields| !fields.is_empty() && !fields.starts_with(['Z', 'X']))
}
