//! Shards that are away.

use anyhow::Result;

use crate::scene::Scene;

#[tokio::test]
async fn a35_a41_a91_a_silent_shard_keeps_what_it_has_and_delays_no_other() -> Result<()> {
    let scene = Scene::new("fault-silent", &["a", "b"]).await?;
    scene.create_pool("web", &["a", "b"], Some(2)).await?;
    scene.until_pool("web", "Ready", "True/Reconciled").await?;
    let published = || async {
        let pool = scene.pool("web").await?;
        Ok::<_, anyhow::Error>(pool.and_then(|pool| pool.spec).map(|spec| spec.provider_id_list).unwrap_or_default())
    };
    scene.until("two provider IDs", || async { Ok(published().await?.len() == 2) }).await?;
    let before = published().await?;

    scene.zones.stop("b").await;
    scene.until_shard_group("web", "b", "ShardReachable", "False/ShardUnreachable").await?;
    scene.until_event("web--b", ("Warning", "ShardUnreachable"), "shard b does not answer").await?;
    scene.create_pool("other", &["a"], Some(1)).await?;
    scene.until_pool("other", "Ready", "True/Reconciled").await?;
    // Both would get one more: the silent one waits for its own.
    scene.scale("web", 4).await?;
    scene.until_sizes("web", &["a"], &[Some(2)]).await?;
    let waits =
        || async { Ok(scene.until_pool("web", "Ready", "False/Reconciling").await?.contains("b (1 to 2 replicas)")) };
    scene.until("the pool says what waits for the silent shard", waits).await?;
    let now = published().await?;
    assert!(before.iter().all(|id| now.contains(id)), "{before:?} {now:?}");

    scene.zones.run("b").await?;
    scene.until_shard_group("web", "b", "ShardReachable", "True/Connected").await?;
    scene.until_sizes("web", &["a", "b"], &[Some(2), Some(2)]).await?;
    scene.until_pool("web", "Ready", "True/Reconciled").await?;
    // It refused nothing.
    let events = scene.events("web--b").await?;
    assert!(events.iter().all(|(_, reason, _)| reason != "ConfigValidationFailed"), "{events:?}");
    Ok(())
}
