//! MachineDeployments: Cluster API stamps out our machines from templates.

use anyhow::{Context, Result};
use api::machine::NstanceMachine;
use k8s_openapi::api::{core::v1::Node, core::v1::Pod, policy::v1::PodDisruptionBudget};
use kube::{
    Api,
    api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams},
};
use serde_json::json;

use crate::{
    autoscaler::{Autoscaler, annotate},
    machine::{HOOK, budget, has, instances, is_there, machines, pod, settled, until_condition, until_gone},
    scene::Scene,
    space::resource,
    zones::{CLUSTER, TENANT},
};

const KIND: &str = "NstanceMachineTemplate";

fn templates(scene: &Scene) -> Api<DynamicObject> {
    Api::namespaced_with(scene.client.clone(), &scene.namespace, &resource(KIND))
}

pub async fn create_template(scene: &Scene, name: &str, group: &str, color: &str) -> Result<()> {
    let template = json!({
        "metadata": { "labels": { "color": color } },
        "spec": { "group": group, "instanceType": "small", "vars": { "color": color } },
    });
    let object = DynamicObject::new(name, &resource(KIND)).data(json!({ "spec": { "template": template } }));
    templates(scene).create(&PostParams::default(), &object).await?;
    Ok(())
}

pub async fn create_deployment(scene: &Scene, name: &str, template: &str, replicas: i32) -> Result<()> {
    let cluster = format!("{CLUSTER}--{TENANT}");
    let reference = json!({ "apiGroup": "infrastructure.cluster.x-k8s.io", "kind": KIND, "name": template });
    let machine =
        json!({ "clusterName": cluster, "bootstrap": { "dataSecretName": "" }, "infrastructureRef": reference });
    let labels = json!({ "deployment": name });
    let object: DynamicObject = serde_json::from_value(json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineDeployment", "metadata": { "name": name },
        "spec": {
            "clusterName": cluster, "replicas": replicas, "selector": { "matchLabels": labels },
            "template": { "metadata": { "labels": labels }, "spec": machine },
        },
    }))?;
    scene.capi("MachineDeployment").create(&PostParams::default(), &object).await?;
    Ok(())
}

/// The instance of each Machine, by the Machine's name. Machine and NstanceMachine are a pair.
async fn pairs(scene: &Scene, template: &str) -> Result<Vec<(String, String)>> {
    let mut pairs = Vec::new();
    for machine in machines(scene).await? {
        let name = machine.metadata.name.clone().unwrap_or_default();
        let reference = &machine.data["spec"]["infrastructureRef"];
        assert_eq!((&reference["kind"], &reference["name"]), (&json!("NstanceMachine"), &json!(name)));
        let member = scene.api::<NstanceMachine>().get(&name).await?;
        let owners = member.metadata.owner_references.unwrap_or_default();
        let controllers = owners.iter().filter(|owner| owner.controller == Some(true));
        assert_eq!(controllers.map(|owner| owner.name.as_str()).collect::<Vec<_>>(), [name.as_str()]);
        let annotations = member.metadata.annotations.unwrap_or_default();
        assert_eq!(annotations["cluster.x-k8s.io/cloned-from-name"], template);
        let (spec, status) = (member.spec.context("spec")?, member.status.context("status")?);
        assert_eq!((spec.group(), spec.instance_type.as_deref()), ("web", Some("small")));
        let id = status.instance_id.context("its instance")?;
        assert_eq!(machine.data["spec"]["providerID"], json!(spec.provider_id));
        assert_eq!(machine.data["status"]["nodeRef"]["name"], json!(id));
        pairs.push((name, id));
    }
    Ok(pairs)
}

