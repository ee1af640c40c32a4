//! `Workspace`: one team's environment in one namespace.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{EnvVar, LocalObjectReference, ResourceRequirements, Toleration};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::form::{Cidr, DataKey, Email, Host, Label, Name, Size, Url, variables};
use super::release::{Strings, free_form};
use super::rules::{self, names, services};
use super::{
    ChartReference, ChartValues, CodeServer, DriftDetection, GROUP, Permission, SecretReference, Span, VERSION,
    ValuesSource, root,
};
use crate::condition::{Condition, ConditionType, known_conditions};
use crate::decode::or_default;
use crate::kind::kind;
use crate::schema::{CATEGORY, Definition, column, wide_column};

kind!(Workspace, "workspaces", WorkspaceSpec, WorkspaceStatus);

/// A team's environment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rules::workspace_spec()))]
pub struct WorkspaceSpec {
    /// Scales code-servers and the workloads of all services to zero while true. Nothing is uninstalled, no data is
    /// touched, and the former replicas come back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped: Option<bool>,
    /// Domain of all hosts: a service at {host}.{workspace}.{domain}.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Host>", extend("maxLength" = 150))]
    pub domain: Option<String>,
    /// How hosts are served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ingress: Option<IngressSettings>,
    /// Secrets of this namespace with credentials for private image registries; every code-server gets them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<SecretReference>", extend("maxItems" = 20))]
    pub image_pull_secrets: Vec<LocalObjectReference>,
    /// Services by name; each becomes a HelmRelease of that name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 100, "x-kubernetes-validations" = services()))]
    pub services: BTreeMap<String, Service>,
    /// People, each with a code-server of their own where they have that permission.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = 500, "x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["slug"]))]
    pub users: Vec<WorkspaceUser>,
    /// Code-server settings of every user; a user's own win.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_defaults: Option<UserDefaults>,
    /// Values that become Secrets and ConfigMaps with a hash of their content in the name,
    /// {workspace}-{name}-{hash}. References to {name} in valuesFrom of services and envFrom of users follow them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 100, "x-kubernetes-validations" = [names::<Label>(63)]))]
    pub configs: BTreeMap<String, Config>,
    /// Network isolation and allowed destinations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
}

/// How hosts are served.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct IngressSettings {
    /// IngressClass; the cluster's default one when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Name>")]
    pub class: Option<String>,
    /// What serves this class: nginx. Only needed where something is exposed to authenticated users and the class has
    /// another name than nginx: with a controller that is no ingress-nginx it would be open to all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controller: Option<IngressController>,
    /// cert-manager ClusterIssuer; with it every host gets a certificate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Name>")]
    pub issuer: Option<String>,
    /// Annotations of every Ingress.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 50))]
    pub annotations: Strings,
    /// URL that the ingress controller asks whether a request is allowed (ingress-nginx' auth-url); what is exposed to
    /// authenticated users only needs it.
    #[serde(default, rename = "authURL", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Url>")]
    pub auth_url: Option<String>,
    /// URL to which users who are not signed in are redirected (ingress-nginx' auth-signin).
    #[serde(default, rename = "authSigninURL", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Url>")]
    pub auth_signin_url: Option<String>,
}

impl IngressSettings {
    /// Whether the class is served by ingress-nginx: by its usual name, by the default class, which is taken for it,
    /// or by word.
    pub fn is_nginx(&self) -> bool {
        self.class.as_deref().is_none_or(|class| class == "nginx") || self.controller == Some(IngressController::Nginx)
    }
}

/// An ingress controller whose annotations are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum IngressController {
    Nginx,
}

/// One service of the team, installed by Helm.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Service {
    /// Whether it is installed; true when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// The chart and where it comes from.
    pub chart: ChartReference,
    /// Values from Secrets and ConfigMaps of this namespace, in order. The name of an entry of spec.configs stands for
    /// its present version.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = 50))]
    pub values_from: Vec<ValuesSource>,
    /// Values for the chart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "free_form")]
    pub values: Option<ChartValues>,
    /// Services that must be ready first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<Label>", extend("maxItems" = 50, "x-kubernetes-list-type" = "set"))]
    pub depends_on: Vec<String>,
    /// How the service is reached from outside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expose: Option<Exposure>,
    /// ServiceAccount of this namespace that Helm acts as.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Name>")]
    pub service_account_name: Option<String>,
    /// How long one operation may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-validations" = [rules::more_than_zero()]))]
    pub timeout: Option<Span>,
    /// Whether changed objects are reported or corrected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drift_detection: Option<DriftDetection>,
    /// Allows that removing the service removes the PersistentVolumeClaims of its release.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delete_data: Option<bool>,
}

/// How something is reached from outside.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Exposure {
    /// Name of the Kubernetes Service.
    #[schemars(with = "Label")]
    pub service: String,
    /// Its port.
    #[schemars(range(min = 1, max = 65535))]
    pub port: i32,
    /// First part of the host; the service's name in the Workspace when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Label>")]
    pub host_prefix: Option<String>,
    /// Who may reach it: public (the default) or authenticated, which needs spec.ingress.authURL and
    /// ingress-nginx.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access: Option<Access>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Access {
    #[default]
    Public,
    Authenticated,
}

/// One person of the team.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkspaceUser {
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
    /// Code-server settings that win over spec.userDefaults.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code_server: Option<CodeServer>,
}

