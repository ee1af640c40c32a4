//! What Workspaces and Users report in the same way.

use std::collections::BTreeSet;

use api::condition::{Condition, ConditionStatus, ConditionType, Reason};
use jiff::Timestamp;

use super::derived::{Accepted, Action, Done, ObjectId, ObjectKind, Objects};
use crate::Why;
use crate::event::{Event, EventKind};
use crate::fact::Class;
use crate::message::steady;
use crate::round::{Plan, Progress, Refusal, Report, Round};

/// What stands in the way of one object, or of all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Problem {
    pub id: Option<ObjectId>,
    pub why: Why,
}

/// The actions of a round with what became of them, and what was in the way when it was planned.
pub(super) struct Attempts<'a> {
    all: Vec<(&'a Action, &'a Progress<Done>)>,
    blocked: Vec<Problem>,
}

impl<'a> Attempts<'a> {
    pub(super) fn new<K, O, N, Q, F>(round: &Round<'a, K, O, Action, Done, N, Q, F>) -> Self {
        Self { all: round.attempts().collect(), blocked: blocked(round.plan) }
    }

    /// Whether there is nothing left to report to: the namespace is being deleted, or the object is gone.
    pub(super) fn is_mute(&self) -> bool {
        self.all.iter().any(|(action, progress)| match progress {
            Progress::Refused(Refusal::NamespaceTerminating) => true,
            Progress::Done(_) => matches!(action, Action::ReleaseFinalizer { .. }),
            _ => false,
        })
    }

    /// Objects that this round set out to change: nothing that is known of them is about their new form.
    pub(super) fn changed(&self) -> BTreeSet<&'a ObjectId> {
        self.all.iter().filter_map(|(action, _)| applied_id(action)).collect()
    }

    /// Objects that were applied.
    pub(super) fn applied(&self) -> impl Iterator<Item = &'a ObjectId> {
        self.done().filter_map(|(action, _)| applied_id(action))
    }

    /// Everything that is in the way, the most important first: known when it was planned, or refused by the API server.
    pub(super) fn problems(&self) -> Vec<Problem> {
        let refused = self.all.iter().filter_map(|(action, progress)| {
            let change = Change::of(action)?;
            let why = match progress {
                Progress::Refused(Refusal::Rejected(message))
                | Progress::Failed { class: Class::Terminal, message, .. } => change.refused(message),
                Progress::Refused(Refusal::Because(why)) => why.clone(),
                _ => return None,
            };
            Some(Problem { id: Some(change.id.clone()), why })
        });
        let mut problems: Vec<_> = self.blocked.iter().cloned().chain(refused).collect();
        problems.sort_by_key(|problem| problem.why.reason);
        problems
    }

    /// What may not be as it is wanted: its change failed in a way that may pass, or its turn did not come.
    pub(super) fn unfinished(&self) -> impl Iterator<Item = (&'a ObjectId, Why)> {
        self.all.iter().filter_map(|(action, progress)| {
            let change = Change::of(action)?;
            let why = match progress {
                Progress::Failed { class: Class::Terminal, .. } => return None,
                Progress::Failed { message, .. } => change.unfinished(Some(message)),
                Progress::Skipped => change.unfinished(None),
                _ => return None,
            };
            Some((change.id, why))
        })
    }

    /// What the server made of applies, to be remembered for objects that are still there.
    pub(super) fn accepted(&self, objects: &Objects) -> Accepted {
        let of_object = |(id, found): (&ObjectId, &super::Found)| Some((id.clone(), found.accepted.clone()?));
        let mut accepted: Accepted = objects.iter().filter_map(of_object).collect();
        for (action, done) in self.done() {
            match (action, done) {
                (Action::Apply { id, .. } | Action::Patch { id, .. }, Some(fingerprint)) => {
                    drop(accepted.insert(id.clone(), fingerprint.clone()));
                }
                (Action::Apply { id, .. } | Action::Patch { id, .. } | Action::Delete { id, .. }, _) => {
                    drop(accepted.remove(id));
                }
                _ => {}
            }
        }
        accepted
    }

    fn done(&self) -> impl Iterator<Item = (&'a Action, &'a Done)> {
        self.all.iter().filter_map(|(action, progress)| match progress {
            Progress::Done(done) => Some((*action, done)),
            _ => None,
        })
    }

    fn removals(&self) -> Vec<Event> {
        let removal = |(action, _): (&Action, &Done)| match action {
            Action::Delete { id, .. } if matches!(id.kind, ObjectKind::HelmRelease | ObjectKind::User) => {
                let note = format!("Removed {id}");
                Some(Event { kind: EventKind::Normal, reason: "Removed", action: "Delete", note })
            }
            _ => None,
        };
        self.done().filter_map(removal).collect()
    }

    /// The report of a status, with `conditions` before and after it.
    pub(super) fn report<S, N>(
        &self,
        status: S,
        conditions: [&[Condition]; 2],
        phase: Option<impl std::fmt::Debug>,
        note: N,
    ) -> Report<S, N> {
        Report {
            done: self.removals(),
            transitions: transition(conditions[0], conditions[1]).into_iter().collect(),
            status,
            fallback: None,
            is_provisional: false,
            discriminator: String::new(),
            phase: phase.map_or_else(String::new, |phase| format!("{phase:?}")),
            note,
        }
    }
}

