//! Performers on a real kubelet with real containers, their Services through a real kube-proxy.

use std::{fmt::Debug, io, net::SocketAddr, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use api::performer::{Performer, Phase};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::{Api, Resource, api::PostParams, runtime::wait::await_condition};
use performers::Config;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use testbed::{
    ControlPlane, Options, Workloads,
    node::{RealNode, ServiceNetwork},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::mpsc::{UnboundedReceiver, unbounded_channel},
};
use tonic::transport::Endpoint;
use tonic_health::pb::{HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient};

use crate::harness::{PATIENCE, Running, Space, alone, condition, install, operator_user, spec_with};

const IMAGE: &str = "docker.io/local/health:1";
const NEXT_IMAGE: &str = "docker.io/local/health:2";
const ABSENT_IMAGE: &str = "docker.io/local/absent:1";

/// Nothing tells when packet rules change, or when a restarted server listens again.
const LOOK: Duration = Duration::from_millis(200);

/// A control plane whose only node is real, and the operator.
struct Stage {
    space: Space,
    operator: Running,
    node: RealNode,
    control_plane: ControlPlane,
}

impl Stage {
    async fn start() -> Result<Self> {
        let workloads = Some(Workloads { nodes: 0, ..Workloads::default() });
        let control_plane = ControlPlane::start(Options { fsync: false, workloads, ..Options::default() }).await?;
        install(&control_plane).await?;
        let node = RealNode::start(&control_plane).await?;
        node.import_image(IMAGE, &RealNode::health_program().await?).await?;
        let client = runtime::connect(control_plane.config_as(&operator_user()).await?)?;
        let operator = Running::start(client, alone(), Config::default()).await?;
        let space = Space::new(&control_plane, "real").await?;
        Ok(Self { space, operator, node, control_plane })
    }

    async fn end(self) -> Result<()> {
        self.operator.stop().await?;
        Ok(self.node.stop().await?)
    }
}

/// What the published executor sends, apart from the arguments.
fn health(image: &str, args: &[&str]) -> Value {
    spec_with(json!({ "image": image, "imagePullPolicy": "Never", "config": { "grpcPort": 8090, "args": args } }))
}

/// Its server starts unhealthy: whatever becomes ready was made so by the test, and a restart by the liveness probe
/// makes nothing ready.
fn sick(image: &str) -> Value {
    health(image, &["--port=8090", "--start=not-serving"])
}

fn is_not_ready(performer: &Performer) -> bool {
    performer.status.as_ref().is_some_and(|status| !status.ready)
}

fn has_started(pod: &Pod) -> bool {
    let containers = pod.status.as_ref().and_then(|status| status.container_statuses.as_deref());
    containers.unwrap_or_default().iter().any(|container| container.started == Some(true))
}

/// One request to the control port of the pod's server, as the line that starts it: `POST /serving`.
async fn ask(pod: &Pod, request: &str) -> Result<String> {
    let ip = pod.status.as_ref().and_then(|status| status.pod_ip.as_ref()).context("the pod has an address")?;
    let mut stream = TcpStream::connect(format!("{ip}:8080")).await?;
    stream.write_all(format!("{request} HTTP/1.0\r\n\r\n").as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let (head, body) = answer.split_once("\r\n\r\n").context("an answer of HTTP")?;
    ensure!(head.starts_with("HTTP/1.0 200"), "{request}: {head}");
    Ok(body.to_owned())
}

/// Repeats until it is so; then the last reason why not is the error.
async fn eventually<T>(attempt: impl AsyncFn() -> Result<T>) -> Result<T> {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        match attempt().await {
            Err(_) if tokio::time::Instant::now() < deadline => tokio::time::sleep(LOOK).await,
            other => return other,
        }
    }
}

/// Makes the server healthy and waits until the probes have found out. Told more than once: the liveness probe may
/// restart an unhealthy one at that very moment, and it starts unhealthy.
async fn heal(space: &Space, name: &str) -> Result<Performer> {
    let telling = async {
        loop {
            let pod = space.pod(name).await?;
            let _ = ask(&pod, "POST /serving").await;
            tokio::time::sleep(LOOK).await;
        }
    };
    tokio::select! {
        ready = space.until_settled(name) => ready,
        failed = telling => failed,
    }
}

/// What the test says or reads once. Where a probe is late, on a busy machine, the server is restarted, and refuses
/// connections meanwhile.
async fn ask_until_answered(pod: &Pod, request: &str) -> Result<String> {
    eventually(async || ask(pod, request).await).await
}

/// The Service leads to a server that says that it serves. Each try makes it healthy again: it may have been restarted since.
async fn serves(space: &Space, network: &ServiceNetwork<'_>, address: SocketAddr) -> Result<()> {
    eventually(async || {
        let _ = ask(&space.pod("a").await?, "POST /serving").await;
        check(network, address).await
    })
    .await
}

/// Where the endpoint leads: there is no DNS here, so the API says what DNS would.
async fn resolve(space: &Space, performer: &Performer) -> Result<SocketAddr> {
    let endpoint = performer.status.as_ref().and_then(|status| status.grpc_endpoint.as_deref()).unwrap_or_default();
    let (host, port) = endpoint.split_once(':').with_context(|| format!("a host and a port: {endpoint:?}"))?;
    let service = host.strip_suffix(&format!(".{}.svc.cluster.local", space.namespace)).context("a Service's name")?;
    let service = space.services.get(service).await?;
    let ip = service.spec.and_then(|spec| spec.cluster_ip).context("the Service has an address")?;
    Ok(SocketAddr::new(ip.parse()?, port.parse()?))
}

/// Asks the health service for the whole server's state over a new connection.
async fn check(network: &ServiceNetwork<'_>, address: SocketAddr) -> Result<()> {
    let mut stream = Some(TokioIo::new(network.connect(address).await?));
    let connector = tower::service_fn(move |_| {
        let stream = stream.take().ok_or_else(|| io::Error::other("one connection for one check"));
        async { stream }
    });
    let channel = Endpoint::from_shared(format!("http://{address}"))?.connect_with_connector(connector).await?;
    let answer = HealthClient::new(channel).check(HealthCheckRequest::default()).await?.into_inner();
    ensure!(answer.status() == ServingStatus::Serving, "{answer:?}");
    Ok(())
}

/// Whether the Service has no endpoint: kube-proxy then refuses, instead of leading to a pod that is not ready.
async fn refuses(network: &ServiceNetwork<'_>, address: SocketAddr) -> Result<()> {
    match network.connect(address).await {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
        other => bail!("not refused: {other:?}"),
    }
}

/// Every state of an object that a watch shows, until it is gone.
fn follow<K>(api: &Api<K>, name: &str) -> UnboundedReceiver<K>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let (sender, states) = unbounded_channel();
    let (api, name) = (api.clone(), name.to_owned());
    tokio::spawn(async move {
        let gone = |object: Option<&K>| object.is_none_or(|object| sender.send(object.clone()).is_err());
        let _ = tokio::time::timeout(PATIENCE, await_condition(api, &name, gone)).await;
    });
    states
}

