//! What to tell the user, once, when something changes.

use api::performer::PerformerStatus;

use super::{Action, Outcome};
use crate::Plan;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    Normal,
    Warning,
}

/// One Kubernetes Event about a Performer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub kind: EventKind,
    pub reason: &'static str,
    /// What was done or tried, one word (`events.k8s.io` wants it).
    pub action: &'static str,
    pub note: String,
}

/// Events of one round: `before` and `after` are the stored and the new status.
pub fn events(
    before: Option<&PerformerStatus>,
    after: &PerformerStatus,
    plan: &Plan<Action>,
    outcomes: &[Outcome],
) -> Vec<Event> {
    let _ = (before, after, plan, outcomes);
    Vec::new()
}
