//! The whole status of a User.

use api::condition::{ConditionStatus, ConditionType, Reason};
use api::workspace::{User, UserPhase, UserSpec, UserStatus};
use jiff::Timestamp;

use super::Observed;
use super::build::object_name;
use super::decide::is_through;
use crate::Why;
use crate::round::{Report, Round};
use crate::workspaces::derived::{Accepted, Action, Done, ObjectId, ObjectKind, inventory};
use crate::workspaces::ingress::url;
use crate::workspaces::report::{Attempts, Conditions};

/// A round as the controller sees it.
pub type RoundOf<'a> = Round<'a, User, Observed, Action, Done, Accepted>;

/// The whole report of a round.
pub fn report(round: &RoundOf<'_>, now: Timestamp) -> Report<UserStatus, Accepted> {
    let attempts = Attempts::new(round);
    let former = round.object.status.clone().unwrap_or_default();
    let status = status(round, &attempts, &former, now);
    let note = attempts.accepted(&round.observed.objects);
    let (conditions, phase) = (status.conditions.clone(), status.phase);
    attempts.report(status, [&former.conditions, &conditions], phase, note)
}

/// The status to store; equal to the stored one when there is nothing to report to.
fn status(round: &RoundOf<'_>, attempts: &Attempts<'_>, former: &UserStatus, now: Timestamp) -> UserStatus {
    if attempts.is_mute() || round.observed.is_namespace_terminating {
        return former.clone();
    }
    let user = round.object;
    let (phase, why) = state(round, attempts);
    let is_ready = matches!(phase, UserPhase::Ready | UserPhase::Stopped | UserPhase::Disabled);
    let is_true = if is_ready { ConditionStatus::True } else { ConditionStatus::False };
    let conditions = Conditions { former: &former.conditions, generation: user.metadata.generation, now };
    let uid = user.metadata.uid.as_deref().unwrap_or_default();
    UserStatus {
        observed_generation: user.metadata.generation,
        phase: Some(phase),
        conditions: vec![conditions.make(ConditionType::Ready, is_true, why)],
        url: match &user.spec {
            Some(spec) if spec.has_code_server() => spec.host.as_ref().map(|host| url(host, spec.ingress.as_ref())),
            _ => None,
        },
        inventory: inventory(uid, &round.observed.objects, attempts.applied()),
        is_unreadable: false,
    }
}

fn state(round: &RoundOf<'_>, attempts: &Attempts<'_>) -> (UserPhase, Why) {
    let say = |phase, reason, message: &str| (phase, Why { reason, message: message.to_owned() });
    if round.object.metadata.deletion_timestamp.is_some() {
        return say(UserPhase::Terminating, Reason::Terminating, "The code-server is being removed");
    }
    if let Some(problem) = attempts.problems().into_iter().next() {
        return (UserPhase::Failed, problem.why);
    }
    if let Some((_, why)) = attempts.unfinished().next() {
        return (UserPhase::Progressing, why);
    }
    match round.object.spec.as_ref() {
        Some(spec) if spec.has_code_server() => compute(round, attempts, spec),
        _ => say(UserPhase::Disabled, Reason::Disabled, "There is no code-server: no permission, or disabled"),
    }
}

fn compute(round: &RoundOf<'_>, attempts: &Attempts<'_>, spec: &UserSpec) -> (UserPhase, Why) {
    let say = |phase, reason, message: &str| (phase, Why { reason, message: message.to_owned() });
    let id = ObjectId::new(ObjectKind::StatefulSet, object_name(&spec.slug));
    let set = round.observed.objects.get(&id).filter(|_| !attempts.changed().contains(&id));
    let is_through = set.is_some_and(is_through);
    match (is_through, spec.stopped == Some(true)) {
        (true, true) => {
            say(UserPhase::Stopped, Reason::Stopped, "The code-server is scaled to zero because spec.stopped is true")
        }
        (true, false) => say(UserPhase::Ready, Reason::Succeeded, "The code-server is ready"),
        (false, true) => say(UserPhase::Progressing, Reason::Starting, "The code-server is being stopped"),
        (false, false) => match set.and(round.observed.pod.as_ref()).and_then(super::PodFacts::problem) {
            Some(why) => (UserPhase::Failed, said_before(round).unwrap_or(why)),
            None => say(UserPhase::Progressing, Reason::Starting, "The code-server is starting"),
        },
    }
}

/// What was said of the image before, while kubelet only waits for its next try: that says nothing new about the cause,
/// and the two take turns.
fn said_before(round: &RoundOf<'_>) -> Option<Why> {
    round.observed.pod.as_ref().filter(|pod| pod.is_backing_off())?;
    let former = round.object.status.as_ref()?.condition(ConditionType::Ready)?;
    let is_same =
        former.reason == Reason::ImagePullFailed && former.observed_generation == round.object.metadata.generation;
    is_same.then(|| Why { reason: former.reason, message: former.message.clone() })
}
