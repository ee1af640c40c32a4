//! The status of a machine, computed from what is observed.

use api::condition::{Condition, ConditionStatus, ConditionType, Reason};
use api::machine::{Initialization, MachineAddress, MachineReason, NstanceMachine, NstanceMachineStatus};
use jiff::Timestamp;

use super::super::condition::Conditions;
use super::super::node::{Found, find};
use super::super::shard::Outcome;
use super::known::{Known, Place, ambiguous, instance_id, is_lost, known, missed, place, shard_of};
use super::{Action, Call, Drain, Note, Observed, Owner, Role, RoundOf, is_expired};
use crate::Why;
use crate::event::{Event, EventKind};
use crate::fact::latest;
use crate::round::{Plan, Progress, Report};
use crate::shard::instance::MachineStatus;

/// The whole report of a round.
pub fn report(round: &RoundOf<'_>, now: Timestamp) -> Report<NstanceMachineStatus, Note> {
    let former = round.object.status.clone().unwrap_or_default();
    let mut scratch = Plan::default();
    let known = known(&mut scratch, round.object, round.observed, round.inputs);
    // Before the Machine is known nothing can be said.
    let is_mute = round.observed.owner == Owner::Unknown;
    let status = if is_mute { former.clone() } else { status(round, &known, &former, now) };
    let ready = status.condition(ConditionType::Ready);
    Report {
        fallback: None,
        is_provisional: false,
        done: Vec::new(),
        transitions: transitions(&former, &status),
        discriminator: status.instance_id.clone().unwrap_or_default(),
        phase: ready.map_or("", |ready| ready.reason.as_str()).to_owned(),
        note: Note { missed: missed(round.object, round.observed, round.inputs), begun: round.observed.begun },
        status,
    }
}

fn status(
    round: &RoundOf<'_>,
    known: &Known<'_>,
    former: &NstanceMachineStatus,
    now: Timestamp,
) -> NstanceMachineStatus {
    let (machine, observed) = (round.object, round.observed);
    let mut status = former.clone();
    status.instance_id = instance_id(machine, observed).or(status.instance_id);
    status.shard = announced(round).or_else(|| shard_of(machine, observed)).or(status.shard);
    status.failure_domain.clone_from(&status.shard);
    status.addresses = addresses(known, observed).unwrap_or(status.addresses);
    match known {
        Known::There(instance) => {
            let raw = Some(instance.provider_id.clone()).filter(|id| !id.is_empty());
            status.provider_id = raw.or(status.provider_id);
            status.ready = instance.status == MachineStatus::Running && observed.deleted.is_none();
        }
        Known::Gone => status.ready = false,
        // What is not known has not changed.
        Known::Unmade | Known::Unknown(_) => {}
    }
    if observed.deleted.is_some() {
        status.ready = false;
    }
    if status.ready {
        status.initialization = Some(Initialization { provisioned: Some(true) });
    }
    let conditions = Conditions::new(&former.conditions, machine.metadata.generation, now);
    status.conditions = Words { round, known, ready: status.ready }.conditions(&conditions);
    status
}

/// Of the instance's Node; `None` where that is not known.
fn addresses(known: &Known<'_>, observed: &Observed) -> Option<Vec<MachineAddress>> {
    let Known::There(instance) = known else { return None };
    match find(&instance.names(), latest(&observed.nodes)?) {
        Found::Node(node) => observed.addresses.get(&node.name).cloned(),
        Found::Nothing | Found::Ambiguous(_) => None,
    }
}

/// The shard that this round asks, or is about to.
fn announced(round: &RoundOf<'_>) -> Option<String> {
    round.attempts().find_map(|(action, progress)| match (action, progress) {
        (Action::CreateInstance { shard, .. }, Progress::Begun | Progress::Done(())) => Some(shard.clone()),
        _ => None,
    })
}

struct Words<'a> {
    round: &'a RoundOf<'a>,
    known: &'a Known<'a>,
    ready: bool,
}

