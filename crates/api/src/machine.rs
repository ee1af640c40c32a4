//! The machines kinds (`infrastructure.cluster.x-k8s.io/v1beta1`): a Cluster API infrastructure provider over the groups
//! of zone shards. The published schemas are the contract: what they accept, ours accept, but for what a rule
//! refuses with its remedy.

mod cluster;
mod control_plane;
#[expect(clippy::module_inception, reason = "NstanceMachine is one of the machines kinds")]
mod machine;
mod name;
mod pool;
mod rules;
mod shard_group;
mod template;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub use cluster::{
    ControlPlaneEndpoint, FailureDomain, MOST_FAILURE_DOMAINS, NstanceCluster, NstanceClusterSpec, NstanceClusterStatus,
};
pub use control_plane::{
    ControlPlaneInitialization, NstanceControlPlane, NstanceControlPlaneSpec, NstanceControlPlaneStatus,
};
pub use machine::{
    AddressKind, LONGEST_ADDRESS, MOST_ADDRESSES, MachineAddress, MachineReason, NstanceMachine, NstanceMachineSpec,
    NstanceMachineStatus,
};
pub use name::{
    CLUSTER_LABEL, DELETE_MACHINE_ANNOTATION, EXCLUDE_DRAINING_ANNOTATION, GROUP_LABEL, MACHINE_FINALIZER, MANAGED_BY,
    MANAGED_BY_ANNOTATION, OLD_ON_DEMAND_GROUP_ANNOTATION, OLD_ON_DEMAND_TYPE_ANNOTATION, ON_DEMAND_GROUP_ANNOTATION,
    ON_DEMAND_POD_ANNOTATION, ON_DEMAND_SHARD_ANNOTATION, ON_DEMAND_TYPE_ANNOTATION, ON_DEMAND_UID_LABEL,
    PAUSED_ANNOTATION, POOL_FINALIZER, POOL_LABEL, PRE_DRAIN_HOOK, SHARD_GROUP_FINALIZER, SHARD_LABEL,
    WORKLOAD_CLUSTER_ANNOTATION, pool_label, shard_group_name,
};
pub use pool::{NstanceMachinePool, NstanceMachinePoolSpec, NstanceMachinePoolStatus};
pub use shard_group::{GroupConfig, NstanceShardGroup, NstanceShardGroupSpec, NstanceShardGroupStatus};
pub use template::{NstanceMachineTemplateSpec, TemplateMetadata, TemplateResource};

use crate::schema::{Definition, schema_of};

pub const GROUP: &str = "infrastructure.cluster.x-k8s.io";
pub const VERSION: &str = "v1beta1";
pub const API_VERSION: &str = "infrastructure.cluster.x-k8s.io/v1beta1";

/// A pool is distributed over at most so many shards: rules compare each with each.
pub const MOST_SHARDS: usize = 64;
/// What a pool's status lists of the shards that report its group: more than a pool can have, and few enough for the
/// rule that looks a shard up there.
pub const MOST_REPORTED_SHARDS: usize = 1000;

/// Where `kubectl get cluster-api` lists what belongs to Cluster API.
const CATEGORY: &str = "cluster-api";
/// By these Cluster API finds out which version of ours fulfils which of its contracts.
const CONTRACTS: &[(&str, &str)] = &[("cluster.x-k8s.io/v1beta1", VERSION), ("cluster.x-k8s.io/v1beta2", VERSION)];

/// The definitions to install.
pub fn crds() -> [CustomResourceDefinition; 6] {
    [cluster::crd(), control_plane::crd(), pool::crd(), shard_group::crd(), machine::crd(), template::crd()]
}

/// How far the infrastructure is, by the contracts of Cluster API.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Initialization {
    /// Whether the infrastructure was provisioned; once true it stays true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provisioned: Option<bool>,
}

/// The part of a definition that all kinds share.
fn definition(kind: &'static str, plural: &'static str, singular: &'static str, schema: Value) -> Definition {
    Definition {
        group: GROUP,
        version: VERSION,
        kind,
        plural,
        singular,
        short_names: &[],
        category: CATEGORY,
        labels: CONTRACTS,
        columns: Vec::new(),
        schema,
    }
}

/// The schema of a whole object. As published, an object may lack its spec where nothing in it is required.
fn root<S: JsonSchema>(kind: &str, description: &str, is_spec_required: bool) -> Value {
    let mut schema = json!({
        "type": "object",
        "description": description,
        "properties": {
            "apiVersion": { "type": "string", "description": format!("Always {API_VERSION}.") },
            "kind": { "type": "string", "description": format!("Always {kind}.") },
            "metadata": { "type": "object" },
            "spec": schema_of::<S>(),
        },
    });
    if is_spec_required {
        schema["required"] = json!(["spec"]);
    }
    schema
}

/// The same with a status.
fn root_with_status<S: JsonSchema, T: JsonSchema>(kind: &str, description: &str, is_spec_required: bool) -> Value {
    let mut schema = root::<S>(kind, description, is_spec_required);
    schema["properties"]["status"] = schema_of::<T>();
    schema
}

#[cfg(test)]
mod tests;
