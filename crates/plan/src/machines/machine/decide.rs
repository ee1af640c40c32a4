//! The next actions for a machine.

use std::time::Duration;

use api::condition::Reason;
use api::machine::{MACHINE_FINALIZER, NstanceMachine, NstanceMachineSpec};

use super::super::node::{Found, NodeRef, find};
use super::super::shard::{Instance, Outcome, Shard, peer};
use super::known::{
    Known, LATER, Place, SOON, UNNAMED, ambiguous, has_expired, instance_id, is_askable, is_lost, known, place,
    shard_of, time_left,
};
use super::{Action, Ask, Call, Drain, InputsOf, Machine, Observed, Owner, Role, is_as_asked};
use crate::fact::{Fact, latest};
use crate::object::digest;
use crate::round::{Plan, Step};

/// The next actions for one machine.
pub fn plan(machine: &NstanceMachine, observed: &Observed, inputs: &InputsOf) -> Plan<Action, Ask> {
    let mut plan = Plan::default();
    if observed.is_paused {
        rest(&mut plan, machine, observed);
        return plan;
    }
    let Some(spec) = machine.spec.as_ref().filter(|_| observed.owner != Owner::Unknown) else { return plan };
    let known = known(&mut plan, machine, observed, inputs);
    if machine.metadata.deletion_timestamp.is_some() {
        clean_up(&mut plan, machine, observed, &known);
        return plan;
    }
    if is_lost(observed, &known) {
        lost(&mut plan, observed);
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
            if let Some(id) = node_id(spec, instance, observed) {
                plan.push(Action::SetProviderId { id });
            }
        }
        Known::Unknown(_) | Known::Gone => {}
    }
    if let Owner::Machine(owner) = &observed.owner {
        hook(&mut plan, machine, owner, observed, &known);
    }
    plan
}

/// Our hook is on the Machine until its Node is drained. On those of a pool's members the pool sets it.
fn hook(
    plan: &mut Plan<Action, Ask>,
    machine: &NstanceMachine,
    owner: &Machine,
    observed: &Observed,
    known: &Known<'_>,
) {
    if owner.is_deleting && owner.has_hook && is_empty(plan, machine, observed, known) {
        plan.push(release_hook(owner));
    }
    if observed.role == Role::Own && !owner.is_deleting && !owner.has_hook && !owner.is_excluded {
        let (name, uid) = (owner.name.clone(), owner.uid.clone());
        plan.push(Action::HookMachine { name, uid, resource_version: owner.resource_version.clone() });
    }
}

/// There is nothing left to drain: Cluster API may delete the Machine at once.
fn lost(plan: &mut Plan<Action, Ask>, observed: &Observed) {
    match &observed.owner {
        Owner::Unset => {
            plan.push(Action::DeleteSelf);
        }
        // Cluster API must know of it before its own drain could begin.
        Owner::Machine(owner) if owner.has_hook || !owner.is_excluded => {
            plan.push(release_hook(owner));
        }
        Owner::Machine(owner) if !owner.is_deleting => {
            plan.push(delete_machine(owner));
        }
        Owner::Unknown | Owner::Gone | Owner::Machine(_) => {}
    }
}

fn release_hook(owner: &Machine) -> Action {
    let (name, uid) = (owner.name.clone(), owner.uid.clone());
    Action::ReleaseHook { name, uid, resource_version: owner.resource_version.clone() }
}

fn delete_machine(owner: &Machine) -> Action {
    let (name, uid) = (owner.name.clone(), owner.uid.clone());
    Action::DeleteMachine { name, uid, resource_version: owner.resource_version.clone() }
}

