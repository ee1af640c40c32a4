//! The next actions for a machine.

use std::time::Duration;

use api::condition::Reason;
use api::machine::{MACHINE_FINALIZER, NstanceMachine, NstanceMachineSpec};

use super::super::node::{Found, find};
use super::super::shard::{Outcome, Shard, peer};
use super::{Action, Answer, Ask, Call, Drain, InputsOf, Known, Machine, Observed, Owner, Role, listed};
use crate::fact::{Fact, latest};
use crate::object::digest;
use crate::round::{Plan, Step};

/// How often an instance is asked for while it starts, and while its deletion is under way.
const SOON: Duration = Duration::from_secs(10);
/// How often one that runs is: its end is usually an event.
const LATER: Duration = Duration::from_mins(1);

/// The next actions for one machine.
pub fn plan(machine: &NstanceMachine, observed: &Observed, inputs: &InputsOf) -> Plan<Action, Ask> {
    let mut plan = Plan::default();
    let Some(spec) = machine.spec.as_ref().filter(|_| !observed.is_paused && observed.owner != Owner::Unknown) else {
        return plan;
    };
    let known = known(&mut plan, machine, observed, inputs);
    if machine.metadata.deletion_timestamp.is_some() {
        clean_up(&mut plan, machine, observed, &known);
        return plan;
    }
    if is_lost(observed, &known) {
        lost(&mut plan, machine, observed);
        return plan;
    }
    let mut finalizers = machine.metadata.finalizers.clone().unwrap_or_default();
    if !finalizers.iter().any(|finalizer| finalizer == MACHINE_FINALIZER) {
        finalizers.push(MACHINE_FINALIZER.to_owned());
        plan.push(Action::AddFinalizer { finalizers });
        return plan;
    }
    match known {
        Known::Unmade => create(&mut plan, machine, spec, observed),
        Known::There(instance) => {
            if let Some(id) = node_id(spec, instance.ids(), observed) {
                plan.push(Action::SetProviderId { id });
            }
        }
        Known::Unknown(_) | Known::Gone => {}
    }
    if let Owner::Machine(owner) = &observed.owner
        && owner.is_deleting
        && owner.has_hook
        && is_empty(&mut plan, machine, owner.drain_timeout, observed, &known_ids(machine, observed, inputs))
    {
        plan.push(release_hook(owner));
    }
    plan
}

