//! The machine runs out of something: helm is not started, that is reported, and the next one is started when there is
//! enough again.

use std::{
    fs::{self, File},
    process::Output,
};

use anyhow::{Context, Result, ensure};
use runtime::Key;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::process::Command;
use workspaces::helm::{Class, Contents, Operation, Private};

use crate::harness::{Scene, deploy, install, with};

/// Runs a test of this file in a process of its own.
async fn run(program: &str, arguments: &[&str], test: &str) -> Result<Output> {
    let test = format!("exhaustion::{test}");
    #[expect(clippy::disallowed_methods, reason = "the program is this test's own binary")]
    let mut command = Command::new(program);
    command.args(arguments).args([test.as_str(), "--exact", "--ignored", "--nocapture"]).kill_on_drop(true);
    Ok(command.output().await?)
}

fn check(output: &Output) -> Result<()> {
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success() && said.contains("1 passed"), "{said}\n{errors}");
    Ok(())
}

/// In a directory that is a disk of 256 KiB.
#[tokio::test]
#[ignore = "started by a_full_disk_is_named_and_helm_runs_when_there_is_room_again"]
async fn on_a_small_disk() -> Result<()> {
    let disk = std::env::current_dir()?;
    let scene = Scene::fake("exit 0", |config| config.private = disk.join("private"))?;
    let filler = disk.join("filler");
    fs::write(&filler, vec![0; 1 << 20]).unwrap_err();
    let request = || {
        let install = Operation::Install(deploy("/none.tgz".into()));
        let values = vec![Private::new("canary".repeat(1000))];
        with(&Key::new("a", "web"), Contents { values, ..Contents::new(install) })
    };
    let failure = scene.run(request()).await?.result.unwrap_err();
    assert_eq!(failure.class, Class::Killed, "no failure of the release: {failure}");
    let place = disk.join("private").display().to_string();
    for part in ["cannot start helm", "No space left on device", &place] {
        assert!(failure.message.contains(part), "{failure}");
    }
    assert!(!failure.message.contains("canary"), "{failure}");
    fs::remove_file(filler)?;
    scene.run(request()).await?.result?;
    Ok(())
}

#[tokio::test]
async fn a_full_disk_is_named_and_helm_runs_when_there_is_room_again() -> Result<()> {
    const MOUNT: &str = "mount -t tmpfs -o size=256k tmpfs \"$0\" || exit 99; cd \"$0\"; exec \"$@\"";
    let place = tempfile::tempdir()?;
    let (directory, own) = (place.path().display().to_string(), std::env::current_exe()?.display().to_string());
    let arguments = ["--user", "--map-root-user", "--mount", "sh", "-c", MOUNT, directory.as_str(), own.as_str()];
    let output = run("unshare", &arguments, "on_a_small_disk").await.context("unshare of util-linux")?;
    if output.status.code() == Some(99) || String::from_utf8_lossy(&output.stderr).contains("unshare failed") {
        let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return testbed::skip(format!("no disk can be mounted here: {why}")).map_err(anyhow::Error::msg);
    }
    check(&output)
}

#[tokio::test]
#[ignore = "started by no_file_descriptor_left_is_named_and_helm_runs_when_there_are_some_again"]
async fn with_few_descriptors() -> Result<()> {
    let (scene, key) = (Scene::fake("exit 0", |_| {})?, Key::new("a", "web"));
    scene.run(install(&key)).await?.result?;
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(100), maximum })?;
    let mut held = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        held.push(file);
    }
    let failure = scene.run(install(&key)).await?.result.unwrap_err();
    assert_eq!(failure.class, Class::Killed, "no failure of the release: {failure}");
    assert_eq!(failure.message, "cannot start helm: Too many open files (os error 24)");
    drop(held);
    scene.run(install(&key)).await?.result?;
    assert!(scene.operation_directories().is_empty(), "files that could not be removed then are removed now");
    Ok(())
}

#[tokio::test]
async fn no_file_descriptor_left_is_named_and_helm_runs_when_there_are_some_again() -> Result<()> {
    let own = std::env::current_exe()?.display().to_string();
    check(&run(&own, &[], "with_few_descriptors").await?)
}
