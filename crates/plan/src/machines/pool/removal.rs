//! A pool goes.

use api::condition::Reason;
use api::machine::{NstanceMachinePool, NstanceMachinePoolSpec, POOL_FINALIZER, shard_group_name};

use super::super::shard::{Answer, Shard};
use super::decide::{answered, delete, delete_shard_group, is_ours, known_group};
use super::member::{by_id, missing};
use super::{Action, Ask, Member, Observed, Owner, ShardGroup, build};
use crate::fact::Fact;
use crate::round::Plan;

/// All members go as any member goes, then the shard groups, then the pool. Members of a static group stay: its shard
/// keeps it, and the pool is imported again.
pub(super) fn clean_up(plan: &mut Plan<Action, Ask>, pool: &NstanceMachinePool, observed: &Observed) {
    let mut finalizers = pool.metadata.finalizers.clone().unwrap_or_default();
    let before = finalizers.len();
    finalizers.retain(|finalizer| finalizer != POOL_FINALIZER);
    if finalizers.len() == before {
        return;
    }
    let members = by_id(observed);
    let owner = match &observed.owner {
        Owner::MachinePool { name, .. } => name.as_str(),
        Owner::Unknown | Owner::Absent { .. } | Owner::Taken => pool.metadata.name.as_deref().unwrap_or_default(),
    };
    // The group of a pool that was a duplicate belongs to another.
    let spec = pool.spec.as_ref().filter(|_| observed.elder.is_none());
    for shard in spec.map(|spec| spec.shards.as_slice()).unwrap_or_default() {
        let name = spec.map(|spec| shard_group_name(&spec.group, shard)).unwrap_or_default();
        let is_ours = observed.shard_groups.iter().any(|group| group.name == name && is_ours(pool, group));
        let group = answered(observed, shard).filter(|group| is_ours && !group.is_static);
        // Also what Cluster API never knew is drained before it goes.
        let missing = group.map(|group| missing(group, &members)).unwrap_or_default();
        for instance in missing.into_iter().filter(|instance| !observed.taken.contains(&instance.id)) {
            plan.push(Action::CreateMachine(build::machine(pool, &observed.cluster, owner, shard, &instance.id)));
        }
    }
    for member in observed.members.iter().filter(|member| !stays(pool, observed, member)) {
        delete(plan, member, &[]);
    }
    let ours = || observed.shard_groups.iter().filter(|group| is_ours(pool, group));
    for group in ours().filter(|group| !group.is_deleting) {
        plan.push(delete_shard_group(group));
    }
    let is_empty = ours().next().is_none() && observed.members.iter().all(|member| stays(pool, observed, member));
    let is_left = spec.is_some_and(|spec| take_back(plan, pool, spec, observed));
    if is_empty && !is_left {
        plan.push(Action::ReleaseFinalizer { finalizers });
    }
}

/// A shard group that a user deleted leaves its group behind. The pool makes it again, so that the group goes as any
/// group goes. True while there may be such a group.
fn take_back(
    plan: &mut Plan<Action, Ask>,
    pool: &NstanceMachinePool,
    spec: &NstanceMachinePoolSpec,
    observed: &Observed,
) -> bool {
    let mut is_left = false;
    for shard in &spec.shards {
        let name = shard_group_name(&spec.group, shard);
        let Some(Shard::Configured(fact)) = observed.shards.get(shard) else { continue };
        if observed.shard_groups.iter().any(|group| group.name == name) {
            continue;
        }
        match fact {
            Fact::Known { value: Answer { group: Some(group), .. }, .. } if !group.is_static => {
                let body = build::shard_group_spec(spec, shard, group.size);
                plan.push(Action::CreateShardGroup(build::shard_group(pool, &body)));
                is_left = true;
            }
            Fact::Known { .. } | Fact::Unknown { last: Some((Answer { group: None, .. }, _)), .. } => {}
            Fact::Unknown { why, .. } => {
                let message = format!(
                    "whether shard {shard} still has the group is not known: {}; check its server",
                    why.message
                );
                plan.block(Reason::ShardUnreachable, message);
                is_left = true;
            }
        }
    }
    is_left
}

/// Whether a member belongs to a static group, by what its shard says or said last; where nothing is known of the shard,
/// by what was known of the pool.
pub(super) fn stays(pool: &NstanceMachinePool, observed: &Observed, member: &Member) -> bool {
    let has_it = |shard: &&String| {
        let group = known_group(observed, shard);
        group.is_some_and(|group| group.instances().iter().any(|instance| instance.id == member.instance_id))
    };
    let shard = observed.shards.keys().find(has_it).or(member.shard.as_ref());
    let said = shard.and_then(|shard| known_group(observed, shard)).map(|group| group.is_static);
    let is_of = |group: &&ShardGroup| Some(&group.spec.shard) == shard && group.is_synced && is_ours(pool, group);
    let stored = || observed.shard_groups.iter().find(is_of).map(|group| group.is_static);
    let was = || pool.status.as_ref().is_some_and(|status| status.is_static);
    said.or_else(stored).unwrap_or_else(was)
}
