//! The floor: helm in a loop, as a script would run it.

use std::{path::Path, time::Instant};

use anyhow::{Result, bail};
use futures::{StreamExt, TryStreamExt, stream};
use serde::Serialize;

use super::PARALLEL;
use crate::bench::ground::{Ground, helm_program};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Bare {
    pub count: usize,
    pub parallel: usize,
    pub wall_seconds: f64,
}

impl Bare {
    pub fn and(self, other: &Self) -> Self {
        let (count, wall_seconds) = (self.count + other.count, self.wall_seconds + other.wall_seconds);
        Self { count, wall_seconds, ..self }
    }
}

/// `helm upgrade --install` with helm's own settings, the chart on disk, under the identity that the operator gives it.
pub async fn measure(ground: &Ground, chart: &Path, count: usize) -> Result<Bare> {
    let namespace = ground.control_plane.namespace("bare").await?;
    let kubeconfig = ground.control_plane.kubeconfig_as(&Ground::operator_user()).await?;
    let (helm, home) = (helm_program().await?, ground.control_plane.directory().join("bare-home"));
    std::fs::create_dir_all(&home)?;
    ground.settled().await?;
    let install = |number: usize| {
        let mut command = tokio::process::Command::new(&helm);
        command.args(["upgrade", "--install", &format!("bench-{number:04}")]).arg(chart);
        command.args(["--namespace", &namespace, "--set-string", "note=bench", "--kubeconfig"]).arg(&kubeconfig);
        // Its discovery is cached there, as the operator's helm has it.
        command.env_clear().env("HOME", &home).kill_on_drop(true);
        async move {
            let output = command.output().await?;
            if !output.status.success() {
                bail!("helm failed: {}", String::from_utf8_lossy(&output.stderr));
            }
            Ok(())
        }
    };
    // The first fills the cache; the operator's may be as cold as it likes.
    let started = Instant::now();
    stream::iter((0..count).map(install)).buffer_unordered(PARALLEL).try_collect::<()>().await?;
    Ok(Bare { count, parallel: PARALLEL, wall_seconds: started.elapsed().as_secs_f64() })
}