/// Code-server settings of every user.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UserDefaults {
    /// Image of the code-server.
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
    /// Entries of spec.configs, or Secrets and ConfigMaps of this namespace, whose keys become environment variables.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = 50))]
    pub env_from: Vec<ValuesSource>,
    /// Labels that a node must carry.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: Strings,
    /// Taints that are tolerated.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = 50))]
    pub tolerations: Vec<Toleration>,
}

/// The volume of a home directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Storage {
    /// Size, for example 10Gi (the default). Kubernetes fixes it when the volume is created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Size>")]
    pub size: Option<String>,
    /// StorageClass; the cluster's default one when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Name>")]
    pub class: Option<String>,
    /// What happens to the volume when the user is removed: retain (the default) or delete. A volume that was made for
    /// an earlier User of the same slug stays in any case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention: Option<Retention>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Retention {
    #[default]
    Retain,
    Delete,
}

/// A value that becomes a Secret or ConfigMap with a hash of its content in the name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rules::config()))]
pub struct Config {
    /// Secret or ConfigMap (the default). What is taken from a Secret is always one, and kind may be left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<ConfigKind>,
    /// The content, by key. Either this or fromSecret.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 200, "x-kubernetes-validations" = [names::<DataKey>(253)]))]
    pub data: Strings,
    /// A Secret of this namespace whose content is copied instead of data, so that this object contains no secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_secret: Option<SecretReference>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum ConfigKind {
    Secret,
    #[default]
    ConfigMap,
}

/// Network isolation and allowed destinations.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Network {
    /// Whether the workspace is closed to others; true when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolation: Option<bool>,
    /// What pods may reach beside DNS, the workspace itself, the internet and the API server.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = 100))]
    pub allowed_egress: Vec<Egress>,
    /// Namespace of the ingress controller, which may reach every pod; ingress-nginx when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Label>")]
    pub ingress_namespace: Option<String>,
    /// Whether pods may reach the internet, without private address ranges; true when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub internet: Option<bool>,
}

/// An address range that pods may reach.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Egress {
    /// Address range, for example 10.20.0.0/16.
    #[schemars(with = "Cidr")]
    pub cidr: String,
    /// Ports; at least one, since none would mean all.
    #[schemars(extend("minItems" = 1, "maxItems" = 50))]
    pub ports: Vec<i32>,
    /// TCP (the default), UDP or SCTP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["TCP", "UDP", "SCTP"]))]
    pub protocol: Option<String>,
}

impl WorkspaceUser {
    /// Whether the person gets a code-server.
    pub fn has_code_server(&self) -> bool {
        let is_disabled = self.code_server.as_ref().is_some_and(|settings| settings.disabled == Some(true));
        self.permissions.contains(&Permission::CodeServer) && !is_disabled
    }
}

/// How the workspace is doing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkspaceStatus {
    /// The metadata.generation that was last reconciled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Summary of the workspace's state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<WorkspacePhase>,
    /// Ready, ServicesReady, UsersReady and NetworkReady, in this order.
    #[serde(default, deserialize_with = "known_conditions", skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// The services, by name.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<ServiceSummary>,
    /// The users, by slug.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub users: Vec<UserSummary>,
    /// Ready services out of all enabled ones: 2/3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub services_ready: Option<String>,
    /// Ready users out of all with a code-server: 2/3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub users_ready: Option<String>,
    /// Objects derived from this one.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub inventory: Vec<InventoryEntry>,
}

impl WorkspaceStatus {
    pub fn condition(&self, kind: ConditionType) -> Option<&Condition> {
        self.conditions.iter().find(|c| c.kind == kind)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum WorkspacePhase {
    /// Something is being made or changed.
    Progressing,
    Ready,
    /// Everything is at zero because spec.stopped says so.
    Stopped,
    /// A service, a user or the spec needs attention; the conditions say which.
    Failed,
    Terminating,
}

/// One service in short.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ServiceSummary {
    /// Its name in spec.services.
    pub name: String,
    /// Whether its release is ready.
    pub ready: bool,
    /// Reason why not, as one word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Message why not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Chart version that is deployed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Where it is reached, if it is exposed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
}

/// One user in short.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UserSummary {
    /// The slug in spec.users.
    pub slug: String,
    /// Whether the code-server is ready.
    pub ready: bool,
    /// Reason why not, as one word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Where the code-server is reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
}

/// A derived object.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct InventoryEntry {
    /// Kind, with its group where it has one: NetworkPolicy.networking.k8s.io.
    pub kind: String,
    /// Name in this namespace.
    pub name: String,
}

pub(super) fn crd() -> CustomResourceDefinition {
    let definition = Definition {
        group: GROUP,
        version: VERSION,
        kind: Workspace::KIND,
        plural: Workspace::PLURAL,
        singular: "workspace",
        short_names: &["ws"],
        category: CATEGORY,
        labels: &[],
        columns: vec![
            column("Phase", "string", ".status.phase"),
            column("Services", "string", ".status.servicesReady"),
            column("Users", "string", ".status.usersReady"),
            column("Ready", "string", ".status.conditions[?(@.type==\"Ready\")].status"),
            column("Reason", "string", ".status.conditions[?(@.type==\"Ready\")].reason"),
            column("Age", "date", ".metadata.creationTimestamp"),
            wide_column("Message", "string", ".status.conditions[?(@.type==\"Ready\")].message"),
        ],
        schema: root::<WorkspaceSpec, WorkspaceStatus>(
            Workspace::KIND,
            "A Workspace is one team's environment: its services, its people and what ties them together.",
            &rules::workspace(),
        ),
    };
    definition.crd()
}
