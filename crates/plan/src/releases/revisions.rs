//! Helm's revisions as a fact: what is asked for, and what rests on the answer.

use api::workspace::HelmRelease;

use super::ask::{MOMENT, UNTIL_BEGUN};
use super::{Action, Answer, Ask, Job, Observed, RoundOf};
use crate::fact::{Fact, Facts, Want};
use crate::round::Plan;

/// Whether an operation has ended and the round knew what it did.
pub fn has_ended(round: &RoundOf<'_>) -> bool {
    if !matches!(round.observed.job, Job::Finished(_)) {
        return false;
    }
    let ask = revisions_ask(round.object, round.observed);
    // A round that waits for any fact reports nothing yet.
    let is_complete = round.plan.wants.iter().all(|want| round.inputs.facts.get(&want.ask).is_some());
    is_complete && matches!(round.inputs.facts.get(&ask), Some(Fact::Known { .. }))
}

/// What was read of Helm's storage before an operation says nothing about what it made, and nothing is started,
/// released or unlocked on what is not true any more.
pub(super) fn hold_to_facts(
    plan: &mut Plan<Action, Ask>,
    object: &HelmRelease,
    observed: &Observed,
    facts: &Facts<Ask, Answer>,
) {
    let ask = revisions_ask(object, observed);
    let is_wanted = plan.wants.iter().any(|want| want.ask == ask);
    // Looks at live objects are for what is done without helm.
    let is_known = |want: &&Want<Ask>| {
        let is_look = matches!(want.ask, Ask::Drift { .. } | Ask::Replicas { .. });
        !is_look && matches!(facts.get(&want.ask), Some(Fact::Known { .. }))
    };
    let known: Vec<_> = plan.wants.iter().filter(is_known).cloned().collect();
    for step in &mut plan.steps {
        match &step.action {
            Action::Start(operation) => {
                let ended = Ask::Revisions {
                    namespace: observed.namespace.clone(),
                    release: observed.release.clone(),
                    after: Some(operation.label()),
                };
                step.spoils.extend([ask.clone(), ended]);
                let until_begun = |want: &Want<Ask>| Want { max_age: want.max_age.max(UNTIL_BEGUN), ..want.clone() };
                step.rests_on = known.iter().map(until_begun).collect();
            }
            Action::Unlock { .. } => step.spoils.push(ask.clone()),
            Action::ReleaseFinalizer { .. } if is_wanted => {
                step.rests_on.push(Want { ask: ask.clone(), max_age: MOMENT });
            }
            _ => {}
        }
    }
}

pub(super) fn revisions_ask(object: &HelmRelease, observed: &Observed) -> Ask {
    let reported_at = || object.status.as_ref()?.last_attempted_at.map(|at| at.to_string());
    let after = match &observed.job {
        Job::Finished(ended) => Some(ended.operation.label()),
        _ => reported_at(),
    };
    Ask::Revisions { namespace: observed.namespace.clone(), release: observed.release.clone(), after }
}
