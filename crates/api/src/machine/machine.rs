//! `NstanceMachine`: one instance, the infrastructure of one Machine.

use std::collections::BTreeMap;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Initialization, definition, root_with_status, rules};
use crate::condition::{Condition, ConditionType, Reason, known_conditions};
use crate::decode::or_default;
use crate::kind::kind;
use crate::schema::{Definition, column};

kind!(NstanceMachine, "nstancemachines", NstanceMachineSpec, NstanceMachineStatus);

/// What the instance is made from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rules::group()))]
pub struct NstanceMachineSpec {
    /// Key of the group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minLength" = 1))]
    pub group: Option<String>,
    /// Another way to write group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minLength" = 1))]
    pub group_ref: Option<String>,
    /// Instance type, where another one than the group's is wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance_type: Option<String>,
    /// Variables of the instance, over those of its group.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub vars: BTreeMap<String, String>,
    /// Provider ID as the instance's Node has it. The operator writes it; Cluster API reads it.
    #[serde(default, rename = "providerID", skip_serializing_if = "Option::is_none")]
    pub provider_id: Option<String>,
}

impl NstanceMachineSpec {
    /// The group, however it is written.
    pub fn group(&self) -> &str {
        self.group.as_deref().or(self.group_ref.as_deref()).unwrap_or_default()
    }
}

/// Cluster API takes no more of them.
pub const MOST_ADDRESSES: usize = 128;
/// Cluster API takes no longer one.
pub const LONGEST_ADDRESS: usize = 256;

/// An address, as a Node and a Machine have it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("required" = ["type", "address"]))]
pub struct MachineAddress {
    /// What the address is.
    #[serde(rename = "type")]
    pub kind: AddressKind,
    /// The address.
    #[schemars(extend("minLength" = 1, "maxLength" = LONGEST_ADDRESS))]
    pub address: String,
}

/// What an address is, in the words of Nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum AddressKind {
    Hostname,
    #[serde(rename = "ExternalIP")]
    ExternalIp,
    #[serde(rename = "InternalIP")]
    InternalIp,
    #[serde(rename = "ExternalDNS")]
    ExternalDns,
    #[serde(rename = "InternalDNS")]
    InternalDns,
}

impl MachineAddress {
    /// From a Node; `None` for what Cluster API would refuse.
    pub fn of_node(kind: &str, address: &str) -> Option<Self> {
        let kind = match kind {
            "Hostname" => AddressKind::Hostname,
            "ExternalIP" => AddressKind::ExternalIp,
            "InternalIP" => AddressKind::InternalIp,
            "ExternalDNS" => AddressKind::ExternalDns,
            "InternalDNS" => AddressKind::InternalDns,
            _ => return None,
        };
        (1..=LONGEST_ADDRESS).contains(&address.len()).then(|| Self { kind, address: address.to_owned() })
    }
}

/// How the instance is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NstanceMachineStatus {
    /// The instance's ID on its shard.
    #[serde(default, rename = "instanceID", skip_serializing_if = "Option::is_none")]
    pub instance_id: Option<String>,
    /// The shard that has the instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard: Option<String>,
    /// The shard that has the instance, where Cluster API looks for the failure domain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_domain: Option<String>,
    /// The addresses of the instance's Node, which Cluster API copies to the Machine.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = MOST_ADDRESSES, "x-kubernetes-list-type" = "atomic"))]
    pub addresses: Vec<MachineAddress>,
    /// The provider's own ID of the instance.
    #[serde(default, rename = "providerID", skip_serializing_if = "Option::is_none")]
    pub provider_id: Option<String>,
    /// Whether the instance runs.
    #[serde(default, deserialize_with = "or_default")]
    pub ready: bool,
    /// How far the infrastructure is; provisioned once the instance has run.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "Option::is_none")]
    pub initialization: Option<Initialization>,
    /// Ready and Paused; Drained while the machine is deleted, and ServerDeleted once its shard has deleted it.
    #[serde(default, deserialize_with = "known_conditions", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition<MachineReason>>,
}

impl NstanceMachineStatus {
    pub fn condition(&self, kind: ConditionType) -> Option<&Condition<MachineReason>> {
        self.conditions.iter().find(|condition| condition.kind == kind)
    }
}

/// Why a condition of a machine has its status: a word of ours, or one that a shard gave for a deletion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MachineReason {
    Known(Reason),
    /// In the form that a condition's reason must have.
    Shard(String),
}

impl MachineReason {
    pub fn as_str(&self) -> &str {
        match self {
            Self::Known(reason) => reason.as_str(),
            Self::Shard(word) => word,
        }
    }

    /// What a shard says of a deletion, `spot-terminating`, as a condition's reason: `SpotTerminating`.
    pub fn of_deletion(word: &str) -> Self {
        let known = match word {
            "unhealthy" => Some(Reason::Unhealthy),
            "spot-terminating" => Some(Reason::SpotTerminating),
            "eligible-expiry" => Some(Reason::EligibleExpiry),
            "forced-expiry" => Some(Reason::ForcedExpiry),
            "ondemand-expiry" => Some(Reason::OnDemandExpiry),
            "config-drift" => Some(Reason::ConfigDrift),
            "scale-down" => Some(Reason::ScaleDown),
            "preemption" => Some(Reason::Preemption),
            _ => None,
        };
        known.map_or_else(|| Self::camel_case(word), Self::Known)
    }

    /// A reason begins with a letter and has no other signs than letters and digits; a word without a letter says
    /// nothing.
    fn camel_case(word: &str) -> Self {
        /// Far below the 1024 that the schema allows: it is one word.
        const LONGEST: usize = 64;
        let parts = word.split(|c: char| !c.is_ascii_alphanumeric());
        let capital = |part: &str| {
            let (first, rest) = part.split_at(part.len().min(1));
            first.to_ascii_uppercase() + rest
        };
        let joined: String = parts.map(capital).collect();
        let name: String = joined.chars().skip_while(|c| !c.is_ascii_alphabetic()).take(LONGEST).collect();
        if name.is_empty() { Self::Known(Reason::ServerDeleted) } else { Self::Shard(name) }
    }
}

impl From<Reason> for MachineReason {
    fn from(reason: Reason) -> Self {
        Self::Known(reason)
    }
}

impl Serialize for MachineReason {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for MachineReason {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let word = String::deserialize(deserializer)?;
        let known = Reason::ALL.iter().find(|reason| reason.as_str() == word);
        Ok(known.map_or(Self::Shard(word), |reason| Self::Known(*reason)))
    }
}

pub(super) fn crd() -> CustomResourceDefinition {
    let schema = root_with_status::<NstanceMachineSpec, NstanceMachineStatus>(
        NstanceMachine::KIND,
        "An NstanceMachine is one instance, the infrastructure of a Machine.",
        true,
    );
    let columns = vec![
        column("Group", "string", ".spec.group"),
        column("InstanceID", "string", ".status.instanceID"),
        column("ProviderID", "string", ".status.providerID"),
        column("Ready", "boolean", ".status.ready"),
    ];
    Definition { columns, ..definition(NstanceMachine::KIND, NstanceMachine::PLURAL, "nstancemachine", schema) }.crd()
}
