//! Killing, pausing and restarting the API server and etcd; state is kept.

use std::time::Duration;

use anyhow::Result;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::{Api, api::PostParams, runtime::wait::conditions::is_pod_running};
use serde_json::json;
use testbed::{ControlPlane, Options};

use crate::eventually;

#[tokio::test]
async fn a_restarted_api_server_and_etcd_keep_state_and_address() -> Result<()> {
    let control_plane = ControlPlane::start(Options::bare()).await?;
    let maps = remember(&control_plane).await?;
    let before = control_plane.programs();

    control_plane.apiserver().kill().await?;
    assert!(maps.get("remembered").await.is_err(), "a killed API server answers nobody");
    control_plane.apiserver().restart().await?;
    control_plane.ready().await?;
    maps.get("remembered").await?;

    control_plane.etcd().restart().await?;
    control_plane.ready().await?;
    maps.get("remembered").await?;

    let after = control_plane.programs();
    assert!(before.iter().zip(&after).all(|(before, after)| before.pid != after.pid), "{before:?} {after:?}");
    Ok(control_plane.stop().await?)
}

#[tokio::test]
async fn a_paused_api_server_hangs_and_answers_once_resumed() -> Result<()> {
    let control_plane = ControlPlane::start(Options::bare()).await?;
    let maps = remember(&control_plane).await?;
    control_plane.apiserver().pause()?;
    let mut answer = Box::pin(maps.get("remembered"));
    // Long against the milliseconds an answer takes.
    let hung = tokio::time::timeout(Duration::from_secs(2), &mut answer).await;
    assert!(hung.is_err(), "{hung:?}");
    control_plane.apiserver().resume()?;
    answer.await?;
    Ok(control_plane.stop().await?)
}

#[tokio::test]
async fn pods_still_start_after_the_api_server_was_away() -> Result<()> {
    let control_plane = ControlPlane::start(Options { fsync: false, ..Options::default() }).await?;
    let namespace = control_plane.namespace("away").await?;
    let pods = Api::<Pod>::namespaced(control_plane.client().await?, &namespace);
    control_plane.apiserver().kill().await?;
    control_plane.apiserver().restart().await?;
    control_plane.ready().await?;
    let pod: Pod = serde_json::from_value(json!({
        "metadata": { "name": "late" },
        "spec": { "containers": [{ "name": "main", "image": "registry.test/anything:1" }] },
    }))?;
    pods.create(&PostParams::default(), &pod).await?;
    eventually(&pods, "late", is_pod_running()).await?;
    Ok(control_plane.stop().await?)
}

#[tokio::test]
async fn a_fixed_directory_keeps_state_between_runs_and_serves_one_at_a_time() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let options = Options { directory: Some(directory.path().to_owned()), ..Options::bare() };
    let control_plane = ControlPlane::start(options.clone()).await?;
    remember(&control_plane).await?;
    let second = ControlPlane::start(options.clone()).await.err().map(|error| error.to_string());
    assert!(second.as_ref().is_some_and(|error| error.contains("another control plane runs in")), "{second:?}");
    control_plane.stop().await?;

    let control_plane = ControlPlane::start(options).await?;
    Api::<ConfigMap>::default_namespaced(control_plane.client().await?).get("remembered").await?;
    Ok(control_plane.stop().await?)
}

async fn remember(control_plane: &ControlPlane) -> Result<Api<ConfigMap>> {
    let maps = Api::default_namespaced(control_plane.client().await?);
    let map: ConfigMap = serde_json::from_value(json!({ "metadata": { "name": "remembered" } }))?;
    maps.create(&PostParams::default(), &map).await?;
    Ok(maps)
}
