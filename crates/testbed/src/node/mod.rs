//! One real node: a kubelet with containerd that joins a control plane and runs real containers.
//!
//! Both live in mount and process namespaces of their own. All they write below `/run`, `/var/lib` and `/var/log` is
//! memory that nobody else sees, and when containerd, the first process in there, dies for whatever reason, the kernel
//! ends the kubelet, every shim and every container, and drops all mounts. Outside remain a bridge, some control groups
//! and a folder, which belong to a numbered slot. Pods reach each other and this machine, nothing beyond.

mod image;
mod layout;
mod prerequisites;
mod service_network;
mod slot;

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams},
    runtime::wait::await_condition,
};

use self::{image::Image, layout::Layout, slot::Slot};
pub use self::{
    prerequisites::{Missing, install},
    service_network::ServiceNetwork,
};
use crate::{
    control_plane::{self, ControlPlane},
    process::{self, Child, Program},
    skip::skip,
    tools,
    users::User,
};

/// Kubelet and containerd are there in three seconds on an idle machine; a busy one may take twenty times that.
const START_LIMIT: Duration = Duration::from_mins(3);

/// A socket has no event for its first listener.
const SOCKET_INTERVAL: Duration = Duration::from_millis(20);

/// The sandbox of every pod; made by us like every other image.
const PAUSE_IMAGE: &str = "docker.io/local/pause:1";

