//! Machines, of pools and by themselves, and their way out: nothing goes before its Node is drained.

use anyhow::{Context, Result};
use api::machine::NstanceMachine;
use k8s_openapi::api::{
    core::v1::{Node, Pod},
    policy::v1::PodDisruptionBudget,
};
use kube::{
    Api,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams},
    config::Kubeconfig,
};
use serde_json::{Value, json};
use testbed::{ControlPlane, fault::FaultProxy, kwok::Behaviour};

use crate::{
    scene::Scene,
    zones::{CLUSTER, TENANT},
};

pub const HOOK: &str = "pre-drain.delete.hook.machine.cluster.x-k8s.io/strata";
const EXCLUDED: &str = "machine.cluster.x-k8s.io/exclude-node-draining";
const MARK: &str = "cluster.x-k8s.io/delete-machine";
const PAUSED: &str = "cluster.x-k8s.io/paused";

pub async fn machines(scene: &Scene) -> Result<Vec<DynamicObject>> {
    Ok(scene.capi("Machine").list(&ListParams::default()).await?.items)
}

fn name(object: &DynamicObject) -> String {
    object.metadata.name.clone().unwrap_or_default()
}

pub fn has(object: &DynamicObject, annotation: &str) -> bool {
    object.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(annotation))
}

/// Until every one of so many Machines has its Node and our hook; their names.
pub async fn settled(scene: &Scene, count: usize) -> Result<Vec<String>> {
    let is_settled = |machine: &DynamicObject| {
        let is_linked = machine.data["status"]["nodeRef"]["name"].is_string();
        is_linked && has(machine, HOOK) && machine.metadata.deletion_timestamp.is_none()
    };
    let look = || async {
        let found = machines(scene).await?;
        Ok(found.len() == count && found.iter().all(is_settled))
    };
    scene.until(&format!("{count} Machines with Node and hook"), look).await?;
    Ok(machines(scene).await?.iter().map(name).collect())
}

/// A pod that runs on the Node.
pub async fn pod(scene: &Scene, name: &str, node: &str) -> Result<()> {
    let pod = json!({
        "metadata": { "name": name, "labels": { "app": "web" } },
        "spec": {
            "nodeName": node, "terminationGracePeriodSeconds": 1, "tolerations": [{ "operator": "Exists" }],
            "containers": [{ "name": "main", "image": Behaviour::Ready.image() }],
        },
    });
    let pods = scene.api::<Pod>();
    pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
    let is_ready = || async {
        let status = json!(pods.get(name).await?.status);
        let all = status["conditions"].as_array().cloned().unwrap_or_default();
        Ok(all.iter().any(|one| one["type"] == "Ready" && one["status"] == "True"))
    };
    scene.until("the pod runs", is_ready).await
}

/// A budget that allows no eviction of such pods.
pub async fn budget(scene: &Scene) -> Result<()> {
    let spec = json!({ "minAvailable": 1, "selector": { "matchLabels": { "app": "web" } } });
    let budget = json!({ "metadata": { "name": "all" }, "spec": spec });
    let budgets = scene.api::<PodDisruptionBudget>();
    budgets.create(&PostParams::default(), &serde_json::from_value(budget)?).await?;
    let is_counted = || async {
        let status = json!(budgets.get("all").await?.status);
        Ok(status["currentHealthy"] == 1)
    };
    scene.until("the budget counts the pod", is_counted).await
}

pub async fn delete_machine(scene: &Scene, name: &str) -> Result<()> {
    scene.capi("Machine").delete(name, &DeleteParams::default()).await?;
    Ok(())
}

/// `status/reason` of a machine's condition, and its message.
async fn condition(scene: &Scene, name: &str, kind: &str) -> Result<(String, String)> {
    let found = scene.api::<NstanceMachine>().get_opt(name).await?;
    let status = json!(found.and_then(|found| found.status));
    let all = status["conditions"].as_array().cloned().unwrap_or_default();
    let one = all.into_iter().find(|one| one["type"] == kind).unwrap_or_default();
    let word = |field: &str| one[field].as_str().unwrap_or_default().to_owned();
    Ok((format!("{}/{}", word("status"), word("reason")), word("message")))
}

