//! Groups that only shards have become pools.

use anyhow::Result;
use api::machine::NstanceMachinePool;
use kube::api::ListParams;
use serde_json::json;

use crate::scene::Scene;

#[tokio::test]
async fn a16_a17_a18_a_static_group_becomes_a_pool_once_every_shard_has_answered() -> Result<()> {
    let groups = json!({ "fixed": { "template": "web", "size": 2 } });
    let mut scene = Scene::without_operator("import", &["a", "b"], groups).await?;
    scene.zones.stop("b").await;
    scene.start().await?;
    // The operator's Cluster shows that it works, and shard a has answered long before that.
    scene.create_pool("web", &["a"], Some(1)).await?;
    scene.until_sizes("web", &["a"], &[Some(1)]).await?;
    let pools = || async {
        let all = scene.api::<NstanceMachinePool>().list(&ListParams::default()).await?;
        Ok::<_, anyhow::Error>(all.items.into_iter().filter_map(|pool| pool.metadata.name).collect::<Vec<_>>())
    };
    assert_eq!(pools().await?, ["web"], "nothing is imported while a shard is silent");
    scene.zones.run("b").await?;
    scene.until("the pool", || async { Ok(scene.pool("fixed").await?.is_some()) }).await?;
    let pool = scene.pool("fixed").await?.unwrap();
    let spec = pool.spec.unwrap();
    assert_eq!((spec.group.as_str(), spec.shards.as_slice()), ("fixed", ["a".to_owned(), "b".to_owned()].as_slice()));
    assert_eq!((spec.template, spec.subnet_pool), (None, None));
    assert_eq!(pool.metadata.annotations.unwrap()["nstance.dev/managed-by"], "nstance-operator");
    let made = || async { Ok(scene.capi("MachinePool").get_opt("fixed").await?.is_some()) };
    scene.until("the MachinePool", made).await?;
    let made = scene.capi("MachinePool").get("fixed").await?;
    assert_eq!(made.data["spec"]["replicas"], 4);
    scene.until_pool("fixed", "Ready", "True/Reconciled").await?;
    let status = scene.pool("fixed").await?.unwrap().status.unwrap();
    assert!(status.is_static);
    assert_eq!(scene.sizes("fixed", &["a", "b"]).await?, [Some(2), Some(2)], "no instance was moved");
    Ok(())
}

#[tokio::test]
async fn a20_a29_a_group_that_is_added_to_a_configuration_appears_and_one_that_is_removed_is_free() -> Result<()> {
    let scene = Scene::new("import-later", &["a"]).await?;
    let shard = scene.zones.client("a")?;
    scene.zones.configure("a", &json!({ "later": { "template": "web", "size": 1 } })).await?;
    shard.refresh_config().await?;
    scene.until("the pool", || async { Ok(scene.pool("later").await?.is_some()) }).await?;
    scene.until_pool("later", "Ready", "True/Reconciled").await?;
    let is_static =
        || async { Ok(scene.pool("later").await?.and_then(|pool| pool.status).is_some_and(|s| s.is_static)) };
    scene.until("it is static", is_static).await?;
    // The replicas that its user asks for are kept over the configuration's.
    scene.scale("later", 2).await?;
    scene.until_sizes("later", &["a"], &[Some(2)]).await?;
    scene.zones.configure("a", &json!({})).await?;
    shard.refresh_config().await?;
    let is_dynamic = || async { Ok(!is_static().await?) };
    scene.until("it is dynamic", is_dynamic).await?;
    assert_eq!(scene.sizes("later", &["a"]).await?, [Some(2)]);
    Ok(())
}
