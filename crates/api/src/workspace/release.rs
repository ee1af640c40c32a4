//! `HelmRelease`: one chart at one version with values, kept installed.

use std::collections::BTreeMap;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::form::{ChartName, ChartVersion, DataKey, Digest, Host, Label, Memory, Name, Pointer, Repo};
use super::rules::more_than_zero;
use super::{ChartValues, GROUP, HelmReleaseStatus, Span, VERSION, root};
use crate::kind::kind;
use crate::schema::{CATEGORY, Definition, column, rule, wide_column};

kind!(HelmRelease, "helmreleases", HelmReleaseSpec, HelmReleaseStatus);

/// What is to be installed, and how.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [same_namespace()]))]
pub struct HelmReleaseSpec {
    /// The chart and where it comes from.
    pub chart: ChartReference,
    /// Values from Secrets and ConfigMaps of this namespace; later entries win over earlier ones, and `values` wins over
    /// all. A change of their content is an upgrade.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = 50))]
    pub values_from: Vec<ValuesSource>,
    /// Values for the chart, as in a values.yaml.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "free_form")]
    pub values: Option<ChartValues>,
    /// Name of the Helm release; the object's own name when left out. At most 53 characters, Helm's limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Host>", extend("maxLength" = 53))]
    pub release_name: Option<String>,
    /// Namespace to install into; this object's own when left out. Another one must be allowed by the operator's
    /// settings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Label>")]
    pub target_namespace: Option<String>,
    /// How long one operation may take, for example 90s or 5m (the default).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-validations" = [more_than_zero()]))]
    pub timeout: Option<Span>,
    /// Whether an operation waits until the release's workloads are ready (the default).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait: Option<bool>,
    /// ServiceAccount of this namespace that Helm acts as, and as nothing else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Name>")]
    pub service_account_name: Option<String>,
    /// What to do when an install fails.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub install: Option<InstallStrategy>,
    /// What to do when an upgrade fails.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upgrade: Option<UpgradeStrategy>,
    /// How a rollback is done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollback: Option<RollbackStrategy>,
    /// How the release is removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uninstall: Option<UninstallStrategy>,
    /// HelmReleases of this namespace that must be ready first, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<Name>", extend("maxItems" = 50, "x-kubernetes-list-type" = "set"))]
    pub depends_on: Vec<String>,
    /// Whether objects of the release that were changed by others are reported or corrected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drift_detection: Option<DriftDetection>,
    /// Fields in which drift is expected, for example replicas under an autoscaler.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = 50))]
    pub drift_ignore: Vec<DriftIgnore>,
    /// The chart's own tests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub test: Option<TestStrategy>,
    /// How many revisions Helm keeps; 10 when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub max_history: Option<u32>,
    /// The operator changes nothing while true. Deleting the object meanwhile leaves its release as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspend: Option<bool>,
    /// Scales the release's Deployments and StatefulSets to zero and suspends its CronJobs while true; their former
    /// replicas come back after.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped: Option<bool>,
    /// What happens to the definitions in the chart's crds folder; create when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crds: Option<CrdPolicy>,
    /// Memory that this chart's helm process may use, for example 512Mi; the operator's default when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Memory>")]
    pub memory: Option<String>,
    /// How often a version range is resolved again and drift is checked; 10m when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<Span>,
}

/// A chart and where it comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ChartReference {
    /// Repository: http:// or https:// of a chart repository, oci:// of a registry path that holds the chart, or
    /// file:// of a folder that holds the chart on the operator's own disk.
    #[schemars(with = "Repo", extend("x-kubernetes-validations" = [no_credentials()]))]
    pub repo: String,
    /// Name of the chart in the repository.
    #[schemars(with = "ChartName")]
    pub name: String,
    /// An exact version, or a range like ^1.2 or >=1.0 <2; the newest release when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<ChartVersion>")]
    pub version: Option<String>,
    /// sha256 digest that the chart's archive must have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Digest>")]
    pub digest: Option<String>,
    /// Connect to an oci:// registry without TLS.
    #[serde(default, rename = "plainHTTP", skip_serializing_if = "Option::is_none")]
    pub plain_http: Option<bool>,
    /// Secret of this namespace with username and password for the repository, and ca.crt where its certificate is
    /// not signed by a public authority.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretReference>,
}

/// Where a chart comes from, by the scheme of its `repo`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repository {
    Http,
    Oci,
    File,
}

impl ChartReference {
    /// `None` for a scheme that admission refuses.
    pub fn repository(&self) -> Option<Repository> {
        match self.repo.split_once("://")?.0 {
            "http" | "https" => Some(Repository::Http),
            "oci" => Some(Repository::Oci),
            "file" => Some(Repository::File),
            _ => None,
        }
    }

    /// The version, if it is one and not a range of them. Helm takes 1.2 for a range.
    pub fn exact_version(&self) -> Option<&str> {
        let version = self.version.as_deref()?;
        let numbers = version.strip_prefix('v').unwrap_or(version);
        let numbers = numbers.split(['-', '+']).next().unwrap_or_default();
        let parts: Vec<_> = numbers.split('.').collect();
        let is_number = |part: &&str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        (parts.len() == 3 && parts.iter().all(is_number) && !version.contains(' ')).then_some(version)
    }
}

/// A Secret of the same namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct SecretReference {
    /// Name of the Secret.
    #[schemars(with = "Name")]
    pub name: String,
}

/// One document of values.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ValuesSource {
    /// Secret or ConfigMap.
    pub kind: ValuesKind,
    /// Its name, in this namespace.
    #[schemars(with = "Name")]
    pub name: String,
    /// The key that holds YAML; values.yaml when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<DataKey>")]
    pub key: Option<String>,
    /// Whether the release goes ahead without it when it does not exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub optional: Option<bool>,
}