pub async fn until_condition(scene: &Scene, name: &str, kind: &str, expected: &str) -> Result<String> {
    let look = || async { Ok(condition(scene, name, kind).await?.0 == expected) };
    scene.until(&format!("{name} {kind}={expected}"), look).await?;
    Ok(condition(scene, name, kind).await?.1)
}

async fn pause(scene: &Scene, is_paused: bool) -> Result<()> {
    let patch = Patch::Merge(json!({ "spec": { "paused": is_paused } }));
    scene.capi("Cluster").patch(&format!("{CLUSTER}--{TENANT}"), &PatchParams::default(), &patch).await?;
    Ok(())
}

pub async fn until_gone(scene: &Scene, machine: &str) -> Result<()> {
    let look = || async { Ok(scene.capi("Machine").get_opt(machine).await?.is_none()) };
    scene.until(&format!("Machine {machine} is gone"), look).await
}

pub fn instances(scene: &Scene) -> Vec<String> {
    let mut ids: Vec<_> = scene.zones.cloud.machines().into_iter().map(|machine| machine.instance_id).collect();
    ids.sort();
    ids
}

pub fn is_there(scene: &Scene, instance: &str) -> bool {
    instances(scene).iter().any(|id| id == instance)
}

fn nodes(scene: &Scene) -> Api<Node> {
    Api::all(scene.client.clone())
}

#[tokio::test]
async fn a44_a95_a_deleted_machine_is_drained_first_and_a_budget_holds_it() -> Result<()> {
    let scene = Scene::new("machine-deleted", &["a"]).await?;
    scene.create_pool("web", &["a"], Some(2)).await?;
    let victim = settled(&scene, 2).await?.remove(0);
    pod(&scene, "one", &victim).await?;
    budget(&scene).await?;
    delete_machine(&scene, &victim).await?;
    let message = until_condition(&scene, &victim, "Drained", "False/BlockedByPDB").await?;
    assert!(message.contains(&format!("{}/one", scene.namespace)) && message.contains("/all"), "{message}");
    assert_eq!(nodes(&scene).get(&victim).await?.spec.and_then(|spec| spec.unschedulable), Some(true), "cordoned");
    assert!(is_there(&scene, &victim), "a budget holds it");
    let is_recorded = || async {
        let events = scene.events(&victim).await?;
        Ok(events.iter().any(|(kind, reason, _)| kind == "Warning" && reason == "BlockedByPDB"))
    };
    scene.until("a warning names the budget", is_recorded).await?;

    // Its deletion is the one that the pool gives up: at the same size its shard would wait for a healthy successor.
    scene.scale("web", 1).await?;
    scene.api::<PodDisruptionBudget>().delete("all", &DeleteParams::default()).await?;
    until_gone(&scene, &victim).await?;
    assert!(!is_there(&scene, &victim));
    assert!(scene.api::<Pod>().get_opt("one").await?.is_none(), "it was evicted");
    assert!(nodes(&scene).get_opt(&victim).await?.is_none(), "Cluster API deletes the Node after it");
    assert!(!settled(&scene, 1).await?.contains(&victim), "the other one stays");
    scene.until_sizes("web", &["a"], &[Some(1)]).await
}

