//! The next actions for a pool.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use api::condition::Reason;
use api::machine::{
    MANAGED_BY, MANAGED_BY_ANNOTATION, NstanceMachinePool, NstanceMachinePoolSpec, PAUSED_ANNOTATION, POOL_FINALIZER,
    shard_group_name,
};
use serde_json::{Value, json};

use super::super::node::{Places, last_segment};
use super::super::shard::{Group, Shard};
use super::super::{Distribution, Share, distribute};
use super::marks::confirmed;
use super::member::{by_id, marked, missing, victims};
use super::{Action, Ask, InputsOf, Member, Observed, Owner, ShardGroup, build, removal};
use crate::fact::latest;
use crate::object::merge_patch;
use crate::round::{Plan, Step, StepId};

/// A user who creates both objects creates the MachinePool within this time.
const OWNER_PATIENCE: Duration = Duration::from_secs(10);

/// The next actions for one pool.
pub fn plan(pool: &NstanceMachinePool, observed: &Observed, inputs: &InputsOf) -> Plan<Action, Ask> {
    let mut plan = Plan::default();
    if observed.is_paused || observed.owner == Owner::Unknown {
        return plan;
    }
    if pool.metadata.deletion_timestamp.is_some() {
        removal::clean_up(&mut plan, pool, observed);
        return plan;
    }
    let Some(spec) = &pool.spec else {
        plan.block(Reason::Invalid, "spec is missing; set spec.group and spec.shards");
        return plan;
    };
    if let Some(elder) = &observed.elder {
        let message = format!(
            "spec.group: the pool {elder} of this namespace has the group {} already, with its instances; remove this pool, and create it again if it should have another group",
            spec.group
        );
        plan.block(Reason::DuplicateGroup, message);
        return plan;
    }
    if let Some(message) = unknown_shards(spec, observed) {
        plan.block(Reason::Invalid, message);
    }
    for name in foreign_groups(pool, spec, observed) {
        let message = format!("an NstanceShardGroup named {name} exists and does not belong to this pool; remove it");
        plan.block(Reason::ObjectTaken, message);
    }
    let is_held = !plan.blocked.is_empty();
    let mut finalizers = pool.metadata.finalizers.clone().unwrap_or_default();
    let has_finalizer = finalizers.iter().any(|finalizer| finalizer == POOL_FINALIZER);
    finalizers.push(POOL_FINALIZER.to_owned());
    let finalizer = (!has_finalizer && !is_held).then(|| plan.push(Action::AddFinalizer { finalizers }));
    let total = match &observed.owner {
        Owner::MachinePool { replicas, .. } => total(*replicas),
        Owner::Absent { age } => {
            if !is_held {
                create_owner(&mut plan, pool, spec, observed, *age, finalizer);
            }
            return plan;
        }
        Owner::Taken => {
            plan.block(Reason::ObjectTaken, taken_owner(pool, observed));
            return plan;
        }
        Owner::Unknown => return plan,
    };
    // What cannot be distributed stays as it is; who is there is still looked after.
    let sizes = |observed: &Observed| {
        if is_held { held(pool, observed) } else { distribution(pool, spec, observed, total).sizes }
    };
    let confirmed = if is_choice(pool, spec, observed, &sizes(observed)) {
        let metadata = &pool.metadata;
        let place = (metadata.namespace.as_deref().unwrap_or_default(), metadata.uid.as_deref().unwrap_or_default());
        confirmed(&mut plan, place, observed, inputs)
    } else {
        Some(Cow::Borrowed(observed))
    };
    let (latest, sizes) = match &confirmed {
        Some(observed) => (observed.as_ref(), sizes(observed)),
        None => (observed, held(pool, observed)),
    };
    let mut resized = Vec::new();
    if confirmed.is_some() && !is_held {
        resized = shard_groups(&mut plan, pool, spec, latest, &sizes, finalizer);
    }
    // Cluster API waits for the IDs, and must not wait for the requests of a thousand members.
    publish(&mut plan, pool, spec, observed);
    members(&mut plan, pool, spec, latest, &sizes);
    if confirmed.is_some() {
        give_up(&mut plan, pool, spec, latest, &sizes, &resized);
    }
    let annotations = pool.metadata.annotations.as_ref();
    let is_annotated = annotations.and_then(|all| all.get(MANAGED_BY_ANNOTATION)).is_some_and(|by| by == MANAGED_BY);
    if !is_annotated && plan.blocked.is_empty() {
        plan.push(Action::Annotate);
    }
    plan
}