impl ValuesSource {
    pub fn key(&self) -> &str {
        self.key.as_deref().unwrap_or("values.yaml")
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum ValuesKind {
    Secret,
    ConfigMap,
}

/// What to do when an install fails.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InstallStrategy {
    /// How often it is tried again before the release is left failed; 0 when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100))]
    pub retries: Option<u32>,
    /// What is done when no retry is left: none (the default) or uninstall.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remediation: Option<InstallRemediation>,
}

/// What to do when an upgrade fails.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UpgradeStrategy {
    /// How often it is tried again before the release is left failed; 0 when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100))]
    pub retries: Option<u32>,
    /// What is done when no retry is left: none (the default), rollback to the last good revision, or uninstall.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remediation: Option<UpgradeRemediation>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum InstallRemediation {
    #[default]
    None,
    Uninstall,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum UpgradeRemediation {
    #[default]
    None,
    Rollback,
    Uninstall,
}

/// How a rollback is done; what is left out is as for an upgrade.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RollbackStrategy {
    /// How long it may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-validations" = [more_than_zero()]))]
    pub timeout: Option<Span>,
    /// Whether it waits until the release's workloads are ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait: Option<bool>,
}

/// How the release is removed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UninstallStrategy {
    /// Keep Helm's record of the release.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_history: Option<bool>,
}

/// What is done about objects that differ from the release.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum DriftDetection {
    /// Drift is not looked for (the default).
    #[default]
    Disabled,
    /// The condition Drifted names what differs.
    Warn,
    /// The operator corrects what differs.
    Enabled,
}

/// Fields in which drift is expected.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DriftIgnore {
    /// JSON pointers, for example /spec/replicas; each begins with / and covers all below it.
    #[schemars(with = "Vec<Pointer>", extend("minItems" = 1, "maxItems" = 50))]
    pub paths: Vec<String>,
    /// Objects that the paths apply to; all when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<DriftTarget>,
}

/// Some objects of a release; what is left out matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DriftTarget {
    /// Kind of the objects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Name of the object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// The chart's own tests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TestStrategy {
    /// Whether they run after each install and upgrade; of a stopped release, after it is started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enable: Option<bool>,
    /// Whether the release is ready although they failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ignore_failures: Option<bool>,
}

/// What happens to the definitions in the chart's crds folder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum CrdPolicy {
    /// The definitions are ignored.
    Skip,
    /// Missing definitions are created with the first install, as Helm does (the default).
    #[default]
    Create,
    /// The definitions are created and updated with every install and upgrade.
    CreateReplace,
}

/// Values are the chart's business: any keys, kept as written. Atomic, because of a map that a server-side apply leaves
/// without any key the API server makes null, and to Helm that takes away the chart's own value.
pub(super) fn free_form(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "object",
        "x-kubernetes-preserve-unknown-fields": true,
        "x-kubernetes-map-type": "atomic",
    })
}

/// Specs are read by many.
fn no_credentials() -> Value {
    let remedy = "do not write a user or password here; put them into a Secret and name it in chart.secretRef";
    rule("!self.matches('^[a-z]+://[^/]*@')", remedy)
}

/// The release stays where it is.
fn same_namespace() -> Value {
    rule(
        "(has(self.targetNamespace) ? self.targetNamespace : '') == (has(oldSelf.targetNamespace) ? oldSelf.targetNamespace : '')",
        "spec.targetNamespace cannot change, the release would be left behind; create another HelmRelease and delete this one",
    )
}

pub(super) fn crd() -> CustomResourceDefinition {
    // These need metadata.name, which only the root has. No object that was taken under them can come to break them by
    // a write to status or finalizers.
    let rules = [
        rule(
            "self.metadata.name.size() <= 53 || has(self.spec.releaseName)",
            "metadata.name has more than 53 characters, Helm's limit for a release name; set spec.releaseName to a shorter one",
        ),
        rule(
            "(has(self.spec.releaseName) ? self.spec.releaseName : self.metadata.name) == (has(oldSelf.spec.releaseName) ? oldSelf.spec.releaseName : oldSelf.metadata.name)",
            "spec.releaseName cannot change, the release would be left behind; create another HelmRelease and delete this one",
        ),
        rule(
            "!has(self.spec.dependsOn) || !self.spec.dependsOn.exists(name, name == self.metadata.name)",
            "spec.dependsOn names the release itself; remove it",
        ),
    ];
    let definition = Definition {
        group: GROUP,
        version: VERSION,
        kind: HelmRelease::KIND,
        plural: HelmRelease::PLURAL,
        singular: "helmrelease",
        short_names: &["hr"],
        category: CATEGORY,
        labels: &[],
        columns: vec![
            column("Chart", "string", ".spec.chart.name"),
            column("Version", "string", ".status.lastAppliedRevision"),
            column("Revision", "integer", ".status.history[0].revision"),
            column("Ready", "string", ".status.conditions[?(@.type==\"Ready\")].status"),
            column("Reason", "string", ".status.conditions[?(@.type==\"Ready\")].reason"),
            column("Age", "date", ".metadata.creationTimestamp"),
            wide_column("Message", "string", ".status.conditions[?(@.type==\"Ready\")].message"),
        ],
        schema: root::<HelmReleaseSpec, HelmReleaseStatus>(
            HelmRelease::KIND,
            "A HelmRelease keeps one Helm chart installed at a version with values.",
            &rules,
        ),
    };
    definition.crd()
}

/// Labels or annotations.
pub(super) type Strings = BTreeMap<String, String>;
