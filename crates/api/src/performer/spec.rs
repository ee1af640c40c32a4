//! What a user asks for.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Affinity, ConfigMapKeySelector, LocalObjectReference, ResourceRequirements, SecretKeySelector, Toleration,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::decode::{or_default, saturating};

/// What the performer runs and where.
//
// Large parts that most Performers leave out are boxed: thousands of these sit in the cache.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PerformerSpec {
    /// Identifier of the AVS, usually its Ethereum address (0x and 40 hex digits).
    #[serde(default, deserialize_with = "or_default")]
    pub avs_address: String,
    /// Container image of the performer.
    #[serde(default, deserialize_with = "or_default")]
    pub image: String,
    /// When the node fetches the image: Always, Never or IfNotPresent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_pull_policy: Option<PullPolicy>,
    /// Version of the image. A change replaces the pod as an upgrade, even with the same image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// How the performer is started: port, environment, command, service account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<PerformerConfig>,
    /// CPU, memory and other resources of the container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Box<ResourceRequirements>>,
    /// Which nodes may run the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduling: Option<Box<Scheduling>>,
    /// GPU, TEE and other hardware the performer needs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hardware_requirements: Option<Box<HardwareRequirements>>,
    /// Secrets in the same namespace that hold credentials for private image registries.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub image_pull_secrets: Vec<LocalObjectReference>,
}

/// When the node fetches the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PullPolicy {
    Always,
    Never,
    IfNotPresent,
}

impl PullPolicy {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Always => "Always",
            Self::Never => "Never",
            Self::IfNotPresent => "IfNotPresent",
        }
    }
}

/// How the performer is started.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PerformerConfig {
    /// Port on which the performer serves gRPC, the gRPC health service included.
    #[serde(default, deserialize_with = "saturating", skip_serializing_if = "Option::is_none")]
    pub grpc_port: Option<i32>,
    /// Environment variables by name.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub environment: BTreeMap<String, String>,
    /// Environment variables taken from Secrets and ConfigMaps of the same namespace. They win over
    /// `environment` under the same name.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub environment_from: Vec<EnvironmentSource>,
    /// Arguments of the container.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// Command of the container, instead of the image's own.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// Service account the pod runs as; the namespace's default one when empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_account_name: Option<String>,
}

/// One environment variable taken from elsewhere.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EnvironmentSource {
    /// Name of the variable.
    #[serde(default, deserialize_with = "or_default")]
    pub name: String,
    /// Where its value comes from; without it the variable is empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_from: Option<EnvironmentValue>,
}

/// Where the value of an environment variable comes from: name one of the two.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EnvironmentValue {
    /// A key of a Secret in the same namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_key_ref: Option<SecretKeySelector>,
    /// A key of a ConfigMap in the same namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map_key_ref: Option<ConfigMapKeySelector>,
}

/// Which nodes may run the pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Scheduling {
    /// Labels a node must carry.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// Taints the pod tolerates.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<Toleration>,
    /// Node affinity, pod affinity and pod anti-affinity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity: Option<Box<Affinity>>,
    /// RuntimeClass of the pod, for example a sandboxed or confidential runtime.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime_class: Option<String>,
    /// PriorityClass of the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority_class_name: Option<String>,
}

/// GPU, TEE and other hardware the performer needs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HardwareRequirements {
    /// Kind of GPU: the pod asks for the resource `nvidia.com/{gpuType}`, or `nvidia.com/gpu` when empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_type: Option<String>,
    /// Number of GPUs.
    #[serde(default, deserialize_with = "saturating", skip_serializing_if = "Option::is_none")]
    pub gpu_count: Option<i32>,
    /// Whether the pod must run on a node with a trusted execution environment of kind `teeType`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tee_required: Option<bool>,
    /// Kind of trusted execution environment: sgx, sev or tdx.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tee_type: Option<String>,
    /// Further labels a node must carry.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub custom_labels: BTreeMap<String, String>,
}
