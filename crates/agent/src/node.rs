//! The instance's Node: the agent registers it, keeps its status and its Lease, and takes it out of the cluster when the
//! machine is deleted. As a kubelet would; there are no pods of its own.

mod label;
mod object;

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::api::{coordination::v1::Lease, core::v1::Node};
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
};
use shard::clock::Clock;

pub use label::labels;
use object::Write;

/// Under which the Lease is written.
const MANAGER: &str = "strata-agent";

/// Where Kubernetes looks for the Leases of Nodes.
pub(crate) const LEASES: &str = "kube-node-lease";

/// A kubelet's: the cluster gives up on a Node after 50 s without a renewal.
const RENEWAL: Duration = Duration::from_secs(10);

/// While something fails: the Node should be there soon after the API server is.
const RETRY: Duration = Duration::from_secs(1);

/// For one request. Several fit into the time after which the cluster gives up on a Node.
const PATIENCE: Duration = Duration::from_secs(5);

/// To take the Node out, over all attempts: providers give a machine about 15 s or more to end.
const LEAVE: Duration = Duration::from_secs(12);

/// A Node that stands for the instance.
#[derive(Clone)]
pub struct NodeOptions {
    /// May change Nodes and their Leases, and nothing else: [`crate::rights`].
    pub client: Client,
    pub instance_id: String,
    /// `process:///SHARD/INSTANCE`.
    pub provider_id: String,
    pub shard: String,
    pub group: String,
    /// Of the vars, see [`labels`].
    pub labels: BTreeMap<String, String>,
    /// The instance's own addresses; one that is empty is left out.
    pub addresses: [String; 2],
}

#[derive(Debug, thiserror::Error)]
enum NodeError {
    #[error(transparent)]
    Kube(#[from] kube::Error),
    #[error("no answer from the API server within {} s", PATIENCE.as_secs())]
    Late(#[from] tokio::time::error::Elapsed),
    #[error("a Node of this name has the provider id {0:?}; it is not ours")]
    Foreign(String),
}

/// Keeps Node and Lease for as long as it is not dropped.
pub async fn keep(node: &NodeOptions, clock: &Clock) {
    let mut failing = false;
    loop {
        let wait = match look(node, clock).await {
            Ok(()) => {
                if failing {
                    tracing::info!("the Node is kept again");
                }
                failing = false;
                RENEWAL
            }
            Err(error) => {
                // Once, not at every attempt.
                if !failing {
                    tracing::warn!(%error, "the Node is not kept");
                }
                failing = true;
                RETRY
            }
        };
        tokio::time::sleep(wait).await;
    }
}

/// One look at the Node, what it needs, and the renewal of its Lease.
async fn look(node: &NodeOptions, clock: &Clock) -> Result<(), NodeError> {
    let nodes = Api::<Node>::all(node.client.clone());
    let found = tokio::time::timeout(PATIENCE, nodes.get_opt(&node.instance_id)).await??;
    if let Some(other) = found.as_ref().and_then(|found| object::foreign(found, node)) {
        return Err(NodeError::Foreign(other));
    }
    let mut uid = found.as_ref().and_then(|found| found.metadata.uid.clone());
    for write in object::writes(found.as_ref(), node, clock.now()) {
        let written = tokio::time::timeout(PATIENCE, carry_out(&nodes, node, write)).await??;
        uid = written.metadata.uid;
    }
    let leases = Api::<Lease>::namespaced(node.client.clone(), LEASES);
    let lease = object::lease(node, uid.as_deref(), clock.now());
    let apply = PatchParams::apply(MANAGER).force();
    let name = &*node.instance_id;
    tokio::time::timeout(PATIENCE, leases.patch(name, &apply, &Patch::Apply(lease))).await??;
    Ok(())
}

async fn carry_out(nodes: &Api<Node>, node: &NodeOptions, write: Write) -> Result<Node, kube::Error> {
    let (name, merge) = (&*node.instance_id, PatchParams::default());
    match write {
        Write::Create(object) => nodes.create(&PostParams::default(), &object).await,
        Write::Patch(patch) => nodes.patch(name, &merge, &Patch::Merge(patch)).await,
        Write::Status(patch) => nodes.patch_status(name, &merge, &Patch::Strategic(patch)).await,
    }
}

/// Takes the Node out of the cluster: its machine is being deleted. Its Lease goes with it.
pub async fn leave(node: &NodeOptions) {
    let remove = async {
        while let Err(error) = remove(node).await {
            tracing::warn!(%error, "the Node is not removed yet");
            tokio::time::sleep(RETRY).await;
        }
    };
    if tokio::time::timeout(LEAVE, remove).await.is_ok() {
        tracing::info!("no Node is left");
    } else {
        // It is NotReady soon, and whoever manages the cluster's machines removes it.
        tracing::warn!("the Node is not removed");
    }
}

/// Removes the Node if it is there and ours.
async fn remove(node: &NodeOptions) -> Result<(), NodeError> {
    let nodes = Api::<Node>::all(node.client.clone());
    let found = tokio::time::timeout(PATIENCE, nodes.get_opt(&node.instance_id)).await??;
    let Some(found) = found.filter(|found| object::foreign(found, node).is_none()) else { return Ok(()) };
    let preconditions = Some(Preconditions { uid: found.metadata.uid, resource_version: None });
    let parameters = DeleteParams { preconditions, ..DeleteParams::default() };
    tokio::time::timeout(PATIENCE, nodes.delete(&node.instance_id, &parameters)).await??;
    Ok(())
}
