//! A cloud in this process, and a cluster in it that the script of the test suite builds.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use testbed::cloud::{Cloud, Stock};

use super::memory::{self, Watch};

const NAME: &str = "bench";
const WORKERS: usize = 3;
const CONTROL_PLANES: usize = 3;
/// As in the tests and in `strata dev`.
pub const FSYNC: bool = false;
/// Far above what a busy machine was seen to need; it ends a benchmark that would hang.
const PATIENCE: Duration = Duration::from_mins(10);

#[derive(Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Built {
    pub control_planes: usize,
    pub workers: usize,
    /// From an empty folder, the simulators' own start included.
    pub wall_seconds: f64,
    /// The most that all processes had resident meanwhile.
    pub most_gib: f64,
    /// Once all Nodes were ready.
    pub settled_gib: f64,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Replaced {
    /// From the request that deletes the server until the new one votes in etcd and its Node is ready.
    pub wall_seconds: f64,
    pub most_gib: f64,
}

/// A cluster that is up.
pub struct Running {
    cloud: Cloud,
    stock: Stock,
    pub built: Built,
}

impl Running {
    pub async fn start(folder: &Path) -> Result<Self> {
        let watch = Watch::begin();
        let started = Instant::now();
        let cloud = Cloud::start(&folder.join("cloud")).await?;
        let stock = Stock { name: NAME, folder: folder.join("stock"), workers: WORKERS };
        run(&stock, &cloud, &["up"]).await?;
        let wall_seconds = started.elapsed().as_secs_f64();
        let (most_gib, settled_gib) = (watch.most_gib(), memory::now_gib());
        let built = Built { control_planes: CONTROL_PLANES, workers: WORKERS, wall_seconds, most_gib, settled_gib };
        Ok(Self { cloud, stock, built })
    }

    pub async fn replace(&self) -> Result<Replaced> {
        let watch = Watch::begin();
        let started = Instant::now();
        run(&self.stock, &self.cloud, &["replace", &format!("{NAME}-cp-3")]).await?;
        Ok(Replaced { wall_seconds: started.elapsed().as_secs_f64(), most_gib: watch.most_gib() })
    }

    pub async fn stop(self) -> Built {
        self.cloud.stop().await;
        self.built
    }
}

async fn run(stock: &Stock, cloud: &Cloud, arguments: &[&str]) -> Result<()> {
    let mut command = stock.script(cloud, arguments).await?;
    let ended = tokio::time::timeout(PATIENCE, command.output()).await;
    let output = ended.with_context(|| format!("{arguments:?} does not end"))??;
    let said = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    ensure!(output.status.success(), "{arguments:?}: {said}");
    Ok(())
}
