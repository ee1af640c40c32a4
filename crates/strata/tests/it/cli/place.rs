//! A namespace with the definitions installed, and the commands run in it.

use std::{path::PathBuf, process::Stdio, time::Duration};

use anyhow::{Context, Result, ensure};
use api::workspace::{HelmRelease, Workspace};
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
    runtime::wait::await_condition,
};
use serde_json::{Value, json};
use testbed::ControlPlane;
use tokio::{process::Command, sync::OnceCell};

/// A busy machine is slow; nothing here takes a tenth of it otherwise.
const PATIENCE: Duration = Duration::from_mins(3);

pub struct Place {
    pub control_plane: &'static ControlPlane,
    pub namespace: String,
    pub kubeconfig: PathBuf,
    pub releases: Api<HelmRelease>,
    pub workspaces: Api<Workspace>,
}

/// How a command ended and what it said.
#[derive(Debug)]
pub struct Said {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Said {
    /// Standard output of a command that succeeded.
    pub fn data(self) -> Result<String> {
        ensure!(self.code == 0, "{self:?}");
        Ok(self.out)
    }

    /// Standard error of a command that ended with this code and printed no data.
    pub fn refusal(self, code: i32) -> Result<String> {
        ensure!(self.code == code && self.out.is_empty(), "{self:?}");
        Ok(self.err)
    }
}

impl Place {
    pub async fn new() -> Result<Self> {
        static INSTALLED: OnceCell<()> = OnceCell::const_new();
        let control_plane = ControlPlane::shared().await?;
        let install = async || -> Result<()> {
            let crds: Vec<_> = strata::layers::crds().iter().map(serde_json::to_value).collect::<Result<_, _>>()?;
            Ok(control_plane.install(&crds).await?)
        };
        INSTALLED.get_or_try_init(install).await?;
        let namespace = control_plane.namespace("cli").await?;
        let client = control_plane.client().await?;
        Ok(Self {
            control_plane,
            kubeconfig: control_plane.kubeconfig(),
            releases: Api::namespaced(client.clone(), &namespace),
            workspaces: Api::namespaced(client, &namespace),
            namespace,
        })
    }

    /// Runs `strata …` in this namespace.
    pub async fn strata(&self, args: &[&str]) -> Result<Said> {
        run(self.command(args)).await
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = strata(args);
        command.args(["-n", &self.namespace, "--kubeconfig"]).arg(&self.kubeconfig);
        command
    }

    /// A release with a status, as an operator leaves it.
    pub async fn release(&self, name: &str, spec: Value, status: Value) -> Result<()> {
        let object = json!({ "metadata": { "name": name, "labels": { "app": name } }, "spec": spec });
        self.releases.create(&PostParams::default(), &serde_json::from_value(object)?).await?;
        self.report(name, status).await
    }

    /// Writes a status with the object's present generation where the given one says 0.
    pub async fn report(&self, name: &str, status: Value) -> Result<()> {
        let generation = self.releases.get(name).await?.metadata.generation.context("no generation")?;
        let status = current(status, generation);
        self.releases.patch_status(name, &PatchParams::default(), &Patch::Merge(json!({ "status": status }))).await?;
        Ok(())
    }

    pub async fn report_workspace(&self, name: &str, status: Value) -> Result<()> {
        let generation = self.workspaces.get(name).await?.metadata.generation.context("no generation")?;
        let status = current(status, generation);
        self.workspaces.patch_status(name, &PatchParams::default(), &Patch::Merge(json!({ "status": status }))).await?;
        Ok(())
    }

    /// The release once it is so.
    pub async fn until(&self, name: &str, is_so: impl Fn(&HelmRelease) -> bool) -> Result<HelmRelease> {
        let condition = |object: Option<&HelmRelease>| object.is_some_and(&is_so);
        let found = tokio::time::timeout(PATIENCE, await_condition(self.releases.clone(), name, condition)).await;
        found.context("waited in vain")??.context("it is gone")
    }

    pub async fn until_workspace(&self, name: &str, is_so: impl Fn(&Workspace) -> bool) -> Result<Workspace> {
        let condition = |object: Option<&Workspace>| object.is_some_and(&is_so);
        let found = tokio::time::timeout(PATIENCE, await_condition(self.workspaces.clone(), name, condition)).await;
        found.context("waited in vain")??.context("it is gone")
    }
}

/// A status of the given generation: an operator reports which one it has worked on.
fn current(mut status: Value, generation: i64) -> Value {
    if status["observedGeneration"] == 0 {
        status["observedGeneration"] = json!(generation);
    }
    for condition in status["conditions"].as_array_mut().into_iter().flatten() {
        condition["observedGeneration"] = json!(generation);
    }
    status
}

/// A status of the present generation with this Ready condition.
pub fn ready(status: &str, reason: &str, message: &str) -> Value {
    json!({ "observedGeneration": 0, "conditions": [condition("Ready", status, reason, message)] })
}

pub fn condition(kind: &str, status: &str, reason: &str, message: &str) -> Value {
    let since = "2026-01-01T00:00:00Z";
    json!({ "type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": since })
}

pub fn chart() -> Value {
    json!({ "repo": "https://charts.example", "name": "four", "version": "^1.0" })
}

#[expect(clippy::disallowed_methods, reason = "the test runs the binary as a user would")]
pub fn strata(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_strata"));
    command.args(args).stdin(Stdio::null()).kill_on_drop(true);
    command
}

pub async fn run(mut command: Command) -> Result<Said> {
    let output = command.output().await?;
    let text = |bytes| String::from_utf8(bytes);
    Ok(Said { code: output.status.code().context("a signal")?, out: text(output.stdout)?, err: text(output.stderr)? })
}

/// Words of each line with single spaces, and ages, which grow while the test runs, as `AGO`.
pub fn steady(text: &str) -> String {
    let is_age = |word: &str| {
        word.len() > 1
            && word.starts_with(|first: char| first.is_ascii_digit())
            && word.chars().all(|c| c.is_ascii_digit() || "smhdy".contains(c))
            && word.ends_with(|last: char| last.is_ascii_lowercase())
    };
    let line = |line: &str| {
        let words = line.split_whitespace().map(|word| if is_age(word) { "AGO" } else { word });
        words.collect::<Vec<_>>().join(" ")
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}
