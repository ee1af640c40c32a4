//! `User`: one person of a workspace, with a code-server of their own.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{EnvVar, LocalObjectReference, ResourceRequirements, Toleration};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::form::{Email, Host, Label, variables};
use super::release::Strings;
use super::{Exposure, GROUP, IngressSettings, InventoryEntry, SecretReference, Storage, VERSION, root, rules};
use crate::condition::{Condition, ConditionType, known_conditions};
use crate::decode::or_default;
use crate::kind::kind;
use crate::schema::{CATEGORY, Definition, column, wide_column};

kind!(User, "users", UserSpec, UserStatus);

/// One person and what they use. A Workspace writes these; they also stand alone.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rules::user_spec()))]
pub struct UserSpec {
    /// Short name; part of host and object names.
    #[schemars(with = "Label", extend("maxLength" = 40))]
    pub slug: String,
    /// Address of the person.
    #[schemars(with = "Email")]
    pub email: String,
    /// Full name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("maxLength" = 254))]
    pub name: Option<String>,
    /// What the person may use: code-server.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = 10, "x-kubernetes-list-type" = "set"))]
    pub permissions: Vec<Permission>,
    /// The code-server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code_server: Option<CodeServer>,
    /// Host of the code-server; without one it is reached inside the cluster only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Host>")]
    pub host: Option<String>,
    /// How the host is served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ingress: Option<IngressSettings>,
    /// Secrets of this namespace with credentials for private image registries.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<SecretReference>", extend("maxItems" = 20))]
    pub image_pull_secrets: Vec<LocalObjectReference>,
    /// Scales the code-server to zero while true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped: Option<bool>,
}

impl UserSpec {
    /// Whether the person gets a code-server.
    pub fn has_code_server(&self) -> bool {
        let is_disabled = self.code_server.as_ref().is_some_and(|settings| settings.disabled == Some(true));
        self.permissions.contains(&Permission::CodeServer) && !is_disabled
    }
}

/// What a person may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum Permission {
    #[serde(rename = "code-server")]
    CodeServer,
}

/// A code-server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CodeServer {
    /// Removes the code-server while true; its volume stays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disabled: Option<bool>,
    /// Image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minLength" = 1, "maxLength" = 1024))]
    pub image: Option<String>,
    /// CPU and memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,
    /// The volume of the home directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<Storage>,
    /// Environment variables.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "variables", extend("maxItems" = 200))]
    pub env: Vec<EnvVar>,
    /// Entries of the Workspace's spec.configs, or Secrets and ConfigMaps of this namespace, whose keys become
    /// environment variables.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = 50))]
    pub env_from: Vec<super::ValuesSource>,
    /// Labels that a node must carry.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: Strings,
    /// Taints that are tolerated.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = 50))]
    pub tolerations: Vec<Toleration>,
    /// Ports of programs in the code-server that are reached from outside, each at {hostPrefix}-{host}; service names
    /// the program, and is the prefix when hostPrefix is left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = 20))]
    pub exposures: Vec<Exposure>,
    /// Any new value restarts the code-server once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("maxLength" = 100))]
    pub restarted_at: Option<String>,
}

/// How the user's code-server is doing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UserStatus {
    /// The metadata.generation that was last reconciled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Summary of the user's state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<UserPhase>,
    /// Ready.
    #[serde(default, deserialize_with = "known_conditions", skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// Where the code-server is reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Objects derived from this one.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub inventory: Vec<InventoryEntry>,
    /// Whether what is stored cannot be decoded: nothing of it is known then, which is another thing than nothing.
    /// Never stored in the cluster, whose schema does not have it; a file that a round was written to does.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[schemars(skip)]
    pub is_unreadable: bool,
}

impl UserStatus {
    pub fn condition(&self, kind: ConditionType) -> Option<&Condition> {
        self.conditions.iter().find(|c| c.kind == kind)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum UserPhase {
    /// The code-server is starting or being changed.
    Progressing,
    Ready,
    /// Scaled to zero because spec.stopped says so.
    Stopped,
    /// No code-server: no permission, or disabled.
    Disabled,
    /// Something needs attention; the condition says what.
    Failed,
    Terminating,
}

pub(super) fn crd() -> CustomResourceDefinition {
    let definition = Definition {
        group: GROUP,
        version: VERSION,
        kind: User::KIND,
        plural: User::PLURAL,
        singular: "user",
        short_names: &["wsuser"],
        category: CATEGORY,
        labels: &[],
        columns: vec![
            column("Email", "string", ".spec.email"),
            column("Phase", "string", ".status.phase"),
            column("URL", "string", ".status.url"),
            column("Ready", "string", ".status.conditions[?(@.type==\"Ready\")].status"),
            column("Age", "date", ".metadata.creationTimestamp"),
            wide_column("Message", "string", ".status.conditions[?(@.type==\"Ready\")].message"),
        ],
        schema: root::<UserSpec, UserStatus>(
            User::KIND,
            "A User is one person of a workspace, with a code-server of their own.",
            &[],
        ),
    };
    definition.crd()
}
