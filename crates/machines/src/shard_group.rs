//! Rounds of NstanceShardGroups; every decision is in `plan::machines::shard_group`.

use std::{collections::BTreeSet, sync::Arc};

use api::{
    condition::Reason,
    machine::{
        NstanceMachinePool, NstanceMachinePoolSpec, NstanceShardGroup, NstanceShardGroupSpec, NstanceShardGroupStatus,
    },
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use plan::{
    Why,
    fact::Never,
    machines::{
        machine::is_released,
        shard::{Group, Instance, Members},
        shard_group::{self, Action, Call, DELETE, Note, Observed, Tried},
    },
    round::{Plan, Report},
};
use runtime::{Controller, Error, InputsOf, Key, Kind, Parts, RoundOf, Turn, Versioned};
use serde_json::json;

use crate::{
    cluster::is_paused,
    kinds::{Kinds, owner, shard_of},
    shards::{self, CallState, Request, Shards, job_key, request_id},
};

/// Of the calls of shard groups.
pub(crate) const CALLS: &str = "nstanceshardgroup";

pub(crate) struct ShardGroupController {
    pub kinds: Arc<Kinds>,
    pub shards: Shards,
}

impl Controller for ShardGroupController {
    const NAME: &'static str = "nstanceshardgroup";
    type View = Parts<NstanceShardGroup>;
    type Object = NstanceShardGroup;
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
        tracing::info_span!("round", shardgroup = %key, namespace = %key.namespace)
    }

    async fn gather(&self, key: &Key, object: &NstanceShardGroup, _: &Note) -> Result<Observed, Error> {
        let Some(spec) = &object.spec else { return Ok(Observed::default()) };
        let shard = self.shards.shard(&spec.shard, &spec.group);
        let group = shard.answer().and_then(|answer| answer.group.as_ref());
        let owner = owner(&object.metadata, NstanceMachinePool::KIND);
        let pool = owner.and_then(|owner| self.pool(key, owner));
        let is_pool_paused = pool.as_ref().is_some_and(|pool| is_paused(&pool.value.metadata));
        let nodes = self.kinds.nodes_of(group.into_iter().flat_map(ids));
        Ok(Observed {
            nodes: nodes.into_iter().map(|(node, _)| node).collect(),
            released: self.released(key, group).await?,
            members: owner.map_or(0, |owner| self.members(&owner.uid, &spec.shard)),
            is_wanted: pool.as_ref().is_some_and(|pool| is_wanted(&pool.value, spec)),
            call: self.call(key),
            is_paused: is_paused(&object.metadata) || is_pool_paused || self.kinds.is_cluster_paused(),
            errors: self.errors(spec),
            shard,
            ..Observed::default()
        })
    }

    fn plan(
        &self,
        object: &NstanceShardGroup,
        observed: &Observed,
        inputs: &InputsOf<Self>,
        _: Timestamp,
    ) -> Plan<Action> {
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
                let message = format!(
                    "the shard's server does not name its instances, and node {node} has to be drained before it removes one; drain it: strata drain {node}"
                );
                Err(Error::Refused(Why { reason: Reason::Reconciling, message }))
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

/// Whether a pool has a group on a shard, and keeps it there.
fn is_wanted(pool: &NstanceMachinePool, spec: &NstanceShardGroupSpec) -> bool {
    let wants = |pool: &NstanceMachinePoolSpec| pool.group == spec.group && pool.shards.contains(&spec.shard);
    pool.metadata.deletion_timestamp.is_none() && pool.spec.as_ref().is_some_and(wants)
}

impl ShardGroupController {
    /// The pool that owns a shard group; a namesake of it is another.
    fn pool(&self, key: &Key, owner: &OwnerReference) -> Option<Arc<Versioned<NstanceMachinePool>>> {
        let found = self.kinds.pools.get(&Key::new(key.namespace.clone(), owner.name.as_str()))?;
        (found.value.metadata.uid.as_ref() == Some(&owner.uid)).then_some(found)
    }

    /// How many machines a pool has on a shard.
    fn members(&self, pool: &str, shard: &str) -> usize {
        let all = self.kinds.indexes.members.keys(&pool.into());
        let is_there =
            |key: &&Key| self.kinds.members.get(key).is_some_and(|member| shard_of(&member.value) == Some(shard));
        all.iter().filter(is_there).count()
    }

    /// Instances whose machines are under deletion and drained.
    async fn released(&self, key: &Key, group: Option<&Group>) -> Result<BTreeSet<String>, Error> {
        let mut released = BTreeSet::new();
        for instance in group.map(Group::instances).unwrap_or_default() {
            let member = Key::new(key.namespace.clone(), instance.id.as_str());
            self.kinds.members.settle(&member).await?;
            if let Some(found) = self.kinds.members.get(&member)
                && is_released(&found.value, &self.kinds.owner_of(&found.value))
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
            request_id: request_id(&digest, turn.fence, poll),
        })
    }
}
