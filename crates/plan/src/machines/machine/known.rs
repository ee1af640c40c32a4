//! What is known of a machine's instance, and of the Node that it is.

use std::time::Duration;

use api::condition::ConditionType;
use api::machine::NstanceMachine;

use super::super::node::{Found, NodeRef, find, is_same};
use super::super::shard::{Answer as ShardAnswer, Instance, Members, Outcome, Shard};
use super::{Action, Answer, Ask, Call, InputsOf, Observed, Role, is_expired, is_released};
use crate::fact::Fact;
use crate::round::Plan;

/// How often an instance is asked for while it starts, while its deletion is under way, and while its shard does not list
/// it: the shard's next list comes within 30 s.
pub(super) const SOON: Duration = Duration::from_secs(10);
/// How often one that runs is: its end is usually an event.
pub const LATER: Duration = Duration::from_mins(1);

/// Of a server of the original: a member is never found by its name there.
pub(super) const UNNAMED: &str = "the server of its shard does not name its instances";

/// What is known of the instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Known<'a> {
    /// There is none yet.
    Unmade,
    Unknown(&'a str),
    Gone,
    There(&'a Instance),
}

/// What is known of the instance: a member's shard lists it, of another the shard is asked.
pub(super) fn known<'a>(
    plan: &mut Plan<Action, Ask>,
    machine: &'a NstanceMachine,
    observed: &'a Observed,
    inputs: &'a InputsOf,
) -> Known<'a> {
    let is_member = matches!(observed.role, Role::Member { .. });
    let (Some(id), Some(shard)) = (instance_id(machine, observed), shard_of(machine, observed)) else {
        return if is_member { Known::Unknown("no shard is known to have the instance") } else { Known::Unmade };
    };
    let fact = match observed.shards.get(&shard) {
        None | Some(Shard::Unconfigured) => return Known::Unknown("its shard is not among the operator's shards"),
        Some(Shard::Configured(fact)) => fact,
    };
    if is_member {
        return match fact {
            Fact::Known { value, .. } => member(plan, machine, observed, inputs, value),
            Fact::Unknown { why, .. } => Known::Unknown(&why.message),
        };
    }
    let has_run = machine.status.as_ref().is_some_and(|status| status.ready);
    let is_linked = machine.spec.as_ref().is_some_and(|spec| spec.provider_id.is_some());
    let is_going = machine.metadata.deletion_timestamp.is_some();
    let max_age = if has_run && is_linked && !is_going { LATER } else { SOON };
    plan.look_within(max_age);
    match plan.want(&inputs.facts, Ask::Instance { shard, id }, max_age) {
        None => Known::Unknown("its shard is being asked"),
        Some(Fact::Unknown { why, .. }) => Known::Unknown(&why.message),
        Some(Fact::Known { value: Answer::Instance(None), .. }) => Known::Gone,
        Some(Fact::Known { value: Answer::Instance(Some(instance)), .. }) => Known::There(instance),
    }
}

/// One list that omits an instance proves nothing: its shard may have lost the group, or be about to list it. Unless its
/// removal was asked for, a second list must omit it too.
fn member<'a>(
    plan: &mut Plan<Action, Ask>,
    machine: &NstanceMachine,
    observed: &Observed,
    inputs: &InputsOf,
    answer: &'a ShardAnswer,
) -> Known<'a> {
    let is_asked_for = is_released(machine, &observed.owner);
    match listed(answer, machine) {
        Listed::There(instance) => Known::There(instance),
        Listed::Unnamed => Known::Unknown(UNNAMED),
        Listed::Lost if is_asked_for => Known::Gone,
        Listed::Lost => Known::Unknown("its shard does not have the group"),
        Listed::Omitted if is_asked_for || inputs.note.missed.is_some_and(|poll| poll != answer.poll) => Known::Gone,
        Listed::Omitted => {
            plan.look_within(SOON);
            Known::Unknown("its shard does not list the instance; the next list must omit it too")
        }
    }
}

/// What one list says of a member.
enum Listed<'a> {
    There(&'a Instance),
    /// The group is there, and the instance is not.
    Omitted,
    /// The group is not there.
    Lost,
    /// The list has provider IDs alone, the instance's among them, or it is not known.
    Unnamed,
}

fn listed<'a>(answer: &'a ShardAnswer, machine: &NstanceMachine) -> Listed<'a> {
    let Some(group) = &answer.group else { return Listed::Lost };
    match &group.members {
        Members::Listed(instances) => {
            let named = instances.iter().find(|instance| Some(&instance.id) == machine.metadata.name.as_ref());
            named.map_or(Listed::Omitted, Listed::There)
        }
        Members::Counted(ids) => {
            let stored = stored_ids(machine);
            let is_it = |id: &String| stored.iter().any(|stored| id == stored || is_same(id, stored));
            if stored.is_empty() || ids.iter().any(is_it) { Listed::Unnamed } else { Listed::Omitted }
        }
    }
}

