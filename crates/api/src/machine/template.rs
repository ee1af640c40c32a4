//! `NstanceMachineTemplate`: what MachineSets and MachineDeployments make NstanceMachines from. Cluster API reads it; we
//! only define it.

use std::collections::BTreeMap;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{NstanceMachineSpec, definition, root, rules};
use crate::schema::{Definition, column};

const KIND: &str = "NstanceMachineTemplate";

/// The machines that are made from the template.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-validations" = rules::template()))]
pub struct NstanceMachineTemplateSpec {
    /// One machine. It cannot change: machines made from it would no longer be alike.
    pub template: TemplateResource,
}

/// One machine as a template has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TemplateResource {
    /// Labels and annotations of the machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<TemplateMetadata>,
    /// Spec of the machines.
    pub spec: NstanceMachineSpec,
}

/// Labels and annotations.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TemplateMetadata {
    /// Labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

pub(super) fn crd() -> CustomResourceDefinition {
    let schema = root::<NstanceMachineTemplateSpec>(
        KIND,
        "An NstanceMachineTemplate is what a MachineSet makes NstanceMachines from.",
        true,
    );
    let columns = vec![column("Group", "string", ".spec.template.spec.group")];
    let names = definition(KIND, "nstancemachinetemplates", "nstancemachinetemplate", schema);
    Definition { columns, ..names }.crd()
}
