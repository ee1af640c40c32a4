//! A HelmRelease whose own status cannot be read: what was done before is unknown, and unknown is not absent.

use api::condition::Reason;
use api::workspace::{HelmRelease, HelmReleaseStatus};

use super::{Action, Ask, Note};
use crate::event::{Event, EventKind};
use crate::round::{Plan, Report};

const WHY: &str = "the status of this HelmRelease cannot be read, so the operator does not know what it has done; a newer operator may have written it: upgrade this one, or correct the status";

pub(super) fn is_so(object: &HelmRelease) -> bool {
    object.status.as_ref().is_some_and(|status| status.is_unreadable)
}

/// Nothing is done or asked for.
pub(super) fn plan() -> Plan<Action, Ask> {
    let mut plan = Plan::default();
    plan.block(Reason::StateUnknown, WHY);
    plan
}

/// Nothing is written over the status; an event says so.
pub(super) fn report(status: &HelmReleaseStatus, note: Note) -> Report<HelmReleaseStatus, Note> {
    let reason = Reason::StateUnknown.as_str();
    let event = Event { kind: EventKind::Warning, reason, action: "Observe", note: WHY.to_owned() };
    Report {
        status: status.clone(),
        fallback: None,
        is_provisional: false,
        done: Vec::new(),
        transitions: vec![event],
        discriminator: String::new(),
        phase: reason.to_owned(),
        note,
    }
}
