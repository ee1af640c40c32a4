//! The two places a Performer fills, and who is in them.

use std::time::Duration;

use api::performer::Performer;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::decide::goes_at_once;
use super::{Action, Ages, Created, Deletion, PodFacts, ServiceFacts};
use crate::round::{Plan, Progress};

/// A name in the Performer's namespace and what is known of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub enum Slot<T> {
    /// Not read, or read too long ago. Never a ground to create or delete.
    #[default]
    Unknown,
    Absent,
    /// Controlled by this very Performer: the owner's uid is ours.
    Ours(T),
    /// Someone else's, also when its owner is a former Performer of the same name.
    Foreign {
        /// Uid of its controller, if it has one.
        owner_uid: Option<Box<str>>,
    },
}

impl<T> Slot<T> {
    pub fn ours(&self) -> Option<&T> {
        match self {
            Self::Ours(facts) => Some(facts),
            Self::Unknown | Self::Absent | Self::Foreign { .. } => None,
        }
    }
}

impl Slot<PodFacts> {
    /// Sorts a pod read from a synced cache by its owner.
    pub fn of_pod(found: Option<PodFacts>, performer_uid: &str) -> Self {
        match found {
            None => Self::Absent,
            Some(pod) if pod.owner_uid.as_deref() == Some(performer_uid) => Self::Ours(pod),
            Some(pod) => Self::Foreign { owner_uid: pod.owner_uid },
        }
    }
}

impl Slot<ServiceFacts> {
    /// Sorts a Service read from a synced cache by its owner.
    pub fn of_service(found: Option<ServiceFacts>, performer_uid: &str) -> Self {
        match found {
            None => Self::Absent,
            Some(service) if service.owner_uid.as_deref() == Some(performer_uid) => Self::Ours(service),
            Some(service) => Self::Foreign { owner_uid: service.owner_uid },
        }
    }
}

/// Everything known about one Performer's surroundings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Observed {
    pub pod: Slot<PodFacts>,
    pub service: Slot<ServiceFacts>,
    /// How long what is waited on has lasted.
    pub ages: Ages,
    /// Whether the Performer was read from the server for this round. Otherwise it comes from a cache, which may be of
    /// any age after a start.
    pub is_performer_read: bool,
    /// The count of the last executed `DeletePod` of this Performer, 0 if there was none since its
    /// last `CreatePod`. A pod that takes its time to go leaves no other trace of the count; losing
    /// it (a restart) only makes the next delay shorter.
    pub replacements: u32,
}

impl Observed {
    /// Whether the pod speaks of a later Performer than the one at hand, which was not read. If it was read and still
    /// is the earlier one, the pod's annotation is wrong, and the Performer counts.
    pub(super) fn is_outdated(&self, performer: &Performer) -> bool {
        !self.is_performer_read && self.pod.ours().is_some_and(|pod| pod.is_newer_than(performer))
    }

    /// The world as a round's steps left it; status is computed from this, so that a round that
    /// creates a pod also reports it.
    #[must_use]
    pub fn after(&self, plan: &Plan<Action>, progress: &[Progress<Created>], now: Timestamp) -> Self {
        let mut after = self.clone();
        for (action, progress) in plan.actions().zip(progress) {
            if let Progress::Done(created) = progress {
                after.take(action, created, now);
            }
        }
        after
    }

    fn take(&mut self, action: &Action, created: &Created, now: Timestamp) {
        match action {
            Action::CreatePod(pod) => {
                let uid = created.clone().unwrap_or_default();
                self.pod = Slot::Ours(PodFacts { uid, ..PodFacts::of_new(pod, now) });
                self.replacements = 0;
            }
            Action::DeletePod { replacements, .. } => {
                self.replacements = *replacements;
                if let Slot::Ours(pod) = &mut self.pod {
                    pod.deletion = Some(Deletion { at: now, grace: Duration::ZERO });
                }
                if self.pod.ours().is_some_and(goes_at_once) {
                    self.pod = Slot::Absent;
                }
            }
            Action::CreateService(_) => self.service = Slot::Ours(ServiceFacts::default()),
            Action::DeleteService { .. } => self.service = Slot::Absent,
            Action::AddFinalizer { .. } | Action::RepairService { .. } | Action::ReleaseFinalizer { .. } => {}
        }
    }
}
