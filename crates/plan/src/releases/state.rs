//! The one word for a release, from Helm's storage and the digests that status remembers.

use api::workspace::DriftDetection;

use super::{Desired, Drift, Memory, Stored, StoredStatus, Surroundings};

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
    if desired.test && memory.newest().is_some_and(|newest| newest.test.is_none()) {
        return State::Untested;
    }
    let is_watched = desired.drift != DriftDetection::Disabled;
    if is_watched && matches!(observed.drift, Drift::Found(_)) { State::Drifted } else { State::InSync }
}
