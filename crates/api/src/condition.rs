//! Conditions as every layer reports them: type and reason are enums, the message is for people.

use std::fmt;

use jiff::Timestamp;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, de::DeserializeOwned};

use crate::decode::readable;

/// The type of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ConditionType {
    /// Something is being created, replaced or removed.
    Progressing,
    /// Something is wrong that waiting alone does not repair.
    Degraded,
    /// The object does its work.
    Available,
    /// The object is as it was declared.
    Ready,
    /// The newest revision of a release was deployed.
    Released,
    /// The tests of a release's chart passed.
    TestSuccess,
    /// A failed release was rolled back or uninstalled.
    Remediated,
    /// Objects of a release differ from it.
    Drifted,
    /// All services of a workspace are ready.
    ServicesReady,
    /// All users of a workspace are ready.
    UsersReady,
    /// A workspace's network policies are in place.
    NetworkReady,
    /// The shard of a group answers.
    ShardReachable,
    /// The shard of a group accepts its settings.
    ConfigValid,
    /// The Node of a machine under deletion is empty.
    Drained,
    /// The shard deleted the instance of a machine by itself.
    ServerDeleted,
    /// The object is left as it is because it, or its Cluster, is paused.
    Paused,
    /// The shards know the operator by its certificate.
    Registered,
    /// Cluster API can reach the workload cluster.
    KubeconfigReady,
}

impl ConditionType {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Progressing => "Progressing",
            Self::Degraded => "Degraded",
            Self::Available => "Available",
            Self::Ready => "Ready",
            Self::Released => "Released",
            Self::TestSuccess => "TestSuccess",
            Self::Remediated => "Remediated",
            Self::Drifted => "Drifted",
            Self::ServicesReady => "ServicesReady",
            Self::UsersReady => "UsersReady",
            Self::NetworkReady => "NetworkReady",
            Self::ShardReachable => "ShardReachable",
            Self::ConfigValid => "ConfigValid",
            Self::Drained => "Drained",
            Self::ServerDeleted => "ServerDeleted",
            Self::Paused => "Paused",
            Self::Registered => "Registered",
            Self::KubeconfigReady => "KubeconfigReady",
        }
    }
}

impl fmt::Display for ConditionType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Defines the reasons with the list of them and the word of each, so that none is forgotten.
macro_rules! reasons {
    ($($(#[$meta:meta])* $word:ident,)*) => {
        /// Why a condition has its status. Users and alerts match on these words, so none is ever renamed.
        /// When several hold, the first of this order is reported.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum Reason {
            $($(#[$meta])* $word,)*
            /// A word this version does not know; only ever read, never written.
            #[serde(other)]
            Unrecognised,
        }

        impl Reason {
            /// Every reason that is ever written.
            pub const ALL: &[Self] = &[$(Self::$word),*];

            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$word => stringify!($word),)*
                    Self::Unrecognised => "Unrecognised",
                }
            }
        }
    };
}

