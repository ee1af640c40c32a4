//! What a shard is asked for next.

use std::time::Duration;

use api::condition::Reason;
use api::machine::{NstanceShardGroup, NstanceShardGroupSpec, SHARD_GROUP_FINALIZER};

use super::super::shard::{Answer, Group, Members, Outcome, Shard, peer};
use super::{Action, Call, DELETE, Note, Observed, OldNode, Push, Tried};
use crate::fact::Fact;
use crate::round::{Plan, Step, StepId};

/// The status that is waited for was just written.
const SOON: Duration = Duration::from_secs(1);
/// What a shard takes in one request; the rest follows with its next list.
const MOST_MARKS: usize = 1000;

/// The next actions for one shard group.
pub fn plan(object: &NstanceShardGroup, observed: &Observed, note: &Note) -> Plan<Action> {
    let mut plan = Plan::default();
    if observed.is_paused {
        // What is under way stops, and goes on afterwards.
        for node in &observed.drains {
            plan.push(Action::ReleaseDrain { node: node.clone() });
        }
        return plan;
    }
    let Some(spec) = &object.spec else { return plan };
    let is_going = object.metadata.deletion_timestamp.is_some();
    let mut finalizers = object.metadata.finalizers.clone().unwrap_or_default();
    let is_held = finalizers.iter().any(|finalizer| finalizer == SHARD_GROUP_FINALIZER);
    if is_going {
        finalizers.retain(|finalizer| finalizer != SHARD_GROUP_FINALIZER);
        if is_held {
            clean_up(&mut plan, object, spec, observed, note, finalizers);
        }
        return plan;
    }
    let finalizer = (!is_held).then(|| {
        finalizers.push(SHARD_GROUP_FINALIZER.to_owned());
        plan.push(Action::AddFinalizer { finalizers })
    });
    if observed.is_pool_going {
        // At the size that it still has, its shard would replace what goes.
        return plan;
    }
    match &observed.shard {
        Shard::Unconfigured => plan.block(Reason::ShardUnreachable, unconfigured(spec)),
        Shard::Configured(Fact::Unknown { why, .. }) => {
            plan.block(Reason::ShardUnreachable, silent(spec, &why.message));
        }
        Shard::Configured(Fact::Known { value, .. }) => {
            let target = target(object, spec, spec.size(), value, observed);
            pursue(&mut plan, spec, target, value, observed, note, finalizer);
        }
    }
    plan
}

/// Steps towards a target.
fn pursue(
    plan: &mut Plan<Action>,
    spec: &NstanceShardGroupSpec,
    target: Target,
    answer: &Answer,
    observed: &Observed,
    note: &Note,
    finalizer: Option<StepId>,
) {
    if let Some(why) = target.unknown {
        plan.block(Reason::StateUnknown, why);
    }
    for node in target.returns {
        plan.push(Action::ReturnNode { node });
    }
    for node in target.rests {
        plan.push(Action::ReleaseDrain { node });
    }
    for node in target.drains {
        plan.push_step(Step::new(Action::DrainNode { node }).needs(finalizer).as_job());
    }
    if let Some(push) = target.push.filter(|push| is_due(&push.digest(), answer.poll, observed, note)) {
        let upsert = Step::new(Action::Upsert { push, poll: answer.poll }).needs(finalizer);
        plan.push_step(upsert.to(peer(&spec.shard)).as_job());
    }
}

pub(super) fn unconfigured(spec: &NstanceShardGroupSpec) -> String {
    format!(
        "shard {} is not among the operator's shards; add it to the operator's configuration, or remove it from spec.shards of the pool",
        spec.shard
    )
}

pub(super) fn silent(spec: &NstanceShardGroupSpec, why: &str) -> String {
    format!("shard {} does not answer: {why}; check its server", spec.shard)
}

/// Once per list that the shard gave: what it does not take, or lost, or another client changed, is asked for again, and
/// never in a loop.
fn is_due(digest: &str, poll: u64, observed: &Observed, note: &Note) -> bool {
    let is_tried = |tried: &Tried| tried.digest == digest && tried.poll >= poll;
    match &observed.call {
        Call::Running { digest: running } => running != digest,
        Call::Ended(tried) => !is_tried(tried),
        Call::None => !note.tried.as_ref().is_some_and(is_tried),
    }
}

