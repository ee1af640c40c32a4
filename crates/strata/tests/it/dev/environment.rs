//! One `strata dev` environment in a directory of its own.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Output,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;
use testbed::Looks;
use tokio::{
    process::Command,
    sync::{Semaphore, SemaphorePermit},
    time::Instant,
};

/// Processes that were just killed and programs that were just started are looked at this long.
pub const PATIENCE: Duration = Duration::from_mins(10);

/// Each is a dozen processes that start at once. More of them than cores only wait for each other.
static PLACES: Semaphore = Semaphore::const_new(2);

pub struct Environment {
    parent: TempDir,
    _place: SemaphorePermit<'static>,
}

impl Environment {
    /// As soon as there is a place for it.
    pub async fn new() -> Result<Self> {
        testbed::install_crypto();
        let place = PLACES.acquire().await?;
        Ok(Self { parent: tempfile::Builder::new().prefix("strata-dev-").tempdir()?, _place: place })
    }

    /// Made by `dev up` itself.
    pub fn directory(&self) -> PathBuf {
        self.parent.path().join("state")
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = command(Path::new(env!("CARGO_BIN_EXE_strata")), &["dev"]);
        command.args(args).env("STRATA_DEV_DIR", self.directory());
        // Another environment starts beside this one, and other programs run: two minutes were seen not to be enough.
        if args.first() == Some(&"up") && !args.contains(&"--wait") {
            command.args(["--wait", "15m"]);
        }
        command
    }

    /// Runs `strata dev …`, which must succeed, and returns what it printed as data.
    pub async fn dev(&self, args: &[&str]) -> Result<String> {
        Ok(String::from_utf8(self.succeeds(args).await?.stdout)?)
    }

    /// Runs `strata dev …`, which must succeed, and returns its messages on standard error.
    pub async fn messages(&self, args: &[&str]) -> Result<String> {
        Ok(String::from_utf8(self.succeeds(args).await?.stderr)?)
    }

    async fn succeeds(&self, args: &[&str]) -> Result<Output> {
        let output = run(self.command(args)).await?;
        ensure!(
            output.status.success(),
            "dev {args:?}: {}\n{}",
            String::from_utf8_lossy(&output.stderr),
            self.apiserver_says()
        );
        Ok(output)
    }

    /// The end of the API server's log, which goes with the environment.
    fn apiserver_says(&self) -> String {
        let log = fs::read_to_string(self.directory().join("control-plane/kube-apiserver.log")).unwrap_or_default();
        let lines: Vec<_> = log.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }

    pub async fn status(&self) -> Result<Value> {
        Ok(serde_json::from_str(&self.dev(&["status", "-o", "json"]).await?)?)
    }

    pub async fn client(&self) -> Result<Client> {
        let kubeconfig = Kubeconfig::read_from(self.dev(&["kubeconfig"]).await?.trim())?;
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        Ok(testbed::patient(config)?)
    }

    /// Command lines of all processes that name our directory, as each of ours does.
    pub fn processes(&self) -> Result<Vec<String>> {
        Ok(self.named()?.into_iter().map(|(_, line)| line).collect())
    }

    /// Process ids of the background halves of `dev up --detach`.
    pub fn supervisors(&self) -> Result<Vec<u32>> {
        Ok(self.named()?.into_iter().filter(|(_, line)| line.contains(" supervise ")).map(|(pid, _)| pid).collect())
    }

    /// Process ids and command lines of all processes that name our directory.
    pub fn named(&self) -> Result<Vec<(u32, String)>> {
        let directory = self.parent.path().to_str().context("a path of ASCII")?;
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc")? {
            let entry = entry?;
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            // A process may end while we look, and then has no command line.
            let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            if line.contains(directory) {
                found.push((pid, line));
            }
        }
        Ok(found)
    }
}

impl Drop for Environment {
    fn drop(&mut self) {
        // Also after a failed assertion: what runs detached would outlive the test.
        let mut down = self.command(&["down"]);
        if let Err(error) = down.as_std_mut().output() {
            eprintln!("cannot end the environment: {error}");
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "the test runs the binary as a user would")]
pub fn command(program: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(args).kill_on_drop(true);
    command
}

pub async fn run(mut command: Command) -> Result<Output> {
    Ok(command.output().await?)
}

/// A script that can be executed.
pub fn write_program(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text)?;
    Ok(fs::set_permissions(path, fs::Permissions::from_mode(0o755))?)
}

pub fn signal(pid: u32, signal: Signal) -> Result<()> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).context("no such process")?;
    Ok(kill_process(pid, signal)?)
}

pub async fn eventually(what: &str, is_so: impl AsyncFn() -> Result<bool>) -> Result<()> {
    let (deadline, mut looks) = (Instant::now() + PATIENCE, Looks::default());
    while !is_so().await? {
        if Instant::now() > deadline {
            bail!("waited in vain for {what}");
        }
        looks.next().await;
    }
    Ok(())
}