/// What an action was to do to a derived object.
struct Change<'a> {
    id: &'a ObjectId,
    is_removal: bool,
}

impl<'a> Change<'a> {
    fn of(action: &'a Action) -> Option<Self> {
        match action {
            Action::Apply { id, .. } | Action::Patch { id, .. } => Some(Self { id, is_removal: false }),
            Action::Delete { id, .. } => Some(Self { id, is_removal: true }),
            Action::AddFinalizer { .. } | Action::ReleaseFinalizer { .. } => None,
        }
    }

    fn refused(&self, message: &str) -> Why {
        let what = if self.is_removal { "the removal of " } else { "" };
        Why { reason: Reason::ObjectRejected, message: format!("{what}{} was refused: {message}", self.id) }
    }

    fn unfinished(&self, message: Option<&str>) -> Why {
        let done = if self.is_removal { "removed" } else { "applied" };
        let because = message.map_or_else(String::new, |message| format!(": {message}"));
        let message = format!("{} could not be {done} yet{because}; the operator goes on trying", self.id);
        Why { reason: Reason::StateUnknown, message }
    }
}

fn applied_id(action: &Action) -> Option<&ObjectId> {
    if let Action::Apply { id, .. } = action { Some(id) } else { None }
}

fn blocked<Q>(plan: &Plan<Action, Q>) -> Vec<Problem> {
    let whole = plan.blocked.iter().map(|why| Problem { id: None, why: why.clone() });
    let single = plan
        .blocked_objects
        .iter()
        .map(|blocked| Problem { id: ObjectId::try_from(blocked.object.clone()).ok(), why: blocked.why.clone() });
    whole.chain(single).collect()
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
        // Other numbers are no news in the server's words, but they are in ours.
        let is_same = |c: &&Condition| {
            let is_foreign = matches!(why.reason, Reason::ObjectRejected | Reason::StateUnknown);
            is_foreign && c.reason == why.reason && c.observed_generation == self.generation
        };
        let refusal = former.filter(is_same).map(|c| c.message.as_str());
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
            message: steady(refusal, why.message),
        }
    }
}

/// What to record, once, when something changes: a new problem, readiness gained or lost. `before` and `after` are
/// the stored and the new conditions. The way to a first readiness is not recorded.
fn transition(before: &[Condition], after: &[Condition]) -> Option<Event> {
    let ready = |conditions: &[Condition]| conditions.iter().find(|c| c.kind == ConditionType::Ready).cloned();
    let (before, after) = (ready(before), ready(after)?);
    let is_same = before.as_ref().is_some_and(|before| before.status == after.status && before.reason == after.reason);
    let is_ready = after.status == ConditionStatus::True;
    let was_ready = before.is_some_and(|before| before.status == ConditionStatus::True);
    let is_normal = is_ready || after.reason.is_progress();
    (!is_same && (is_ready || was_ready || !is_normal)).then(|| {
        let kind = if is_ready || after.reason == Reason::Terminating { EventKind::Normal } else { EventKind::Warning };
        Event { kind, reason: after.reason.as_str(), action: "Observe", note: after.message }
    })
}
