//! An operator that has no file descriptor left goes on when it has some again.

use std::fs;

use anyhow::{Context, Result};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

use crate::{
    harness::spec,
    process::operator,
    scene::{Scene, eventually},
};

#[tokio::test]
async fn an_operator_without_file_descriptors_says_so_and_recovers_by_itself() -> Result<()> {
    let scene = Scene::lent().await?;
    let space = scene.space("descriptors").await?;
    let operator = operator(&scene, &scene.proxy, &[])?;
    space.create("before", spec()).await?;
    space.until_pod("before", "there", |_| true).await.with_context(|| operator.log_tail())?;

    let pid = Pid::from_raw(operator.pid().cast_signed()).context("it runs")?;
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    // Less than it has, so that no new one can be opened.
    prlimit(Some(pid), Resource::Nofile, Rlimit { current: Some(3), maximum })?;
    let log = &operator.program().log;
    let is_said = || fs::read_to_string(log).is_ok_and(|log| log.contains("Too many open files"));
    eventually("it says what it lacks", || {
        for kind in ["performers", "pods", "services"] {
            scene.proxy.cut_watches(kind);
        }
        is_said()
    })
    .await?;
    space.create("starved", spec()).await?;
    prlimit(Some(pid), Resource::Nofile, Rlimit { current, maximum })?;
    space.until_pod("starved", "there", |_| true).await.with_context(|| operator.log_tail())?;
    assert!(operator.is_running(), "{}", operator.log_tail());
    Ok(())
}
