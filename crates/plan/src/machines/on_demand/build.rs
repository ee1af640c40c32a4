//! The objects that are made for a Pod.

use api::machine::{API_VERSION, CLUSTER_LABEL, GROUP, NstanceMachine, ON_DEMAND_POD_ANNOTATION, ON_DEMAND_UID_LABEL};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{Observed, PodName, Request, Wish};

/// The version of Cluster API's own kinds.
const CLUSTER_API: &str = "cluster.x-k8s.io/v1beta2";
/// Names of Machines become label values.
const LONGEST_NAME: usize = 63;
/// Every name begins with it; the original's.
pub(super) const PREFIX: &str = "on-demand-";
/// What tells Pods of one name apart, in letters: the original's.
const SUFFIX: usize = 8;

/// The name of the Machine and of the NstanceMachine. It is the original's where that is unambiguous: for a Pod of
/// another namespace, or one with a long name, something is added that follows from the Pod.
pub(super) fn name(namespace: &str, pod: &PodName) -> String {
    let plain = format!("{PREFIX}{}", pod.name);
    if pod.namespace == namespace && plain.len() <= LONGEST_NAME {
        return plain;
    }
    let hash = Sha256::digest(format!("{}/{}", pod.namespace, pod.uid));
    let hash = u32::from_be_bytes(*hash.first_chunk().expect("sha256 gives 32 bytes"));
    // Names of Pods are ASCII.
    let kept: String = plain.chars().take(LONGEST_NAME - SUFFIX - 1).collect();
    format!("{}-{hash:0SUFFIX$x}", kept.trim_end_matches(['-', '.']))
}

/// The Machine of a Pod. Cluster API becomes the owner of what it refers to.
pub(super) fn machine(observed: &Observed, pod: &PodName, shard: Option<&str>) -> Value {
    let name = name(&observed.namespace, pod);
    let mut spec = json!({
        "clusterName": observed.cluster,
        // The shard's template has what an instance starts with.
        "bootstrap": { "dataSecretName": "" },
        "infrastructureRef": { "apiGroup": GROUP, "kind": NstanceMachine::KIND, "name": name },
    });
    if let Some(shard) = shard {
        spec["failureDomain"] = json!(shard);
    }
    json!({
        "apiVersion": CLUSTER_API,
        "kind": "Machine",
        "metadata": metadata(observed, &name, pod),
        "spec": spec,
    })
}

/// The NstanceMachine of a Machine that is there: it goes with it, also if Cluster API has not seen it yet.
pub(super) fn infrastructure(observed: &Observed, request: &Request, wish: &Wish) -> Value {
    let mut metadata = metadata(observed, &request.name, &request.pod);
    metadata["ownerReferences"] = json!([{
        "apiVersion": CLUSTER_API, "kind": "Machine", "name": request.name, "uid": request.uid, "controller": true,
    }]);
    let mut spec = json!({ "group": wish.group });
    if let Some(instance_type) = &wish.instance_type {
        spec["instanceType"] = json!(instance_type);
    }
    json!({ "apiVersion": API_VERSION, "kind": NstanceMachine::KIND, "metadata": metadata, "spec": spec })
}

fn metadata(observed: &Observed, name: &str, pod: &PodName) -> Value {
    json!({
        "name": name,
        "namespace": observed.namespace,
        "labels": { CLUSTER_LABEL: observed.cluster, ON_DEMAND_UID_LABEL: pod.uid },
        "annotations": { ON_DEMAND_POD_ANNOTATION: format!("{}/{}", pod.namespace, pod.name) },
    })
}
