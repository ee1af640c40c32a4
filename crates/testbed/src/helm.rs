//! The stock helm programs, each with settings of its own: nothing of the machine's user is read or written.

use std::{
    ffi::{OsStr, OsString},
    io,
    path::{Path, PathBuf},
};

use tempfile::TempDir;

use crate::tools;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Tool(#[from] tools::Error),
    #[error("cannot run helm")]
    Io(#[from] io::Error),
    /// Without the arguments, which may hold a password.
    #[error("helm {command} failed: {said}")]
    Failed { command: String, said: String },
}

/// One helm with a home of its own, removed when dropped.
#[derive(Debug)]
pub struct Helm {
    program: PathBuf,
    home: TempDir,
}

impl Helm {
    /// The helm that the operator runs.
    pub async fn current() -> Result<Self, Error> {
        Self::of("helm").await
    }

    /// Helm 3, whose releases are still in many clusters.
    pub async fn three() -> Result<Self, Error> {
        Self::of("helm3").await
    }

    async fn of(tool: &str) -> Result<Self, Error> {
        let program = tools::path(tool).await?;
        Ok(Self { program, home: tempfile::Builder::new().prefix("strata-helm-").tempdir()? })
    }

    pub fn home(&self) -> &Path {
        self.home.path()
    }

    /// What it printed on both streams, or what it complained about. A cluster is used only where `--kubeconfig` names it.
    pub async fn run(&self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Result<String, Error> {
        let args: Vec<OsString> = args.into_iter().map(|arg| arg.as_ref().to_owned()).collect();
        let mut command = tokio::process::Command::new(&self.program);
        for directory in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
            command.env(directory, self.home());
        }
        command.env("KUBECONFIG", self.home().join("no-kubeconfig")).current_dir(self.home());
        let output = command.args(&args).kill_on_drop(true).output().await?;
        let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        if output.status.success() {
            return Ok(said.into_owned());
        }
        let command = args.first().map(|command| command.to_string_lossy().into_owned()).unwrap_or_default();
        Err(Error::Failed { command, said: said.trim().to_owned() })
    }
}