async fn drain<K>(mut states: UnboundedReceiver<K>) -> Vec<K> {
    let mut all = Vec::new();
    while let Some(state) = states.recv().await {
        all.push(state);
    }
    all
}

/// Process ids in the pod's control group.
fn processes(pod: &Pod) -> Result<Vec<String>> {
    let group = format!("/pod{}/", pod.metadata.uid.as_deref().context("a pod has a uid")?);
    let is_in_group = |entry: &std::fs::DirEntry| {
        std::fs::read_to_string(entry.path().join("cgroup")).is_ok_and(|groups| groups.contains(&group))
    };
    let found = std::fs::read_dir("/proc")?.flatten().filter(is_in_group);
    Ok(found.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect())
}

#[tokio::test]
async fn a_performer_is_ready_as_its_real_probes_say() -> Result<()> {
    if !RealNode::is_available()? {
        return Ok(());
    }
    let stage = Stage::start().await?;
    let network = stage.node.service_network(&stage.control_plane).await?;
    let space = &stage.space;

    space.create("a", sick(IMAGE)).await?;
    let pod = space.until_pod("a", "started", has_started).await?;
    assert_eq!(pod.spec.as_ref().and_then(|spec| spec.node_name.clone()), Some(stage.node.name()));
    assert!(is_not_ready(&space.performers.get("a").await?));
    let performer = heal(space, "a").await?;
    let address = resolve(space, &performer).await?;
    serves(space, &network, address).await?;

    let performer = becomes_unready_and_ready_again(space, &network, &performer).await?;
    stage.node.import_image(NEXT_IMAGE, &RealNode::health_program().await?).await?;
    is_upgraded(space, &network, &performer).await?;
    is_deleted_gracefully(space).await?;
    drop(network);
    stage.end().await
}

