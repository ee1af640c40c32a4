//! The stand-in kubelet.

use std::time::Duration;

use anyhow::Result;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod, ServiceAccount};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, PostParams},
    config::KubeConfigOptions,
    runtime::wait::{await_condition, conditions},
};
use serde_json::json;
use testbed::talos::{Cluster, ControllerOptions};

use crate::one_cluster;

/// Of the administrator, through the kubeconfig that Talos gives out.
async fn kubernetes(cluster: &Cluster) -> Result<kube::Client> {
    let talos = cluster.client(&cluster.control_planes[0])?;
    let _alone = one_cluster::KUBECONFIG.lock().await;
    let kubeconfig = kube::config::Kubeconfig::from_yaml(&talos.kubeconfig().await?)?;
    testbed::install_crypto();
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    Ok(testbed::patient(config)?)
}

fn readiness(node: Option<&Node>) -> Option<String> {
    let conditions = node?.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|condition| condition.type_ == "Ready").map(|condition| condition.status.clone())
}

#[tokio::test]
async fn a_silent_node_becomes_unknown_and_ready_again_and_goes_with_its_server() -> Result<()> {
    let cluster = one_cluster::running().await?;
    let grace = Duration::from_secs(3);
    let node_period = Duration::from_millis(500);
    let options = ControllerOptions { node_grace: grace, node_period, cloud_controller: true };
    let _controllers = cluster.start_controllers(options).await?;
    let worker = cluster.add_worker("one-w-silent").await?;
    let nodes = Api::<Node>::all(kubernetes(&cluster).await?);
    let is = |status: &'static str| move |node: Option<&Node>| readiness(node).as_deref() == Some(status);
    await_condition(nodes.clone(), worker.name(), is("True")).await?;
    worker.power_off().await;
    let unknown = await_condition(nodes.clone(), worker.name(), is("Unknown")).await?;
    worker.power_on().await?;
    let back = await_condition(nodes.clone(), worker.name(), is("True")).await?;
    let uid = |node: Option<Node>| node.and_then(|node| node.uid()).unwrap_or_default();
    let uid_before = uid(unknown);
    assert_eq!(uid(back), uid_before, "the Node of a server that is only off stays");
    cluster.world.delete("one-w-silent").await;
    // Only the stand-in cloud controller deletes it: the controller-manager leaves it unknown for ever.
    await_condition(nodes, "one-w-silent", conditions::is_deleted(&uid_before)).await?;
    Ok(())
}

#[tokio::test]
async fn bound_pods_run_and_their_deletion_is_confirmed() -> Result<()> {
    let cluster = one_cluster::running().await?;
    let machine = &cluster.control_planes[0];
    let client = kubernetes(&cluster).await?;
    let create = PostParams::default();
    let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "generateName": "pods-" } });
    let namespace = Api::<Namespace>::all(client.clone()).create(&create, &serde_json::from_value(namespace)?).await?;
    let namespace = namespace.name_any();
    // No controller-manager makes it here, unless another test runs one at this moment.
    let account = json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "default" } });
    let accounts = Api::<ServiceAccount>::namespaced(client.clone(), &namespace);
    match accounts.create(&create, &serde_json::from_value(account)?).await {
        Err(kube::Error::Api(status)) if status.code == 409 => {}
        created => drop(created?),
    }
    let pods = Api::<Pod>::namespaced(client.clone(), &namespace);
    for (name, is_host_network) in [("plain", false), ("host", true)] {
        let pod = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": { "name": name },
            "spec": {
                "nodeName": machine.name(),
                "hostNetwork": is_host_network,
                "terminationGracePeriodSeconds": 600,
                "containers": [{ "name": "main", "image": "registry.test/main:1" }],
            },
        });
        pods.create(&create, &serde_json::from_value(pod)?).await?;
        let running = await_condition(pods.clone(), name, conditions::is_pod_running()).await?;
        let address = running.and_then(|pod| pod.status?.pod_ip).unwrap_or_default();
        assert!(address.starts_with("10."), "Endpoints refuse loopback: {address}");
        let uid = pods.get(name).await?.uid().unwrap_or_default();
        // With its grace period, which the kubelet cuts short when everything has ended.
        pods.delete(name, &DeleteParams::default()).await?;
        await_condition(pods.clone(), name, conditions::is_deleted(&uid)).await?;
    }
    let static_pods = Api::<Pod>::namespaced(client, "kube-system");
    let name = format!("kube-apiserver-{}", machine.name());
    await_condition(static_pods, &name, conditions::is_pod_running()).await?;
    Ok(())
}