#[tokio::test]
async fn a95_a_marked_machine_is_the_one_that_goes_and_only_it() -> Result<()> {
    let both = &["a", "b"];
    let scene = Scene::new("machine-marked", both).await?;
    scene.create_pool("web", both, Some(4)).await?;
    let before = settled(&scene, 4).await?;
    let marked = &before[2];
    let patch = Patch::Merge(json!({ "metadata": { "annotations": { MARK: "" } } }));
    scene.capi("Machine").patch(marked, &PatchParams::default(), &patch).await?;
    pod(&scene, "one", marked).await?;
    scene.scale("web", 3).await?;
    until_gone(&scene, marked).await?;
    assert!(!is_there(&scene, marked));
    assert!(scene.api::<Pod>().get_opt("one").await?.is_none(), "it was evicted");
    let after = settled(&scene, 3).await?;
    assert!(after.iter().all(|name| before.contains(name)), "{after:?} of {before:?}");
    assert_eq!(scene.zones.cloud.made(), 4, "none was replaced");
    Ok(())
}

#[tokio::test]
async fn a95_a_marked_machine_goes_though_the_watch_of_machines_is_behind_that_of_replicas() -> Result<()> {
    let both = &["a", "b"];
    let mut scene = Scene::without_operator("machine-marked-late", both, json!({})).await?;
    let upstream = Kubeconfig::read_from(ControlPlane::shared().await?.kubeconfig())?;
    let proxy = FaultProxy::start(upstream, 23).await?;
    scene.kubeconfig = Some(proxy.kubeconfig_path());
    scene.start().await?;
    scene.create_pool("web", both, Some(4)).await?;
    let before = settled(&scene, 4).await?;
    // Without marks the last shard gives one up.
    let is_of_first = |name: &&String| scene.zones.cloud.order(name).is_some_and(|order| order.shard == "a");
    let marked = before.iter().find(is_of_first).context("one of the first shard")?;
    let held = proxy.hold_events("machines");
    let patch = Patch::Merge(json!({ "metadata": { "annotations": { MARK: "" } } }));
    scene.capi("Machine").patch(marked, &PatchParams::default(), &patch).await?;
    scene.scale("web", 3).await?;
    let is_lowered = || async {
        let mut sizes = Vec::new();
        for shard in both {
            sizes.extend(scene.shard_group("web", shard).await?.and_then(|group| group.spec).map(|spec| spec.size()));
        }
        Ok(sizes.iter().sum::<i32>() == 3)
    };
    scene.until("one is given up", is_lowered).await?;
    held.release();
    until_gone(&scene, marked).await?;
    let after = settled(&scene, 3).await?;
    assert!(after.iter().all(|name| before.contains(name)), "{after:?} of {before:?}");
    let cordoned = |node: Node| node.spec.and_then(|spec| spec.unschedulable) == Some(true);
    for name in &after {
        assert!(!cordoned(nodes(&scene).get(name).await?), "{name} is drained, and was not marked");
    }
    assert_eq!(scene.zones.cloud.made(), 4, "none was replaced");
    Ok(())
}

/// A Machine by itself, and its NstanceMachine.
pub async fn create_machine(scene: &Scene, name: &str, group: &str, failure_domain: Option<&str>) -> Result<()> {
    let cluster = format!("{CLUSTER}--{TENANT}");
    let metadata = json!({ "name": name, "namespace": scene.namespace });
    let ours = json!({
        "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": "NstanceMachine", "metadata": metadata,
        "spec": { "group": group },
    });
    scene.api::<NstanceMachine>().create(&PostParams::default(), &serde_json::from_value(ours)?).await?;
    let reference = json!({ "apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "NstanceMachine", "name": name });
    let mut spec = json!({
        "clusterName": cluster, "bootstrap": { "dataSecretName": "" }, "infrastructureRef": reference,
    });
    if let Some(shard) = failure_domain {
        spec["failureDomain"] = json!(shard);
    }
    let object: DynamicObject = serde_json::from_value::<DynamicObject>(json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine", "metadata": metadata, "spec": spec,
    }))?;
    scene.capi("Machine").create(&PostParams::default(), &object).await?;
    Ok(())
}

