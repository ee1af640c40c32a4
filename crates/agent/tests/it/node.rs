//! The instance's Node in a real cluster: the API server, controllers, scheduler, and KWOK for the pods there.

use agent::NodeOptions;
use anyhow::{Context, Result};
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{Node, Pod},
};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, PostParams},
    config::Kubeconfig,
    runtime::wait::await_condition,
};
use serde_json::{json, to_value};
use testbed::{
    ControlPlane, Options, User, Workloads,
    fault::{Calls, Fault, FaultProxy, Verb},
};

use crate::{
    Instance, operator, reported,
    zone::{Zone, eventually},
};

const AGENT: &str = "agent-of-instances";

async fn control_plane() -> Result<ControlPlane> {
    let workloads = Some(Workloads { nodes: 0, agent_nodes: true, ..Workloads::default() });
    let control_plane = ControlPlane::start(Options { workloads, fsync: false, ..Options::default() }).await?;
    let rights = agent::rights::rights(AGENT);
    let kinds = ["ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"];
    let objects = [
        to_value(rights.cluster_role)?,
        to_value(rights.cluster_binding)?,
        to_value(rights.role)?,
        to_value(rights.binding)?,
    ];
    let typed = objects.into_iter().zip(kinds).map(|(mut object, kind)| {
        object["apiVersion"] = json!("rbac.authorization.k8s.io/v1");
        object["kind"] = json!(kind);
        object
    });
    control_plane.install(&typed.collect::<Vec<_>>()).await?;
    Ok(control_plane)
}

fn options(client: Client, id: &str) -> NodeOptions {
    NodeOptions {
        client,
        instance_id: id.to_owned(),
        provider_id: format!("process:///a/{id}"),
        shard: "a".to_owned(),
        group: "fixed".to_owned(),
        labels: [("TIER".to_owned(), "gold".to_owned())].into(),
        addresses: ["127.0.0.1".to_owned(), String::new()],
    }
}

#[tokio::test]
async fn a83_an_agent_keeps_the_node_of_its_instance_and_pods_run_there() -> Result<()> {
    let control_plane = control_plane().await?;
    let client = control_plane.client().await?;
    let zone = Zone::new().await;
    let mut server = zone.start("s1");
    let bound = server.leads().await;
    let instance = Instance::new(&zone).await;
    let id = &*instance.id;
    let upstream = Kubeconfig::read_from(control_plane.kubeconfig_as(&User::named(AGENT)).await?)?;
    let proxy = FaultProxy::start(upstream, 7).await?;
    let agent_client = proxy.client().await?;
    let agent = instance.start(&zone, &bound, Some(options(agent_client.clone(), id)));
    reported(&operator(&zone, bound.operator), id).await;

    let nodes = Api::<Node>::all(client.clone());
    let settled = |node: Option<&Node>| node.is_some_and(|node| is_ready(node) && taints(node) == 0);
    let node = await_condition(nodes.clone(), id, settled).await?.context("no node")?;
    assert_labels(&node, id);
    let info = node.status.as_ref().and_then(|status| status.node_info.as_ref()).context("no info")?;
    assert_eq!(info.kubelet_version, "v1.36.3");
    assert_eq!(node.spec.as_ref().and_then(|spec| spec.provider_id.clone()), Some(format!("process:///a/{id}")));
    let leases = Api::<Lease>::namespaced(client.clone(), "kube-node-lease");
    // Made after its node.
    let lease = await_condition(leases.clone(), id, |lease: Option<&Lease>| lease.is_some()).await?;
    let spec = lease.and_then(|lease| lease.spec).context("no spec")?;
    assert_eq!((spec.holder_identity.as_deref(), spec.lease_duration_seconds), (Some(id), Some(40)));
    let renewed = |later: Option<&Lease>| {
        later.and_then(|later| later.spec.as_ref()).is_some_and(|later| later.renew_time > spec.renew_time)
    };
    await_condition(leases.clone(), id, renewed).await?;

    pod_runs(&control_plane, &client, id).await?;
    only_nodes_and_leases(&control_plane, &agent_client).await?;

    // Deleted with its machine, also by a server that is busy at first. What a lost agent leaves stays.
    let busy = proxy.inject(Calls::of(Verb::Delete, "nodes").nth(1), Fault::Status(503));
    agent.stop().await;
    assert_eq!(busy.hits(), 1);
    eventually("the node's removal", || async { nodes.get_opt(id).await.ok()?.is_none().then_some(()) }).await;
    let agent = instance.start(&zone, &bound, Some(options(agent_client, id)));
    await_condition(nodes.clone(), id, settled).await?;
    agent.kill();
    assert!(nodes.get_opt(id).await?.is_some());
    server.stop().await;
    Ok(())
}

fn assert_labels(node: &Node, id: &str) {
    let labels = node.metadata.labels.clone().unwrap_or_default();
    for (key, value) in [
        ("kubernetes.io/hostname", id),
        ("nstance.dev/group", "fixed"),
        ("nstance.dev/shard", "a"),
        ("topology.kubernetes.io/zone", "a"),
        ("TIER", "gold"),
    ] {
        assert_eq!(labels.get(key).map(String::as_str), Some(value), "{key}");
    }
}

async fn pod_runs(control_plane: &ControlPlane, client: &Client, id: &str) -> Result<()> {
    let namespace = control_plane.namespace("agent").await?;
    let pods = Api::<Pod>::namespaced(client.clone(), &namespace);
    let pod = serde_json::from_value(json!({
        "metadata": { "name": "pod" },
        "spec": {
            "nodeSelector": { "nstance.dev/group": "fixed", "TIER": "gold" },
            "containers": [{ "name": "main", "image": "registry.test/ready:1" }],
        },
    }))?;
    pods.create(&PostParams::default(), &pod).await?;
    let running = |pod: Option<&Pod>| {
        let status = pod.and_then(|pod| pod.status.as_ref());
        status.is_some_and(|status| status.phase.as_deref() == Some("Running") && status.pod_ip.is_some())
    };
    let pod = await_condition(pods, "pod", running).await?.context("no pod")?;
    assert_eq!(pod.spec.and_then(|spec| spec.node_name).as_deref(), Some(id));
    Ok(())
}

/// By what it may, and by what it did.
async fn only_nodes_and_leases(control_plane: &ControlPlane, agent: &Client) -> Result<()> {
    let refused = Api::<Pod>::default_namespaced(agent.clone()).list(&ListParams::default()).await;
    assert!(matches!(refused, Err(kube::Error::Api(status)) if status.code == 403));
    let refused = Api::<Lease>::namespaced(agent.clone(), "default").delete("any", &DeleteParams::default()).await;
    assert!(matches!(refused, Err(kube::Error::Api(status)) if status.code == 403));
    let entries = control_plane.audit().entries()?;
    let mut kinds: Vec<_> = entries
        .iter()
        .filter(|entry| entry.user == AGENT && entry.code < 400)
        .map(|entry| format!("{} {}", entry.verb, entry.resource))
        .collect();
    kinds.sort();
    kinds.dedup();
    let expected = ["create nodes", "get nodes", "patch leases", "patch nodes"];
    let unexpected: Vec<_> = kinds.iter().filter(|kind| !expected.contains(&kind.as_str())).collect();
    assert_eq!(unexpected, Vec::<&String>::new());
    Ok(())
}

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.is_some_and(|all| all.iter().any(|one| one.type_ == "Ready" && one.status == "True"))
}

fn taints(node: &Node) -> usize {
    node.spec.as_ref().and_then(|spec| spec.taints.as_ref()).map_or(0, Vec::len)
}
