//! A stand-in for the kubelet: registers the Node, renews its Lease, plays bound pods as objects and confirms their
//! deletion. No container runs.

use std::{convert::Infallible, fmt::Display, time::Duration};

use futures::TryStreamExt;
use jiff::Timestamp;
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{Node as NodeObject, Pod},
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
    runtime::{WatchStreamExt, watcher},
};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::{
    Impairment, apiserver,
    node::{Node, State},
};

/// Who writes, as managed fields show.
const MANAGER: &str = "kubelet";
/// Kubernetes' own default.
const LEASE_SECONDS: i32 = 40;
/// While the API server cannot be reached.
const RETRY: Duration = Duration::from_millis(500);
/// As long as the client itself would wait for an answer, minutes, a Node would be silent for one lost connection.
const PATIENCE: Duration = Duration::from_secs(30);

/// Plays the kubelet for as long as the node runs.
pub(super) async fn run(node: &Node) {
    let mut impaired = node.impaired.clone();
    loop {
        // Its sender is the server, which outlives its node.
        let _ = impaired.wait_for(|impaired| Node::has_kubelet(impaired)).await;
        let attempt = async {
            let Err(why) = Box::pin(session(node)).await;
            node.report("kubelet", State::Waiting, &why);
            tokio::time::sleep(RETRY).await;
        };
        tokio::select! {
            () = attempt => {}
            is_stopped = silenced(&mut impaired) => {
                let state = if is_stopped { State::Finished } else { State::Running };
                node.report("kubelet", state, "Cut off");
            }
        }
    }
}

/// Waits until it can do nothing any more; whether it was stopped, and not only cut off.
async fn silenced(impaired: &mut watch::Receiver<Vec<Impairment>>) -> bool {
    let now = impaired.wait_for(|impaired| !Node::has_kubelet(impaired)).await;
    now.is_ok_and(|impaired| impaired.contains(&Impairment::KubeletStopped))
}

async fn session(node: &Node) -> Result<Infallible, String> {
    let user = format!("system:node:{}", node.hostname);
    let client = apiserver::client(node, &node.applied.endpoint, &user).await?;
    within(register(&client, node)).await?;
    node.report("kubelet", State::Running, "Started");
    tokio::select! {
        end = renew(&client, node) => end,
        end = play_pods(&client, node) => end,
    }
}

async fn within<T>(requests: impl Future<Output = kube::Result<T>>) -> Result<T, String> {
    let ended = tokio::time::timeout(PATIENCE, requests).await;
    ended.map_err(|_| format!("the API server did not answer within {PATIENCE:?}"))?.map_err(reason)
}

fn reason(error: impl Display) -> String {
    error.to_string()
}

async fn register(client: &Client, node: &Node) -> Result<(), kube::Error> {
    let nodes = Api::<NodeObject>::all(client.clone());
    let apply = PatchParams::apply(MANAGER).force();
    nodes.patch(&node.hostname, &apply, &Patch::Apply(node_object(node))).await?;
    nodes.patch_status(&node.hostname, &apply, &Patch::Apply(node_status(node))).await?;
    renew_once(client, node).await?;
    if node.is_control_plane() {
        let pods = Api::<Pod>::namespaced(client.clone(), "kube-system");
        for program in ["kube-apiserver", "kube-controller-manager", "kube-scheduler"] {
            let pod = static_pod(program, node);
            pods.patch(&format!("{program}-{}", node.hostname), &apply, &Patch::Apply(pod)).await?;
        }
    }
    Ok(())
}

async fn renew(client: &Client, node: &Node) -> Result<Infallible, String> {
    let interval = node.world.upgrade().map(|world| world.options.lease_interval).ok_or("the testbed has ended")?;
    loop {
        tokio::time::sleep(interval).await;
        within(renew_once(client, node)).await?;
        // A Node that was deleted is registered again, and one that was called unknown is ready again.
        let nodes = Api::<NodeObject>::all(client.clone());
        let known = within(nodes.get_opt(&node.hostname)).await?;
        if !crate::kwok::is_node_ready(known.as_ref()) {
            within(register(client, node)).await?;
        }
    }
}

async fn renew_once(client: &Client, node: &Node) -> Result<(), kube::Error> {
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": { "name": node.hostname },
        "spec": {
            "holderIdentity": node.hostname,
            "leaseDurationSeconds": LEASE_SECONDS,
            "renewTime": format!("{:.6}", Timestamp::now()),
        },
    });
    let leases = Api::<Lease>::namespaced(client.clone(), "kube-node-lease");
    leases.patch(&node.hostname, &PatchParams::apply(MANAGER).force(), &Patch::Apply(lease)).await?;
    Ok(())
}

async fn play_pods(client: &Client, node: &Node) -> Result<Infallible, String> {
    let config = watcher::Config::default().fields(&format!("spec.nodeName={}", node.hostname));
    let pods = watcher::watcher(Api::<Pod>::all(client.clone()), config).default_backoff().applied_objects();
    let mut pods = std::pin::pin!(pods);
    let mut started: u32 = 0;
    while let Some(pod) = pods.try_next().await.map_err(reason)? {
        started += 1;
        match play(client, node, &pod, started).await {
            // Gone or changed meanwhile: its next event comes.
            Err(kube::Error::Api(status)) if [404, 409].contains(&status.code) => {}
            played => played.map_err(reason)?,
        }
    }
    Err("the watch of pods ended".to_owned())
}

