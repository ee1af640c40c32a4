//! The one word for a release, from Helm's storage and the digests that status remembers.

use api::workspace::DriftDetection;

use super::{Desired, Drift, Memory, Replicas, Stored, StoredStatus, Surroundings, replicas};

#[derive(Clone, Debug, PartialEq)]
pub enum State<'a> {
    /// Helm has no record of it.
    Absent,
    /// An operation is unfinished and no process of ours carries it out.
    Locked {
        stored: &'a Stored,
        is_ours: bool,
    },
    OutOfSync(OutOfSync),
    /// The newest revision is a failed one.
    Failed,
    Untested,
    Drifted,
    InSync,
}

/// Why the newest revision is not the one that is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutOfSync {
    /// Chart or values changed.
    Changed,
    /// Another client made it.
    Foreign,
    /// The annotation asks for it.
    Forced,
}

/// `stored` is what Helm keeps, oldest first; `digest` stands for what is wanted.
pub fn state<'a>(
    desired: &Desired,
    observed: &Surroundings,
    stored: &'a [Stored],
    memory: &Memory,
    digest: &str,
) -> State<'a> {
    let Some(newest) = stored.last() else { return State::Absent };
    let entry = memory.newest();
    match newest.status {
        StoredStatus::Uninstalled => State::Absent,
        status if status.is_pending() || status == StoredStatus::Uninstalling => {
            State::Locked { stored: newest, is_ours: memory.status.operation.is_some() }
        }
        StoredStatus::Deployed if memory.force.is_some() => State::OutOfSync(OutOfSync::Forced),
        StoredStatus::Deployed => {
            let known = entry.and_then(|entry| entry.digest.as_deref());
            let stays = memory.status.remedy.as_ref().is_some_and(|remedy| {
                remedy.requested && remedy.succeeded && remedy.digest == digest && known.is_some()
            });
            match known {
                Some(known) if known == digest || stays => settled(desired, observed, memory),
                Some(_) => State::OutOfSync(OutOfSync::Changed),
                None => State::OutOfSync(OutOfSync::Foreign),
            }
        }
        _ => State::Failed,
    }
}

/// A deployed revision that is the wanted one.
fn settled(desired: &Desired, observed: &Surroundings, memory: &Memory) -> State<'static> {
    let former = &memory.status.stopped;
    let is_back = match &observed.workloads {
        Replicas::Live(live) => replicas::due(false, former, live).is_empty(),
        Replicas::NotLooked | Replicas::Unknown(_) => former.is_empty(),
    };
    // At zero, a test would fail for that alone, and what it says of a revision is final.
    let may_test = desired.test && !desired.stopped && is_back;
    if may_test && memory.newest().is_some_and(|newest| newest.test.is_none()) {
        return State::Untested;
    }
    let is_watched = desired.drift != DriftDetection::Disabled;
    if is_watched && matches!(observed.drift, Drift::Found(_)) { State::Drifted } else { State::InSync }
}
