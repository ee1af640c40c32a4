//! The runtime on a real API server, with a kind that every cluster has.

use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{ObjectMeta, PostParams},
};
use runtime::{Clock, Fatal, Kind, Operator, Settings};
use testbed::ControlPlane;
use tokio_util::sync::CancellationToken;

fn settings() -> Settings {
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

/// A layer's mistake in the one place where no round is around it to catch the panic.
#[allow(clippy::needless_pass_by_value, reason = "the form that every kind's filter has")]
fn keep(map: ConfigMap) -> Option<()> {
    assert!(map.metadata.name.as_deref() != Some("poison"), "poisoned");
    None
}

#[tokio::test]
async fn a_dead_task_ends_the_operator() -> Result<()> {
    let control_plane = ControlPlane::shared().await?;
    let namespace = control_plane.namespace("runtime").await?;
    let client = control_plane.client().await?;
    let mut operator = Operator::new(client.clone(), settings(), Clock::default(), CancellationToken::new());
    let kind = Kind::new("configmaps", operator.writer("test"), keep);
    let queue = operator.queue(Duration::from_mins(2));
    operator.watch(&kind, &queue, |_| None);
    // Layers hold one for as long as they run.
    let _recorder = operator.events.clone();
    let health = operator.health.clone();
    let running = tokio::spawn(operator.run(|_| {}));
    let synced = async {
        while health.readiness().values().any(Result::is_err) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), synced).await.context("it works at first")?;
    assert!(!running.is_finished());

    let metadata = ObjectMeta { name: Some("poison".into()), ..ObjectMeta::default() };
    let poison = ConfigMap { metadata, ..ConfigMap::default() };
    Api::namespaced(client, &namespace).create(&PostParams::default(), &poison).await?;
    let ended = tokio::time::timeout(Duration::from_secs(10), running).await.context("it ends within seconds")?;
    assert!(matches!(ended?, Err(Fatal::TaskEnded(_))));
    Ok(())
}
