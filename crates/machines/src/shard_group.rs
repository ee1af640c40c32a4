//! Rounds of NstanceShardGroups; every decision is in `plan::machines::shard_group`.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use api::machine::{
    NstanceMachine, NstanceMachinePool, NstanceMachinePoolSpec, NstanceShardGroup, NstanceShardGroupSpec,
    NstanceShardGroupStatus,
};
use jiff::Timestamp;
use plan::{
    fact::{Fact, Never},
    machines::{
        machine::{Drain, is_released},
        shard::{Group, Instance, Members},
        shard_group::{self, Action, Call, DELETE, Note, Observed, OldNode, Tried},
    },
    object,
    round::{Plan, Report},
};
use runtime::{Controller, Error, InputsOf, Key, Kind, Parts, RoundOf, Turn, Versioned};
use serde_json::json;

use crate::{
    cluster::is_paused,
    drains::{Asker, Desk, Wanted},
    kinds::{Kinds, owner},
    nodes::{NodeFacts, is_member, shard_of},
    shards::{self, CallState, Request, Shards, job_key, request_id},
};

/// Of the calls of shard groups.
pub(crate) const CALLS: &str = "nstanceshardgroup";

pub(crate) struct ShardGroupController {
    pub kinds: Arc<Kinds>,
    pub shards: Shards,
    pub desk: Desk,
    /// The drains that each began: from a Node's name to its uid.
    pub drains: Mutex<HashMap<Key, BTreeMap<String, String>>>,
}

impl Controller for ShardGroupController {
    const NAME: &'static str = "nstanceshardgroup";
    type View = Parts<NstanceShardGroup>;
    type Object = NstanceShardGroup;
    type Kept = NstanceShardGroup;
    type Status = NstanceShardGroupStatus;
    type Observed = Observed;
    type Action = Action;
    type Done = ();
    type Note = Note;
    type Ask = Never;
    type Answer = Never;

    fn kind(&self) -> &Arc<Kind<Parts<NstanceShardGroup>, NstanceShardGroup>> {
        &self.kinds.shard_groups
    }

    fn span(key: &Key) -> tracing::Span {
        tracing::info_span!("round", nstanceshardgroup = %key, namespace = %key.namespace)
    }

    async fn gather(&self, key: &Key, object: &NstanceShardGroup, _: &Note) -> Result<Observed, Error> {
        self.shards.check_listed()?;
        let Some(spec) = &object.spec else { return Ok(Observed::default()) };
        let shard = self.shards.shard(&spec.shard, &spec.group);
        let group = shard.answer().and_then(|answer| answer.group.as_ref());
        let pool = owner(&object.metadata, NstanceMachinePool::KIND);
        let pool = pool.and_then(|owner| self.kinds.pools.get(&Key::new(key.namespace.clone(), owner.name.as_str())));
        let is_pool_paused = pool.as_ref().is_some_and(|pool| is_paused(&pool.value.metadata));
        let nodes = self.kinds.nodes_of(group.into_iter().flat_map(ids));
        Ok(Observed {
            nodes: nodes.into_iter().map(|(node, _)| node).collect(),
            released: self.released(key, group).await?,
            members: self.members(spec),
            oldest: self.oldest(group),
            drains: self.drains().get(key).into_iter().flat_map(BTreeMap::keys).cloned().collect(),
            is_wanted: pool.as_ref().is_some_and(|pool| is_wanted(&pool.value, spec)),
            is_pool_going: pool.as_ref().is_some_and(|pool| pool.value.metadata.deletion_timestamp.is_some()),
            call: self.call(key),
            is_paused: is_paused(&object.metadata) || is_pool_paused || self.kinds.is_cluster_paused(),
            errors: self.errors(spec),
            shard,
        })
    }

    fn plan(&self, object: &NstanceShardGroup, observed: &Observed, inputs: &InputsOf<Self>) -> Plan<Action> {
        shard_group::plan(object, observed, &inputs.note)
    }

