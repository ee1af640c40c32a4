//! The whole status of a Performer, computed from what is observed.

use api::performer::{Performer, PerformerStatus};
use jiff::Timestamp;

use super::{Action, Observed, Outcome, Policy};
use crate::Plan;

/// What the installed CRD allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Whether `status.phase` may be `Unknown`; the published schema refuses it.
    pub phase_unknown: bool,
}

/// One round after its actions: everything the status is computed from.
#[derive(Clone, Copy, Debug)]
pub struct Round<'a> {
    pub performer: &'a Performer,
    /// As the outcomes left it, see [`Observed::after`].
    pub observed: &'a Observed,
    pub plan: &'a Plan<Action>,
    pub outcomes: &'a [Outcome],
    pub policy: &'a Policy,
}

/// The status to store; equal to the stored one when there is nothing to say.
pub fn status(round: &Round<'_>, now: Timestamp, capabilities: Capabilities) -> PerformerStatus {
    let _ = (now, capabilities);
    round.performer.status.clone().unwrap_or_default()
}
