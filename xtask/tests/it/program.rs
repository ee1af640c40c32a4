//! helm and kubectl as a user runs them.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use testbed::Looks;

/// A program bound to one cluster.
pub struct Program {
    path: PathBuf,
    kubeconfig: Option<PathBuf>,
}

impl Program {
    /// One that needs no cluster.
    pub async fn offline(name: &str) -> Result<Self> {
        Ok(Self { path: testbed::tools::path(name).await?, kubeconfig: None })
    }

    pub async fn on(name: &str, control_plane: &testbed::ControlPlane) -> Result<Self> {
        let kubeconfig = Some(control_plane.kubeconfig());
        Ok(Self { kubeconfig, ..Self::offline(name).await? })
    }

    /// Standard output of a run that must succeed.
    pub fn run(&self, arguments: &str) -> Result<String> {
        let (success, output, errors) = self.try_run(arguments)?;
        if !success {
            bail!("{} {arguments}: {errors}", self.path.display());
        }
        Ok(output)
    }

    /// What a run that must fail said.
    pub fn fail(&self, arguments: &str) -> Result<String> {
        let (success, output, errors) = self.try_run(arguments)?;
        if success {
            bail!("{} {arguments} succeeded: {output}", self.path.display());
        }
        Ok(errors)
    }

    fn try_run(&self, arguments: &str) -> Result<(bool, String, String)> {
        let mut command = Command::new(&self.path);
        command.args(arguments.split_whitespace()).current_dir(root()).env_remove("KUBECONFIG");
        if let Some(kubeconfig) = &self.kubeconfig {
            command.env("KUBECONFIG", kubeconfig);
        }
        let output = command.output().with_context(|| format!("cannot start {}", self.path.display()))?;
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Ok((output.status.success(), text(output.stdout), text(output.stderr)))
    }
}

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the repository")
}

/// From a definition that was just made to its kind in what kubectl discovers.
const DISCOVERY_LIMIT: Duration = Duration::from_mins(1);

/// A performer that must outlive whatever the test does next. The definition may be new: nothing says when kubectl can
/// find its kind.
pub async fn create_performer(kubectl: &Program) -> Result<()> {
    let mut manifest = tempfile::NamedTempFile::new()?;
    manifest.write_all(
        b"apiVersion: hourglass.eigenlayer.io/v1alpha1
kind: Performer
metadata: {name: stays, namespace: default}
spec: {avsAddress: '0x1234567890abcdef1234567890abcdef12345678', image: 'registry.test/hello:1'}
",
    )?;
    let apply = format!("apply -f {}", manifest.path().display());
    let (start, mut looks) = (Instant::now(), Looks::default());
    while let Err(refusal) = kubectl.run(&apply) {
        let is_unknown = refusal.to_string().contains("no matches for kind");
        ensure!(is_unknown && start.elapsed() < DISCOVERY_LIMIT, refusal);
        looks.next().await;
    }
    Ok(())
}