    async fn execute(&self, turn: &Turn<'_, Self>, action: &Action) -> Result<(), Error> {
        let kind = &self.kinds.shard_groups;
        match action {
            Action::AddFinalizer { finalizers } => {
                let patch = json!({ "metadata": { "finalizers": finalizers } });
                turn.subject.patch(kind, turn.key, None, patch).await
            }
            Action::ReleaseFinalizer { finalizers } => turn.subject.release_finalizer(kind, turn.key, finalizers).await,
            Action::Upsert { push, poll } => {
                self.hand_over(turn, (push.digest(), *poll), Request::Upsert(push.clone()))
            }
            Action::DeleteGroup { group, poll } => {
                self.hand_over(turn, (DELETE.to_owned(), *poll), Request::DeleteGroup { group: group.clone() })
            }
            Action::DrainNode { node } => {
                // A later Node of the same name is another one.
                let found = self.kinds.nodes.get(&Key::new("", node.as_str()));
                let id = found.map(|found| found.value.uid.to_string()).ok_or(Error::Outdated)?;
                self.drains().entry(turn.key.clone()).or_default().insert(node.clone(), id.clone());
                self.desk.drain(Asker::Group, Wanted { id, node: node.clone(), time: None })
            }
            Action::ReturnNode { node } => {
                let known = self.drains().get(turn.key).and_then(|drains| drains.get(node).cloned());
                let found = self.kinds.nodes.get(&Key::new("", node.as_str()));
                if let Some(id) = known.or_else(|| found.map(|found| found.value.uid.to_string())) {
                    self.desk.return_node(node, &id).await?;
                }
                self.forget_drain(turn.key, node);
                Ok(())
            }
            Action::ReleaseDrain { node } => {
                if let Some(id) = self.forget_drain(turn.key, node) {
                    self.desk.release(&Asker::Group, &id);
                }
                Ok(())
            }
        }
    }

    fn report(&self, round: &RoundOf<'_, Self>, now: Timestamp) -> Report<NstanceShardGroupStatus, Note> {
        shard_group::report(round, now)
    }

    fn reported(&self, round: &RoundOf<'_, Self>) {
        let (Some(spec), metadata) = (&round.object.spec, &round.object.metadata) else { return };
        self.shards.forget_errors(&spec.shard, &spec.group, &round.observed.errors);
        if let (Call::Ended(tried), Some(namespace), Some(name)) =
            (&round.observed.call, &metadata.namespace, &metadata.name)
        {
            let key = job_key(CALLS, &Key::new(namespace.as_str(), name.as_str()));
            self.shards.forget_call(&key, &label(&tried.digest, tried.poll));
        }
    }

    fn forget(&self, key: &Key) {
        self.shards.drop_call(&job_key(CALLS, key));
        for id in self.drains().remove(key).into_iter().flat_map(BTreeMap::into_values) {
            self.desk.release(&Asker::Group, &id);
        }
    }
}

/// Every ID that is known of a group's instances.
fn ids(group: &Group) -> Vec<&str> {
    match &group.members {
        Members::Listed(instances) => instances.iter().flat_map(Instance::ids).collect(),
        Members::Counted(ids) => ids.iter().map(String::as_str).collect(),
    }
}

/// What a call is known by: what was asked for, and the list that this was planned on.
fn label(digest: &str, poll: u64) -> String {
    format!("{digest} {poll}")
}

fn read_label(label: &str) -> (String, u64) {
    let (digest, poll) = label.rsplit_once(' ').unwrap_or((label, ""));
    (digest.to_owned(), poll.parse().unwrap_or_default())
}

/// Whether a pool that stays names the shard.
fn is_wanted(pool: &NstanceMachinePool, spec: &NstanceShardGroupSpec) -> bool {
    let names_it = |pool: &NstanceMachinePoolSpec| pool.group == spec.group && pool.shards.contains(&spec.shard);
    pool.metadata.deletion_timestamp.is_none() && pool.spec.as_ref().is_some_and(names_it)
}

impl ShardGroupController {
    fn drains(&self) -> MutexGuard<'_, HashMap<Key, BTreeMap<String, String>>> {
        self.drains.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn forget_drain(&self, key: &Key, node: &str) -> Option<String> {
        let mut all = self.drains();
        let drains = all.get_mut(key)?;
        let id = drains.remove(node);
        if drains.is_empty() {
            all.remove(key);
        }
        id
    }

