//! Helm ends with the process that runs it, whatever ends that.

use std::{path::PathBuf, process::Stdio, time::Duration};

use anyhow::{Context, Result};
use runtime::{Key, child::Silence};
use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
};
use workspaces::helm::{Contents, Operation, Private, Runner};

use crate::harness::{Scene, config, deploy, is_alive, with};

const MARKER: &str = "HELM ";
/// Refuses to end, and has a child that does as well.
const DEAF: &str = r#"trap '' TERM; sh -c 'trap "" TERM; sleep 1000; true' & echo "$! $$ $PPID" >"$SCENE/pids.new"
                      mv "$SCENE/pids.new" "$SCENE/pids"; while :; do sleep 1000; done"#;

/// Short, so that the test need not wait long; a process that is not run for eleven seconds still gives signs of life in time.
const LEASE: Duration = Duration::from_secs(27);

/// The victim: run by the tests below in a process of its own.
#[tokio::test]
#[ignore = "started and killed by helm_ends_with_a_killed_operator and helm_ends_with_the_lease_of_a_stopped_operator"]
async fn victim() -> Result<()> {
    let scene = Scene::fake(DEAF, |config| config.silence = Some(Silence::within(LEASE)))?;
    let install = Operation::Install(deploy("/none.tgz".into()));
    let contents = Contents { values: vec![Private::new("canary")], ..Contents::new(install) };
    scene.runner.submit(with(&Key::new("a", "web"), contents))?;
    let pids = scene.until("not started", || scene.lines("pids").pop()).await?;
    println!("\n{MARKER}{}", serde_json::to_string(&(pids, scene.directory.path()))?);
    std::future::pending().await
}

/// The victim, the process ids of its helm, helm's child and its guard, and its directory.
async fn start() -> Result<(Child, String, PathBuf)> {
    #[expect(clippy::disallowed_methods, reason = "the victim is this test's own binary")]
    let mut victim = Command::new(std::env::current_exe()?)
        .args(["lifetime::victim", "--exact", "--ignored", "--nocapture"])
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let mut lines = BufReader::new(victim.stdout.take().context("stdout is piped")?).lines();
    let (pids, directory): (String, PathBuf) = loop {
        let line = lines.next_line().await?.context("the victim ended too early")?;
        if let Some(found) = line.strip_prefix(MARKER) {
            break serde_json::from_str(found)?;
        }
    };
    assert!(pids.split(' ').count() == 3 && pids.split(' ').all(is_alive), "{pids}");
    Ok((victim, pids, directory))
}

#[tokio::test]
async fn helm_ends_with_the_lease_of_a_stopped_operator() -> Result<()> {
    let (mut victim, pids, directory) = start().await?;
    let scene = Scene::fake("", |_| {})?;
    let pid = victim.id().and_then(|pid| Pid::from_raw(pid.cast_signed())).context("the victim lives")?;
    kill_process(pid, Signal::STOP)?;
    scene.until("helm outlives the lease", || (!pids.split(' ').any(is_alive)).then_some(())).await?;
    victim.kill().await?;
    std::fs::remove_dir_all(directory)?;
    Ok(())
}

#[tokio::test]
async fn helm_ends_with_a_killed_operator() -> Result<()> {
    let (mut victim, pids, directory) = start().await?;
    victim.kill().await?;
    let private = directory.join("private");
    assert_eq!(std::fs::read_dir(&private)?.count(), 1, "a killed process cannot clear up");
    let next = Runner::start(config("/no/helm".into(), &directory))?;
    assert!(!pids.split(' ').take(2).any(is_alive), "two operators' helms could meet");
    let scene = Scene::fake("", |_| {})?;
    scene.until("its guard lives on", || (!pids.split(' ').any(is_alive)).then_some(())).await?;
    let left: Vec<_> = std::fs::read_dir(&private)?.collect::<Result<_, _>>()?;
    assert_eq!(left.len(), 1, "only the next runner's own is left: {left:?}");
    assert!(!left[0].path().join("0").exists());
    drop(next);
    std::fs::remove_dir_all(directory)?;
    Ok(())
}