/// Whether it depends on marks which member goes.
fn is_choice(
    pool: &NstanceMachinePool,
    spec: &NstanceMachinePoolSpec,
    observed: &Observed,
    sizes: &BTreeMap<String, i32>,
) -> bool {
    let is_lowered =
        |(shard, size): (&String, &i32)| current(pool, spec, observed, shard).is_some_and(|now| *size < now);
    let members = by_id(observed);
    let has_victims = |(_, group, size): &(&str, &Group, i32)| !victims(group, *size, &members).is_empty();
    let is_some_left = sizes.values().any(|size| *size > 0);
    is_some_left && (sizes.iter().any(is_lowered) || answering(pool, spec, observed, sizes).iter().any(has_victims))
}

/// What a shard is asked for, or has without being asked: that is taken over as it is.
fn current(pool: &NstanceMachinePool, spec: &NstanceMachinePoolSpec, observed: &Observed, shard: &str) -> Option<i32> {
    asked(pool, spec, observed, shard).or_else(|| known_group(observed, shard).map(|group| group.size))
}

fn asked(pool: &NstanceMachinePool, spec: &NstanceMachinePoolSpec, observed: &Observed, shard: &str) -> Option<i32> {
    let name = shard_group_name(&spec.group, shard);
    let is_its = |group: &&ShardGroup| group.name == name && is_ours(pool, group) && !group.is_deleting;
    observed.shard_groups.iter().find(is_its).map(|group| group.spec.size())
}

/// The shards of the pool that answer, with what they have of the group and the size that they are to have. A silent one
/// says nothing of what is there, and what another shard has under this key is not the pool's.
fn answering<'a>(
    pool: &NstanceMachinePool,
    spec: &NstanceMachinePoolSpec,
    observed: &'a Observed,
    sizes: &BTreeMap<String, i32>,
) -> Vec<(&'a str, &'a Group, i32)> {
    let of = |shard: &'a String| {
        let name = shard_group_name(&spec.group, shard);
        let is_there = observed.shard_groups.iter().any(|group| group.name == name && is_ours(pool, group));
        // While its sizes are held, a shard group that a user deletes has none: that is no reason for its members to go.
        let is_left = is_there && !spec.shards.contains(shard);
        let size = sizes.get(shard).copied().or(is_left.then_some(0))?;
        Some((shard.as_str(), answered(observed, shard)?, size))
    };
    observed.shards.keys().filter_map(of).collect()
}

fn unknown_shards(spec: &NstanceMachinePoolSpec, observed: &Observed) -> Option<String> {
    let is_known = |shard: &&String| observed.shards.contains_key(*shard);
    let unknown: Vec<_> = spec.shards.iter().filter(|shard| !is_known(shard)).map(String::as_str).collect();
    if spec.shards.is_empty() {
        return Some("spec.shards is empty; name at least one shard".to_owned());
    }
    (!unknown.is_empty()).then(|| {
        let known: Vec<_> = observed.shards.keys().map(String::as_str).collect();
        format!(
            "spec.shards: {} not among the operator's shards ({}); correct the name, or add the shard to the operator's configuration",
            unknown.join(", "),
            known.join(", ")
        )
    })
}

fn taken_owner(pool: &NstanceMachinePool, observed: &Observed) -> String {
    let name = pool.metadata.name.as_deref().unwrap_or_default();
    format!(
        "no MachinePool names this pool, and the one named {name} is for something else; set its infrastructureRef to this pool and its clusterName to {}, or create another MachinePool that does",
        observed.cluster
    )
}

/// Shard groups of the names that this pool needs and does not have.
fn foreign_groups(pool: &NstanceMachinePool, spec: &NstanceMachinePoolSpec, observed: &Observed) -> Vec<String> {
    let names = spec.shards.iter().map(|shard| shard_group_name(&spec.group, shard));
    let is_foreign =
        |name: &String| observed.shard_groups.iter().any(|group| group.name == *name && !is_ours(pool, group));
    names.filter(is_foreign).collect()
}

/// The sizes that the pool's shard groups have.
fn held(pool: &NstanceMachinePool, observed: &Observed) -> BTreeMap<String, i32> {
    let ours = observed.shard_groups.iter().filter(|group| is_ours(pool, group) && !group.is_deleting);
    ours.map(|group| (group.spec.shard.clone(), group.spec.size())).collect()
}

/// Unset counts as none; what no shard can have is left to the shards to refuse.
fn total(replicas: Option<i64>) -> i32 {
    i32::try_from(replicas.unwrap_or_default().max(0)).unwrap_or(i32::MAX)
}

