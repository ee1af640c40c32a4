//! The effects that a plan may ask for.

use std::time::Duration;

use api::workspace::{HelmRelease, HelmReleaseStatus, OperationKind, ReleaseOperation, StoppedWorkload};
use serde::{Deserialize, Serialize};

use super::{Difference, Stored, StoredStatus, Surroundings};

/// A helm operation with all that was decided about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operation {
    pub kind: OperationKind,
    /// Digest of what is tried.
    pub digest: String,
    pub chart_version: Option<String>,
    /// Helm's newest revision before it began; 0 for none.
    pub revision: u32,
    /// Of a rollback.
    pub to_revision: Option<u32>,
    /// What that revision was made of, where it is known.
    pub to_digest: Option<String>,
    pub timeout: Duration,
    /// Bytes for the helm process, instead of the operator's default.
    pub memory: Option<u64>,
    pub wait: bool,
    pub former: Former,
}

/// What an install does about a failed one of before. Either way it is an install again, with its hooks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Former {
    /// There is none.
    Absent,
    /// Uninstall it, so that nothing of it is left.
    Uninstall,
    /// Take its objects over: some of them hold data.
    Adopt,
}

impl Former {
    /// Data is never removed unasked, and what could not be read may be data.
    pub(super) fn of(object: &HelmRelease, observed: &Surroundings, stored: &[Stored]) -> Self {
        let Some(failed) = stored.last().filter(|newest| newest.status == StoredStatus::Failed) else {
            return Self::Absent;
        };
        let is_about_it = |status: &&HelmReleaseStatus| {
            status.history.first().is_some_and(|shown| shown.secret_uid.as_ref() == Some(&failed.uid))
        };
        let noted = object.status.as_ref().filter(is_about_it).and_then(|status| status.holds_data);
        match observed.holds_data.or(noted) {
            Some(false) => Self::Uninstall,
            Some(true) | None => Self::Adopt,
        }
    }
}

/// As far as status keeps it: how long it may take does not matter once it began.
impl From<&ReleaseOperation> for Operation {
    fn from(begun: &ReleaseOperation) -> Self {
        Self {
            kind: begun.kind,
            digest: begun.digest.clone(),
            chart_version: begun.chart_version.clone(),
            revision: begun.revision,
            to_revision: begun.to_revision,
            to_digest: begun.to_digest.clone(),
            timeout: Duration::ZERO,
            memory: None,
            wait: false,
            former: Former::Absent,
        }
    }
}

impl Operation {
    /// What a request for it is known by: another one of the same release has another.
    pub fn label(&self) -> String {
        format!("{} {} {}", self.kind.as_str(), self.revision, self.digest)
    }
}

/// One effect, safe to repeat.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    AddFinalizer {
        finalizers: Vec<String>,
    },
    /// Stores in status that the operation begins, then hands it to the runner.
    Start(Operation),
    /// Ends what the runner does for the release.
    Cancel,
    /// Marks an unfinished revision whose owner is gone as failed.
    Unlock {
        revision: u32,
        uid: String,
        resource_version: String,
    },
    /// Reports that a requested rollback is impossible, and does not try it again.
    RefuseRollback {
        message: String,
    },
    /// Sets these drifted objects back.
    CorrectDrift(Vec<Difference>),
    /// Scales workloads.
    Scale(Vec<StoppedWorkload>),
    ReleaseFinalizer {
        finalizers: Vec<String>,
    },
}

impl Action {
    /// Whether something else is done to the release than to look at it and to scale it.
    pub fn changes_release(&self) -> bool {
        match self {
            Self::Start(_) | Self::Cancel | Self::Unlock { .. } | Self::CorrectDrift(_) => true,
            Self::AddFinalizer { .. }
            | Self::RefuseRollback { .. }
            | Self::Scale(_)
            | Self::ReleaseFinalizer { .. } => false,
        }
    }

    /// Whether it is done in the release's name rather than the operator's.
    pub fn needs_identity(&self) -> bool {
        match self {
            Self::Start(_) | Self::CorrectDrift(_) | Self::Scale(_) => true,
            Self::AddFinalizer { .. }
            | Self::Cancel
            | Self::Unlock { .. }
            | Self::RefuseRollback { .. }
            | Self::ReleaseFinalizer { .. } => false,
        }
    }
}
