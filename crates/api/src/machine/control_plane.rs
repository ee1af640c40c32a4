//! `NstanceControlPlane`: what a Cluster's `controlPlaneRef` names. The control plane is made elsewhere; Cluster API
//! watches and drains the Nodes of a Cluster only if it has one that says it is initialized.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{definition, root_with_status};
use crate::condition::{Condition, known_conditions};
use crate::decode::or_default;
use crate::kind::kind;
use crate::schema::{Definition, column};

kind!(NstanceControlPlane, "nstancecontrolplanes", NstanceControlPlaneSpec, NstanceControlPlaneStatus);

/// Nothing can be asked of a control plane that is made elsewhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NstanceControlPlaneSpec {}

/// How the control plane is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NstanceControlPlaneStatus {
    /// Always true: Cluster API neither creates nor deletes its machines.
    #[serde(default, deserialize_with = "or_default")]
    pub external_managed_control_plane: bool,
    /// How far the control plane is.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "Option::is_none")]
    pub initialization: Option<ControlPlaneInitialization>,
    /// Ready, KubeconfigReady and Paused.
    #[serde(default, deserialize_with = "known_conditions", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// How far a control plane is, by the contract of Cluster API.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ControlPlaneInitialization {
    /// Whether its API server takes requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control_plane_initialized: Option<bool>,
}

pub(super) fn crd() -> CustomResourceDefinition {
    let schema = root_with_status::<NstanceControlPlaneSpec, NstanceControlPlaneStatus>(
        NstanceControlPlane::KIND,
        "An NstanceControlPlane stands for a control plane that is made elsewhere.",
        false,
    );
    let columns = vec![column("Initialized", "boolean", ".status.initialization.controlPlaneInitialized")];
    let names = definition(NstanceControlPlane::KIND, NstanceControlPlane::PLURAL, "nstancecontrolplane", schema);
    Definition { columns, ..names }.crd()
}
