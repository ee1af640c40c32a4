//! One control plane with Cluster API for all tests of this process.

use anyhow::{Result, anyhow};
use serde_json::{Value, json};
use testbed::{
    ControlPlane,
    capi::{self, ClusterApi},
};
use tokio::sync::{OnceCell, oneshot};

static CLUSTER_API: OnceCell<()> = OnceCell::const_new();

/// The control plane, with the definitions of the layer and Cluster API's controllers running.
pub async fn shared() -> Result<&'static ControlPlane> {
    let control_plane = ControlPlane::shared().await?;
    CLUSTER_API
        .get_or_try_init(async || {
            let crds: Vec<Value> = api::machine::crds().iter().map(|crd| json!(crd)).collect();
            control_plane.install(&crds).await?;
            start_on_own_thread(control_plane).await
        })
        .await?;
    Ok(control_plane)
}

/// A test's own runtime ends with it; these live as long as the process.
async fn start_on_own_thread(control_plane: &'static ControlPlane) -> Result<()> {
    let (sender, receiver) = oneshot::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let started = ClusterApi::start(control_plane, &capi::Options::default()).await;
            let (result, _running) = match started {
                Ok(running) => (Ok(()), Some(running)),
                Err(error) => (Err(anyhow!("{error:?}")), None),
            };
            if sender.send(result).is_ok() {
                std::future::pending::<()>().await;
            }
        });
    });
    receiver.await?
}