#[tokio::test]
async fn a92_a_machine_deployment_stamps_out_pairs_and_scales_down_through_drain() -> Result<()> {
    let groups = json!({ "web": { "template": "web", "size": 0 } });
    let scene = Scene::with_groups("deployment", &["a", "b"], groups).await?;
    create_template(&scene, "red", "web", "red").await?;
    create_deployment(&scene, "web", "red", 3).await?;
    settled(&scene, 3).await?;
    let before = pairs(&scene, "red").await?;
    assert_eq!(instances(&scene).len(), 3);
    assert_eq!(scene.sizes("web", &["a", "b"]).await?, [Some(0), Some(0)], "they do not count for the group's size");
    for (_, id) in &before {
        let order = scene.zones.cloud.order(id).context("its order")?;
        assert_eq!(order.group, "web");
    }

    // A template in use is as immutable as any.
    let edit = Patch::Merge(json!({ "spec": { "template": { "spec": { "instanceType": "large" } } } }));
    let refused = templates(&scene).patch("red", &PatchParams::default(), &edit).await;
    let message = refused.err().map(|error| error.to_string()).unwrap_or_default();
    assert!(message.contains("spec.template cannot change"), "{message}");

    // The way an autoscaler shrinks it: one is marked, and the size is lowered.
    annotate(&scene, "MachineDeployment", "web", 3, true).await?;
    let autoscaler = Autoscaler::new(&scene).await?;
    let group = autoscaler.named(&format!("MachineDeployment/{}/web", scene.namespace)).await?;
    let (victim, id) = before[1].clone();
    let node = Api::<Node>::all(scene.client.clone()).get(&id).await?;
    pod(&scene, "one", &id).await?;
    budget(&scene).await?;
    autoscaler.delete_nodes(&group, &[node]).await?;
    let message = until_condition(&scene, &victim, "Drained", "False/BlockedByPDB").await?;
    assert!(message.contains(&format!("{}/one", scene.namespace)), "{message}");
    assert!(has(&scene.capi("Machine").get(&victim).await?, HOOK), "Cluster API waits for our drain");
    assert!(is_there(&scene, &id), "a budget holds it");
    scene.api::<PodDisruptionBudget>().delete("all", &DeleteParams::default()).await?;
    until_gone(&scene, &victim).await?;
    assert!(!is_there(&scene, &id));
    assert!(scene.api::<Pod>().get_opt("one").await?.is_none(), "it was evicted");
    assert!(scene.api::<NstanceMachine>().get_opt(&victim).await?.is_none());
    settled(&scene, 2).await?;
    let after = pairs(&scene, "red").await?;
    assert!(after.iter().all(|pair| before.contains(pair)), "{after:?} of {before:?}");
    assert_eq!(scene.zones.cloud.made(), 3, "none was replaced");

    scene.capi("MachineDeployment").delete("web", &DeleteParams::default()).await?;
    scene.until("nothing is left", || async { Ok(machines(&scene).await?.is_empty()) }).await?;
    assert_eq!(instances(&scene), Vec::<String>::new());
    Ok(())
}

#[tokio::test]
async fn a92_another_template_replaces_each_machine_after_its_node_was_drained() -> Result<()> {
    let groups = json!({ "web": { "template": "web", "size": 0 } });
    let scene = Scene::with_groups("deployment-roll", &["a"], groups).await?;
    create_template(&scene, "red", "web", "red").await?;
    create_template(&scene, "blue", "web", "blue").await?;
    create_deployment(&scene, "web", "red", 1).await?;
    settled(&scene, 1).await?;
    let (_, id) = pairs(&scene, "red").await?.remove(0);
    pod(&scene, "one", &id).await?;
    let edit = json!({ "spec": { "template": { "spec": { "infrastructureRef": { "name": "blue" } } } } });
    scene.capi("MachineDeployment").patch("web", &PatchParams::default(), &Patch::Merge(edit)).await?;
    let is_replaced = || async {
        if is_there(&scene, &id) {
            return Ok(false);
        }
        assert!(scene.api::<Pod>().get_opt("one").await?.is_none(), "the instance went before its pod");
        Ok(machines(&scene).await?.len() == 1)
    };
    scene.until("the Machine is replaced", is_replaced).await?;
    settled(&scene, 1).await?;
    let (name, id) = pairs(&scene, "blue").await?.remove(0);
    let labels = scene.api::<NstanceMachine>().get(&name).await?.metadata.labels.unwrap_or_default();
    assert_eq!(labels["color"], "blue");
    assert_eq!((instances(&scene), scene.zones.cloud.made()), (vec![id], 2));
    Ok(())
}