/// What the next round needs to know of the shard's lists.
pub(super) fn missed(machine: &NstanceMachine, observed: &Observed, inputs: &InputsOf) -> Option<u64> {
    let before = inputs.note.missed;
    let shard = shard_of(machine, observed)?;
    let Some(answer) = observed.shards.get(&shard).and_then(Shard::answer) else { return before };
    match listed(answer, machine) {
        Listed::Omitted => before.or(Some(answer.poll)),
        Listed::There(_) | Listed::Unnamed => None,
        Listed::Lost => before,
    }
}

pub(super) fn instance_id(machine: &NstanceMachine, observed: &Observed) -> Option<String> {
    let stored = machine.status.as_ref().and_then(|status| status.instance_id.clone());
    match (&observed.role, &observed.call) {
        (Role::Member { .. }, _) => machine.metadata.name.clone(),
        (Role::Own, Call::Created { id }) => Some(id.clone()),
        (Role::Own, _) => stored,
    }
}

pub(super) fn shard_of(machine: &NstanceMachine, observed: &Observed) -> Option<String> {
    let stored = machine.status.as_ref().and_then(|status| status.shard.clone());
    match &observed.role {
        Role::Member { shard } => shard.clone().or(stored),
        Role::Own => stored,
    }
}

/// Whether there is a shard that could be asked for the instance, now or later.
pub(super) fn is_askable(machine: &NstanceMachine, observed: &Observed) -> bool {
    let shard = shard_of(machine, observed);
    shard.is_some_and(|shard| matches!(observed.shards.get(&shard), Some(Shard::Configured(_))))
}

/// Whether the instance is gone although nothing here asked for that.
pub(super) fn is_lost(observed: &Observed, known: &Known<'_>) -> bool {
    observed.deleted.is_some() || *known == Known::Gone
}

/// The IDs that were stored of the instance, however its shard is.
fn stored_ids(machine: &NstanceMachine) -> Vec<&str> {
    let status = machine.status.as_ref().and_then(|status| status.provider_id.as_deref());
    let spec = machine.spec.as_ref().and_then(|spec| spec.provider_id.as_deref());
    [status, spec].into_iter().flatten().filter(|id| !id.is_empty()).collect()
}

/// The Node of the instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place<'a> {
    /// It was looked for, and there is none.
    Nowhere,
    Node(&'a NodeRef),
    Ambiguous(Vec<&'a NodeRef>),
    /// Why it is not known.
    Unknown(String),
}

/// Where the Node of the instance is. Nothing counts as absent that could not be looked for.
pub(super) fn place<'a>(machine: &NstanceMachine, observed: &'a Observed, known: &Known<'_>) -> Place<'a> {
    let id = instance_id(machine, observed);
    let mut ids = stored_ids(machine);
    if let Known::There(instance) = known {
        ids.extend(instance.ids().into_iter().filter(|id| !id.is_empty()));
    }
    let is_never = ids.is_empty() && is_never_made(machine, observed, known);
    let why = match known {
        _ if !ids.is_empty() => None,
        Known::There(_) | Known::Gone => None,
        Known::Unmade => Some("the shard was asked for the instance, and has not named it".to_owned()),
        Known::Unknown(why) => Some(format!("which Node the instance has is not known: {why}")),
    };
    ids.extend(id.as_deref());
    match (&observed.nodes, why) {
        _ if is_never => Place::Nowhere,
        (Fact::Unknown { why, .. }, _) => Place::Unknown(format!("the Node is not known: {}", why.message)),
        (Fact::Known { value, .. }, why) => match (find(&ids, value), why) {
            (Found::Nothing, None) => Place::Nowhere,
            (Found::Nothing, Some(why)) => Place::Unknown(why),
            (Found::Node(node), _) => Place::Node(node),
            (Found::Ambiguous(nodes), _) => Place::Ambiguous(nodes),
        },
    }
}

/// Whether there is no instance, and no shard left that could make or have made it.
fn is_never_made(machine: &NstanceMachine, observed: &Observed, known: &Known<'_>) -> bool {
    let is_refused = matches!(observed.call, Call::Ended(Outcome::Refused(_)));
    *known == Known::Gone || !is_askable(machine, observed) || (*known == Known::Unmade && is_refused)
}

/// What is left of the time that a drain may take. It runs from the drain's beginning: what kept the drain from beginning
/// costs it nothing.
pub(super) fn time_left(timeout: Option<Duration>, observed: &Observed) -> Option<Duration> {
    let spent = observed.begun.map(|begun| begun.age).unwrap_or_default();
    timeout.map(|timeout| timeout.saturating_sub(spent))
}

/// Whether the deadline of its drain has passed, in this process or before it.
pub(super) fn has_expired(machine: &NstanceMachine) -> bool {
    let drained = machine.status.as_ref().and_then(|status| status.condition(ConditionType::Drained));
    drained.is_some_and(is_expired)
}

pub(in crate::machines) fn ambiguous(nodes: &[&NodeRef]) -> String {
    let names: Vec<_> = nodes.iter().map(|node| node.name.as_str()).collect();
    format!(
        "the Nodes {} all have the provider ID of this instance; delete those that are not this instance",
        names.join(", ")
    )
}