/// The last call that ended.
pub(super) fn last_tried<'a>(observed: &'a Observed, note: &'a Note) -> Option<&'a Tried> {
    match &observed.call {
        Call::Ended(tried) => Some(tried),
        Call::None | Call::Running { .. } => note.tried.as_ref(),
    }
}

/// What the shard is to be asked for, and what that waits for.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Target {
    /// `None` where the shard has it already.
    pub push: Option<Push>,
    /// Instances that are too many and not drained yet.
    pub undrained: i32,
    /// Nodes that must be drained before the size can be lowered.
    pub drains: Vec<String>,
    /// Nodes that a drain was begun of, and that stay.
    pub returns: Vec<String>,
    /// Nodes whose drains are of no more use: their instances are gone, or others decide about them.
    pub rests: Vec<String>,
    /// Why it is not known what must be drained.
    pub unknown: Option<String>,
}

impl Target {
    pub(super) fn is_reached(&self) -> bool {
        self.push.is_none() && self.undrained == 0
    }
}

pub(super) fn target(
    object: &NstanceShardGroup,
    spec: &NstanceShardGroupSpec,
    size: i32,
    answer: &Answer,
    observed: &Observed,
) -> Target {
    let mut push = Push {
        group: spec.group.clone(),
        size,
        template: spec.template.clone().unwrap_or_default(),
        instance_type: spec.instance_type.clone().unwrap_or_default(),
        subnet_pool: spec.subnet_pool().to_owned(),
        vars: spec.vars.clone(),
        remove_first: Vec::new(),
    };
    let mut target = Target::default();
    let Some(group) = &answer.group else {
        // A shard that lost the group may still have its instances, and would remove what is over the size.
        push.size = size.max(had(object, observed));
        return Target { undrained: push.size - size, push: Some(push), ..target };
    };
    match &group.members {
        Members::Listed(instances) => {
            let living: Vec<_> = instances.iter().filter(|instance| instance.is_living()).collect();
            let released: Vec<_> = living.iter().filter(|instance| observed.released.contains(&instance.id)).collect();
            push.size = lowered(size, group.size, count(living.len()) - count(released.len()));
            // Where there are more than the size already, the shard is about to remove one: named again at the same
            // size, it would be replaced.
            if push.size < group.size || count(living.len()) <= push.size {
                push.remove_first = released.iter().take(MOST_MARKS).map(|instance| instance.id.clone()).collect();
            }
            // Nothing is left, or its server names instances by now: those are drained with their machines.
            target.rests = observed.drains.iter().cloned().collect();
        }
        Members::Counted(ids) => push.size = counted(&mut target, size, (group.size, count(ids.len())), observed),
    }
    target.undrained = push.size - size;
    if push.size != group.size || !push.remove_first.is_empty() || differs(&push, group) {
        target.push = Some(push);
    }
    target
}

/// How many instances the shard had when it was last asked, as far as that is known.
fn had(object: &NstanceShardGroup, observed: &Observed) -> i32 {
    let published = object.status.as_ref().map_or(0, |status| status.provider_ids.len());
    count(published.max(observed.members))
}

/// The size for a server that removes the oldest: lower by as many of the oldest Nodes as are drained, in their order. An
/// instance without a Node needs no drain, and may be younger than any: so all of the oldest Nodes are drained before
/// one of those can be counted.
fn counted(target: &mut Target, size: i32, (now, there): (i32, i32), observed: &Observed) -> i32 {
    let surplus = usize::try_from(now - size).unwrap_or_default();
    // The server is about to remove those that are over a size that was lowered already.
    let leaving = usize::try_from(there.max(now) - size).unwrap_or_default();
    let nodes = match &observed.oldest {
        Fact::Known { value, .. } => value,
        Fact::Unknown { .. } if surplus == 0 => return size,
        Fact::Unknown { why, .. } => {
            target.unknown = Some(format!("the Nodes of the group are not known: {}", why.message));
            return now;
        }
    };
    let begun = |node: &&OldNode| node.is_held || observed.drains.contains(&node.name);
    target.returns = nodes.iter().skip(leaving).filter(begun).map(|node| node.name.clone()).collect();
    let is_listed = |name: &&String| nodes.iter().any(|node| node.name == **name);
    target.rests = observed.drains.iter().filter(|name| !is_listed(name)).cloned().collect();
    if surplus == 0 {
        return size;
    }
    let nodes = &nodes[..surplus.min(nodes.len())];
    let drained = nodes.iter().take_while(|node| node.is_drained).count();
    target.drains = nodes.iter().filter(|node| !node.is_drained).map(|node| node.name.clone()).collect();
    if drained == nodes.len() { size } else { now - count(drained) }
}