#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    #[error(transparent)]
    Missing(#[from] Missing),
    #[error(transparent)]
    Tool(#[from] tools::Error),
    #[error(transparent)]
    Process(#[from] process::Error),
    #[error(transparent)]
    ControlPlane(#[from] control_plane::Error),
    #[error("the API server refused what the node asked for")]
    Kube(#[from] kube::Error),
    #[error("all {0} slots for real nodes on this machine are taken")]
    NoSlot(u8),
    #[error("cannot {action}")]
    Io { action: String, source: io::Error },
    #[error("`{command}` failed: {output}")]
    Command { command: String, output: String },
    #[error("{what} is not ready after {} s; the end of its log:\n{log}", START_LIMIT.as_secs())]
    NotReady { what: &'static str, log: String },
}

/// A running node. Dropping it ends everything that runs on it and removes what it left on the machine;
/// [`Self::stop`] also takes it out of the cluster.
pub struct RealNode {
    // Dropped in this order: nothing may run any more when the slot is cleaned.
    kubelet: Child,
    containerd: Child,
    client: Client,
    ctr: PathBuf,
    /// Process id of the first process in the namespaces.
    init: String,
    layout: Layout,
    slot: Slot,
}

impl RealNode {
    /// What this machine lacks for a real node, if anything.
    pub fn prerequisites() -> Result<(), Missing> {
        prerequisites::check()
    }

    /// Whether a test that wants a real node can run. Where something is missing it is listed as skipped, or, in CI,
    /// fails.
    pub fn is_available() -> Result<bool, Missing> {
        match Self::prerequisites() {
            Ok(()) => Ok(true),
            Err(missing) => skip(missing).map(|()| false),
        }
    }

    /// Starts a node and waits until the control plane calls it ready. Other pods of that control plane may be
    /// scheduled to it as well: tests of simulated pods belong on another.
    pub async fn start(control_plane: &ControlPlane) -> Result<Self, NodeError> {
        let cni = prerequisites::cni_folder()?;
        Self::prerequisites()?;
        let names = ["containerd", "containerd-shim-runc-v2", "ctr", "kubelet", "healthserver"];
        let programs = tools::ensure(&names, &tools::Plain::default()).await?;
        let [containerd, shim, ctr, kubelet, healthserver] = programs.as_slice() else {
            unreachable!("one path for each name");
        };
        let slot = Slot::take()?;
        let layout = Layout::write(&slot, control_plane, shim, cni)?;
        let containerd = Child::start(containerd_program(&layout, containerd))?;
        let init = listening(&layout, &containerd).await?;
        let pause = Image::new(PAUSE_IMAGE, healthserver).args(["pause"]);
        import(ctr, &layout, &pause).await?;
        let user = User::in_group(format!("system:node:{}", slot.name()), "system:nodes");
        let kubeconfig = control_plane.kubeconfig_as(&user).await?;
        let kubelet = kubelet_program(&layout, kubelet, &init, &slot, &kubeconfig);
        let node = Self {
            kubelet: Child::start(kubelet)?,
            containerd,
            client: control_plane.client().await?,
            ctr: ctr.clone(),
            init,
            layout,
            slot,
        };
        node.ready().await?;
        Ok(node)
    }

    pub fn name(&self) -> String {
        self.slot.name()
    }

    /// The program of the health image: see `tools/healthserver`.
    pub async fn health_program() -> Result<PathBuf, NodeError> {
        Ok(tools::path("healthserver").await?)
    }

    /// Makes an image of one static program, which finds the name in its variable `IMAGE`, and gives it to the node under its full name
    /// (`docker.io/local/health:1`). Pods use it with `imagePullPolicy: Never`.
    pub async fn import_image(&self, name: &str, program: &Path) -> Result<(), NodeError> {
        import(&self.ctr, &self.layout, &Image::new(name, program)).await
    }

    /// To kill or restart it: its pods go on running.
    pub fn kubelet(&self) -> &Child {
        &self.kubelet
    }

    /// Starts a kube-proxy beside the node. The control plane must be the node's own.
    pub async fn service_network(&self, control_plane: &ControlPlane) -> Result<ServiceNetwork<'_>, NodeError> {
        ServiceNetwork::start(self, control_plane).await
    }

    /// Waits until the control plane calls the node ready.
    pub async fn ready(&self) -> Result<(), NodeError> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let name = self.name();
        let ready = await_condition(nodes, &name, is_ready);
        match tokio::time::timeout(START_LIMIT, ready).await {
            Ok(Ok(_)) => Ok(()),
            _ => Err(NodeError::NotReady { what: "kubelet", log: self.kubelet.log_tail() }),
        }
    }

    /// Takes the node and its pods out of the cluster, ends all that runs on it, and removes every trace.
    pub async fn stop(self) -> Result<(), NodeError> {
        let name = self.name();
        let on_node = ListParams::default().fields(&format!("spec.nodeName={name}"));
        // The kubelet first, else it would register the node once more.
        self.kubelet.kill().await?;
        for pod in Api::<Pod>::all(self.client.clone()).list(&on_node).await? {
            let (Some(namespace), Some(pod)) = (pod.metadata.namespace, pod.metadata.name) else {
                continue;
            };
            let pods: Api<Pod> = Api::namespaced(self.client.clone(), &namespace);
            ignore_absent(pods.delete(&pod, &DeleteParams::default().grace_period(0)).await)?;
        }
        let nodes: Api<Node> = Api::all(self.client.clone());
        ignore_absent(nodes.delete(&name, &DeleteParams::default()).await)?;
        self.containerd.kill().await?;
        Ok(())
    }
}

fn is_ready(node: Option<&Node>) -> bool {
    let conditions = node.and_then(|node| node.status.as_ref()?.conditions.as_ref());
    conditions.is_some_and(|conditions| {
        conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
    })
}

fn ignore_absent<T>(result: Result<T, kube::Error>) -> Result<(), kube::Error> {
    match result {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        other => other.map(|_| ()),
    }
}

fn containerd_program(layout: &Layout, containerd: &Path) -> Program {
    Program::new("containerd", "unshare", layout.log("containerd"))
        .args(["--mount", "--pid", "--fork", "--kill-child", "--propagation", "private", "sh", "-c"])
        .args([layout::ENTER, "strata-node"])
        .args([&layout.init_pid(), containerd, &layout.containerd_configuration()])
}

fn kubelet_program(layout: &Layout, kubelet: &Path, init: &str, slot: &Slot, kubeconfig: &Path) -> Program {
    let flag = |name: &str, value: &Path| format!("--{name}={}", value.display());
    Program::new("kubelet", "nsenter", layout.log("kubelet"))
        .args(["--target", init, "--mount", "--pid"])
        .args([kubelet])
        .args([flag("config", &layout.kubelet_configuration()), flag("kubeconfig", kubeconfig)])
        .args([format!("--hostname-override={}", slot.name()), format!("--node-ip={}", slot.gateway())])
}

/// Waits until containerd listens, and returns the process id of the namespaces' first process.
async fn listening(layout: &Layout, containerd: &Child) -> Result<String, NodeError> {
    let socket = layout.socket();
    let listens = async {
        while containerd.is_running() && tokio::net::UnixStream::connect(&socket).await.is_err() {
            tokio::time::sleep(SOCKET_INTERVAL).await;
        }
        containerd.is_running()
    };
    if tokio::time::timeout(START_LIMIT, listens).await != Ok(true) {
        return Err(NodeError::NotReady { what: "containerd", log: containerd.log_tail() });
    }
    let init = std::fs::read_to_string(layout.init_pid())
        .map_err(|source| NodeError::Io { action: "read containerd's process id".to_owned(), source })?;
    Ok(init.trim().to_owned())
}

async fn import(ctr: &Path, layout: &Layout, image: &Image<'_>) -> Result<(), NodeError> {
    let action = || format!("write the image {}", image.name());
    let io = |source| NodeError::Io { action: action(), source };
    let archive = tempfile::NamedTempFile::new_in(layout.folder()).map_err(io)?;
    image.write(archive.as_file()).map_err(io)?;
    let mut command = tokio::process::Command::new(ctr);
    command.arg("--address").arg(layout.socket());
    command.args(["--namespace", "k8s.io", "images", "import"]).arg(archive.path()).kill_on_drop(true);
    let output = command.output().await.map_err(io)?;
    if output.status.success() {
        return Ok(());
    }
    let output = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(NodeError::Command { command: format!("ctr images import {}", image.name()), output })
}
