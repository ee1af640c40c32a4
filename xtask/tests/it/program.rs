//! helm and kubectl as a user runs them.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

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

/// A performer that must outlive whatever the test does next.
pub fn create_performer(kubectl: &Program) -> Result<()> {
    let mut manifest = tempfile::NamedTempFile::new()?;
    manifest.write_all(
        b"apiVersion: hourglass.eigenlayer.io/v1alpha1
kind: Performer
metadata: {name: stays, namespace: default}
spec: {avsAddress: '0x1234567890abcdef1234567890abcdef12345678', image: 'registry.test/hello:1'}
",
    )?;
    kubectl.run(&format!("apply -f {}", manifest.path().display()))?;
    Ok(())
}
