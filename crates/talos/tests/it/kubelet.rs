//! The stand-in kubelet.

use anyhow::Result;
use k8s_openapi::api::core::v1::{Namespace, Pod, ServiceAccount};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, PostParams},
    config::KubeConfigOptions,
    runtime::wait::{await_condition, conditions},
};
use serde_json::json;

use crate::shared;

#[tokio::test]
async fn bound_pods_run_and_their_deletion_is_confirmed() -> Result<()> {
    let cluster = shared::cluster().await?;
    let machine = &cluster.control_planes[0];
    let kubeconfig = kube::config::Kubeconfig::from_yaml(&cluster.client(machine)?.kubeconfig().await?)?;
    testbed::install_crypto();
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    let client = kube::Client::try_from(config)?;
    let create = PostParams::default();
    let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "generateName": "pods-" } });
    let namespace = Api::<Namespace>::all(client.clone()).create(&create, &serde_json::from_value(namespace)?).await?;
    let namespace = namespace.name_any();
    // No controller-manager makes it here.
    let account = json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "default" } });
    let accounts = Api::<ServiceAccount>::namespaced(client.clone(), &namespace);
    accounts.create(&create, &serde_json::from_value(account)?).await?;
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