async fn play(client: &Client, node: &Node, pod: &Pod, number: u32) -> Result<(), kube::Error> {
    let pods = Api::<Pod>::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("Pending");
    if pod.metadata.deletion_timestamp.is_some() {
        let uid = Preconditions { uid: pod.uid(), resource_version: None };
        let now = DeleteParams { preconditions: Some(uid), ..DeleteParams::default() }.grace_period(0);
        pods.delete(&pod.name_any(), &now).await?;
    } else if phase == "Pending" {
        let status = json!({ "status": running(node, pod, number) });
        pods.patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Strategic(status)).await?;
    }
    Ok(())
}

/// An address of the node's pods; never loopback, which Endpoints refuse. The first is the node's own. Nothing is ever
/// sent there, so that clusters may share them.
fn pod_address(node: &Node, number: u32) -> String {
    let [_, _, high, low] = node.private.octets();
    let last = if number == 0 { 1 } else { 2 + number % 250 };
    format!("10.{}.{low}.{last}", high & 127)
}

fn running(node: &Node, pod: &Pod, number: u32) -> Value {
    let spec = pod.spec.as_ref();
    let is_host_network = spec.and_then(|spec| spec.host_network).unwrap_or(false);
    let address = pod_address(node, if is_host_network { 0 } else { number });
    let now = Timestamp::now().to_string();
    let condition = |kind: &str| json!({ "type": kind, "status": "True", "lastTransitionTime": now });
    let containers = spec.map(|spec| spec.containers.as_slice()).unwrap_or_default();
    let container = |container: &k8s_openapi::api::core::v1::Container| {
        json!({
            "name": container.name,
            "image": container.image,
            "imageID": "",
            "ready": true,
            "started": true,
            "restartCount": 0,
            "state": { "running": { "startedAt": now } },
        })
    };
    let conditions = ["PodScheduled", "Initialized", "ContainersReady", "Ready"].map(condition);
    json!({
        "phase": "Running",
        "hostIP": pod_address(node, 0),
        "podIP": address,
        "podIPs": [{ "ip": address }],
        "startTime": now,
        "conditions": conditions,
        "containerStatuses": containers.iter().map(container).collect::<Vec<_>>(),
    })
}

fn node_object(node: &Node) -> Value {
    let mut labels = json!({
        "kubernetes.io/hostname": node.hostname,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
    });
    for (name, value) in &node.applied.labels {
        labels[name] = json!(value);
    }
    let mut spec = json!({});
    if node.is_control_plane() {
        labels["node-role.kubernetes.io/control-plane"] = json!("");
        spec["taints"] = json!([{ "key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule" }]);
    }
    let provider = node.applied.provider_id.clone().unwrap_or_else(|| format!("hcloud://{}", node.id));
    spec["providerID"] = json!(provider);
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": { "name": node.hostname, "labels": labels },
        "spec": spec,
    })
}

fn node_status(node: &Node) -> Value {
    let now = Timestamp::now().to_string();
    let condition = |(kind, status, reason): (&str, &str, &str)| {
        json!({
            "type": kind,
            "status": status,
            "reason": reason,
            "message": "",
            "lastHeartbeatTime": now,
            "lastTransitionTime": now,
        })
    };
    let conditions = [
        ("MemoryPressure", "False", "KubeletHasSufficientMemory"),
        ("DiskPressure", "False", "KubeletHasNoDiskPressure"),
        ("PIDPressure", "False", "KubeletHasSufficientPID"),
        ("Ready", "True", "KubeletReady"),
    ]
    .map(condition);
    // What the smallest server type has.
    let resources = json!({ "cpu": "2", "memory": "4Gi", "ephemeral-storage": "40Gi", "pods": "110" });
    let version = format!("v{}", node.applied.kubernetes_version);
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": { "name": node.hostname },
        "status": {
            "addresses": [
                { "type": "InternalIP", "address": node.private.to_string() },
                { "type": "ExternalIP", "address": node.public.to_string() },
                { "type": "Hostname", "address": node.hostname },
            ],
            "capacity": resources,
            "allocatable": resources,
            "conditions": conditions,
            "nodeInfo": {
                "architecture": "amd64",
                "bootID": "",
                "containerRuntimeVersion": "containerd://2.1.6",
                "kernelVersion": "6.18.2-talos",
                "kubeProxyVersion": version,
                "kubeletVersion": version,
                "machineID": format!("{:032x}", node.id),
                "operatingSystem": "linux",
                "osImage": format!("Talos ({})", node.talos_version),
                "systemUUID": "",
            },
        },
    })
}

/// The object by which a kubelet shows a pod that it runs from a file.
fn static_pod(program: &str, node: &Node) -> Value {
    let version = &node.applied.kubernetes_version;
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": format!("{program}-{}", node.hostname),
            "namespace": "kube-system",
            "annotations": { "kubernetes.io/config.mirror": "talos", "kubernetes.io/config.source": "file" },
            "labels": { "k8s-app": program, "tier": "control-plane" },
        },
        "spec": {
            "nodeName": node.hostname,
            "hostNetwork": true,
            "priorityClassName": "system-cluster-critical",
            "tolerations": [{ "operator": "Exists" }],
            "containers": [{ "name": program, "image": format!("registry.k8s.io/{program}:v{version}") }],
        },
    })
}