/// A size that grows is asked for at once. One that shrinks goes down to no less than `held`, the instances that are not
/// drained; a replacement beside the one it replaces does not make it grow.
fn lowered(size: i32, now: i32, held: i32) -> i32 {
    if size >= now { size } else { size.max(held.min(now)) }
}

fn count(length: usize) -> i32 {
    i32::try_from(length).unwrap_or(i32::MAX)
}

/// Whether the shard lacks something that is declared. What is not declared is the shard's: an empty field never clears.
fn differs(push: &Push, group: &Group) -> bool {
    let is_other = |wanted: &str, found: &str| !wanted.is_empty() && wanted != found;
    is_other(&push.template, &group.template)
        || is_other(&push.instance_type, &group.instance_type)
        || is_other(&push.subnet_pool, &group.subnet_pool)
        // A static group has its pool from the configuration, and refuses even the same one.
        || (group.is_static && !push.subnet_pool.is_empty())
        || push.vars.iter().any(|(name, value)| group.vars.get(name) != Some(value))
}

/// A dynamic group shrinks to nothing through drains before it is removed. A static one stays as its configuration has
/// it: only what was asked for over it goes.
fn clean_up(
    plan: &mut Plan<Action>,
    object: &NstanceShardGroup,
    spec: &NstanceShardGroupSpec,
    observed: &Observed,
    note: &Note,
    finalizers: Vec<String>,
) {
    let answer = match &observed.shard {
        // Its pool makes it again, and no member of it is to go.
        _ if observed.is_wanted => {
            plan.push(Action::ReleaseFinalizer { finalizers });
            return;
        }
        // Nothing is left that could be asked.
        Shard::Unconfigured => {
            plan.push(Action::ReleaseFinalizer { finalizers });
            return;
        }
        Shard::Configured(Fact::Unknown { why, .. }) => {
            plan.block(Reason::ShardUnreachable, silent(spec, &why.message));
            return;
        }
        Shard::Configured(Fact::Known { value, .. }) => value,
    };
    if is_over(object, spec, answer, observed, note) {
        plan.push(Action::ReleaseFinalizer { finalizers });
        return;
    }
    let is_empty = answer.group.as_ref().is_some_and(|group| match &group.members {
        Members::Listed(instances) => instances.is_empty() && group.size == 0,
        Members::Counted(ids) => ids.is_empty() && group.size == 0,
    });
    // A later process knows by what is stored alone that the group was removed, not lost.
    let is_stored = had(object, observed) == 0;
    if is_empty && !is_stored {
        plan.look_within(SOON);
        return;
    }
    if is_empty || answer.group.as_ref().is_some_and(|group| group.is_static) {
        if is_due(DELETE, answer.poll, observed, note) {
            let delete = Action::DeleteGroup { group: spec.group.clone(), poll: answer.poll };
            plan.push_step(Step::new(delete).to(peer(&spec.shard)).as_job());
        }
        return;
    }
    // Only the size counts now: what else is declared may be what the shard refuses. A group that was lost is made anew.
    let bare = NstanceShardGroupSpec { group: spec.group.clone(), shard: spec.shard.clone(), ..Default::default() };
    let asked = if answer.group.is_some() { &bare } else { spec };
    let target = target(object, asked, 0, answer, observed);
    pursue(plan, spec, target, answer, observed, note, None);
}

/// Whether the shard has nothing more of a group that goes. One that it lost while it had instances gets it again, so
/// that they are drained before they go; unless it refuses that.
fn is_over(
    object: &NstanceShardGroup,
    spec: &NstanceShardGroupSpec,
    answer: &Answer,
    observed: &Observed,
    note: &Note,
) -> bool {
    let tried = last_tried(observed, note);
    let is_removed = tried.is_some_and(|tried| tried.digest == DELETE && tried.outcome == Outcome::Accepted);
    match &answer.group {
        Some(group) => is_removed && group.is_static,
        None if is_removed || had(object, observed) == 0 => true,
        None => {
            let again = target(object, spec, 0, answer, observed).push.map(|push| push.digest());
            let is_refused =
                |tried: &Tried| matches!(tried.outcome, Outcome::Refused(_)) && Some(&tried.digest) == again.as_ref();
            tried.is_some_and(is_refused)
        }
    }
}