async fn becomes_unready_and_ready_again(
    space: &Space,
    network: &ServiceNetwork<'_>,
    performer: &Performer,
) -> Result<Performer> {
    let pod = space.pod("a").await?;
    let address = resolve(space, performer).await?;
    ask_until_answered(&pod, "POST /not-serving").await?;
    let unready = space.until("a", "not ready", is_not_ready).await?;
    let available = condition(&unready, "Available");
    assert_eq!((&available["status"], &available["reason"]), (&json!("False"), &json!("PodNotReady")));
    let (before, after) = (performer.status.clone().unwrap_or_default(), unready.status.unwrap_or_default());
    assert_eq!(after.phase, Some(Phase::Pending));
    assert!(after.ready_time.is_some());
    assert_eq!(after.ready_time, before.ready_time);
    eventually(async || refuses(network, address).await).await?;

    let performer = heal(space, "a").await?;
    assert_eq!(space.pod("a").await?.metadata.uid, pod.metadata.uid, "nobody replaces an unready pod");
    assert_eq!(performer.status.as_ref().and_then(|status| status.ready_time), before.ready_time);
    serves(space, network, address).await?;
    Ok(performer)
}

async fn is_upgraded(space: &Space, network: &ServiceNetwork<'_>, performer: &Performer) -> Result<()> {
    let former = space.pod("a").await?;
    assert_eq!(ask_until_answered(&former, "GET /environment/IMAGE").await?, IMAGE);
    assert!(!processes(&former)?.is_empty());
    let mut next = sick(NEXT_IMAGE);
    next["version"] = json!("v2");
    space.patch("a", json!({ "spec": next })).await?;
    let is_upgrading = |p: &Performer| p.status.as_ref().is_some_and(|s| s.phase == Some(Phase::Upgrading));
    assert!(is_not_ready(&space.until("a", "upgrading", is_upgrading).await?));

    let uid = former.metadata.uid.clone();
    let pod = space.until_pod("a", "another", |pod| pod.metadata.uid != uid && has_started(pod)).await?;
    assert_eq!(processes(&former)?, Vec::<String>::new());
    assert!(is_upgrading(&space.performers.get("a").await?), "until the new pod is ready");
    eventually(async || {
        let image = ask(&pod, "GET /environment/IMAGE").await?;
        ensure!(image == NEXT_IMAGE, "runs {image}");
        Ok(())
    })
    .await?;
    let upgraded = heal(space, "a").await?;
    let (before, after) = (performer.status.clone().unwrap_or_default(), upgraded.status.clone().unwrap_or_default());
    assert!(before.last_upgrade.is_none() && after.last_upgrade.is_some());
    assert!(after.ready_time > before.ready_time);
    let address = resolve(space, &upgraded).await?;
    serves(space, network, address).await
}