#[tokio::test]
async fn a57_a58_a59_a60_a_machine_by_itself_runs_in_its_failure_domain_and_is_drained_before_it_goes() -> Result<()> {
    let both = &["a", "b"];
    let scene = Scene::with_groups("machine-own", both, json!({ "web": { "template": "web", "size": 0 } })).await?;
    create_machine(&scene, "mine", "web", Some("b")).await?;
    assert_eq!(settled(&scene, 1).await?, ["mine"]);
    let found = scene.api::<NstanceMachine>().get("mine").await?;
    let (spec, status) = (found.spec.context("spec")?, found.status.context("status")?);
    let id = status.instance_id.context("its instance")?;
    assert_eq!((status.shard.as_deref(), status.ready), (Some("b"), true));
    assert_eq!(spec.provider_id.as_deref(), Some(format!("process:///b/{id}").as_str()));
    assert_eq!(status.initialization.and_then(|found| found.provisioned), Some(true));
    let machine = scene.capi("Machine").get("mine").await?;
    assert_eq!(machine.data["status"]["nodeRef"]["name"], Value::from(id.clone()), "Cluster API found its Node");

    pod(&scene, "one", &id).await?;
    delete_machine(&scene, "mine").await?;
    until_gone(&scene, "mine").await?;
    assert!(!is_there(&scene, &id));
    assert!(scene.api::<Pod>().get_opt("one").await?.is_none(), "it was evicted");
    assert_eq!(scene.zones.cloud.made(), 1);
    Ok(())
}

#[tokio::test]
async fn a44_a_machine_by_itself_is_drained_before_its_shard_deletes_the_instance() -> Result<()> {
    let scene =
        Scene::with_groups("machine-noticed", &["a"], json!({ "web": { "template": "web", "size": 0 } })).await?;
    create_machine(&scene, "mine", "web", Some("a")).await?;
    settled(&scene, 1).await?;
    let status = scene.api::<NstanceMachine>().get("mine").await?.status.context("status")?;
    let id = status.instance_id.context("its instance")?;
    pod(&scene, "one", &id).await?;
    scene.zones.cloud.give_notice(&id);
    let pods = scene.api::<Pod>();
    let is_gone = || async {
        let is_gone = !is_there(&scene, &id);
        if is_gone {
            assert!(pods.get_opt("one").await?.is_none(), "the instance went before its pod");
        }
        Ok(is_gone)
    };
    scene.until("the instance is gone", is_gone).await?;
    until_gone(&scene, "mine").await
}

#[tokio::test]
async fn a58_a_failure_domain_that_is_no_shard_is_named() -> Result<()> {
    let scene = Scene::with_groups("machine-where", &["a"], json!({ "web": { "template": "web", "size": 0 } })).await?;
    create_machine(&scene, "mine", "web", Some("nowhere")).await?;
    let message = until_condition(&scene, "mine", "Ready", "False/Invalid").await?;
    assert!(message.contains("nowhere"), "{message}");
    delete_machine(&scene, "mine").await?;
    until_gone(&scene, "mine").await?;
    assert_eq!(scene.zones.cloud.made(), 0);
    Ok(())
}

#[tokio::test]
async fn a53_a_lost_instance_takes_its_machine_and_its_node_with_it() -> Result<()> {
    let scene = Scene::new("machine-lost", &["a"]).await?;
    scene.create_pool("web", &["a"], Some(2)).await?;
    let victim = settled(&scene, 2).await?.remove(0);
    pod(&scene, "one", &victim).await?;
    budget(&scene).await?;
    scene.zones.cloud.set_status(&victim, None);
    until_gone(&scene, &victim).await?;
    let is_gone = || async { Ok(nodes(&scene).get_opt(&victim).await?.is_none()) };
    scene.until("its Node is gone", is_gone).await?;
    assert!(!settled(&scene, 2).await?.contains(&victim), "no budget holds what is gone");
    Ok(())
}

