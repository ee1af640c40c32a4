//! What is known about a release and its surroundings.

use std::collections::BTreeSet;

use api::condition::{ConditionStatus, ConditionType, Reason};
use api::workspace::{HelmRelease, OperationKind, ReadValues, StoppedWorkload};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Ages, Operation};
use crate::{Clocks, Why};

/// A fact, or why it is not known. Unknown is never absent.
#[derive(Clone, Debug, PartialEq)]
pub enum Known<T> {
    Yes(T),
    No(String),
}

/// What the caches hold of a release.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Observed {
    /// Where the Helm release is, and its name.
    pub namespace: String,
    pub release: String,
    /// Helm's records of the release, oldest first.
    pub revisions: Vec<Stored>,
    /// The versions of the objects that `spec.valuesFrom` names, in its order; `None` for those that are not there.
    pub sources: Vec<Option<String>>,
    /// The version of the Secret with the credentials for the chart, if there is one.
    pub credentials: Option<String>,
    pub job: Job,
    pub dependencies: Vec<Dependency>,
    /// The way from this release back to itself, if there is one.
    pub cycle: Option<Vec<String>>,
    /// Whether watches follow all kinds of the release's objects.
    pub is_watched: bool,
    /// How often a live object changed, as watches saw it.
    pub object_changes: u64,
    /// Whether a change was seen that is not counted yet, because the last one is too near.
    pub is_changing: bool,
    /// Another HelmRelease that was first to claim this release.
    pub rival: Option<String>,
    pub clocks: Clocks,
}

/// All that is known about a release: what was observed, and the facts that were asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct Surroundings {
    /// Helm's records of the release, oldest first.
    pub storage: Known<Vec<Stored>>,
    pub values: Values,
    pub chart: Chart,
    pub job: Job,
    pub dependencies: Vec<Dependency>,
    /// The way from this release back to itself, if there is one.
    pub cycle: Option<Vec<String>>,
    pub identity: Identity,
    pub drift: Drift,
    /// Whether watches follow all kinds of the release's objects.
    pub is_watched: bool,
    pub workloads: Replicas,
    pub object_changes: u64,
    /// Whether the newest revision holds PersistentVolumeClaims, where it was read and is known.
    pub holds_data: Option<bool>,
    pub is_namespace_terminating: bool,
    /// Another HelmRelease that was first to claim this release.
    pub rival: Option<String>,
    pub ages: Ages,
}

/// The most revisions that are looked at: Helm keeps ten by default and a HelmRelease a hundred at most, so more are a
/// history that was never trimmed, or Secrets that something else has labelled as Helm's.
pub const MOST_REVISIONS: usize = 1000;

/// Why nothing is decided on a release with more.
pub fn too_many_revisions(namespace: &str, release: &str) -> Why {
    let message = format!(
        "namespace {namespace} holds more than {MOST_REVISIONS} Secrets with the labels owner=helm,name={release}; delete those that are not Helm's, and the oldest revisions"
    );
    Why { reason: Reason::StateUnknown, message }
}

/// One revision as its Secret's labels show it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stored {
    pub revision: u32,
    pub status: StoredStatus,
    pub uid: String,
    /// Of the Secret, for a write that must not overtake another.
    pub resource_version: String,
    pub created_at: Option<Timestamp>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StoredStatus {
    Deployed,
    Superseded,
    Failed,
    Uninstalled,
    Uninstalling,
    PendingInstall,
    PendingUpgrade,
    PendingRollback,
    /// A word of Helm's that we do not know.
    Other,
}

impl StoredStatus {
    const ALL: [(Self, &'static str); 8] = [
        (Self::Deployed, "deployed"),
        (Self::Superseded, "superseded"),
        (Self::Failed, "failed"),
        (Self::Uninstalled, "uninstalled"),
        (Self::Uninstalling, "uninstalling"),
        (Self::PendingInstall, "pending-install"),
        (Self::PendingUpgrade, "pending-upgrade"),
        (Self::PendingRollback, "pending-rollback"),
    ];

    pub fn read(word: &str) -> Self {
        Self::ALL.iter().find(|(_, known)| *known == word).map_or(Self::Other, |(status, _)| *status)
    }

    pub fn as_str(self) -> &'static str {
        Self::ALL.iter().find(|(status, _)| *status == self).map_or("unknown", |(_, word)| word)
    }

    /// Whether a helm process is at work on it, or was when it ended.
    pub fn is_unfinished(self) -> bool {
        self.is_pending() || self == Self::Uninstalling
    }

    pub fn is_pending(self) -> bool {
        matches!(self, Self::PendingInstall | Self::PendingUpgrade | Self::PendingRollback)
    }
}

/// The values, as far as they could be put together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Values {
    Read {
        digest: String,
        sources: Vec<ReadValues>,
    },
    /// A source is not there; the text names it.
    Missing(String),
    /// They cannot be given to Helm as written; the text names the key.
    Invalid(String),
    Unknown(String),
}

/// The chart that the spec refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Chart {
    /// Known, from an exact version, from status or from a fetch.
    Resolved {
        version: String,
        digest: Option<String>,
        /// Whether no lookup for a newer one is running at the moment.
        is_checked: bool,
    },
    /// Being looked up or fetched.
    Fetching,
    /// It cannot be found or fetched.
    Failed(Failure),
}

