//! How many there are.

use anyhow::Result;
use serde_json::Value;

use crate::scene::Scene;

const BOTH: &[&str] = &["a", "b"];

/// What the pool, its MachinePool and its shard groups say.
async fn counted(scene: &Scene) -> Result<(Option<i32>, Value, Vec<Option<i32>>)> {
    let pool = scene.pool("web").await?.and_then(|pool| pool.status).map(|status| status.replicas);
    let machine_pool = scene.capi("MachinePool").get("web").await?.data["status"]["replicas"].clone();
    let mut groups = Vec::new();
    for shard in BOTH {
        let group = scene.shard_group("web", shard).await?.and_then(|group| group.status);
        groups.push(group.map(|status| status.replicas));
    }
    Ok((pool, machine_pool, groups))
}

async fn until_counted(scene: &Scene, groups: [i32; 2]) -> Result<()> {
    let total: i32 = groups.iter().sum();
    let expected = (Some(total), Value::from(total), groups.map(Some).to_vec());
    scene.until(&format!("{groups:?} are counted"), || async { Ok(counted(scene).await? == expected) }).await
}

#[tokio::test]
async fn a40_replicas_are_the_instances_that_there_are() -> Result<()> {
    let scene = Scene::new("replicas", BOTH).await?;
    scene.create_pool("web", BOTH, Some(3)).await?;
    until_counted(&scene, [2, 1]).await?;
    // One is lost, and the cloud makes no other: fewer than asked for.
    scene.zones.cloud.refuse(Some("no quota left"));
    let lost = scene.zones.cloud.machines().into_iter().find(|machine| {
        let order = scene.zones.cloud.order(&machine.instance_id);
        order.is_some_and(|order| order.shard == "b")
    });
    scene.zones.cloud.set_status(&lost.unwrap().instance_id, None);
    until_counted(&scene, [2, 0]).await?;
    assert_eq!(scene.sizes("web", BOTH).await?, [Some(2), Some(1)], "what is asked for is as it was");
    scene.scale("web", 5).await?;
    scene.until_sizes("web", BOTH, &[Some(3), Some(2)]).await?;
    assert_eq!(counted(&scene).await?.0, Some(2));
    scene.zones.cloud.refuse(None);
    until_counted(&scene, [3, 2]).await
}