/// What a shard is known to have: also what it said before it became silent.
pub(super) fn known_group<'a>(observed: &'a Observed, shard: &str) -> Option<&'a Group> {
    match observed.shards.get(shard)? {
        Shard::Configured(fact) => latest(fact)?.group.as_ref(),
        Shard::Unconfigured => None,
    }
}

/// What a shard says now.
pub(super) fn answered<'a>(observed: &'a Observed, shard: &str) -> Option<&'a Group> {
    observed.shards.get(shard)?.answer()?.group.as_ref()
}

pub(super) fn is_ours(pool: &NstanceMachinePool, group: &ShardGroup) -> bool {
    group.owner_uid.is_some() && group.owner_uid == pool.metadata.uid
}

pub(super) fn distribution(
    pool: &NstanceMachinePool,
    spec: &NstanceMachinePoolSpec,
    observed: &Observed,
    total: i32,
) -> Distribution {
    let members = by_id(observed);
    let share = |shard: &String| {
        let asked = asked(pool, spec, observed, shard);
        let found = known_group(observed, shard);
        Share {
            // What is there already is taken over as it is.
            current: asked.or(found.map(|group| group.size)),
            marked: found.map_or(0, |group| marked(group, asked, &members)),
            unmade: answered(observed, shard).zip(asked).map_or(0, |(group, asked)| asked.saturating_sub(group.made())),
            is_silent: observed.shards.get(shard).is_none_or(Shard::is_silent),
        }
    };
    let shards: BTreeMap<String, Share> = spec.shards.iter().map(|shard| (shard.clone(), share(shard))).collect();
    distribute(total, &shards)
}

/// With as many replicas as the shards have now: every shard must have said so.
fn create_owner(
    plan: &mut Plan<Action, Ask>,
    pool: &NstanceMachinePool,
    spec: &NstanceMachinePoolSpec,
    observed: &Observed,
    age: Duration,
    finalizer: Option<StepId>,
) {
    let wait = OWNER_PATIENCE.saturating_sub(age);
    if !wait.is_zero() {
        plan.look_within(wait);
        return;
    }
    let silent: Vec<_> =
        observed.shards.iter().filter(|(_, shard)| shard.is_silent()).map(|(name, _)| name.as_str()).collect();
    if !silent.is_empty() {
        let message = format!(
            "there is no MachinePool for this pool, and how many replicas it should have is not known until these shards answer: {}; wait, or create the MachinePool",
            silent.join(", ")
        );
        plan.block(Reason::Reconciling, message);
        return;
    }
    let sizes = spec.shards.iter().filter_map(|shard| answered(observed, shard)).map(|group| group.size.max(0));
    let replicas = sizes.fold(0, i32::saturating_add);
    let name = pool.metadata.name.as_deref().unwrap_or_default();
    let namespace = pool.metadata.namespace.as_deref().unwrap_or_default();
    let create = Action::CreateMachinePool(build::machine_pool(name, namespace, &observed.cluster, replicas));
    plan.push_step(Step::new(create).needs(finalizer));
}

/// The steps that change the sizes of groups there are: before them none of their members may go, or it is replaced.
fn shard_groups(
    plan: &mut Plan<Action, Ask>,
    pool: &NstanceMachinePool,
    spec: &NstanceMachinePoolSpec,
    observed: &Observed,
    sizes: &BTreeMap<String, i32>,
    finalizer: Option<StepId>,
) -> Vec<StepId> {
    let (mut wanted, mut resized) = (BTreeSet::new(), Vec::new());
    for (shard, size) in sizes {
        let name = shard_group_name(&spec.group, shard);
        let body = build::shard_group_spec(spec, shard, *size);
        match observed.shard_groups.iter().find(|group| group.name == name) {
            None => {
                let create = Action::CreateShardGroup(build::shard_group(pool, &body));
                plan.push_step(Step::new(create).needs(finalizer));
            }
            // It goes first, and comes back then.
            Some(group) if group.is_deleting => {}
            Some(group) => {
                let patch = merge_patch(&json!(group.spec), &json!(body));
                if patch.as_object().is_some_and(|patch| !patch.is_empty()) {
                    let patch = fenced(&group.uid, &group.resource_version, &patch);
                    let patch = Action::PatchShardGroup { name: name.clone(), patch };
                    resized.push(plan.push_step(Step::new(patch).needs(finalizer)));
                }
            }
        }
        wanted.insert(name);
    }
    for group in observed.shard_groups.iter().filter(|group| is_ours(pool, group) && !group.is_deleting) {
        if !wanted.contains(&group.name) {
            resized.push(plan.push(delete_shard_group(group)));
        }
    }
    resized
}

fn fenced(uid: &str, resource_version: &str, spec: &Value) -> Value {
    json!({ "metadata": { "uid": uid, "resourceVersion": resource_version }, "spec": spec })
}