/// What the runner does for this release.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Job {
    Idle,
    Waiting(OperationKind),
    Running(OperationKind),
    /// It was asked to end.
    Ending(OperationKind),
    Finished(Ended),
}

/// How an operation ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ended {
    pub operation: Operation,
    pub result: Result<(), Failure>,
}

impl Ended {
    /// Whether helm was not even started.
    pub(super) fn is_not_begun(&self) -> bool {
        matches!(&self.result, Err(failure) if failure.class == FailureClass::NotBegun)
    }

    /// Whether helm found the release locked by another client.
    pub(super) fn is_in_progress(&self) -> bool {
        matches!(&self.result, Err(failure) if failure.class == FailureClass::InProgress)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    pub class: FailureClass,
    /// Helm's last lines, bounded and without secrets.
    pub message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum FailureClass {
    Timeout,
    OutOfMemory,
    NotFound,
    Unauthorised,
    Forbidden,
    /// Another operation is in progress.
    InProgress,
    ReleaseNotFound,
    Unreachable,
    /// Its turn came too late, and it was handed back.
    NotBegun,
    /// Ended by a signal that the operator did not send.
    Interrupted,
    /// The operator ended it: it stops, lost the lead, did not run for too long, or wants something else.
    Cancelled,
    Other,
}

impl FailureClass {
    /// Whether the same attempt may well succeed, for it was not its fault.
    pub fn is_interruption(self) -> bool {
        matches!(self, Self::Interrupted | Self::Cancelled | Self::Unreachable | Self::InProgress)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dependency {
    pub name: String,
    pub is_there: bool,
    pub is_ready: bool,
}

/// Who Helm would act as.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Identity {
    NotChecked,
    Usable,
    /// Only a ServiceAccount may be used, and none is named.
    AccountRequired,
    AccountMissing(String),
    /// The operator itself lacks a right; the text says which.
    Forbidden(String),
    Unknown(String),
}

/// Whether live objects are as the release has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Drift {
    /// Not read since something may have changed.
    NotLooked,
    None,
    Found(Vec<Difference>),
    Unknown(String),
}

/// One object that differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// `Deployment web`.
    pub object: String,
    /// Where, or that it is missing.
    pub what: String,
}

/// The release's scalable workloads, as far as they had to be looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Replicas {
    NotLooked,
    Live(Vec<StoppedWorkload>),
    Unknown(String),
}

impl Surroundings {
    pub(super) fn stored(&self) -> Option<&[Stored]> {
        match &self.storage {
            Known::Yes(stored) => Some(stored),
            Known::No(_) => None,
        }
    }

    pub(super) fn newest(&self) -> Option<&Stored> {
        self.stored()?.last()
    }

    /// Whether helm has something to do for the release, and its records may change at any moment.
    pub fn is_at_work(&self) -> bool {
        matches!(self.job, Job::Waiting(_) | Job::Running(_) | Job::Ending(_))
    }

    /// Whether an operation has ended and what it did is known.
    pub fn has_ended(&self) -> bool {
        matches!(self.job, Job::Finished(_)) && self.stored().is_some()
    }

    /// The operation that has ended, once it is known what it did. Helm takes a release that it may not see for one that
    /// is not there, and so for uninstalled.
    pub(super) fn ended(&self) -> Option<Ended> {
        let Job::Finished(ended) = &self.job else { return None };
        self.stored()?;
        let left = self.newest().filter(|newest| newest.status != StoredStatus::Uninstalled);
        Some(match (&ended.result, left) {
            (Ok(()), Some(left)) if ended.operation.kind == OperationKind::Uninstall => {
                let message = format!(
                    "helm reported the release as uninstalled, but its revision {} still exists; grant the account that helm acts as the rights to get, list, update and delete Secrets",
                    left.revision
                );
                Ended { result: Err(Failure { class: FailureClass::Other, message }), ..ended.clone() }
            }
            _ => ended.clone(),
        })
    }

    pub(super) fn missing_dependencies(&self) -> BTreeSet<&str> {
        self.dependencies.iter().filter(|d| !d.is_ready).map(|d| d.name.as_str()).collect()
    }
}

/// The revision to go back to. What was uninstalled since is no longer there to be gone back to.
pub fn last_good(stored: &[Stored]) -> Option<&Stored> {
    let uninstalled = stored.iter().rposition(|stored| stored.status == StoredStatus::Uninstalled);
    let stored = &stored[uninstalled.map_or(0, |at| at + 1)..];
    let of = |status| stored.iter().rev().find(move |stored| stored.status == status);
    of(StoredStatus::Deployed).or_else(|| of(StoredStatus::Superseded))
}

/// Whether a dependency is ready in the generation that is asked for.
pub fn is_ready(object: &HelmRelease) -> bool {
    let ready = object.status.as_ref().and_then(|status| status.condition(ConditionType::Ready));
    ready.is_some_and(|ready| {
        ready.status == ConditionStatus::True && ready.observed_generation == object.metadata.generation
    })
}