async fn is_deleted_gracefully(space: &Space) -> Result<()> {
    let pod = space.pod("a").await?;
    assert!(!processes(&pod)?.is_empty());
    let (mut pods, mut performers) = (follow(&space.pods, "performer-a"), follow(&space.performers, "a"));
    // Only what both have seen can be seen to go.
    pods.recv().await.context("the pod is there")?;
    performers.recv().await.context("the performer is there")?;
    space.delete_and_wait("a").await?;
    let mut phases = drain(performers).await.into_iter().filter_map(|performer| performer.status?.phase);
    assert_eq!(phases.next_back(), Some(Phase::Terminating));
    let last = drain(pods).await.pop().and_then(|pod| pod.status?.container_statuses?.pop()?.state?.terminated);
    assert_eq!(last.context("the container ended before its pod went")?.exit_code, 0, "by itself, not killed");
    assert_eq!(processes(&pod)?, Vec::<String>::new());
    assert!(space.services.get_opt("performer-a").await?.is_none());
    assert!(space.pods.get_opt("performer-a").await?.is_none());
    Ok(())
}

#[tokio::test]
async fn what_a_real_node_cannot_run_is_told_with_its_reason() -> Result<()> {
    if !RealNode::is_available()? {
        return Ok(());
    }
    let stage = Stage::start().await?;
    let space = &stage.space;
    let serving = ["--port=8090"];
    let mut pulled = health(ABSENT_IMAGE, &serving);
    pulled["imagePullPolicy"] = json!("IfNotPresent");
    let mut secretive = health(IMAGE, &serving);
    let selector = json!({ "secretKeyRef": { "name": "later", "key": "token" } });
    secretive["config"]["environmentFrom"] = json!([{ "name": "TOKEN", "valueFrom": selector }]);
    space.create("pulled", pulled).await?;
    space.create("never", health(ABSENT_IMAGE, &serving)).await?;
    space.create("untagged", health("docker.io/local/health:", &serving)).await?;
    space.create("secretive", secretive).await?;
    space.create("crashing", health(IMAGE, &["--no-such-flag"])).await?;

    blocked(space, "untagged", "ImagePullFailed", "InvalidImageName").await?;
    blocked(space, "never", "ImagePullFailed", "ErrImageNeverPull").await?;
    blocked(space, "pulled", "ImagePullFailed", ABSENT_IMAGE).await?;
    blocked(space, "secretive", "ContainerConfigError", r#"secret "later" not found"#).await?;
    blocked(space, "crashing", "CrashLoop", "code 2").await?;

    // Each recovers when its cause is gone, in the same pod where the cause is not in the spec.
    let pods = [space.pod("pulled").await?, space.pod("secretive").await?].map(|pod| pod.metadata.uid);
    stage.node.import_image(ABSENT_IMAGE, &RealNode::health_program().await?).await?;
    let secret = json!({ "metadata": { "name": "later" }, "stringData": { "token": "from the secret" } });
    let secrets: Api<Secret> = Api::namespaced(space.client.clone(), &space.namespace);
    secrets.create(&PostParams::default(), &serde_json::from_value(secret)?).await?;
    space.patch("crashing", json!({ "spec": { "config": { "args": serving } } })).await?;
    for name in ["pulled", "never", "secretive", "crashing"] {
        space.until_settled(name).await?;
    }
    let again = [space.pod("pulled").await?, space.pod("secretive").await?];
    assert_eq!(ask_until_answered(&again[1], "GET /environment/TOKEN").await?, "from the secret");
    assert_eq!(again.map(|pod| pod.metadata.uid), pods);
    stage.end().await
}

/// Waits for the reason, and for a message that names what a user needs to know.
async fn blocked(space: &Space, name: &str, reason: &str, message: &str) -> Result<()> {
    let performer = space.until_condition(name, "Degraded", "True", reason).await?;
    for kind in ["Degraded", "Available"] {
        let found = condition(&performer, kind);
        assert_eq!(found["reason"], reason, "{name}: {found}");
        assert!(found["message"].as_str().is_some_and(|text| text.contains(message)), "{name}: {found}");
    }
    assert!(is_not_ready(&performer));
    assert_eq!(performer.status.and_then(|status| status.phase), Some(Phase::Pending));
    Ok(())
}