/// The shard is stored before it is asked: a later round must not choose another one.
fn create(plan: &mut Plan<Action, Ask>, machine: &NstanceMachine, spec: &NstanceMachineSpec, observed: &Observed) {
    if observed.role != Role::Own || observed.call == Call::Running {
        return;
    }
    let chosen = match (shard_of(machine, observed), &observed.owner) {
        (Some(shard), _) => answering(shard, observed),
        // Nothing was asked for, and nothing is to be any more.
        (None, Owner::Machine(owner)) if owner.is_deleting => return,
        (None, Owner::Machine(owner)) => choose_shard(machine, spec, owner, observed),
        // The Machine may ask for a shard.
        (None, Owner::Unknown | Owner::Unset | Owner::Gone) => {
            let message = "waiting for the Machine whose infrastructureRef names this, which may name a failure domain";
            Err((Reason::Provisioning, message.to_owned()))
        }
    };
    // What a shard refuses or could not do is asked for again at the next look, not at once.
    plan.look_within(LATER);
    if matches!(observed.call, Call::Ended(_)) {
        return;
    }
    match chosen {
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

fn silent(shard: &str) -> (Reason, String) {
    (Reason::ShardUnreachable, format!("shard {shard} does not answer; check its server"))
}

fn answering(shard: String, observed: &Observed) -> Result<String, (Reason, String)> {
    match observed.shards.get(&shard) {
        Some(Shard::Configured(Fact::Known { .. })) => Ok(shard),
        Some(Shard::Configured(Fact::Unknown { .. })) => Err(silent(&shard)),
        None | Some(Shard::Unconfigured) => Err((
            Reason::Invalid,
            format!(
                "spec.failureDomain of the Machine: {shard} is not among the operator's shards; correct it, or add the shard to the operator's configuration"
            ),
        )),
    }
}

/// The one that the Machine asks for, or one that has the group; which of several follows from the uid.
fn choose_shard(
    machine: &NstanceMachine,
    spec: &NstanceMachineSpec,
    owner: &Machine,
    observed: &Observed,
) -> Result<String, (Reason, String)> {
    if let Some(shard) = &owner.failure_domain {
        return answering(shard.clone(), observed);
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
fn node_id(spec: &NstanceMachineSpec, instance: &Instance, observed: &Observed) -> Option<String> {
    if spec.provider_id.is_some() {
        return None;
    }
    let of_node = match find(&instance.names(), latest(&observed.nodes).map(Vec::as_slice).unwrap_or_default()) {
        Found::Node(node) => Some(node.provider_id.clone()),
        Found::Nothing | Found::Ambiguous(_) => None,
    };
    of_node.or_else(|| Some(instance.node_provider_id.clone()).filter(|id| id.contains("://")))
}

/// Whether nothing of the Node is left that a drain waits for; begins the drain if it was not begun.
fn is_empty(plan: &mut Plan<Action, Ask>, machine: &NstanceMachine, observed: &Observed, known: &Known<'_>) -> bool {
    let (is_excluded, timeout) = match &observed.owner {
        Owner::Machine(owner) => (owner.is_excluded, time_left(owner.drain_timeout, observed)),
        Owner::Unknown | Owner::Unset | Owner::Gone => (false, None),
    };
    if is_excluded {
        return true;
    }
    match &observed.drain {
        Drain::Done | Drain::Expired { .. } => return true,
        Drain::Running { .. } if is_as_asked(observed.asked, timeout) => return false,
        // Another one began it, or something else is wanted of it now.
        Drain::Running { .. } => {
            if let Place::Node(node) = place(machine, observed, known) {
                plan.push_step(drain(machine, observed, node, timeout));
            }
            return false;
        }
        Drain::None if has_expired(machine) => return true,
        Drain::None => {}
    }
    match place(machine, observed, known) {
        Place::Nowhere => return true,
        Place::Node(node) => {
            plan.push_step(drain(machine, observed, node, timeout));
        }
        Place::Ambiguous(nodes) => plan.block(Reason::NodeAmbiguous, ambiguous(&nodes)),
        Place::Unknown(why) => plan.block(Reason::StateUnknown, why),
    }
    false
}

/// The same as of a drain that its shard asks for: two of one Node would end each other.
fn drain_id(machine: &NstanceMachine, observed: &Observed) -> String {
    instance_id(machine, observed).or_else(|| machine.metadata.uid.clone()).unwrap_or_default()
}

fn drain(
    machine: &NstanceMachine,
    observed: &Observed,
    node: &NodeRef,
    timeout: Option<Duration>,
) -> Step<Action, Ask> {
    let id = drain_id(machine, observed);
    Step::new(Action::Drain { node: node.name.clone(), id, timeout }).as_job()
}

/// While paused nothing is done, and what is under way stops: a drain goes on by its id afterwards.
fn rest(plan: &mut Plan<Action, Ask>, machine: &NstanceMachine, observed: &Observed) {
    if observed.asked.is_some() || observed.drain != Drain::None {
        plan.push(Action::ReleaseDrain { id: drain_id(machine, observed) });
    }
}

/// The Node first, then the instance, then the object. A member's instance is removed with its group's size.
fn clean_up(plan: &mut Plan<Action, Ask>, machine: &NstanceMachine, observed: &Observed, known: &Known<'_>) {
    let mut finalizers = machine.metadata.finalizers.clone().unwrap_or_default();
    let before = finalizers.len();
    finalizers.retain(|finalizer| finalizer != MACHINE_FINALIZER);
    if finalizers.len() == before {
        return;
    }
    let owner = match &observed.owner {
        Owner::Machine(owner) => Some(owner),
        Owner::Unknown | Owner::Unset | Owner::Gone => None,
    };
    // Cluster API keeps the Machine of a member whose NstanceMachine is gone.
    if let Some(owner) = owner.filter(|owner| !owner.is_deleting && matches!(observed.role, Role::Member { .. })) {
        plan.push(delete_machine(owner));
        return;
    }
    if is_lost(observed, known) {
        release(plan, owner, finalizers);
        return;
    }
    let is_askable = is_askable(machine, observed);
    if *known == Known::Unmade && is_askable {
        find_unmade(plan, machine, observed, owner, finalizers);
        return;
    }
    if !is_empty(plan, machine, observed, known) {
        return;
    }
    // Nothing was ever asked for, or there is nothing left that could be asked.
    if !is_askable {
        release(plan, owner, finalizers);
        return;
    }
    if let Some(owner) = owner.filter(|owner| owner.has_hook && owner.is_deleting) {
        plan.push(release_hook(owner));
    }
    if *known == Known::Unknown(UNNAMED) {
        let message = format!("{UNNAMED}, so that it removes the oldest one: lower the replicas of the pool");
        plan.block(Reason::Terminating, message);
    }
    if let (Role::Own, Known::There(instance), Some(shard)) = (&observed.role, known, shard_of(machine, observed))
        && observed.call != Call::Running
        && instance.is_living()
    {
        let delete = Action::DeleteInstance { shard: shard.clone(), id: instance.id.clone() };
        let ask = Ask::Instance { shard: shard.clone(), id: instance.id.clone() };
        plan.push_step(Step::new(delete).to(peer(&shard)).spoils([ask]).as_job());
    }
}

/// The object goes, and no hook of ours stays behind: Cluster API would wait for it for ever.
fn release(plan: &mut Plan<Action, Ask>, owner: Option<&Machine>, finalizers: Vec<String>) {
    let hook = owner.filter(|owner| owner.has_hook).map(|owner| plan.push(release_hook(owner)));
    plan.push_step(Step::new(Action::ReleaseFinalizer { finalizers }).needs(hook));
}

/// A shard was asked, and what it made was not stored. Asked once more it makes no other, and names the one it made.
fn find_unmade(
    plan: &mut Plan<Action, Ask>,
    machine: &NstanceMachine,
    observed: &Observed,
    owner: Option<&Machine>,
    finalizers: Vec<String>,
) {
    match (&observed.call, &machine.spec) {
        (Call::Ended(Outcome::Refused(_)), _) => release(plan, owner, finalizers),
        (Call::None, Some(spec)) => create(plan, machine, spec, observed),
        _ => plan.look_within(SOON),
    }
}
