//! Drains that shards ask for.

use anyhow::Result;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api,
    api::{ListParams, PostParams},
};
use serde_json::json;
use testbed::kwok::Behaviour;

use crate::scene::Scene;

async fn settled(scene: &Scene, count: usize) -> Result<Vec<String>> {
    let machines = scene.capi("Machine");
    let look = || async {
        let found = machines.list(&ListParams::default()).await?.items;
        let is_linked = found.iter().all(|machine| machine.data["status"]["nodeRef"]["name"].is_string());
        Ok(found.len() == count && is_linked)
    };
    scene.until(&format!("{count} Machines with Nodes"), look).await?;
    let found = machines.list(&ListParams::default()).await?.items;
    Ok(found.into_iter().filter_map(|machine| machine.metadata.name).collect())
}

#[tokio::test]
async fn a44_a47_a_node_is_drained_before_its_shard_deletes_the_instance() -> Result<()> {
    let scene = Scene::new("drain-notice", &["a"]).await?;
    scene.create_pool("web", &["a"], Some(1)).await?;
    let victim = settled(&scene, 1).await?.remove(0);
    let pod = json!({
        "metadata": { "name": "one" },
        "spec": {
            "nodeName": victim, "terminationGracePeriodSeconds": 1, "tolerations": [{ "operator": "Exists" }],
            "containers": [{ "name": "main", "image": Behaviour::Ready.image() }],
        },
    });
    let pods = scene.api::<Pod>();
    pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
    scene.zones.cloud.give_notice(&victim);
    let is_gone = || async {
        let is_there = scene.zones.cloud.machines().iter().any(|machine| machine.instance_id == victim);
        if !is_there {
            assert!(pods.get_opt("one").await?.is_none(), "the instance went before its pod");
        }
        Ok(!is_there)
    };
    scene.until("the instance is gone", is_gone).await?;
    let is_replaced = || async {
        let found = scene.capi("Machine").list(&ListParams::default()).await?.items;
        Ok(found.len() == 1 && found[0].metadata.name.as_ref() != Some(&victim))
    };
    scene.until("its Machine is replaced", is_replaced).await?;
    let nodes = Api::<Node>::all(scene.client.clone());
    scene.until("its Node is gone", || async { Ok(nodes.get_opt(&victim).await?.is_none()) }).await
}
