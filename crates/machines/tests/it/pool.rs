//! Pools of dynamic groups: distribution, scale, conditions, deletion.

use anyhow::Result;
use api::machine::NstanceMachinePool;
use serde_json::json;

use crate::scene::Scene;

const BOTH: &[&str] = &["a", "b"];

fn ids(pool: Option<NstanceMachinePool>) -> Vec<String> {
    pool.and_then(|pool| pool.spec).map(|spec| spec.provider_id_list).unwrap_or_default()
}

#[tokio::test]
async fn a22_a23_a39_a95_a_pool_is_distributed_and_its_machine_pool_runs() -> Result<()> {
    let scene = Scene::new("pool-runs", BOTH).await?;
    scene.create_pool("web", BOTH, Some(3)).await?;
    scene.until_sizes("web", BOTH, &[Some(2), Some(1)]).await?;
    scene.until("three provider IDs", || async { Ok(ids(scene.pool("web").await?).len() == 3) }).await?;
    let published = ids(scene.pool("web").await?);
    assert!(published.is_sorted(), "{published:?}");
    assert!(published.iter().all(|id| id.starts_with("process:///")), "{published:?}");
    scene.until_pool("web", "Ready", "True/Reconciled").await?;
    let is_running = || async {
        let pool = scene.capi("MachinePool").get("web").await?;
        Ok(pool.data["status"]["phase"] == "Running")
    };
    scene.until("the MachinePool runs", is_running).await?;

    scene.scale("web", 5).await?;
    scene.until_sizes("web", BOTH, &[Some(3), Some(2)]).await?;
    scene.until("five provider IDs", || async { Ok(ids(scene.pool("web").await?).len() == 5) }).await?;
    Ok(())
}

#[tokio::test]
async fn a89_names_labels_owners_and_status_are_the_originals() -> Result<()> {
    let scene = Scene::new("pool-names", BOTH).await?;
    scene.create_pool("web", BOTH, Some(1)).await?;
    scene.until_pool("web", "Ready", "True/Reconciled").await?;
    let pool = scene.pool("web").await?.unwrap();
    let (metadata, status) = (pool.metadata, pool.status.unwrap());
    assert_eq!(metadata.finalizers.unwrap(), ["nstancemachinepool.infrastructure.cluster.x-k8s.io/finalizer"]);
    assert_eq!(metadata.annotations.unwrap()["nstance.dev/managed-by"], "nstance-operator");
    assert_eq!(status.template.as_deref(), Some("web"));
    assert_eq!((status.subnets, status.subnet_pool.as_deref()), (vec!["one".to_owned()], Some("one")));
    assert_eq!(status.reported_shards, BOTH);
    assert_eq!(status.infrastructure_machine_kind.as_deref(), Some("NstanceMachine"));
    let group = scene.shard_group("web", "a").await?.unwrap();
    let labels = group.metadata.labels.unwrap();
    assert_eq!((labels["nstance.dev/group"].as_str(), labels["nstance.dev/shard"].as_str()), ("web", "a"));
    let owners = group.metadata.owner_references.unwrap();
    assert_eq!((owners.len(), owners[0].kind.as_str(), owners[0].controller), (1, "NstanceMachinePool", Some(true)));
    let status = group.status.unwrap();
    assert_eq!(status.config.unwrap().template.as_deref(), Some("web"));
    assert!(status.last_sync_time.is_some());
    assert_eq!(status.observed_generation, group.metadata.generation);
    Ok(())
}

#[tokio::test]
async fn a24_a_shard_that_leaves_the_spec_loses_its_group() -> Result<()> {
    let scene = Scene::new("pool-shards", BOTH).await?;
    scene.create_pool("web", BOTH, Some(0)).await?;
    scene.until_sizes("web", BOTH, &[Some(0), Some(0)]).await?;
    scene.patch_pool("web", json!({ "spec": { "shards": ["a"] } })).await?;
    scene.until_sizes("web", BOTH, &[Some(0), None]).await?;
    scene.until("its shard group is gone", || async { Ok(scene.shard_group("web", "b").await?.is_none()) }).await?;
    scene.until_event("web--b", ("Normal", "DeleteSucceeded"), "").await
}

#[tokio::test]
async fn a26_the_older_of_two_pools_of_a_group_has_it_and_the_other_follows() -> Result<()> {
    let scene = Scene::new("pool-twice", &["a"]).await?;
    scene.create_pool("web", &["a"], Some(1)).await?;
    scene.until_pool("web", "Ready", "True/Reconciled").await?;
    scene.create_pool_with("another", json!({ "group": "web", "shards": ["a"], "template": "web" })).await?;
    let message = scene.until_pool("another", "Ready", "False/DuplicateGroup").await?;
    assert!(message.contains("the pool web"), "{message}");
    scene.until_pool("web", "Ready", "True/Reconciled").await?;
    scene.until_event("another", ("Warning", "DuplicateGroup"), "the pool web").await
}