reasons! {
    /// A pod or Service of the needed name exists and belongs to someone else.
    NameTaken,
    /// The object's name cannot become a Service name.
    InvalidName,
    /// The spec lacks what a pod needs.
    InvalidSpec,
    /// The old pod was deleted and does not go, so that the new one cannot be made.
    PodStuck,
    /// The old Service was deleted and does not go, so that the new one cannot be made.
    ServiceStuck,
    /// The API server refuses the pod (quota, admission, validation), or cannot take it for a while.
    PodRejected,
    /// The API server refuses the Service (quota, admission), or cannot take it for a while.
    ServiceRejected,
    /// The pod lacks the label its Service finds it by.
    LabelMissing,
    /// The image cannot be pulled: not found, no access, an invalid name.
    ImagePullFailed,
    /// The container cannot be made, usually because a Secret or ConfigMap key is missing.
    ContainerConfigError,
    /// The container starts and ends again and again.
    CrashLoop,
    /// The pod ended in failure, for example evicted.
    PodFailed,
    /// The pod ended by itself although it should run for ever.
    PodSucceeded,
    /// No node offers the GPU or TEE that was asked for.
    HardwareUnavailable,
    /// No node takes the pod.
    SchedulingFailed,
    /// The object is being deleted.
    Terminating,
    /// A new image or version is being rolled out.
    UpgradeInProgress,
    /// The pod was ready and is not at the moment.
    PodNotReady,
    /// A pod takes the place of another.
    PodReplaced,
    /// The pod is created and on its way to ready.
    Scheduled,
    /// All is well.
    PodReady,
    /// Nothing is touched because the spec says so.
    Suspended,
    /// A release named in dependsOn is not ready, or they form a cycle.
    DependencyNotReady,
    DependencyCycle,
    /// Helm may only act as a ServiceAccount that the spec names.
    ServiceAccountRequired,
    /// The ServiceAccount that Helm is to act as is not there.
    ServiceAccountMissing,
    /// A right is missing; the message names it.
    Forbidden,
    /// A Secret or ConfigMap, or the key in it, is not there.
    ValuesMissing,
    /// The values cannot be given to Helm as they are written.
    ValuesInvalid,
    /// The chart cannot be fetched; the message says why.
    ChartUnavailable,
    /// The repository has no such chart or version.
    ChartNotFound,
    /// The spec asks for more memory than all helm processes may use together.
    MemoryExceedsBudget,
    /// A helm process of another client is working on the release.
    Locked,
    /// What there is could not be found out.
    StateUnknown,
    /// A helm operation waits for its turn.
    Queued,
    /// A helm operation is at work.
    Fetching,
    Installing,
    Upgrading,
    RollingBack,
    Uninstalling,
    Testing,
    /// How an operation ended.
    InstallSucceeded,
    InstallFailed,
    UpgradeSucceeded,
    UpgradeFailed,
    RollbackSucceeded,
    RollbackFailed,
    UninstallSucceeded,
    UninstallFailed,
    TestSucceeded,
    TestFailed,
    /// A helm operation took longer than it may.
    TimedOut,
    /// A helm operation needed more memory than it may.
    OutOfMemory,
    /// No test ran, or the spec asks for none.
    NotTested,
    /// Nothing failed.
    NotNeeded,
    /// Objects differ from the release, or were set back.
    DriftDetected,
    DriftCorrected,
    NoDrift,
    /// Drift detection is disabled.
    DriftNotWatched,
    /// The PersistentVolumeClaims of a release stand in the way of its removal.
    DataProtected,
    /// Another Workspace has this namespace.
    NamespaceTaken,
    /// An object of a needed name exists and belongs to someone else.
    ObjectTaken,
    /// The API server refused a derived object.
    ObjectRejected,
    /// Something derived is not ready.
    ServicesNotReady,
    UsersNotReady,
    /// The workspace is open because the spec says so.
    NotIsolated,
    /// A code-server is starting.
    Starting,
    /// Everything is at zero because the spec says so.
    Stopped,
    /// There is no code-server because the spec says so.
    Disabled,
    /// All is as declared.
    Succeeded,
    /// Nothing is touched because the object or its Cluster is paused.
    Paused,
    /// A pool or machine asks for what there is not, for example a shard.
    Invalid,
    /// An older pool of the namespace has the group.
    DuplicateGroup,
    /// The shard refuses the settings.
    ConfigValidationFailed,
    /// The shard does not answer.
    ShardUnreachable,
    /// The shard could not carry out what it accepted.
    ProviderError,
    /// Several Nodes claim to be the same instance.
    NodeAmbiguous,
    /// A PodDisruptionBudget forbids the eviction that the drain waits for.
    BlockedByPDB,
    /// The drain did not end before its deadline.
    DrainExpired,
    /// The Node is being emptied.
    Draining,
    /// Why a shard deleted an instance by itself.
    Unhealthy,
    SpotTerminating,
    EligibleExpiry,
    ForcedExpiry,
    OnDemandExpiry,
    ConfigDrift,
    ScaleDown,
    Preemption,
    /// It did not say why.
    ServerDeleted,
    /// The ConfigMap with the CA certificate of the shards is missing or cannot be used.
    AuthorityMissing,
    /// The Secret with the nonce for the operator's first certificate is missing.
    NonceMissing,
    /// The shards refuse the nonce: it was used with another key, expired, or is of another cluster.
    NonceRefused,
    /// The Secret with the operator's key cannot be used.
    KeyUnusable,
    /// The ServiceAccount whose tokens the kubeconfig holds is missing, or a token was refused.
    TokenRefused,
    /// The Secret with the kubeconfig is missing, and the administrator's to make.
    KubeconfigMissing,
    /// The administrator's kubeconfig cannot be used.
    KubeconfigUnusable,
    /// The workload cluster, which is another one, does not answer.
    WorkloadUnreachable,
    /// The operator asks a shard for its certificate.
    Registering,
    /// The instance is being made.
    Provisioning,
    /// A pool's shards do not all have the group as declared yet.
    Reconciling,
    /// A pool's shards have the group as declared.
    Reconciled,
    /// The shard has the group as declared.
    SyncSucceeded,
    /// The shard answers.
    Connected,
    /// The shard accepts the settings.
    Valid,
    /// The Node is empty, or there is none.
    Drained,
    /// There is nothing more to provision.
    Provisioned,
    /// The shards know the operator.
    Registered,
    /// The kubeconfig is there.
    KubeconfigStored,
    /// The instance runs.
    Running,
    /// Neither the object nor its Cluster is paused.
    NotPaused,
}

