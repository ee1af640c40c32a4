//! A real kubelet with real containers.

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use http_body_util::Empty;
use hyper::body::Bytes;
use hyper_util::{client::legacy, rt::TokioExecutor};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api,
    api::{LogParams, PostParams},
};
use serde_json::json;
use testbed::{ControlPlane, Options, node::RealNode};
use tokio::io::AsyncReadExt;
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

use crate::{PATIENCE, eventually};

const IMAGE: &str = "docker.io/local/health:1";

/// A number that one test frees is taken by the next: they look for traces one after another.
static ONE_AT_A_TIME: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

fn pod(node: &str) -> Pod {
    let probe = json!({ "grpc": { "port": 9090 }, "periodSeconds": 1, "failureThreshold": 1 });
    serde_json::from_value(json!({
        "metadata": { "name": "health" },
        "spec": {
            "nodeSelector": { "kubernetes.io/hostname": node },
            "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "health", "image": IMAGE, "imagePullPolicy": "Never",
                "args": ["--port", "9090"], "readinessProbe": probe,
            }],
        },
    }))
    .unwrap()
}

async fn until(pods: &Api<Pod>, condition: impl Fn(&Pod) -> bool + Send + Sync) -> Pod {
    let wanted = |pod: Option<&Pod>| pod.is_some_and(&condition);
    eventually(pods, "health", wanted).await.unwrap().unwrap()
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

fn restarts(pod: &Pod) -> i32 {
    let containers = pod.status.as_ref().and_then(|status| status.container_statuses.as_deref());
    containers.unwrap_or_default().iter().map(|container| container.restart_count).sum()
}

fn address(pod: &Pod) -> String {
    pod.status.as_ref().unwrap().pod_ip.clone().unwrap()
}

/// Whether the server says that it serves, asked from this machine.
async fn serves(pod: &Pod) -> bool {
    let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{}:9090", address(pod)));
    let mut client = HealthClient::new(endpoint.unwrap().connect().await.unwrap());
    let answer = client.check(HealthCheckRequest::default()).await.unwrap().into_inner();
    answer.status() == tonic_health::pb::health_check_response::ServingStatus::Serving
}

async fn tell(pod: &Pod, what: &str) {
    let client = legacy::Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
    let url = format!("http://{}:8080/{what}", address(pod));
    let request = http::Request::post(url).body(Empty::new()).unwrap();
    // A server that is asked to exit gives no answer.
    let answer = client.request(request).await.map(|answer| answer.status().is_success());
    assert!(what.starts_with("exit") || answer.unwrap(), "{what}");
}

#[tokio::test]
async fn a_pod_lives_by_its_real_probes() {
    if !RealNode::is_available().unwrap() {
        return;
    }
    let _alone = ONE_AT_A_TIME.lock().await;
    let control_plane = ControlPlane::start(Options::default()).await.unwrap();
    let machine = (kernel_settings(), packet_chains());
    let node = RealNode::start(&control_plane).await.unwrap();
    let network = node.service_network(&control_plane).await.unwrap();
    assert_eq!((kernel_settings(), packet_chains()), machine, "kubelet and kube-proxy must not change the machine");
    drop(network);
    node.import_image(IMAGE, &RealNode::health_program().await.unwrap()).await.unwrap();
    let namespace = control_plane.namespace("node").await.unwrap();
    let client = control_plane.client().await.unwrap();
    let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    pods.create(&PostParams::default(), &pod(&node.name())).await.unwrap();

    let pod = until(&pods, is_ready).await;
    assert_eq!(pod.spec.as_ref().unwrap().node_name, Some(node.name()));
    assert!(serves(&pod).await);
    let log = pods.logs("health", &LogParams::default()).await.unwrap();
    assert!(log.contains("health service on port 9090"), "{log}");

    tell(&pod, "not-serving").await;
    assert!(!serves(&pod).await);
    let pod = until(&pods, |pod| !is_ready(pod)).await;
    tell(&pod, "serving").await;
    let pod = until(&pods, is_ready).await;

    tell(&pod, "exit/3").await;
    let pod = until(&pods, |pod| restarts(pod) == 1 && is_ready(pod)).await;
    assert!(serves(&pod).await);

    node.kubelet().restart().await.unwrap();
    assert!(serves(&pod).await, "containers outlive the kubelet");
    node.ready().await.unwrap();

    let (name, traces) = (node.name(), traces(&node.name()));
    assert!(traces.len() > 2, "bridge, folder and groups: {traces:?}");
    node.stop().await.unwrap();
    assert_eq!(self::traces(&name), Vec::<String>::new());
    assert_eq!(pods.get_opt("health").await.unwrap(), None);
    assert_eq!(Api::<Node>::all(client).get_opt(&name).await.unwrap(), None);
}

/// Two that every kubelet sets, to 10 and 1.
fn kernel_settings() -> [String; 2] {
    ["panic", "panic_on_oops"].map(|name| std::fs::read_to_string(format!("/proc/sys/kernel/{name}")).unwrap())
}

/// Where kube-proxy has its rules; those of others may come and go inside them.
fn packet_chains() -> Vec<String> {
    let output = Command::new("iptables-save").output().unwrap();
    assert!(output.status.success());
    let rules = String::from_utf8(output.stdout).unwrap();
    rules.lines().filter(|line| line.starts_with(':')).map(|line| line.split(' ').next().unwrap().to_owned()).collect()
}

/// What a node has on this machine: bridge, control groups, folder, processes.
fn traces(name: &str) -> Vec<String> {
    let folder = std::env::temp_dir().join(name.replace("strata-n", "strata-node-"));
    let mut paths = vec![format!("/sys/class/net/{name}"), folder.display().to_string()];
    for hierarchy in std::fs::read_dir("/sys/fs/cgroup").unwrap().flatten() {
        paths.push(hierarchy.path().join(name).display().to_string());
    }
    paths.push(format!("/sys/fs/cgroup/{name}"));
    paths.retain(|path| Path::new(path).exists());
    paths.extend(processes_of(&folder));
    paths
}

/// Command lines that name the node's folder: containerd, kubelet, shims.
fn processes_of(folder: &Path) -> Vec<String> {
    let folder = format!("{}/", folder.display());
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    processes
        .filter_map(|process| std::fs::read(process.path().join("cmdline")).ok())
        .map(|command| String::from_utf8_lossy(&command).replace('\0', " "))
        .filter(|command| command.contains(&folder))
        .collect()
}

/// Set for the process that is to be killed.
const VICTIM: &str = "STRATA_TEST_VICTIM";

/// Runs a node with a pod until it is killed.
async fn be_a_victim() {
    let control_plane = ControlPlane::start(Options::bare()).await.unwrap();
    let node = RealNode::start(&control_plane).await.unwrap();
    node.import_image(IMAGE, &RealNode::health_program().await.unwrap()).await.unwrap();
    let namespace = control_plane.namespace("victim").await.unwrap();
    let pods: Api<Pod> = Api::namespaced(control_plane.client().await.unwrap(), &namespace);
    let mut pod = pod(&node.name());
    let spec = pod.spec.as_mut().unwrap();
    // Here is neither a scheduler nor anyone who provides what a token's volume needs.
    (spec.node_name, spec.automount_service_account_token) = (Some(node.name()), Some(false));
    pods.create(&PostParams::default(), &pod).await.unwrap();
    until(&pods, is_ready).await;
    eprintln!("runs {}", node.name());
    // Ends by itself only when the one who should have killed it is gone.
    let _ = tokio::io::stdin().read_u8().await;
}

#[tokio::test]
async fn a_killed_owner_leaves_nothing_that_the_next_start_does_not_remove() {
    if std::env::var_os(VICTIM).is_some() {
        return Box::pin(be_a_victim()).await;
    }
    if !RealNode::is_available().unwrap() {
        return;
    }
    let _alone = ONE_AT_A_TIME.lock().await;
    let mut victim = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "real_node::a_killed_owner_leaves_nothing_that_the_next_start_does_not_remove",
            "--nocapture",
        ])
        .env(VICTIM, "1")
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let lines = BufReader::new(victim.stderr.take().unwrap()).lines().map_while(Result::ok);
    let mut said = Vec::new();
    let name =
        lines.inspect(|line| said.push(line.clone())).find_map(|line| line.strip_prefix("runs ").map(str::to_owned));
    let name = name.unwrap_or_else(|| panic!("the victim did not start: {said:#?}"));
    victim.kill().unwrap();
    victim.wait().unwrap();

    let folder = std::env::temp_dir().join(name.replace("strata-n", "strata-node-"));
    let ended = async {
        while !processes_of(&folder).is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, ended).await.expect("all its processes end with it");
    let left = folder.join("left");
    std::fs::write(&left, "").expect("the folder waits for the next start");

    let control_plane = ControlPlane::start(Options::bare()).await.unwrap();
    let node = RealNode::start(&control_plane).await.unwrap();
    assert!(!left.exists());
    let name = node.name();
    node.stop().await.unwrap();
    assert_eq!(traces(&name), Vec::<String>::new());
}