/// What is known of the instance: a member's shard lists it, of another the shard is asked.
pub(super) fn known<'a>(
    plan: &mut Plan<Action, Ask>,
    machine: &'a NstanceMachine,
    observed: &'a Observed,
    inputs: &'a InputsOf,
) -> Known<'a> {
    let (Some(id), Some(shard)) = (instance_id(machine, observed), shard_of(machine, observed)) else {
        return Known::Unmade;
    };
    let fact = match observed.shards.get(&shard) {
        None | Some(Shard::Unconfigured) => return Known::Unknown("its shard is not among the operator's shards"),
        Some(Shard::Configured(fact)) => fact,
    };
    if matches!(observed.role, Role::Member { .. }) {
        return match fact {
            Fact::Known { value, .. } => listed(value, &id).map_or(Known::Gone, Known::There),
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

/// Whether the instance is gone although nothing here asked for that.
pub(super) fn is_lost(observed: &Observed, known: &Known<'_>) -> bool {
    observed.deleted.is_some() || *known == Known::Gone
}

/// There is nothing left to drain: Cluster API may delete the Machine at once.
fn lost(plan: &mut Plan<Action, Ask>, machine: &NstanceMachine, observed: &Observed) {
    match &observed.owner {
        Owner::Unset if machine.metadata.deletion_timestamp.is_none() => {
            plan.push(Action::DeleteSelf);
        }
        // The word to Cluster API is stored before its drain could begin.
        Owner::Machine(owner) if owner.has_hook || !owner.is_excluded => {
            plan.push(release_hook(owner));
        }
        Owner::Machine(owner) if !owner.is_deleting => {
            let (name, uid) = (owner.name.clone(), owner.uid.clone());
            plan.push(Action::DeleteMachine { name, uid, resource_version: owner.resource_version.clone() });
        }
        Owner::Unknown | Owner::Unset | Owner::Gone | Owner::Machine(_) => {}
    }
}

fn release_hook(owner: &Machine) -> Action {
    let (name, uid) = (owner.name.clone(), owner.uid.clone());
    Action::ReleaseHook { name, uid, resource_version: owner.resource_version.clone() }
}

/// The shard is stored before it is asked: a later round must not choose another one.
fn create(plan: &mut Plan<Action, Ask>, machine: &NstanceMachine, spec: &NstanceMachineSpec, observed: &Observed) {
    if observed.role != Role::Own || observed.call == Call::Running {
        return;
    }
    // What a shard refuses or could not do is asked for again at the next look, not at once.
    plan.look_within(LATER);
    if matches!(observed.call, Call::Ended(_)) {
        return;
    }
    match choose_shard(machine, spec, observed) {
        Ok(shard) => {
            let create = Action::CreateInstance {
                shard: shard.clone(),
                group: spec.group().to_owned(),
                instance_type: spec.instance_type.clone().unwrap_or_default(),
                vars: spec.vars.clone(),
            };
            plan.push_step(Step::new(create).to(peer(&shard)).announced().as_job());
        }
        Err((reason, message)) => plan.block(reason, message),
    }
}

/// The one that is stored, that the Machine asks for, or one that has the group; which of several follows from the uid.
pub(super) fn choose_shard(
    machine: &NstanceMachine,
    spec: &NstanceMachineSpec,
    observed: &Observed,
) -> Result<String, (Reason, String)> {
    let asked = match &observed.owner {
        Owner::Machine(owner) => owner.failure_domain.clone(),
        Owner::Unknown | Owner::Unset | Owner::Gone => None,
    };
    let silent = |shard: &str| (Reason::ShardUnreachable, format!("shard {shard} does not answer; check its server"));
    if let Some(shard) = shard_of(machine, observed).or(asked) {
        return match observed.shards.get(&shard) {
            Some(Shard::Configured(Fact::Known { .. })) => Ok(shard),
            Some(Shard::Configured(Fact::Unknown { .. })) => Err(silent(&shard)),
            None | Some(Shard::Unconfigured) => Err((
                Reason::Invalid,
                format!(
                    "spec.failureDomain of the Machine: {shard} is not among the operator's shards; correct it, or add the shard to the operator's configuration"
                ),
            )),
        };
    }
    let has_group = |shard: &&Shard| shard.answer().is_some_and(|answer| answer.group.is_some());
    let open: Vec<_> = observed.shards.iter().filter(|(_, shard)| has_group(shard)).map(|(name, _)| name).collect();
    let uid = machine.metadata.uid.clone().unwrap_or_default();
    let number = u64::from_str_radix(&digest(&uid.into()), 16).unwrap_or_default();
    let index = usize::try_from(number % open.len().max(1) as u64).unwrap_or_default();
    if let Some(shard) = open.get(index) {
        return Ok((*shard).clone());
    }
    match observed.shards.iter().find(|(_, shard)| shard.is_silent()) {
        Some((name, _)) => Err(silent(name)),
        None => Err((
            Reason::Invalid,
            format!("spec.group: no shard has the group {}; correct it, or create the group", spec.group()),
        )),
    }
}

/// The ID as the Node has it. Cluster API compares it with Nodes, so the provider's own never stands there; once set, it
/// stays.
fn node_id(spec: &NstanceMachineSpec, ids: [&str; 2], observed: &Observed) -> Option<String> {
    if spec.provider_id.is_some() {
        return None;
    }
    let of_node = match find(ids, latest(&observed.nodes).map(Vec::as_slice).unwrap_or_default()) {
        Found::Node(node) => Some(node.provider_id.clone()),
        Found::Nothing | Found::Ambiguous(_) => None,
    };
    of_node.or_else(|| Some(ids[1].to_owned()).filter(|id| id.contains("://")))
}

/// Every ID that the Node may have.
fn known_ids(machine: &NstanceMachine, observed: &Observed, inputs: &InputsOf) -> [String; 2] {
    let mut scratch = Plan::default();
    let (status, spec) = (machine.status.as_ref(), machine.spec.as_ref());
    let stored = [
        status.and_then(|status| status.provider_id.clone()).unwrap_or_default(),
        spec.and_then(|spec| spec.provider_id.clone()).unwrap_or_default(),
    ];
    match known(&mut scratch, machine, observed, inputs) {
        Known::There(instance) if stored.iter().all(String::is_empty) => instance.ids().map(str::to_owned),
        Known::There(_) | Known::Unmade | Known::Unknown(_) | Known::Gone => stored,
    }
}

/// Whether nothing of the Node is left that a drain waits for; begins the drain if it was not begun.
fn is_empty(
    plan: &mut Plan<Action, Ask>,
    machine: &NstanceMachine,
    timeout: Option<Duration>,
    observed: &Observed,
    ids: &[String; 2],
) -> bool {
    match &observed.drain {
        Drain::Done | Drain::Expired { .. } => return true,
        Drain::Running { .. } => return false,
        Drain::None => {}
    }
    let nodes = match &observed.nodes {
        Fact::Known { value, .. } => value,
        Fact::Unknown { why, .. } => {
            plan.block(Reason::StateUnknown, format!("the Node is not known: {}", why.message));
            return false;
        }
    };
    match find([&ids[0], &ids[1]], nodes) {
        Found::Nothing => true,
        Found::Node(node) => {
            let id = machine.metadata.uid.clone().unwrap_or_default();
            plan.push_step(Step::new(Action::Drain { node: node.name.clone(), id, timeout }).as_job());
            false
        }
        Found::Ambiguous(nodes) => {
            plan.block(Reason::NodeAmbiguous, ambiguous(&nodes));
            false
        }
    }
}

pub(super) fn ambiguous(nodes: &[&super::NodeRef]) -> String {
    let names: Vec<_> = nodes.iter().map(|node| node.name.as_str()).collect();
    format!(
        "the Nodes {} all have the provider ID of this instance; delete those that are not this instance",
        names.join(", ")
    )
}

/// The Node first, then the instance, then the object. A member's instance is removed with its group's size.
fn clean_up(plan: &mut Plan<Action, Ask>, machine: &NstanceMachine, observed: &Observed, known: &Known<'_>) {
    let mut finalizers = machine.metadata.finalizers.clone().unwrap_or_default();
    let before = finalizers.len();
    finalizers.retain(|finalizer| finalizer != MACHINE_FINALIZER);
    if finalizers.len() == before {
        return;
    }
    if let Owner::Machine(owner) = &observed.owner
        && owner.has_hook
        && is_lost(observed, known)
    {
        plan.push(release_hook(owner));
    }
    let shard = shard_of(machine, observed);
    let is_configured =
        shard.as_ref().is_some_and(|shard| matches!(observed.shards.get(shard), Some(Shard::Configured(_))));
    // Nothing was ever asked for, or there is nothing left that could be asked.
    if is_lost(observed, known) || !is_configured {
        plan.push(Action::ReleaseFinalizer { finalizers });
        return;
    }
    if *known == Known::Unmade {
        find_unmade(plan, machine, observed, finalizers);
        return;
    }
    let (is_excluded, timeout) = match &observed.owner {
        Owner::Machine(owner) => (owner.is_excluded, owner.drain_timeout),
        Owner::Unknown | Owner::Unset | Owner::Gone => (false, None),
    };
    let ids = match known {
        Known::There(instance) => instance.ids().map(str::to_owned),
        _ => [machine.status.as_ref().and_then(|s| s.provider_id.clone()).unwrap_or_default(), String::new()],
    };
    if !is_excluded && !is_empty(plan, machine, timeout, observed, &ids) {
        return;
    }
    if let (Role::Own, Known::There(instance), Some(shard)) = (&observed.role, known, shard)
        && observed.call != Call::Running
        && instance.is_living()
    {
        let delete = Action::DeleteInstance { shard: shard.clone(), id: instance.id.clone() };
        let ask = Ask::Instance { shard: shard.clone(), id: instance.id.clone() };
        plan.push_step(Step::new(delete).to(peer(&shard)).spoils([ask]).as_job());
    }
}

/// A shard was asked, and what it made was not stored. Asked once more it makes no other, and names the one it made.
fn find_unmade(plan: &mut Plan<Action, Ask>, machine: &NstanceMachine, observed: &Observed, finalizers: Vec<String>) {
    match (&observed.call, &machine.spec) {
        (Call::Ended(Outcome::Refused(_)), _) => {
            plan.push(Action::ReleaseFinalizer { finalizers });
        }
        (Call::None, Some(spec)) => create(plan, machine, spec, observed),
        _ => plan.look_within(SOON),
    }
}
