//! The whole status of a User.

use api::condition::{ConditionStatus, ConditionType, Reason};
use api::workspace::{User, UserPhase, UserSpec, UserStatus};
use jiff::Timestamp;

use super::Observed;
use super::build::object_name;
use super::decide::{assess, is_through};
use crate::Why;
use crate::workspaces::derived::{ObjectId, ObjectKind, inventory};
use crate::workspaces::ingress::url;
use crate::workspaces::report::{Conditions, Round};

/// The status to store; equal to the stored one when there is nobody to tell.
pub fn status(round: &Round<'_, User, Observed>, now: Timestamp) -> UserStatus {
    let user = round.object;
    let former = user.status.clone().unwrap_or_default();
    if round.is_mute() || round.observed.is_namespace_terminating {
        return former;
    }
    let (phase, why) = state(round);
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
        inventory: inventory(uid, &round.observed.objects, round.plan, round.outcomes),
    }
}

fn state(round: &Round<'_, User, Observed>) -> (UserPhase, Why) {
    let say = |phase, reason, message: &str| (phase, Why { reason, message: message.to_owned() });
    if round.object.metadata.deletion_timestamp.is_some() {
        return say(UserPhase::Terminating, Reason::Terminating, "The code-server is being removed");
    }
    let mut troubles = assess(round.object, round.observed).1;
    troubles.extend(round.rejections());
    troubles.sort_by_key(|trouble| trouble.why.reason);
    if let Some(trouble) = troubles.into_iter().next() {
        return (UserPhase::Failed, trouble.why);
    }
    match round.object.spec.as_ref() {
        Some(spec) if spec.has_code_server() => compute(round, spec),
        _ => say(UserPhase::Disabled, Reason::Disabled, "There is no code-server: no permission, or disabled"),
    }
}

fn compute(round: &Round<'_, User, Observed>, spec: &UserSpec) -> (UserPhase, Why) {
    let say = |phase, reason, message: &str| (phase, Why { reason, message: message.to_owned() });
    let id = ObjectId::new(ObjectKind::StatefulSet, object_name(&spec.slug));
    let set = round.observed.objects.get(&id).filter(|_| !round.changed().contains(&id));
    let is_through = set.is_some_and(is_through);
    match (is_through, spec.stopped == Some(true)) {
        (true, true) => say(UserPhase::Stopped, Reason::Stopped, "The code-server is at zero, as spec.stopped says"),
        (true, false) => say(UserPhase::Ready, Reason::Succeeded, "The code-server is ready"),
        (false, true) => say(UserPhase::Progressing, Reason::Starting, "The code-server is being stopped"),
        (false, false) => match set.and(round.observed.pod.as_ref()).and_then(super::PodFacts::trouble) {
            Some(why) => (UserPhase::Failed, why),
            None => say(UserPhase::Progressing, Reason::Starting, "The code-server is starting"),
        },
    }
}
