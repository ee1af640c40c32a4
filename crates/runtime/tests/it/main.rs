//! The runtime on a real API server, with kinds that every cluster has.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should end")]
#![allow(clippy::needless_pass_by_value, reason = "tests hand over JSON literals")]

mod apply;
mod dynamic;
mod lease;
mod log;
mod round;
mod watch;
mod world;

use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{ObjectMeta, PostParams},
};
use runtime::{Fatal, Kind};
use world::{World, run};

/// A layer's mistake in the one place where no round is around it to catch the panic.
fn keep(map: ConfigMap) -> Option<()> {
    assert!(map.metadata.name.as_deref() != Some("poison"), "poisoned");
    None
}

#[tokio::test]
async fn a_dead_task_ends_the_operator() -> Result<()> {
    let world = World::new("runtime").await?;
    let mut operator = world.operator();
    let kind = Kind::new("configmaps", operator.writer("test"), keep);
    operator.watch(&kind, |_| {});
    let (_, running) = run(operator).await?;
    assert!(!running.is_finished());

    let metadata = ObjectMeta { name: Some("poison".into()), ..ObjectMeta::default() };
    let poison = ConfigMap { metadata, ..ConfigMap::default() };
    Api::namespaced(world.client, &world.namespace).create(&PostParams::default(), &poison).await?;
    let ended = tokio::time::timeout(Duration::from_secs(10), running).await.context("it ends within seconds")?;
    assert!(matches!(ended?, Err(Fatal::TaskEnded(_))));
    Ok(())
}
