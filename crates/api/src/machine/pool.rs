//! `NstanceMachinePool`: one group of instances over several shards, the infrastructure of one MachinePool.

use std::collections::BTreeMap;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{Initialization, MOST_REPORTED_SHARDS, MOST_SHARDS, definition, root_with_status, rules};
use crate::condition::{Condition, ConditionType, known_conditions};
use crate::decode::or_default;
use crate::kind::kind;
use crate::schema::{Definition, column};

kind!(NstanceMachinePool, "nstancemachinepools", NstanceMachinePoolSpec, NstanceMachinePoolStatus);

/// A group and where it runs. The number of instances is `spec.replicas` of the MachinePool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rules::subnet()))]
pub struct NstanceMachinePoolSpec {
    /// Key of the group on its shards: one of their configuration, which is static, or a new one, which is dynamic. No
    /// two pools of a namespace may have the same.
    #[schemars(extend("minLength" = 1, "x-kubernetes-validations" = rules::pool_group()))]
    pub group: String,
    /// The shards that the replicas are distributed over.
    #[schemars(extend("minItems" = 1, "maxItems" = MOST_SHARDS, "x-kubernetes-validations" = rules::shards()))]
    pub shards: Vec<String>,
    /// Template of the shards' configuration. A new dynamic group needs one; a static group has its own, and this must
    /// stay empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// Instance type, where another one than the template's is wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance_type: Option<String>,
    /// Subnet pool of the shards' configuration; the template's when left out. A static group has its own, and this
    /// must stay empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subnet_pool: Option<String>,
    /// Another way to write subnetPool: a list of one.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-validations" = rules::subnets()))]
    pub subnets: Vec<String>,
    /// Variables of the instances, over those of the template and the group.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub vars: BTreeMap<String, String>,
    /// Provider IDs of all instances, sorted. The operator writes it; Cluster API reads it.
    #[serde(
        default,
        rename = "providerIDList",
        deserialize_with = "or_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub provider_id_list: Vec<String>,
}

impl NstanceMachinePoolSpec {
    /// The subnet pool, however it is written; empty if none is.
    pub fn subnet_pool(&self) -> &str {
        subnet_pool(self.subnet_pool.as_deref(), &self.subnets)
    }
}

/// The subnet pool of either field.
pub(super) fn subnet_pool<'a>(pool: Option<&'a str>, list: &'a [String]) -> &'a str {
    pool.filter(|pool| !pool.is_empty()).or(list.first().map(String::as_str)).unwrap_or_default()
}

/// How the pool is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NstanceMachinePoolStatus {
    /// Whether all shards have had the group as declared. Once true it stays true, because Cluster API reads provider
    /// IDs only then; the condition Ready says how the pool is now.
    #[serde(default, deserialize_with = "or_default")]
    pub ready: bool,
    /// Number of instances on all shards.
    #[serde(default, deserialize_with = "or_default")]
    pub replicas: i32,
    /// Whether a shard's own configuration has the group: template, subnet pool and shards cannot be chosen here then.
    #[serde(default, deserialize_with = "or_default")]
    pub is_static: bool,
    /// The template in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// The subnet pool in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subnet_pool: Option<String>,
    /// The subnet pool in use, as a list of one.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub subnets: Vec<String>,
    /// The shards whose server reports the group, sorted. Only these can be added to a static pool.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = MOST_REPORTED_SHARDS))]
    pub reported_shards: Vec<String>,
    /// The kind of the pool's machines: Cluster API makes a Machine for each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub infrastructure_machine_kind: Option<String>,
    /// How far the infrastructure is; as ready.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "Option::is_none")]
    pub initialization: Option<Initialization>,
    /// The metadata.generation that was last reconciled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The metadata.generation of the MachinePool that was last reconciled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_owner_generation: Option<i64>,
    /// Ready and Paused.
    #[serde(default, deserialize_with = "known_conditions", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

impl NstanceMachinePoolStatus {
    pub fn condition(&self, kind: ConditionType) -> Option<&Condition> {
        self.conditions.iter().find(|condition| condition.kind == kind)
    }
}

pub(super) fn crd() -> CustomResourceDefinition {
    let mut schema = root_with_status::<NstanceMachinePoolSpec, NstanceMachinePoolStatus>(
        NstanceMachinePool::KIND,
        "An NstanceMachinePool is one group of instances over several shards, the infrastructure of a MachinePool.",
        true,
    );
    schema["x-kubernetes-validations"] = json!(rules::static_pool());
    let columns = vec![
        column("Group", "string", ".spec.group"),
        column("Static", "boolean", ".status.isStatic"),
        column("Ready", "boolean", ".status.ready"),
    ];
    let names = definition(NstanceMachinePool::KIND, NstanceMachinePool::PLURAL, "nstancemachinepool", schema);
    Definition { columns, ..names }.crd()
}
