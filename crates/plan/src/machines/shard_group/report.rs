//! What a shard says of a group, as the status of the shard group.

use api::condition::{Condition, ConditionStatus, ConditionType, Reason};
use api::machine::{NstanceShardGroupSpec, NstanceShardGroupStatus};
use jiff::Timestamp;

use super::super::condition::{Conditions, turned, whole_seconds};
use super::super::shard::{Group, Outcome, Shard, UNDECLARED_REMEDY, undeclared};
use super::decide::{last_tried, silent, target, unconfigured};
use super::{Action, Call, DELETE, Note, Observed, RoundOf, Tried};
use crate::Why;
use crate::event::{Event, EventKind};
use crate::fact::Fact;
use crate::round::Report;

/// The whole report of a round.
pub fn report(round: &RoundOf<'_>, now: Timestamp) -> Report<NstanceShardGroupStatus, Note> {
    let (object, observed) = (round.object, round.observed);
    let former = object.status.clone().unwrap_or_default();
    let status = object.spec.as_ref().map_or_else(|| former.clone(), |spec| status(round, spec, &former, now));
    let reason = status.condition(ConditionType::Ready).map_or("", |condition| condition.reason.as_str());
    Report {
        fallback: None,
        is_provisional: false,
        done: done(round),
        transitions: transitions(&former, &status, observed),
        discriminator: observed.shard.answer().map_or_else(String::new, |answer| answer.poll.to_string()),
        phase: reason.to_owned(),
        note: Note { tried: last_tried(observed, &round.inputs.note).cloned() },
        status,
    }
}

fn status(
    round: &RoundOf<'_>,
    spec: &NstanceShardGroupSpec,
    former: &NstanceShardGroupStatus,
    now: Timestamp,
) -> NstanceShardGroupStatus {
    let observed = round.observed;
    let mut status = former.clone();
    let answer = observed.shard.answer();
    // A shard that is silent says nothing new: what it said last stays. So it does where the shard lost the group: it
    // gets it again, and Cluster API would delete the Nodes of IDs that are not published meanwhile.
    if let Some(group) = answer.and_then(|answer| answer.group.as_ref()) {
        take(&mut status, group, observed);
    }
    let is_reached =
        answer.is_some_and(|answer| target(round.object, spec, spec.size(), answer, observed).is_reached());
    if is_reached {
        status.observed_generation = round.object.metadata.generation;
    }
    if status != *former {
        status.last_sync_time = Some(whole_seconds(now));
    }
    let conditions = Conditions::new(&former.conditions, round.object.metadata.generation, now);
    status.conditions = Words { round, spec, is_reached }.conditions(&conditions);
    status
}

fn take(status: &mut NstanceShardGroupStatus, group: &Group, observed: &Observed) {
    status.provider_ids = group.provider_ids(&status.provider_ids, &observed.nodes);
    status.replicas = i32::try_from(status.provider_ids.len()).unwrap_or(i32::MAX);
    status.is_static = group.is_static;
    status.config = Some(group.config());
}

struct Words<'a> {
    round: &'a RoundOf<'a>,
    spec: &'a NstanceShardGroupSpec,
    is_reached: bool,
}