impl Words<'_> {
    fn conditions(&self, make: &Conditions<'_, MachineReason>) -> Vec<Condition<MachineReason>> {
        let observed = self.round.observed;
        let ready = match self.why_not() {
            Some(why) => make.make(ConditionType::Ready, ConditionStatus::False, why.reason, why.message),
            None => make.make(ConditionType::Ready, ConditionStatus::True, Reason::Running, "the instance runs"),
        };
        let mut conditions = vec![ready, make.paused(observed.is_paused)];
        conditions.extend(self.drained(make));
        conditions.extend(self.server_deleted(make));
        conditions
    }

    fn machine(&self) -> &NstanceMachine {
        self.round.object
    }

    fn is_going(&self) -> bool {
        let is_owner_going = matches!(&self.round.observed.owner, Owner::Machine(owner) if owner.is_deleting);
        self.machine().metadata.deletion_timestamp.is_some() || is_owner_going
    }

    fn why_not(&self) -> Option<Why> {
        let why = |reason, message: String| Some(Why { reason, message });
        if is_lost(self.round.observed, self.known) {
            return why(Reason::ServerDeleted, "the shard deleted the instance".to_owned());
        }
        if let Some(blocked) = self.round.plan.blocked.first() {
            return Some(blocked.clone());
        }
        if self.machine().metadata.deletion_timestamp.is_some() {
            return why(Reason::Terminating, "waiting for the shard to remove the instance".to_owned());
        }
        if let Some(message) = self.ambiguity() {
            return why(Reason::NodeAmbiguous, message);
        }
        match (self.known, &self.round.observed.call) {
            (Known::Unmade, Call::Ended(Outcome::Refused(message))) => {
                why(Reason::ConfigValidationFailed, message.clone())
            }
            (Known::Unmade, Call::Ended(Outcome::Failed(message))) => why(Reason::ProviderError, message.clone()),
            (Known::Unmade | Known::Unknown(_), Call::Ended(Outcome::Unreachable(message))) => {
                why(Reason::ShardUnreachable, message.clone())
            }
            // A silent shard says nothing against an instance that ran.
            (Known::Unknown(_), _) if self.ready => None,
            (Known::Unknown(message), _) => why(Reason::ShardUnreachable, (*message).to_owned()),
            (Known::There(instance), _) if !self.ready => {
                why(Reason::Provisioning, format!("the shard reports the instance as {}", instance.status.as_str()))
            }
            (Known::Unmade, _) => why(Reason::Provisioning, "the shard is asked for the instance".to_owned()),
            (Known::There(_) | Known::Gone, _) => None,
        }
    }

    fn ambiguity(&self) -> Option<String> {
        let Known::There(instance) = self.known else { return None };
        match find(&instance.names(), latest(&self.round.observed.nodes)?) {
            Found::Ambiguous(nodes) => Some(ambiguous(&nodes)),
            Found::Nothing | Found::Node(_) => None,
        }
    }

    /// While the machine goes.
    fn drained(&self, make: &Conditions<'_, MachineReason>) -> Option<Condition<MachineReason>> {
        use ConditionStatus::{False, True};
        if !self.is_going() {
            return None;
        }
        let (status, reason, message) = match &self.round.observed.drain {
            Drain::Done => (True, Reason::Drained, "the Node is drained".to_owned()),
            Drain::Expired { left } => {
                let message = format!("the drain did not end before its deadline; {left}");
                (False, Reason::DrainExpired, message)
            }
            Drain::Running { blocked: Some(blocked), .. } => (False, Reason::BlockedByPDB, blocked.clone()),
            Drain::Running { blocked: None, left } => (False, Reason::Draining, left.clone()),
            Drain::None => return Some(self.without_drain(make)),
        };
        Some(make.make(ConditionType::Drained, status, reason, message))
    }

    /// Without a drain of this process. What one came to is kept where it cannot be observed any more; that there is no
    /// Node is said only by a round that looked for it.
    fn without_drain(&self, make: &Conditions<'_, MachineReason>) -> Condition<MachineReason> {
        use ConditionStatus::{False, True, Unknown};
        let observed = self.round.observed;
        let say = |status, reason, message: &str| make.make(ConditionType::Drained, status, reason, message);
        let former = make.former(ConditionType::Drained);
        let ended = former.filter(|former| former.status == True || is_expired(former));
        let is_excluded = matches!(&observed.owner, Owner::Machine(owner) if owner.is_excluded);
        if let Some(former) = ended.filter(|former| is_excluded || is_expired(former)) {
            return former.clone();
        }
        if observed.is_paused {
            return say(Unknown, Reason::Paused, "whether the Node is drained is not looked at while paused");
        }
        if is_excluded {
            return say(True, Reason::Drained, "the Machine excludes its Node from drains");
        }
        if is_lost(observed, self.known) {
            return say(True, Reason::Drained, "there is no Node to drain");
        }
        match (place(self.machine(), observed, self.known), ended) {
            (Place::Nowhere | Place::Unknown(_), Some(former)) => former.clone(),
            (Place::Nowhere, None) => say(True, Reason::Drained, "there is no Node to drain"),
            (Place::Node(_), _) => say(False, Reason::Draining, "the drain begins"),
            // The time of a drain runs from its beginning, which is when this turns false.
            (Place::Ambiguous(nodes), _) => say(Unknown, Reason::NodeAmbiguous, &ambiguous(&nodes)),
            (Place::Unknown(why), None) => say(Unknown, Reason::StateUnknown, &why),
        }
    }

    fn server_deleted(&self, make: &Conditions<'_, MachineReason>) -> Option<Condition<MachineReason>> {
        let observed = self.round.observed;
        let former = make.former(ConditionType::ServerDeleted);
        let word = observed.deleted.as_deref();
        // What is asked for from here is no surprise.
        let is_surprise = word.is_some() || (*self.known == Known::Gone && !self.is_going());
        if !is_surprise {
            return former.cloned();
        }
        if word.is_none() && former.is_some() {
            return former.cloned();
        }
        let message = match word {
            Some(word) if !word.is_empty() => format!("the shard deleted the instance: {word}"),
            _ if matches!(observed.role, Role::Member { .. }) => "the shard lists the instance no more".to_owned(),
            _ => "the shard does not have the instance any more".to_owned(),
        };
        let reason = MachineReason::of_deletion(word.unwrap_or_default());
        Some(make.make(ConditionType::ServerDeleted, ConditionStatus::True, reason, message))
    }
}

/// What changed: a deletion that was not asked for, a drain that a budget holds, a deadline that passed.
fn transitions(former: &NstanceMachineStatus, status: &NstanceMachineStatus) -> Vec<Event> {
    let mut events = Vec::new();
    for kind in [ConditionType::ServerDeleted, ConditionType::Drained] {
        let Some(condition) = status.condition(kind) else { continue };
        let is_same = former.condition(kind).is_some_and(|former| former.reason == condition.reason);
        let reason = match &condition.reason {
            MachineReason::Known(reason @ (Reason::BlockedByPDB | Reason::DrainExpired)) => reason.as_str(),
            _ if kind == ConditionType::ServerDeleted => "ServerDeleted",
            MachineReason::Known(_) | MachineReason::Shard(_) => continue,
        };
        if !is_same {
            let note = condition.message.clone();
            events.push(Event { kind: EventKind::Warning, reason, action: "Observe", note });
        }
    }
    events
}