    fn members(&self, spec: &NstanceShardGroupSpec) -> usize {
        let keys = self.kinds.machines_of(&spec.shard).into_iter();
        let found = keys.filter_map(|key| self.kinds.members.get(&key));
        let is_of = |member: &NstanceMachine| {
            is_member(member)
                && shard_of(member) == Some(spec.shard.as_str())
                && member.spec.as_ref().is_some_and(|found| found.group() == spec.group)
        };
        found.filter(|found| is_of(&found.value)).count()
    }

    /// Of a server that names no instances: the Nodes of the group, the oldest first.
    fn oldest(&self, group: Option<&Group>) -> Fact<Vec<OldNode>> {
        let ids = match group.map(|group| &group.members) {
            Some(Members::Counted(ids)) => ids.as_slice(),
            Some(Members::Listed(_)) | None => &[],
        };
        let nodes = self.kinds.nodes_of(ids.iter().map(String::as_str)).into_iter();
        let facts = |name: &str| self.kinds.nodes.get(&Key::new("", name));
        let nodes = nodes.filter_map(|(node, _)| Some((facts(&node.name)?, node.name)));
        let mut nodes: Vec<_> = nodes.map(|(facts, name)| (facts.value.created_at, name, facts)).collect();
        nodes.sort_by(|(age, name, _), (other_age, other, _)| (age, name).cmp(&(other_age, other)));
        let old = |(_, name, facts): (_, String, Arc<Versioned<NodeFacts>>)| {
            let uid = &facts.value.uid;
            let is_held = facts.value.is_cordoned && facts.value.drain.as_ref() == Some(uid);
            let has_ended = matches!(self.desk.state(uid), Drain::Done | Drain::Expired { .. });
            OldNode { name, is_drained: is_held && has_ended, is_held }
        };
        self.kinds.nodes.freshness().fact(nodes.into_iter().map(old).collect())
    }

    /// Instances whose machines are under deletion and drained, and not paused.
    async fn released(&self, key: &Key, group: Option<&Group>) -> Result<BTreeSet<String>, Error> {
        let mut released = BTreeSet::new();
        for instance in group.map(Group::instances).unwrap_or_default() {
            let member = Key::new(key.namespace.clone(), instance.id.as_str());
            self.kinds.members.settle(&member).await?;
            if let Some(found) = self.kinds.members.get(&member)
                && is_released(&found.value, &self.kinds.owner_of(&found.value))
                && !self.kinds.is_paused(&found.value)
            {
                released.insert(instance.id.clone());
            }
        }
        Ok(released)
    }

    fn errors(&self, spec: &NstanceShardGroupSpec) -> Vec<String> {
        self.shards.errors(&spec.shard, &spec.group)
    }

    fn call(&self, key: &Key) -> Call {
        match self.shards.call(&job_key(CALLS, key)) {
            CallState::Idle => Call::None,
            CallState::Running { label } => Call::Running { digest: read_label(&label).0 },
            CallState::Ended { label, ended } => {
                let (digest, poll) = read_label(&label);
                Call::Ended(Tried { digest, poll, outcome: ended.outcome })
            }
        }
    }

    fn hand_over(&self, turn: &Turn<'_, Self>, (digest, poll): (String, u64), request: Request) -> Result<(), Error> {
        let object = turn.subject.object();
        let Some(spec) = &object.spec else { return Err(Error::Outdated) };
        let created_at = object.metadata.creation_timestamp.as_ref().map_or(0, |time| time.0.as_second());
        self.shards.submit(shards::Call {
            kind: CALLS,
            object: turn.key.clone(),
            shard: spec.shard.clone(),
            request,
            label: label(&digest, poll).into(),
            fence: turn.fence.clone(),
            created_at,
            request_id: request_id(&request_digest(&spec.group, &digest), turn.fence, poll),
        })
    }
}

/// A shard answers a request that it knows from memory: of two groups that go at the same time the second would stay.
fn request_digest(group: &str, digest: &str) -> String {
    object::digest(&json!([group, digest]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_that_are_removed_together_are_two_requests() {
        assert_ne!(request_digest("api", DELETE), request_digest("web", DELETE));
        assert_eq!(request_digest("web", DELETE), request_digest("web", DELETE));
    }
}
