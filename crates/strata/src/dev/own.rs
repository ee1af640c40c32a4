//! The control plane and nodes that `dev up` starts itself.

use std::path::{Path, PathBuf};

use k8s_openapi::{
    api::core::v1::{Node, NodeSpec, Taint},
    apimachinery::pkg::api::resource::Quantity,
};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::json;
use testbed::{
    ControlPlane, Options, User, Workloads,
    capi::{self, ClusterApi},
    kwok,
    node::RealNode,
    process::Child,
};

use super::{event::Report, place::Place, session::Program, shards::AGENT};
use crate::Failure;

/// Only what asks for the real node runs there; its registry is empty.
const REAL_NODE: &str = "dev.strata/real-node";
const REAL_IMAGE: &str = "docker.io/local/health:1";
/// Simulated nodes hold what a large real one does.
const PODS_PER_NODE: u32 = 500;

/// It has every request since the last `--fresh`, for weeks if need be: a full log is kept beside the next, older go.
const AUDIT_LOG_LIMITS: [&str; 2] = ["--audit-log-maxsize=1000", "--audit-log-maxbackup=1"];

pub struct Own {
    // Dropped in this order: the others need the control plane.
    cluster_api: Option<ClusterApi>,
    real_node: Option<RealNode>,
    control_plane: ControlPlane,
}

impl Own {
    pub async fn start(place: &Place, report: &Report) -> Result<Self, Failure> {
        report.step("control plane", "starting etcd, kube-apiserver, controller-manager, scheduler, simulated nodes");
        let workloads = Some(Workloads { agent_nodes: true, ..Workloads::default() });
        let directory = Some(place.control_plane());
        let apiserver_flags = AUDIT_LOG_LIMITS.map(str::to_owned).into();
        let options = Options { directory, workloads, apiserver_flags, keep: false, ..Options::default() };
        let control_plane = ControlPlane::start(options).await?;
        let client = control_plane.client().await?;
        for node in special_nodes() {
            create(&client, &node).await?;
        }
        report.done("control plane", format!("ready at {}", control_plane.server()));
        Ok(Self { cluster_api: None, real_node: None, control_plane })
    }

    /// Starts Cluster API's core controllers, with their definitions and webhooks.
    pub async fn add_cluster_api(&mut self, report: &Report) -> Result<(), Failure> {
        report.step("Cluster API", "starting the core controllers");
        let cluster_api = ClusterApi::start(&self.control_plane, &capi::Options::default()).await?;
        report.done("Cluster API", "the core controllers and their webhooks serve");
        self.cluster_api = Some(cluster_api);
        Ok(())
    }

    pub async fn add_real_node(&mut self, report: &Report) -> Result<(), Failure> {
        self.real_node = Some(start_real_node(&self.control_plane, report).await?);
        Ok(())
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.control_plane.kubeconfig()
    }

    /// Of a user that has the agents' rights and no others.
    pub async fn agent_kubeconfig(&self) -> Result<PathBuf, Failure> {
        Ok(self.control_plane.kubeconfig_as(&User::named(AGENT)).await?)
    }

    pub fn audit_log(&self) -> &Path {
        self.control_plane.audit().path()
    }

    pub fn programs(&self) -> Vec<Program> {
        let programs = self.control_plane.programs().into_iter();
        let programs = programs.map(|info| Program { name: info.name, pid: info.pid, log: info.log });
        let beside = self.real_node.iter().map(RealNode::kubelet).chain(self.cluster_api.iter().map(ClusterApi::child));
        programs.chain(beside.map(program)).collect()
    }

    /// Those that can be started again by themselves.
    pub fn children(&self) -> Vec<&Child> {
        self.control_plane.children().chain(self.cluster_api.iter().map(ClusterApi::child)).collect()
    }

    pub async fn stop(self) -> Result<(), Failure> {
        // Keeps nothing that it would have to store first.
        drop(self.cluster_api);
        if let Some(node) = self.real_node {
            node.stop().await?;
        }
        Ok(self.control_plane.stop().await?)
    }
}

pub fn program(child: &Child) -> Program {
    let testbed::process::Program { name, log, .. } = child.program();
    Program { name: name.clone(), pid: child.pid(), log: log.clone() }
}

/// One node with GPUs and one with a TEE, so that every example finds its place.
fn special_nodes() -> [Node; 2] {
    let mut gpu = kwok::node("simulated-gpu", PODS_PER_NODE);
    let status = gpu.status.get_or_insert_default();
    for resources in [&mut status.capacity, &mut status.allocatable] {
        resources.get_or_insert_default().insert("nvidia.com/gpu".to_owned(), Quantity("8".to_owned()));
    }
    let taint = Taint { key: "nvidia.com/gpu".to_owned(), effect: "NoSchedule".to_owned(), ..Taint::default() };
    gpu.spec = Some(NodeSpec { taints: Some(vec![taint]), ..NodeSpec::default() });
    let mut tee = kwok::node("simulated-tee", PODS_PER_NODE);
    let labels = tee.metadata.labels.get_or_insert_default();
    labels.insert("intel.feature.node.kubernetes.io/sgx".to_owned(), "true".to_owned());
    labels.insert("example.com/attestation".to_owned(), "enabled".to_owned());
    [gpu, tee]
}

async fn create(client: &Client, node: &Node) -> Result<(), Failure> {
    match Api::all(client.clone()).create(&PostParams::default(), node).await {
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        result => Ok(result.map(drop)?),
    }
}

async fn start_real_node(control_plane: &ControlPlane, report: &Report) -> Result<RealNode, Failure> {
    report.step("real node", "starting containerd and kubelet");
    let node = RealNode::start(control_plane).await?;
    let apart = json!({
        "metadata": { "labels": { REAL_NODE: "true" } },
        "spec": { "taints": [{ "key": REAL_NODE, "effect": "NoSchedule" }] },
    });
    let nodes: Api<Node> = Api::all(control_plane.client().await?);
    nodes.patch(&node.name(), &PatchParams::default(), &Patch::Strategic(apart)).await?;
    node.import_image(REAL_IMAGE, &RealNode::health_program().await?).await?;
    report.done("real node", format!("{} is ready", node.name()));
    Ok(node)
}
