//! Children end with the process that started them, whatever ends it.

use std::{
    path::PathBuf,
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use testbed::{ControlPlane, Options};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::Command,
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

#[tokio::test]
async fn children_end_with_a_killed_parent() -> Result<()> {
    let mut victim = Command::new(std::env::current_exe()?)
        .args(["lifetime::victim", "--exact", "--ignored", "--nocapture"])
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let mut lines = BufReader::new(victim.stdout.take().context("stdout is piped")?).lines();
    let (pids, directory): (Vec<u32>, PathBuf) = loop {
        let line = lines.next_line().await?.context("the victim ended too early")?;
        if let Some(programs) = line.strip_prefix(MARKER) {
            break serde_json::from_str(programs)?;
        }
    };
    assert!(pids.len() == 2 && pids.iter().all(|&pid| is_alive(pid)), "{pids:?}");
    victim.kill().await?;
    eventually("children live on", || !pids.iter().any(|&pid| is_alive(pid))).await?;
    eventually("the directory is still there", || !directory.exists()).await
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
