//! A namespace of the shared control plane, and operators that run in it.

use std::time::Duration;

use anyhow::{Context, Result};
use kube::Client;
use process::{Clock, Health};
use runtime::{Fatal, Operator, Settings};
use testbed::{ControlPlane, User};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// A loaded machine needs seconds for what takes milliseconds; what never comes fails after this.
const PATIENCE: Duration = Duration::from_mins(3);

pub struct World {
    /// Of the test itself.
    pub client: Client,
    /// Of the operators under test.
    pub operators: Client,
    pub namespace: String,
}

impl World {
    pub async fn new(prefix: &str) -> Result<Self> {
        let control_plane = ControlPlane::shared().await?;
        let namespace = control_plane.namespace(prefix).await?;
        let operators = runtime::connect(control_plane.config_as(&User::admin()).await?)?;
        Ok(Self { client: control_plane.client().await?, operators, namespace })
    }

    pub fn operator(&self) -> Operator {
        self.operator_until(CancellationToken::new())
    }

    pub fn operator_until(&self, stop: CancellationToken) -> Operator {
        Operator::new(self.operators.clone(), settings(), Clock::default(), stop)
    }
}

pub fn settings() -> Settings {
    Settings {
        lease: None,
        health_address: None,
        metrics_address: None,
        grace: Duration::from_secs(1),
        request_timeout: Duration::from_secs(10),
        list_mode: None,
        instance: "test".into(),
    }
}

/// An operator that runs, with all its caches full.
pub async fn run(operator: Operator) -> Result<(Health, JoinHandle<Result<(), Fatal>>)> {
    let (health, recorder) = (operator.health.clone(), operator.events.clone());
    let running = tokio::spawn(async move {
        let ended = operator.run(|_| {}).await;
        // Layers hold one for as long as they run.
        drop(recorder);
        ended
    });
    until("all caches are full", || health.readiness().values().all(Result::is_ok)).await?;
    Ok((health, running))
}

/// Waits for what has no event to wait for.
pub async fn until(what: &str, mut is_so: impl FnMut() -> bool) -> Result<()> {
    let wait = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.with_context(|| format!("waiting until {what}"))
}

/// Waits for what a request shows.
pub async fn until_async(what: &str, mut is_so: impl AsyncFnMut() -> Result<bool>) -> Result<()> {
    let wait = async {
        while !is_so().await.unwrap_or(false) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.with_context(|| format!("waiting until {what}"))
}
