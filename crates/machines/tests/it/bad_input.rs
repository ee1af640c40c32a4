//! What users get wrong is a condition with its remedy, and recovers when they correct it.

use anyhow::Result;
use api::machine::NstanceShardGroup;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::json;

use crate::{
    machine::{create_machine, delete_machine, is_there, settled, until_condition, until_gone},
    scene::Scene,
};

#[tokio::test]
async fn what_is_wrong_with_a_pool_or_a_machine_is_said_and_recovers() -> Result<()> {
    let scene = Scene::new("bad-input", &["a"]).await?;
    // An object of another under the name of the pool's shard group.
    let foreign = json!({
        "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": "NstanceShardGroup",
        "metadata": { "name": "web--a" }, "spec": { "group": "other", "shard": "nowhere", "size": 0 },
    });
    let groups = scene.api::<NstanceShardGroup>();
    let before = groups.create(&PostParams::default(), &serde_json::from_value(foreign)?).await?;
    scene.create_pool("web", &["a"], Some(0)).await?;
    let message = scene.until_pool("web", "Ready", "False/ObjectTaken").await?;
    assert!(message.contains("web--a") && message.contains("remove it"), "{message}");
    scene.until_event("web", ("Warning", "ObjectTaken"), "web--a").await?;
    let after = groups.get("web--a").await?;
    assert_eq!((&after.metadata.uid, &after.spec), (&before.metadata.uid, &before.spec), "it is left alone");
    assert_eq!(scene.sizes("web", &["a"]).await?, [None]);
    scene.delete::<NstanceShardGroup>("web--a").await?;
    scene.until_pool("web", "Ready", "True/Reconciled").await?;

    // A type that the template does not have.
    let spec = json!({ "group": "typed", "shards": ["a"], "template": "typed", "instanceType": "huge" });
    scene.create_pool_with("typed", spec).await?;
    scene.create_machine_pool("typed", Some(1)).await?;
    let message = scene.until_shard_group("typed", "a", "ConfigValid", "False/ConfigValidationFailed").await?;
    assert!(message.contains("instance_type") && message.contains("huge"), "{message}");
    let names_it = || async {
        let message = scene.until_pool("typed", "Ready", "False/Reconciling").await?;
        Ok(message.contains("typed--a") && message.contains("huge"))
    };
    scene.until("the pool names it", names_it).await?;
    scene.patch_pool("typed", json!({ "spec": { "instanceType": "small" } })).await?;
    scene.until_pool("typed", "Ready", "True/Reconciled").await?;
    scene.until_sizes("typed", &["a"], &[Some(1)]).await?;

    // More replicas than the field can hold.
    let many = Patch::Merge(json!({ "spec": { "replicas": i64::from(i32::MAX) + 1 } }));
    let refused = scene.capi("MachinePool").patch("web", &PatchParams::default(), &many).await;
    let message = refused.err().map(|error| error.to_string()).unwrap_or_default();
    assert!(message.contains("spec.replicas"), "{message}");

    // A group that no shard has.
    create_machine(&scene, "mine", "none", None).await?;
    let message = until_condition(&scene, "mine", "Ready", "False/Invalid").await?;
    assert!(message.contains("spec.group: no shard has the group none; correct it"), "{message}");
    delete_machine(&scene, "mine").await?;
    until_gone(&scene, "mine").await
}

#[tokio::test]
async fn a56_an_instance_that_two_nodes_claim_is_neither_drained_nor_removed() -> Result<()> {
    let scene = Scene::new("bad-node", &["a"]).await?;
    scene.create_pool("web", &["a"], Some(1)).await?;
    let victim = settled(&scene, 1).await?.remove(0);
    let nodes = Api::<Node>::all(scene.client.clone());
    let node = nodes.get(&victim).await?;
    let impostor = format!("impostor-{victim}");
    let body = json!({
        "apiVersion": "v1", "kind": "Node", "metadata": { "name": impostor },
        "spec": { "providerID": node.spec.and_then(|spec| spec.provider_id) },
    });
    nodes.create(&PostParams::default(), &serde_json::from_value(body)?).await?;
    let message = until_condition(&scene, &victim, "Ready", "False/NodeAmbiguous").await?;
    assert!(message.contains(&victim) && message.contains(&impostor), "{message}");
    scene.scale("web", 0).await?;
    let message = until_condition(&scene, &victim, "Drained", "Unknown/NodeAmbiguous").await?;
    assert!(message.contains(&impostor) && message.contains("delete those that are not"), "{message}");
    for name in [&victim, &impostor] {
        let spec = nodes.get(name).await?.spec.unwrap_or_default();
        assert!(!spec.unschedulable.unwrap_or_default(), "{name} is left alone");
    }
    assert!(is_there(&scene, &victim));
    nodes.delete(&impostor, &DeleteParams::default()).await?;
    until_gone(&scene, &victim).await?;
    assert!(!is_there(&scene, &victim));
    Ok(())
}
