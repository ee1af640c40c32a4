//! `NstanceCluster`: what a Cluster's `infrastructureRef` names. There is nothing to provision for a whole cluster.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Initialization, definition, root_with_status};
use crate::condition::{Condition, known_conditions};
use crate::decode::{or_default, saturating};
use crate::kind::kind;
use crate::schema::{Definition, column};

kind!(NstanceCluster, "nstanceclusters", NstanceClusterSpec, NstanceClusterStatus);

/// What the cluster is reached by.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NstanceClusterSpec {
    /// Where the API server of the workload cluster is reached. The operator sets it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control_plane_endpoint: Option<ControlPlaneEndpoint>,
}

/// Host and port of an API server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("required" = ["host", "port"]))]
pub struct ControlPlaneEndpoint {
    /// Host name or address.
    #[schemars(extend("minLength" = 1))]
    pub host: String,
    /// Port.
    #[serde(default, deserialize_with = "saturating")]
    #[schemars(extend("minimum" = 1))]
    pub port: Option<i32>,
}

/// Cluster API takes no more of them.
pub const MOST_FAILURE_DOMAINS: usize = 100;

/// A shard as Cluster API sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("required" = ["name"]))]
pub struct FailureDomain {
    /// Id of the shard.
    #[schemars(extend("minLength" = 1))]
    pub name: String,
    /// Whether machines of the control plane may be there: never.
    #[serde(default, deserialize_with = "or_default")]
    pub control_plane: bool,
}

/// How the cluster's infrastructure is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NstanceClusterStatus {
    /// How far the infrastructure is; it is provisioned from the beginning.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "Option::is_none")]
    pub initialization: Option<Initialization>,
    /// The shards of the operator's configuration: what a Machine may name as its failure domain.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = MOST_FAILURE_DOMAINS, "x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub failure_domains: Vec<FailureDomain>,
    /// Ready, Registered and Paused.
    #[serde(default, deserialize_with = "known_conditions", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

pub(super) fn crd() -> CustomResourceDefinition {
    let schema = root_with_status::<NstanceClusterSpec, NstanceClusterStatus>(
        NstanceCluster::KIND,
        "An NstanceCluster is the infrastructure of one Cluster: the groups of its shards.",
        false,
    );
    let columns = vec![column("Provisioned", "boolean", ".status.initialization.provisioned")];
    Definition { columns, ..definition(NstanceCluster::KIND, NstanceCluster::PLURAL, "nstancecluster", schema) }.crd()
}
