//! `NstanceShardGroup`: the part of a pool's group that is on one shard.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{definition, pool::subnet_pool, root_with_status, rules};
use crate::condition::{Condition, ConditionType, known_conditions};
use crate::decode::{date_time, or_default, readable_time, saturating};
use crate::kind::kind;
use crate::schema::{Definition, column};

kind!(NstanceShardGroup, "nstanceshardgroups", NstanceShardGroupSpec, NstanceShardGroupStatus);

/// One shard's share of a group. The pool's controller writes it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("required" = ["group", "shard", "size"], "x-kubernetes-validations" = rules::subnet()))]
pub struct NstanceShardGroupSpec {
    /// Key of the group.
    #[schemars(extend("minLength" = 1))]
    pub group: String,
    /// The shard.
    #[schemars(extend("minLength" = 1))]
    pub shard: String,
    /// Number of instances on this shard.
    #[serde(default, deserialize_with = "saturating")]
    #[schemars(extend("minimum" = 0))]
    pub size: Option<i32>,
    /// Template of the shard's configuration; a new dynamic group needs one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// Instance type, where another one than the template's is wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance_type: Option<String>,
    /// Subnet pool of the shard's configuration; the template's when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subnet_pool: Option<String>,
    /// Another way to write subnetPool: a list of one.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-validations" = rules::subnets()))]
    pub subnets: Vec<String>,
    /// Variables of the instances, over those of the template and the group.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub vars: BTreeMap<String, String>,
}

impl NstanceShardGroupSpec {
    /// The subnet pool, however it is written; empty if none is.
    pub fn subnet_pool(&self) -> &str {
        subnet_pool(self.subnet_pool.as_deref(), &self.subnets)
    }

    /// Whatever was stored, no less than none.
    pub fn size(&self) -> i32 {
        self.size.unwrap_or_default().max(0)
    }
}

/// How the group is on this shard.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NstanceShardGroupStatus {
    /// The metadata.generation that the shard last accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Number of instances on this shard.
    #[serde(default, deserialize_with = "or_default")]
    pub replicas: i32,
    /// Provider IDs of these instances, sorted; as their Nodes have them, once they have Nodes.
    #[serde(default, rename = "providerIDs", deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub provider_ids: Vec<String>,
    /// Whether the shard's own configuration has the group.
    #[serde(default, deserialize_with = "or_default")]
    pub is_static: bool,
    /// The group as the shard has it, all of its levels merged.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "Option::is_none")]
    pub config: Option<GroupConfig>,
    /// When the shard last reported a change of the group.
    #[serde(default, deserialize_with = "readable_time", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "date_time")]
    pub last_sync_time: Option<Timestamp>,
    /// Ready, ShardReachable, ConfigValid and Paused.
    #[serde(default, deserialize_with = "known_conditions", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

impl NstanceShardGroupStatus {
    pub fn condition(&self, kind: ConditionType) -> Option<&Condition> {
        self.conditions.iter().find(|condition| condition.kind == kind)
    }
}

/// A group's settings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GroupConfig {
    /// Template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// Subnet pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subnet_pool: Option<String>,
    /// Instance type, where the group has one of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance_type: Option<String>,
    /// Variables.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub vars: BTreeMap<String, String>,
}

pub(super) fn crd() -> CustomResourceDefinition {
    let schema = root_with_status::<NstanceShardGroupSpec, NstanceShardGroupStatus>(
        NstanceShardGroup::KIND,
        "An NstanceShardGroup is the part of a group that is on one shard.",
        true,
    );
    let columns = vec![
        column("Group", "string", ".spec.group"),
        column("Shard", "string", ".spec.shard"),
        column("Size", "integer", ".spec.size"),
        column("Static", "boolean", ".status.isStatic"),
        column("Ready", "string", ".status.conditions[?(@.type=='Ready')].status"),
    ];
    let names = definition(NstanceShardGroup::KIND, NstanceShardGroup::PLURAL, "nstanceshardgroup", schema);
    Definition { columns, ..names }.crd()
}
