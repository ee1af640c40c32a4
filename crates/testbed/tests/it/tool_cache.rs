//! Building programs into the cache.

use std::{os::unix::fs::PermissionsExt, path::Path, process::Stdio};

use anyhow::{Context, Result};
use testbed::tools;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, BufReader},
    process::{Child, Command},
};

/// Run by the tests below in processes of their own, since each needs its own environment.
#[tokio::test]
#[ignore = "started by the other tests of this file"]
async fn asker() -> Result<()> {
    println!("\nPATH {}", tools::path("etcd").await?.display());
    Ok(())
}

#[test]
#[ignore = "started by the other tests of this file"]
fn place() {
    println!("\nPATH {}", catalog::cache().display());
}

#[tokio::test]
async fn programs_are_never_taken_from_a_folder_of_all_users() -> Result<()> {
    let all = tempfile::tempdir()?;
    let mut homeless = command_of("place")?;
    let homeless = homeless.env_remove("XDG_CACHE_HOME").env_remove("HOME").env("TMPDIR", all.path()).output().await?;
    let found = path(&homeless.stdout)?;
    assert!(found.ends_with("/.cache/strata") && !Path::new(&found).starts_with(all.path()), "{found}");
    let relative = command_of("place")?.env("XDG_CACHE_HOME", "cache").env("HOME", "/home/me").output().await?;
    assert_eq!(path(&relative.stdout)?, "/home/me/.cache/strata");
    Ok(())
}

#[tokio::test]
async fn two_processes_that_need_a_program_build_it_once() -> Result<()> {
    let cache = tempfile::tempdir()?;
    let mut first = ask(cache.path()).await?;
    let mut words = BufReader::new(first.stderr.take().context("stderr is piped")?);
    let mut line = String::new();
    words.read_line(&mut line).await?;
    assert!(line.starts_with("building etcd "), "{line}");
    let second = ask(cache.path()).await?.wait_with_output().await?;
    words.read_to_string(&mut line).await?;
    assert!(line.contains("built etcd"), "{line}");

    let said = String::from_utf8_lossy(&second.stderr);
    assert!(said.starts_with("waiting for another process to build etcd"), "{said}");
    assert!(!said.contains("building"), "{said}");
    let first = first.wait_with_output().await?;
    let (first, second) = (path(&first.stdout)?, path(&second.stdout)?);
    assert_eq!(first, second);
    let version = Command::new(first).arg("--version").output().await?;
    let pinned = tools::Tool::named("etcd").unwrap().version();
    assert!(String::from_utf8_lossy(&version.stdout).contains(pinned), "{version:?}");
    Ok(())
}

#[tokio::test]
async fn a_variable_names_the_program_to_use() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let mine = script(directory.path(), "echo mine")?;
    let output = asker_command()?.env("STRATA_ETCD", &mine).output().await?;
    assert_eq!(path(&output.stdout)?, mine);
    let output = asker_command()?.env("STRATA_ETCD", "/nonexistent/etcd").output().await?;
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("STRATA_ETCD"), "{said}");
    Ok(())
}

#[tokio::test]
async fn kubebuilder_assets_are_used_unless_they_are_too_old() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let newer = script(directory.path(), "echo 'etcd Version: 3.99.0'")?;
    let output = asker_command()?.env("KUBEBUILDER_ASSETS", directory.path()).output().await?;
    assert_eq!(path(&output.stdout)?, newer);
    let older = script(directory.path(), "echo 'etcd Version: 3.1.0'")?;
    let output = asker_command()?.env("KUBEBUILDER_ASSETS", directory.path()).output().await?;
    assert_ne!(path(&output.stdout)?, older);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("ignoring") && said.contains("3.1"), "{said}");
    Ok(())
}

fn script(directory: &Path, line: &str) -> Result<String> {
    let path = directory.join("etcd");
    std::fs::write(&path, format!("#!/bin/sh\n{line}\n"))?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))?;
    Ok(path.to_str().context("temporary paths are UTF-8")?.to_owned())
}

async fn ask(cache: &Path) -> Result<Child> {
    // Go's own cache follows XDG_CACHE_HOME too; keeping it makes this a link instead of a whole build.
    let go_cache = Command::new("go").args(["env", "GOCACHE"]).output().await?.stdout;
    let go_cache = String::from_utf8(go_cache)?;
    Ok(asker_command()?.env("XDG_CACHE_HOME", cache).env("GOCACHE", go_cache.trim()).spawn()?)
}

fn asker_command() -> Result<Command> {
    command_of("asker")
}

fn command_of(test: &str) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command
        .arg(format!("tool_cache::{test}"))
        .args(["--exact", "--ignored", "--nocapture"])
        .env_remove("STRATA_ETCD")
        .env_remove("KUBEBUILDER_ASSETS")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    Ok(command)
}

fn path(stdout: &[u8]) -> Result<String> {
    let text = String::from_utf8_lossy(stdout);
    let path = text.lines().find_map(|line| line.strip_prefix("PATH "));
    path.map(str::to_owned).with_context(|| format!("no path in {text}"))
}