impl Words<'_> {
    fn conditions(&self, make: &Conditions<'_, Reason>) -> Vec<Condition> {
        use ConditionStatus::{False, True, Unknown};
        let observed = self.round.observed;
        let unreachable = self.unreachable();
        let refused = self.refused();
        let reachable = if let Some(message) = &unreachable {
            make.make(ConditionType::ShardReachable, False, Reason::ShardUnreachable, message)
        } else {
            let message = format!("shard {} answers", self.spec.shard);
            make.make(ConditionType::ShardReachable, True, Reason::Connected, message)
        };
        let valid = match (refused, make.former(ConditionType::ConfigValid)) {
            (Some(message), _) => make.make(ConditionType::ConfigValid, False, Reason::ConfigValidationFailed, message),
            (None, _) if self.is_reached => {
                make.make(ConditionType::ConfigValid, True, Reason::Valid, "the shard accepts the settings")
            }
            // Until the shard has judged these settings, its last judgement stands.
            (None, Some(former)) => {
                make.make(ConditionType::ConfigValid, former.status, former.reason, former.message.clone())
            }
            (None, None) => {
                let message = "the shard has not judged the settings yet";
                make.make(ConditionType::ConfigValid, Unknown, Reason::Reconciling, message)
            }
        };
        let ready = match self.why_not(unreachable) {
            Some(why) => make.make(ConditionType::Ready, False, why.reason, why.message),
            None => make.make(ConditionType::Ready, True, Reason::SyncSucceeded, self.synced()),
        };
        vec![ready, reachable, valid, make.paused(observed.is_paused)]
    }

    fn synced(&self) -> String {
        let group = self.round.observed.shard.answer().and_then(|answer| answer.group.as_ref());
        match group.and_then(|group| undeclared(self.spec, &group.config(), group.is_static)) {
            Some(left) => format!("the shard has what is declared; it also has {left}, {UNDECLARED_REMEDY}"),
            None => "the shard has the group as declared".to_owned(),
        }
    }

    fn unreachable(&self) -> Option<String> {
        match &self.round.observed.shard {
            Shard::Unconfigured => Some(unconfigured(self.spec)),
            Shard::Configured(Fact::Unknown { why, .. }) => Some(silent(self.spec, &why.message)),
            Shard::Configured(Fact::Known { .. }) => None,
        }
    }

    /// The last call, where what it asked for is still wanted.
    fn current(&self) -> Option<&Tried> {
        let (observed, note) = (self.round.observed, &self.round.inputs.note);
        let tried = last_tried(observed, note)?;
        let answer = observed.shard.answer()?;
        let wanted = target(self.round.object, self.spec, self.spec.size(), answer, observed).push;
        let is_current = wanted.is_some_and(|push| push.digest() == tried.digest);
        (is_current || (tried.digest == DELETE && self.is_going())).then_some(tried)
    }

    fn is_going(&self) -> bool {
        self.round.object.metadata.deletion_timestamp.is_some()
    }

    fn refused(&self) -> Option<&str> {
        match &self.current()?.outcome {
            Outcome::Refused(message) => Some(message),
            Outcome::Accepted | Outcome::Failed(_) | Outcome::Unreachable(_) => None,
        }
    }

    fn why_not(&self, unreachable: Option<String>) -> Option<Why> {
        let why = |reason, message: String| Some(Why { reason, message });
        if let Some(message) = unreachable {
            return why(Reason::ShardUnreachable, message);
        }
        if self.is_going() {
            return why(Reason::Terminating, format!("the group is being removed from shard {}", self.spec.shard));
        }
        if self.is_reached {
            return None;
        }
        match self.current().map(|tried| &tried.outcome) {
            Some(Outcome::Refused(message)) => why(Reason::ConfigValidationFailed, message.clone()),
            Some(Outcome::Failed(message)) => why(Reason::ProviderError, message.clone()),
            Some(Outcome::Unreachable(message)) => why(Reason::ShardUnreachable, silent(self.spec, message)),
            Some(Outcome::Accepted) | None => why(Reason::Reconciling, self.waits_for()),
        }
    }

    fn waits_for(&self) -> String {
        let observed = self.round.observed;
        let target = |answer| target(self.round.object, self.spec, self.spec.size(), answer, observed);
        let target = observed.shard.answer().map(target).unwrap_or_default();
        if let Some(why) = target.unknown {
            return why;
        }
        if target.undrained > 0 {
            return format!("{} instances are drained before shard {} removes them", target.undrained, self.spec.shard);
        }
        format!("waiting for shard {} to take the group as declared", self.spec.shard)
    }
}

/// Events of what the round saw end, and of what the shard reported.
fn done(round: &RoundOf<'_>) -> Vec<Event> {
    let observed = round.observed;
    let warning =
        |reason, action, note: &str| Event { kind: EventKind::Warning, reason, action, note: note.to_owned() };
    let errors = observed.errors.iter().map(|error| warning(Reason::ProviderError.as_str(), "Observe", error));
    let mut events: Vec<Event> = errors.collect();
    if let Call::Ended(Tried { digest, outcome, .. }) = &observed.call
        && digest == DELETE
    {
        match outcome {
            Outcome::Accepted => {}
            Outcome::Refused(message) | Outcome::Failed(message) | Outcome::Unreachable(message) => {
                events.push(warning("DeleteFailed", "DeleteGroup", message));
            }
        }
    }
    let is_released = round.done().any(|(action, ())| matches!(action, Action::ReleaseFinalizer { .. }));
    if is_released && !observed.is_wanted {
        let note = "the group is gone from the shard; removed the finalizer".to_owned();
        events.push(Event { kind: EventKind::Normal, reason: "DeleteSucceeded", action: "DeleteGroup", note });
    }
    events
}

/// What changed: a refusal, silence, a failure, and that all is well again.
fn transitions(former: &NstanceShardGroupStatus, status: &NstanceShardGroupStatus, observed: &Observed) -> Vec<Event> {
    let Some(ready) = status.condition(ConditionType::Ready) else { return Vec::new() };
    let kind = match ready.reason {
        Reason::SyncSucceeded => EventKind::Normal,
        Reason::ShardUnreachable | Reason::ConfigValidationFailed | Reason::ProviderError => EventKind::Warning,
        _ => return Vec::new(),
    };
    let action = if observed.shard.answer().is_some() { "UpsertGroup" } else { "Observe" };
    turned(former.condition(ConditionType::Ready), ready, kind, action).into_iter().collect()
}
