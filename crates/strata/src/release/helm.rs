//! The helm program on this machine, with a home of its own: nothing of the user's helm is read or written, and what
//! is secret lies in private files that go when this does.

use std::{
    ffi::OsString,
    fs::OpenOptions,
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    process::Stdio,
};

use tempfile::TempDir;
use tokio::process::Command;
use workspaces::helm::{Private, REGISTRY, REPOSITORIES, redact};

use crate::{Failure, connection::ConnectionFlags, output::indented};

pub struct Helm<'a> {
    program: PathBuf,
    connection: &'a ConnectionFlags,
    /// For its owner alone, which is tempfile's own way.
    home: TempDir,
    secrets: Vec<Private>,
}

impl<'a> Helm<'a> {
    pub fn new(program: PathBuf, connection: &'a ConnectionFlags) -> Result<Self, Failure> {
        let home = tempfile::Builder::new().prefix("strata-diff-").tempdir().map_err(|error| on_disk(&error))?;
        Ok(Self { program, connection, home, secrets: Vec::new() })
    }

    /// A file that we alone can read.
    pub fn write(&self, name: &str, content: &[u8]) -> Result<PathBuf, Failure> {
        let path = self.home.path().join(name);
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        file.and_then(|mut file| file.write_all(content)).map_err(|error| on_disk(&error))?;
        Ok(path)
    }

    pub fn home(&self) -> &Path {
        self.home.path()
    }

    /// The chart that was fetched into our home.
    pub fn archive(&self) -> Result<PathBuf, Failure> {
        let entries = std::fs::read_dir(self.home()).map_err(|error| on_disk(&error))?.flatten();
        let mut paths = entries.map(|entry| entry.path());
        let archive = paths.find(|path| path.extension().is_some_and(|end| end == "tgz"));
        archive.ok_or_else(|| Failure::new("helm fetched no chart"))
    }

    /// Never to be quoted in a message.
    pub fn conceal(&mut self, secrets: Vec<Private>) {
        self.secrets.extend(secrets);
    }

    /// What it printed, or what it complained about, with a hint for that case.
    pub async fn run(&self, doing: &str, hint: &str, arguments: Vec<OsString>) -> Result<String, Failure> {
        let output = self.command(arguments).output().await.map_err(|error| {
            Failure::new(format!("cannot start {}: {error}", self.program.display()))
                .hint("install helm, or name it with --helm or STRATA_HELM")
        })?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let said = redact(&String::from_utf8_lossy(&output.stderr), &self.secrets);
        Err(Failure::new(format!("cannot {doing}; helm said:\n{}", indented(&said).trim_end())).hint(hint))
    }

    #[expect(clippy::disallowed_methods, reason = "the user's own helm, for one answer")]
    fn command(&self, arguments: Vec<OsString>) -> Command {
        let mut command = Command::new(&self.program);
        // The rest of the environment is the user's: credential programs of a kubeconfig need it.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("HELM_")) {
            command.env_remove(name);
        }
        for (name, place) in [
            ("HELM_CACHE_HOME", "cache"),
            ("HELM_CONFIG_HOME", "config"),
            ("HELM_DATA_HOME", "data"),
            ("HELM_REPOSITORY_CONFIG", REPOSITORIES),
            ("HELM_REGISTRY_CONFIG", REGISTRY),
        ] {
            command.env(name, self.home().join(place));
        }
        command.args(arguments);
        if let Some(kubeconfig) = &self.connection.kubeconfig {
            command.arg("--kubeconfig").arg(kubeconfig);
        }
        if let Some(context) = &self.connection.context {
            command.arg("--kube-context").arg(context);
        }
        command.stdin(Stdio::null()).kill_on_drop(true);
        command
    }
}

pub fn words<const N: usize>(words: [&str; N]) -> Vec<OsString> {
    words.map(OsString::from).into()
}

pub fn on_disk(error: &std::io::Error) -> Failure {
    Failure::new(format!("cannot use the directory for temporary files: {error}"))
        .hint("TMPDIR names another directory")
}