#[tokio::test]
async fn a98_a_drain_stops_while_the_cluster_is_paused_and_goes_on_afterwards() -> Result<()> {
    let scene = Scene::new("machine-resting", &["a"]).await?;
    scene.create_pool("web", &["a"], Some(1)).await?;
    let victim = settled(&scene, 1).await?.remove(0);
    pod(&scene, "one", &victim).await?;
    budget(&scene).await?;
    delete_machine(&scene, &victim).await?;
    until_condition(&scene, &victim, "Drained", "False/BlockedByPDB").await?;
    pause(&scene, true).await?;
    until_condition(&scene, &victim, "Drained", "Unknown/Paused").await?;
    scene.api::<PodDisruptionBudget>().delete("all", &DeleteParams::default()).await?;
    assert!(
        scene.api::<Pod>().get("one").await?.metadata.deletion_timestamp.is_none(),
        "nothing holds it but the pause"
    );
    scene.scale("web", 0).await?;
    pause(&scene, false).await?;
    until_gone(&scene, &victim).await?;
    assert!(scene.api::<Pod>().get_opt("one").await?.is_none(), "it was evicted");
    Ok(())
}

#[tokio::test]
async fn a98_a_paused_cluster_changes_nothing_and_a_machine_goes_drained_after_it() -> Result<()> {
    let scene = Scene::new("machine-paused", &["a"]).await?;
    scene.create_pool("web", &["a"], Some(1)).await?;
    let victim = settled(&scene, 1).await?.remove(0);
    pod(&scene, "one", &victim).await?;
    pause(&scene, true).await?;
    until_condition(&scene, &victim, "Paused", "True/Paused").await?;
    delete_machine(&scene, &victim).await?;
    until_condition(&scene, &victim, "Drained", "Unknown/Paused").await?;
    let machine = scene.capi("Machine").get(&victim).await?;
    assert!(has(&machine, HOOK) && !has(&machine, EXCLUDED));
    assert!(scene.api::<Pod>().get("one").await?.metadata.deletion_timestamp.is_none());
    scene.scale("web", 0).await?;
    pause(&scene, false).await?;
    until_gone(&scene, &victim).await?;
    assert!(scene.api::<Pod>().get_opt("one").await?.is_none(), "it was evicted");
    Ok(())
}

#[tokio::test]
async fn a98_a_paused_machine_is_not_drained_and_keeps_its_instance_until_it_goes_on() -> Result<()> {
    let scene = Scene::new("machine-itself-paused", &["a"]).await?;
    scene.create_pool("web", &["a"], Some(2)).await?;
    let victim = settled(&scene, 2).await?.remove(0);
    pod(&scene, "one", &victim).await?;
    let paused = |value: Value| Patch::Merge(json!({ "metadata": { "annotations": { PAUSED: value, MARK: "" } } }));
    let machines = scene.capi("Machine");
    machines.patch(&victim, &PatchParams::default(), &paused(json!(""))).await?;
    until_condition(&scene, &victim, "Paused", "True/Paused").await?;
    // Neither the one that is marked nor another one in its place.
    scene.scale("web", 1).await?;
    let message = scene.until_pool("web", "Ready", "False/Paused").await?;
    assert!(message.contains(&victim), "{message}");
    // Nor by another hand.
    delete_machine(&scene, &victim).await?;
    until_condition(&scene, &victim, "Drained", "Unknown/Paused").await?;
    let machine = machines.get(&victim).await?;
    assert!(has(&machine, HOOK) && !has(&machine, EXCLUDED));
    assert!(scene.api::<Pod>().get("one").await?.metadata.deletion_timestamp.is_none());
    assert_eq!(scene.sizes("web", &["a"]).await?, [Some(2)]);

    machines.patch(&victim, &PatchParams::default(), &paused(Value::Null)).await?;
    until_gone(&scene, &victim).await?;
    assert!(scene.api::<Pod>().get_opt("one").await?.is_none(), "it was evicted");
    settled(&scene, 1).await?;
    assert_eq!(scene.zones.cloud.made(), 2, "none was replaced");
    Ok(())
}
