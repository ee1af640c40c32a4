//! What Workspaces and Users report in the same way.

use std::collections::BTreeSet;

use api::condition::{Condition, ConditionStatus, ConditionType, Reason};
use jiff::Timestamp;

use super::derived::{Action, ObjectId, ObjectKind, Outcome, Trouble};
use crate::event::{Event, EventKind};
use crate::{Plan, Why};

/// One round after its actions: everything that a status is computed from.
#[derive(Clone, Copy, Debug)]
pub struct Round<'a, K, O> {
    pub object: &'a K,
    pub observed: &'a O,
    pub plan: &'a Plan<Action>,
    pub outcomes: &'a [Outcome],
}

impl<K, O> Round<'_, K, O> {
    /// Whether there is nobody left to tell: the namespace goes, or the object just went.
    pub(super) fn is_mute(&self) -> bool {
        let is_release = |action: &Action| matches!(action, Action::ReleaseFinalizer { .. });
        self.outcomes.contains(&Outcome::NamespaceTerminating)
            || self.plan.actions.iter().zip(self.outcomes).any(|(a, o)| is_release(a) && *o == Outcome::Done)
    }

    /// Objects that this round set out to change: nothing that is known of them is about their new form.
    pub(super) fn changed(&self) -> BTreeSet<&ObjectId> {
        let actions = self.plan.actions.iter();
        actions.filter_map(|action| if let Action::Apply { id, .. } = action { Some(id) } else { None }).collect()
    }

    /// What the API server refused.
    pub(super) fn rejections(&self) -> impl Iterator<Item = Trouble> {
        let attempts = self.plan.actions.iter().zip(self.outcomes);
        attempts.filter_map(|(action, outcome)| match (action, outcome) {
            (Action::Apply { id, .. }, Outcome::Rejected { message }) => {
                Some(Trouble::of(id, Reason::ObjectRejected, format!("{id} was refused: {message}")))
            }
            _ => None,
        })
    }
}

/// How the conditions of one object are made.
pub(super) struct Conditions<'a> {
    pub former: &'a [Condition],
    pub generation: Option<i64>,
    pub now: Timestamp,
}

impl Conditions<'_> {
    pub(super) fn make(&self, kind: ConditionType, status: ConditionStatus, why: Why) -> Condition {
        let former = self.former.iter().find(|c| c.kind == kind && c.status == status);
        // The same refusal in other words (a quota's numbers) is no news.
        let is_same = |c: &&Condition| {
            let is_foreign = why.reason == Reason::ObjectRejected;
            is_foreign && c.reason == why.reason && c.observed_generation == self.generation
        };
        Condition {
            kind,
            status,
            observed_generation: self.generation,
            // Kubernetes times have whole seconds; a finer one would differ from itself once read back.
            last_transition_time: former.map_or_else(
                || Timestamp::from_second(self.now.as_second()).unwrap_or(self.now),
                |c| c.last_transition_time,
            ),
            reason: why.reason,
            message: former.filter(is_same).map_or_else(|| shortened(why.message), |c| c.message.clone()),
        }
    }
}

/// Far below the 32768 characters the schema allows: a message holds words of others of any length.
const LONGEST_MESSAGE: usize = 4096;

fn shortened(mut message: String) -> String {
    if let Some((end, _)) = message.char_indices().nth(LONGEST_MESSAGE) {
        message.truncate(end);
        message.push('…');
    }
    message
}

/// Reasons that pass by themselves.
pub(super) fn is_progress(reason: Reason) -> bool {
    use Reason::{
        DependencyNotReady, Fetching, Installing, Locked, Queued, RollingBack, ServicesNotReady, Starting,
        StateUnknown, Stopped, Terminating, Testing, Uninstalling, Upgrading, UsersNotReady,
    };
    matches!(
        reason,
        DependencyNotReady
            | Fetching
            | Installing
            | Locked
            | Queued
            | RollingBack
            | ServicesNotReady
            | Starting
            | StateUnknown
            | Stopped
            | Terminating
            | Testing
            | Uninstalling
            | Upgrading
            | UsersNotReady
    )
}

/// What to tell, once, when something changes: what was removed, trouble that is new, readiness gained or lost.
/// `before` and `after` are the stored and the new conditions. The way to a first readiness is not told.
pub fn events(before: &[Condition], after: &[Condition], plan: &Plan<Action>, outcomes: &[Outcome]) -> Vec<Event> {
    let done = plan.actions.iter().zip(outcomes).filter(|(_, outcome)| **outcome == Outcome::Done);
    let removal = |(action, _): (&Action, &Outcome)| match action {
        Action::Delete { id, .. } if matches!(id.kind, ObjectKind::HelmRelease | ObjectKind::User) => {
            Some(Event { kind: EventKind::Normal, reason: "Removed", action: "Delete", note: format!("Removed {id}") })
        }
        _ => None,
    };
    let mut events: Vec<_> = done.filter_map(removal).collect();
    let ready = |conditions: &[Condition]| conditions.iter().find(|c| c.kind == ConditionType::Ready).cloned();
    let (before, after) = (ready(before), ready(after));
    let Some(after) = after else { return events };
    let is_same = before.as_ref().is_some_and(|before| before.status == after.status && before.reason == after.reason);
    let is_ready = after.status == ConditionStatus::True;
    let was_ready = before.is_some_and(|before| before.status == ConditionStatus::True);
    let is_normal = is_ready || is_progress(after.reason);
    if !is_same && (is_ready || was_ready || !is_normal) {
        let kind = if is_ready || after.reason == Reason::Terminating { EventKind::Normal } else { EventKind::Warning };
        events.push(Event { kind, reason: after.reason.as_str(), action: "Observe", note: after.message });
    }
    events
}
