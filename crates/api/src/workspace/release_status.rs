//! What we report of a HelmRelease, and the little that cannot be observed again.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ValuesKind;
use crate::condition::{Condition, ConditionType, Reason, known_conditions};
use crate::decode::{date_time, or_default, readable_time};

/// How the release is doing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HelmReleaseStatus {
    /// The metadata.generation that was last reconciled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Ready, Released, TestSuccess, Remediated and Drifted, in this order.
    #[serde(default, deserialize_with = "known_conditions", skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// Chart version of the newest revision that was deployed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_applied_revision: Option<String>,
    /// Chart version of the last attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_attempted_revision: Option<String>,
    /// Digest of the values of the last attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_attempted_values_digest: Option<String>,
    /// Digest of chart and values of the last attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_attempted_digest: Option<String>,
    /// Digest of the settings of the last attempt: timeout, wait, memory, crds, serviceAccountName, install and upgrade.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_attempted_settings: Option<String>,
    /// Failed attempts at the current chart and values with the current settings.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "is_zero")]
    pub failures: u32,
    /// Reason of the last failure, as one word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub last_failure: Option<Reason>,
    /// Attempts at the current chart and values that were interrupted: a killed process, an unavailable API server, and, up to
    /// five, an operator that stops or loses the lead.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "is_zero")]
    pub interruptions: u32,
    /// When the last attempt ended.
    #[serde(default, deserialize_with = "readable_time", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "date_time")]
    pub last_attempted_at: Option<Timestamp>,
    /// The rollback or uninstall that followed a failed attempt or a user's request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<Remedy>,
    /// The chart version that spec.chart resolved to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolved: Option<ResolvedChart>,
    /// Whether the deployed manifest holds PersistentVolumeClaims.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holds_data: Option<bool>,
    /// Revisions that Helm keeps, newest first.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<ReleaseRevision>,
    /// The helm operation that was started last and has not been reported yet; shows the next operator who holds a
    /// lock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<ReleaseOperation>,
    /// Last lines of helm's output, when it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_output: Option<String>,
    /// Secrets and ConfigMaps of spec.valuesFrom as they were last read.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub values_from: Vec<ReadValues>,
    /// The value of the reconcile annotation that was last acted on; of a long one, its digest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_handled_reconcile: Option<String>,
    /// The value of the force annotation that was last acted on; of a long one, its digest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_handled_force: Option<String>,
    /// The value of the rollback annotation that was last acted on; of a long one, its digest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_handled_rollback: Option<String>,
    /// Workloads that are scaled to zero, with their former replicas.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub stopped: Vec<StoppedWorkload>,
    /// Whether what is stored cannot be decoded: nothing of it is known then, which is another thing than nothing.
    /// Never stored in the cluster, whose schema does not have it; a file that a round was written to does.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[schemars(skip)]
    pub is_unreadable: bool,
}

impl HelmReleaseStatus {
    pub fn condition(&self, kind: ConditionType) -> Option<&Condition> {
        self.conditions.iter().find(|c| c.kind == kind)
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "the form that serde asks for")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// One revision of the release, as Helm keeps it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReleaseRevision {
    /// Helm's number.
    pub revision: u32,
    /// Helm's word: deployed, superseded, failed, uninstalled.
    pub status: String,
    /// Version of the chart; empty when another client made the revision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chart_version: Option<String>,
    /// Digest of chart and values; empty when another client made the revision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Uid of the Secret in which Helm keeps it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_uid: Option<String>,
    /// When the release was first deployed, whatever the revision.
    #[serde(default, deserialize_with = "readable_time", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "date_time")]
    pub first_deployed: Option<Timestamp>,
    /// When this revision was deployed.
    #[serde(default, deserialize_with = "readable_time", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "date_time")]
    pub last_deployed: Option<Timestamp>,
    /// How the chart's tests ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub test: Option<TestResult>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TestResult {
    Succeeded,
    Failed,
}

/// A helm operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum OperationKind {
    Fetch,
    Install,
    Upgrade,
    Rollback,
    Uninstall,
    Test,
}

impl OperationKind {
    pub const ALL: [Self; 6] = [Self::Fetch, Self::Install, Self::Upgrade, Self::Rollback, Self::Uninstall, Self::Test];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Fetch => "fetch",
            Self::Install => "install",
            Self::Upgrade => "upgrade",
            Self::Rollback => "rollback",
            Self::Uninstall => "uninstall",
            Self::Test => "test",
        }
    }
}

/// A helm operation that was started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReleaseOperation {
    /// What is done.
    pub kind: OperationKind,
    /// Digest of what is tried.
    pub digest: String,
    /// Chart version of what is tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chart_version: Option<String>,
    /// Helm's newest revision before it began; 0 for none.
    pub revision: u32,
    /// The revision that a rollback goes back to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to_revision: Option<u32>,
    /// Digest of the revision that a rollback goes back to, which Helm may drop from its history on the way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to_digest: Option<String>,
    /// When it began.
    #[serde(default, deserialize_with = "readable_time", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "date_time")]
    pub started_at: Option<Timestamp>,
}

/// A rollback or uninstall that put an end to a failure, or was asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Remedy {
    /// rollback or uninstall.
    pub kind: OperationKind,
    /// Digest of the chart and values that failed; other ones are tried as usual.
    pub digest: String,
    /// Whether a user requested it.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "std::ops::Not::not")]
    pub requested: bool,
    /// Whether it was done; helm's last lines are in lastOutput if not.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "std::ops::Not::not")]
    pub succeeded: bool,
}

/// A chart version that was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResolvedChart {
    /// Digest of the reference that led to it.
    pub reference: String,
    /// The version.
    pub version: String,
    /// sha256 digest of the archive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
}

/// A values document as it was read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReadValues {
    /// Secret or ConfigMap.
    pub kind: ValuesKind,
    /// Its name.
    pub name: String,
    /// The key that was read.
    pub key: String,
    /// Its metadata.resourceVersion then; empty when it was not there.
    pub version: String,
    /// Digest of the document; empty when it was not there.
    pub digest: String,
}

/// A workload that is scaled to zero.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StoppedWorkload {
    /// Deployment, StatefulSet or CronJob.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// How many replicas it had; 1 of a CronJob that ran.
    pub replicas: i32,
    /// The revision that had them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<u32>,
}
