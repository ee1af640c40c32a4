//! Simulated nodes: KWOK plays the kubelet for nodes that carry [`NODE_LABEL`], and for no others, so that
//! a real node can stand beside them. On request a second KWOK plays only the pods of nodes that agents of instances
//! keep ([`AGENT_NODE_LABEL`]).
//!
//! A pod on such a node is Running and Ready at once and stays so. Another [`Behaviour`] is chosen by the
//! last part of its first container's image name (`registry.test/image-pull-failed:1`), or by the pod
//! annotation [`BEHAVIOUR_ANNOTATION`], which wins and may be changed at any time:
//!
//! | behaviour | what the pod does |
//! | --- | --- |
//! | `ready` | Running, Ready (the default; also the way back from the others) |
//! | `image-pull-failed` | Pending, waiting in `ErrImagePull`, half a second later `ImagePullBackOff` |
//! | `image-name-invalid` | Pending, waiting in `InvalidImageName` |
//! | `image-never-pulled` | Pending, waiting in `ErrImageNeverPull` |
//! | `crash-loop` | Running, not ready; waiting in `CrashLoopBackOff`, restarted every three seconds |
//! | `slow-start` | Running, not ready, until the annotation says `ready` |
//! | `not-ready` | the same, to be annotated on a ready pod: readiness is lost, and back with `ready` |
//! | `failed` | phase Failed, exit code 1; final |
//! | `succeeded` | phase Succeeded, exit code 0; final |
//! | `held-deletion` | ready, and when deleted stays Terminating until the annotation changes |

mod stages;

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{Node, NodeStatus, Pod},
    apimachinery::pkg::api::resource::Quantity,
};
use kube::{
    Api, Client,
    api::{ObjectMeta, Patch, PatchParams, PostParams},
};
pub(crate) use stages::{Played, configuration};

use crate::control_plane::Workloads;

/// Nodes with this label are played by KWOK.
pub const NODE_LABEL: &str = "testbed.strata/simulated";
/// Nodes with this label are kept by an agent, and their pods are played by a KWOK of their own.
pub const AGENT_NODE_LABEL: &str = "nstance.dev/shard";
/// Overrides the behaviour that a pod's image names.
pub const BEHAVIOUR_ANNOTATION: &str = "testbed.strata/behaviour";

/// What a simulated pod does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Behaviour {
    Ready,
    ImagePullFailed,
    ImageNameInvalid,
    ImageNeverPulled,
    CrashLoop,
    SlowStart,
    NotReady,
    Failed,
    Succeeded,
    HeldDeletion,
}

impl Behaviour {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::ImagePullFailed => "image-pull-failed",
            Self::ImageNameInvalid => "image-name-invalid",
            Self::ImageNeverPulled => "image-never-pulled",
            Self::CrashLoop => "crash-loop",
            Self::SlowStart => "slow-start",
            Self::NotReady => "not-ready",
            Self::Failed => "failed",
            Self::Succeeded => "succeeded",
            Self::HeldDeletion => "held-deletion",
        }
    }

    /// An image whose pods behave so.
    pub fn image(self) -> String {
        format!("registry.test/{}:1", self.as_str())
    }

    /// Makes a pod behave so from now on.
    pub async fn set(self, pods: &Api<Pod>, name: &str) -> Result<Pod, kube::Error> {
        let patch = serde_json::json!({ "metadata": { "annotations": { BEHAVIOUR_ANNOTATION: self.as_str() } } });
        pods.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await
    }
}

/// A simulated node that is ready soon after it is created; add labels, taints or resources to taste.
pub fn node(name: &str, pods: u32) -> Node {
    let labels = [
        (NODE_LABEL, "true"),
        ("kubernetes.io/hostname", name),
        ("kubernetes.io/os", "linux"),
        ("kubernetes.io/arch", "amd64"),
    ];
    let resources = [("cpu", "1k".to_owned()), ("memory", "4Ti".to_owned()), ("pods", pods.to_string())];
    let resources: BTreeMap<_, _> =
        resources.into_iter().map(|(name, amount)| (name.to_owned(), Quantity(amount))).collect();
    Node {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            labels: Some(labels.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()),
            ..ObjectMeta::default()
        },
        status: Some(NodeStatus {
            allocatable: Some(resources.clone()),
            capacity: Some(resources),
            ..NodeStatus::default()
        }),
        ..Node::default()
    }
}

/// Creates the nodes that are not there yet; returns the names of all.
pub(crate) async fn create_nodes(client: &Client, workloads: &Workloads) -> Result<Vec<String>, kube::Error> {
    let api = Api::<Node>::all(client.clone());
    let names: Vec<_> = (0..workloads.nodes).map(|number| format!("simulated-{number}")).collect();
    for name in &names {
        match api.create(&PostParams::default(), &node(name, workloads.pods_per_node)).await {
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            result => drop(result?),
        }
    }
    Ok(names)
}

pub fn is_node_ready(node: Option<&Node>) -> bool {
    node.and_then(|node| node.status.as_ref()?.conditions.as_ref())
        .is_some_and(|conditions| conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True"))
}