pub(super) fn delete_shard_group(group: &ShardGroup) -> Action {
    let (name, uid) = (group.name.clone(), group.uid.clone());
    Action::DeleteShardGroup { name, uid, resource_version: group.resource_version.clone() }
}

/// An NstanceMachine for every living instance, and a hook on every Machine whose Node is drained.
fn members(
    plan: &mut Plan<Action, Ask>,
    pool: &NstanceMachinePool,
    spec: &NstanceMachinePoolSpec,
    observed: &Observed,
    sizes: &BTreeMap<String, i32>,
) {
    let Owner::MachinePool { name: owner, .. } = &observed.owner else { return };
    let members = by_id(observed);
    for (shard, group, _) in answering(pool, spec, observed, sizes) {
        for instance in missing(group, &members) {
            if observed.taken.contains(&instance.id) {
                let message = format!(
                    "an NstanceMachine named {} exists and does not belong to this pool, which has the instance of that name; remove it",
                    instance.id
                );
                plan.block(Reason::ObjectTaken, message);
                continue;
            }
            plan.push(Action::CreateMachine(build::machine(pool, &observed.cluster, owner, shard, &instance.id)));
        }
    }
    for machine in observed.members.iter().filter_map(|member| member.machine.as_ref()) {
        // There is nothing to wait for where nothing is drained.
        if !machine.has_hook && !machine.is_deleting && !machine.is_excluded && !machine.is_paused {
            let (name, uid) = (machine.name.clone(), machine.uid.clone());
            plan.push(Action::HookMachine { name, uid, resource_version: machine.resource_version.clone() });
        }
    }
}

/// The members that are to go.
fn give_up(
    plan: &mut Plan<Action, Ask>,
    pool: &NstanceMachinePool,
    spec: &NstanceMachinePoolSpec,
    observed: &Observed,
    sizes: &BTreeMap<String, i32>,
    resized: &[StepId],
) {
    let members = by_id(observed);
    for (_, group, size) in answering(pool, spec, observed, sizes) {
        for member in victims(group, size, &members) {
            delete(plan, member, resized);
        }
    }
}

/// A Machine takes its NstanceMachine with it, once the Node is drained. No other one goes in place of a paused one.
pub(super) fn delete(plan: &mut Plan<Action, Ask>, member: &Member, needs: &[StepId]) {
    if member.is_going() {
        return;
    }
    let delete = match &member.machine {
        Some(machine) if machine.is_paused => {
            let message =
                format!("Machine {} is to go and is paused; remove its annotation {PAUSED_ANNOTATION}", machine.name);
            plan.block(Reason::Paused, message);
            return;
        }
        Some(machine) => Action::DeleteMachine {
            name: machine.name.clone(),
            uid: machine.uid.clone(),
            resource_version: machine.resource_version.clone(),
        },
        None => Action::DeleteMember {
            name: member.instance_id.clone(),
            uid: member.uid.clone(),
            resource_version: member.resource_version.clone(),
        },
    };
    plan.push_step(Step::new(delete).needs(needs.iter().copied()));
}

/// The provider IDs of all shard groups. While one of them was never synced, what was published stays: Cluster API
/// deletes the Node of an ID that leaves the list.
pub(super) fn provider_ids(
    pool: &NstanceMachinePool,
    spec: &NstanceMachinePoolSpec,
    observed: &Observed,
) -> Vec<String> {
    let ours: Vec<_> = observed.shard_groups.iter().filter(|group| is_ours(pool, group)).collect();
    let mut ids: BTreeSet<&str> = ours.iter().flat_map(|group| &group.provider_ids).map(String::as_str).collect();
    let is_synced = |shard: &String| ours.iter().any(|group| group.spec.shard == *shard && group.is_synced);
    if !spec.shards.iter().all(is_synced) || ours.iter().any(|group| !group.is_synced) {
        let known = Places::new(ids.iter().copied());
        let is_known = |id: &&String| !known.of(&[id, last_segment(id)]).is_empty();
        let kept: Vec<&str> = spec.provider_id_list.iter().filter(|id| !is_known(id)).map(String::as_str).collect();
        ids.extend(kept);
    }
    ids.into_iter().map(str::to_owned).collect()
}

fn publish(
    plan: &mut Plan<Action, Ask>,
    pool: &NstanceMachinePool,
    spec: &NstanceMachinePoolSpec,
    observed: &Observed,
) {
    let ids = provider_ids(pool, spec, observed);
    if ids != spec.provider_id_list {
        plan.push(Action::PublishProviderIds { ids });
    }
}
