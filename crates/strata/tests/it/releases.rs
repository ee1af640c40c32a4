//! The operator as a process of its own with releases under way.

use std::{path::Path, time::Duration};

use anyhow::{Context, Result};
use futures::future::try_join_all;
use rustix::process::Signal;
use serde_json::json;
use testbed::{
    charts::{Access, ChartRepository},
    process::{Child, Program},
};

use crate::space::{HelmRole, OPERATOR_NAMESPACE, OWN, Space, eventually, lent, operator_user};

const NAMES: [&str; 5] = ["one", "two", "three", "four", "five"];
/// So that all five run at once within what one namespace may use of the default budget.
const MEMORY: &str = "144Mi";

/// `strata operator` with workspaces alone, its log and helm's files in the directory.
pub async fn operator(directory: &Path, kubeconfig: &Path, log: &str) -> Result<Child> {
    let program = Program::new("strata operator", env!("CARGO_BIN_EXE_strata"), directory.join(log))
        .args(["operator", "--layers=workspaces", "--leader-elect=false"])
        .args(["--metrics-bind-address=0", "--health-probe-bind-address=0", "--kubeconfig"])
        .args([kubeconfig])
        .args([Path::new("--helm"), &testbed::tools::path("helm").await?])
        .args([Path::new("--helm-directory"), &directory.join("helm")])
        .env("POD_NAMESPACE", OPERATOR_NAMESPACE);
    Ok(Child::start(program)?)
}

#[tokio::test]
async fn w26_a_stop_during_five_upgrades_ends_all_gently_and_leaves_none_pending() -> Result<()> {
    let control_plane = lent(OWN, HelmRole::Bound).await?;
    let directory = tempfile::tempdir()?;
    let charts = ChartRepository::start(Access::Anyone).await?;
    let space = Space::new(&control_plane, charts.url(), "stop").await?;
    let kubeconfig = control_plane.kubeconfig_as(&operator_user()).await?;
    let first = operator(directory.path(), &kubeconfig, "first.log").await?;
    let fault = |fault: &str| json!({ "memory": MEMORY, "values": { "fault": fault } });
    try_join_all(NAMES.map(|name| space.install(name, space.spec("broken", "1.0.0", fault(""))))).await?;
    // Their pods never become ready, so that all of them wait.
    try_join_all(NAMES.map(|name| space.change(name, fault("slow-start")))).await?;
    let all_wait = || async {
        let histories = try_join_all(NAMES.map(|name| space.history(name))).await?;
        Ok(histories.iter().all(|history| history.last().is_some_and(|(_, state)| state == "pending-upgrade")))
    };
    eventually("five upgrades are under way", all_wait).await?;
    first.signal(Signal::TERM)?;
    // The default grace of helm processes, and what a busy machine needs beside it.
    let ended = tokio::time::timeout(Duration::from_mins(1), first.exited()).await;
    assert_eq!(ended.context("it ends in time")?, 0, "{}", first.log_tail());
    for name in NAMES {
        space.check_history(name, "1 deployed, 2 failed").await?;
    }
    // Of each runner its lock is left, which the next start removes.
    for runner in std::fs::read_dir(directory.path().join("helm/private"))? {
        let left = std::fs::read_dir(runner?.path())?.map(|entry| Ok(entry?.file_name()));
        let left: Vec<_> = left.collect::<Result<_>>()?;
        assert_eq!(left, ["lock"], "files of operations are left");
    }

    let second = operator(directory.path(), &kubeconfig, "second.log").await?;
    try_join_all(NAMES.map(|name| space.change(name, fault("")))).await?;
    try_join_all(NAMES.map(|name| space.ready(name))).await?;
    second.signal(Signal::TERM)?;
    assert_eq!(second.exited().await, 0, "{}", second.log_tail());
    Ok(())
}