#[tokio::test]
async fn a14_a27_a_shard_that_is_not_configured_is_named_and_used_once_it_is() -> Result<()> {
    let mut scene = Scene::without_operator("pool-unknown", BOTH, json!({})).await?;
    scene.write_shards(&["a"])?;
    scene.start().await?;
    scene.create_pool("web", BOTH, Some(2)).await?;
    let message = scene.until_pool("web", "Ready", "False/Invalid").await?;
    assert!(message.contains("spec.shards: b not among the operator's shards (a)"), "{message}");
    scene.write_shards(BOTH)?;
    scene.until_sizes("web", BOTH, &[Some(1), Some(1)]).await?;
    scene.until_pool("web", "Ready", "True/Reconciled").await?;
    scene.until("two provider IDs", || async { Ok(ids(scene.pool("web").await?).len() == 2) }).await?;

    // Taken out of the configuration, what it has stays.
    scene.write_shards(&["a"])?;
    scene.until_pool("web", "Ready", "False/Invalid").await?;
    let message = scene.until_shard_group("web", "b", "ShardReachable", "False/ShardUnreachable").await?;
    assert!(message.contains("shard b is not among the operator's shards"), "{message}");
    assert_eq!(ids(scene.pool("web").await?).len(), 2);
    scene.write_shards(BOTH)?;
    scene.until_pool("web", "Ready", "True/Reconciled").await?;
    assert_eq!((scene.sizes("web", BOTH).await?, scene.zones.cloud.made()), (vec![Some(1), Some(1)], 2));
    Ok(())
}

#[tokio::test]
async fn a34_a91_what_a_shard_refuses_is_a_condition_and_an_event_and_is_tried_again() -> Result<()> {
    let scene = Scene::new("pool-refused", &["a"]).await?;
    let spec = json!({ "group": "web", "shards": ["a"], "template": "none" });
    scene.create_pool_with("web", spec).await?;
    scene.create_machine_pool("web", Some(1)).await?;
    let message = scene.until_shard_group("web", "a", "ConfigValid", "False/ConfigValidationFailed").await?;
    assert!(message.contains("template"), "{message}");
    scene.until_shard_group("web", "a", "ShardReachable", "True/Connected").await?;
    // Until the refusal has come through it waits for the shard.
    let message = scene.until_pool_says("web", "Ready", "False/Reconciling", "template").await?;
    assert!(message.contains("web--a"), "{message}");
    scene.until_event("web--a", ("Warning", "ConfigValidationFailed"), "template").await?;
    let events = scene.events("web--a").await?;
    let warnings = events.iter().filter(|(kind, reason, _)| kind == "Warning" && reason == "ConfigValidationFailed");
    assert_eq!(warnings.count(), 1, "{events:?}");
    scene.patch_pool("web", json!({ "spec": { "template": "web" } })).await?;
    scene.until_shard_group("web", "a", "ConfigValid", "True/Valid").await?;
    scene.until_pool("web", "Ready", "True/Reconciled").await?;
    Ok(())
}

#[tokio::test]
async fn a36_a37_a_deleted_pool_takes_its_groups_with_it() -> Result<()> {
    let scene = Scene::new("pool-deleted", BOTH).await?;
    scene.create_pool("web", BOTH, Some(0)).await?;
    scene.until_pool("web", "Ready", "True/Reconciled").await?;
    scene.delete::<NstanceMachinePool>("web").await?;
    scene.until("the pool is gone", || async { Ok(scene.pool("web").await?.is_none()) }).await?;
    assert_eq!(scene.sizes("web", BOTH).await?, [None, None]);
    Ok(())
}

#[tokio::test]
async fn a38_what_a_provider_refuses_is_a_warning_on_the_shard_group() -> Result<()> {
    let scene = Scene::new("pool-provider", &["a"]).await?;
    scene.create_pool("web", &["a"], Some(0)).await?;
    scene.until_pool("web", "Ready", "True/Reconciled").await?;
    scene.zones.cloud.refuse(Some("no quota left"));
    scene.scale("web", 1).await?;
    scene.until_event("web--a", ("Warning", "ProviderError"), "no quota left").await?;
    scene.zones.cloud.refuse(None);
    scene.until("an instance", || async { Ok(ids(scene.pool("web").await?).len() == 1) }).await?;
    Ok(())
}

#[tokio::test]
async fn a21_a69_a_pool_without_a_machine_pool_gets_one() -> Result<()> {
    let scene = Scene::new("pool-alone", &["a"]).await?;
    scene.create_pool_with("web", json!({ "group": "web", "shards": ["a"], "template": "web" })).await?;
    let is_made = || async { Ok(scene.capi("MachinePool").get_opt("web").await?.is_some()) };
    scene.until("the MachinePool", is_made).await?;
    let made = scene.capi("MachinePool").get("web").await?;
    assert_eq!(made.data["spec"]["replicas"], 0);
    assert_eq!(made.data["spec"]["clusterName"], "dev--default");
    let infrastructure =
        json!({ "apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "NstanceMachinePool", "name": "web" });
    // Cluster API's webhook fills in more.
    let template = &made.data["spec"]["template"]["spec"];
    assert_eq!(template["clusterName"], "dev--default");
    assert_eq!(template["bootstrap"], json!({ "dataSecretName": "" }));
    assert_eq!(template["infrastructureRef"], infrastructure);
    scene.until_sizes("web", &["a"], &[Some(0)]).await?;
    // Set when all else is done: the shard may have its group before.
    scene.until_pool("web", "Ready", "True/Reconciled").await?;
    let pool = scene.pool("web").await?.unwrap();
    assert_eq!(pool.metadata.annotations.unwrap()["nstance.dev/managed-by"], "nstance-operator");
    Ok(())
}