impl Reason {
    /// Whether it reports progress: it passes without any action by the user.
    pub const fn is_progress(self) -> bool {
        matches!(
            self,
            Self::DependencyNotReady
                | Self::Fetching
                | Self::Installing
                | Self::Locked
                | Self::Queued
                | Self::Registering
                | Self::RollingBack
                | Self::ServicesNotReady
                | Self::Starting
                | Self::StateUnknown
                | Self::Stopped
                | Self::Terminating
                | Self::Testing
                | Self::Uninstalling
                | Self::Upgrading
                | Self::UsersNotReady
        )
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// `True`, `False` or `Unknown`, as Kubernetes spells them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ConditionStatus {
    True,
    False,
    Unknown,
}

/// One fact about an object, in the shape of `metav1.Condition`. Its reason is one of ours, but where another program's
/// words become one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition<R = Reason> {
    #[serde(rename = "type")]
    pub kind: ConditionType,
    pub status: ConditionStatus,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    pub last_transition_time: Timestamp,
    pub reason: R,
    pub message: String,
}

/// Reads a condition list, passing over entries that are not ours: anyone may write any condition
/// type there, and an object that the API server stored must always decode.
pub fn known_conditions<'de, D: Deserializer<'de>, R: DeserializeOwned>(d: D) -> Result<Vec<Condition<R>>, D::Error> {
    let all: Vec<serde_json::Value> = readable(d)?;
    Ok(all.into_iter().filter_map(|c| serde_json::from_value(c).ok()).collect())
}

// By hand, because the schema must accept what any writer may put there, not only our enums.
impl<R> JsonSchema for Condition<R> {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Condition".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "object",
            "description": "One fact about the object.",
            "required": ["lastTransitionTime", "message", "reason", "status", "type"],
            "properties": {
                "type": {
                    "type": "string",
                    "description": "The type of the condition, for example Ready.",
                    "maxLength": 316,
                    "pattern": r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$",
                },
                "status": {
                    "type": "string",
                    "description": "Whether it holds: True, False or Unknown.",
                    "enum": ["True", "False", "Unknown"],
                },
                "observedGeneration": {
                    "type": "integer",
                    "format": "int64",
                    "minimum": 0,
                    "description": "The metadata.generation this condition was computed from.",
                },
                "lastTransitionTime": {
                    "type": "string",
                    "format": "date-time",
                    "description": "When the status last changed from one value to another.",
                },
                "reason": {
                    "type": "string",
                    "description": "One word that says why, for programs.",
                    "minLength": 1,
                    "maxLength": 1024,
                    "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
                },
                "message": {
                    "type": "string",
                    "description": "A sentence that says why and what to do, for people.",
                    "maxLength": 32768,
                },
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_lists_every_reason_in_order() {
        let page = include_str!("../../../docs/reference/conditions.md");
        let tables = page.split("| Reason |").skip(1).filter_map(|rest| rest.split("\n\n").next());
        let rows = tables.flat_map(str::lines).filter_map(|line| line.strip_prefix("| `")?.split('`').next());
        let words: Vec<_> = Reason::ALL.iter().map(|reason| reason.as_str()).collect();
        assert_eq!(rows.collect::<Vec<_>>(), words);
    }
}
