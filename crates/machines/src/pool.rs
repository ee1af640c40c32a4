//! Rounds of NstanceMachinePools; every decision is in `plan::machines::pool`.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use api::{
    condition::{ConditionStatus, ConditionType},
    machine::{
        CLUSTER_LABEL, DELETE_MACHINE_ANNOTATION, MANAGED_BY, MANAGED_BY_ANNOTATION, NstanceMachine,
        NstanceMachinePool, NstanceMachinePoolStatus, POOL_LABEL, PRE_DRAIN_HOOK, pool_label, shard_group_name,
    },
};
use jiff::Timestamp;
use k8s_openapi::{Metadata as _, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use plan::{
    fact::Failure,
    machines::{
        machine,
        pool::{self, Action, Answer, Ask, Machine, Mark, Member, Observed, Owner, ShardGroup},
        shard::{Group, Shard},
    },
    round::{Plan, Report},
};
use process::explained;
use runtime::{Controller, Error, Fence, InputsOf, Key, Kind, Metadata, Parts, RoundOf, ServerClock, Turn, Versioned};
use serde_json::{Value, json};

use crate::{
    capi::{MachinePool, MachineView, has},
    cluster::is_paused,
    kinds::{Kinds, owner},
    nodes::shard_of,
    shards::Shards,
};

pub(crate) struct PoolController {
    pub kinds: Arc<Kinds>,
    pub shards: Shards,
    pub server_clock: ServerClock,
}

impl Controller for PoolController {
    const NAME: &'static str = "nstancemachinepool";
    type View = Parts<NstanceMachinePool>;
    type Object = NstanceMachinePool;
    type Kept = NstanceMachinePool;
    type Status = NstanceMachinePoolStatus;
    type Observed = Observed;
    type Action = Action;
    type Done = ();
    type Note = ();
    type Ask = Ask;
    type Answer = Answer;

    fn kind(&self) -> &Arc<Kind<Parts<NstanceMachinePool>, NstanceMachinePool>> {
        &self.kinds.pools
    }

    fn span(key: &Key) -> tracing::Span {
        tracing::info_span!("round", nstancemachinepool = %key, namespace = %key.namespace)
    }

    async fn gather(&self, key: &Key, pool: &NstanceMachinePool, (): &()) -> Result<Observed, Error> {
        self.shards.check_listed()?;
        let group = pool.spec.as_ref().map_or("", |spec| spec.group.as_str());
        let shards = self.shards.of_group(group);
        Ok(Observed {
            owner: self.owner(key, pool).await?,
            cluster: self.kinds.cluster.name.to_string(),
            elder: self.elder(key, pool, group),
            taken: self.taken(key, pool, &shards),
            shards,
            shard_groups: self.shard_groups(key, pool, group).await?,
            members: self.members(key, pool).await?,
            is_paused: is_paused(&pool.metadata) || self.kinds.is_cluster_paused(),
        })
    }

    fn plan(&self, pool: &NstanceMachinePool, observed: &Observed, inputs: &InputsOf<Self>) -> Plan<Action, Ask> {
        pool::plan(pool, observed, inputs)
    }

    async fn execute(&self, turn: &Turn<'_, Self>, action: &Action) -> Result<(), Error> {
        let (kinds, key) = (&self.kinds, turn.key);
        let at = |name: &str| Key::new(key.namespace.clone(), name);
        match action {
            Action::AddFinalizer { finalizers } => {
                turn.subject.patch(&kinds.pools, key, None, json!({ "metadata": { "finalizers": finalizers } })).await
            }
            Action::ReleaseFinalizer { finalizers } => {
                turn.subject.release_finalizer(&kinds.pools, key, finalizers).await
            }
            Action::CreateMachinePool(body) => match kinds.machine_pools.create(&at(name(body)), body).await {
                // A user was quicker.
                Err(error) if error.is_already_exists() => Ok(()),
                result => result.map(drop),
            },
            Action::CreateShardGroup(body) => kinds.shard_groups.create(&at(name(body)), body).await.map(drop),
            Action::PatchShardGroup { name, patch } => kinds.shard_groups.patch(&at(name), None, patch).await.map(drop),
            Action::DeleteShardGroup { name, uid, resource_version } => {
                kinds.shard_groups.delete(&at(name), uid, resource_version).await.map(drop)
            }
            Action::CreateMachine(body) => kinds.members.create(&at(name(body)), body).await.map(drop),
            Action::HookMachine { name, uid, resource_version } => {
                let annotations = json!({ PRE_DRAIN_HOOK: "" });
                let metadata = json!({ "uid": uid, "resourceVersion": resource_version, "annotations": annotations });
                kinds.machines.patch(&at(name), None, &json!({ "metadata": metadata })).await.map(drop)
            }
            Action::DeleteMachine { name, uid, resource_version } => {
                kinds.machines.delete(&at(name), uid, resource_version).await.map(drop)
            }
            Action::DeleteMember { name, uid, resource_version } => {
                kinds.members.delete(&at(name), uid, resource_version).await.map(drop)
            }
            Action::PublishProviderIds { ids } => {
                turn.subject.patch(&kinds.pools, key, None, json!({ "spec": { "providerIDList": ids } })).await
            }
            Action::Annotate => {
                let annotations = json!({ MANAGED_BY_ANNOTATION: MANAGED_BY });
                turn.subject.patch(&kinds.pools, key, None, json!({ "metadata": { "annotations": annotations } })).await
            }
        }
    }

    fn report(&self, round: &RoundOf<'_, Self>, now: Timestamp) -> Report<NstanceMachinePoolStatus> {
        pool::report(round, now)
    }

    async fn fetch(&self, ask: &Ask, _: &Fence) -> Result<Answer, Failure> {
        let Ask::Marks { namespace, machine_pool, .. } = ask;
        let labels = format!("{CLUSTER_LABEL}={},{POOL_LABEL}={}", self.kinds.cluster.name, pool_label(machine_pool));
        let found: Result<Vec<Metadata<MachineView>>, Error> =
            self.kinds.writer.list("machines", namespace, &labels).await;
        let found = found.map_err(|error| Failure { class: error.class(), message: explained(&error) })?;
        Ok(Answer::Marks(found.into_iter().filter_map(|machine| mark(machine.metadata)).collect()))
    }

    fn weigh(answer: &Answer) -> usize {
        let Answer::Marks(marks) = answer;
        marks.keys().map(|name| name.len() + size_of::<Mark>()).sum()
    }
}

/// Name and mark of a Machine.
fn mark(metadata: ObjectMeta) -> Option<(String, Mark)> {
    let version = metadata.resource_version.as_deref()?.parse().ok()?;
    let is_marked = has(&metadata, DELETE_MACHINE_ANNOTATION);
    Some((metadata.name?, Mark { version, is_marked }))
}

/// Of an object that a plan built.
fn name(body: &Value) -> &str {
    body["metadata"]["name"].as_str().unwrap_or_default()
}

impl PoolController {
    async fn owner(&self, key: &Key, pool: &NstanceMachinePool) -> Result<Owner, Error> {
        let machine_pools = &self.kinds.machine_pools;
        if !machine_pools.store().is_synced() {
            return Ok(Owner::Unknown);
        }
        // One of the same name first: it is the one that an earlier round made, whatever the index says.
        machine_pools.settle(key).await?;
        let mut found = self.kinds.indexes.machine_pools.keys(key);
        found.sort_by_key(|name| name != key);
        let cluster = &*self.kinds.cluster.name;
        let is_its = |found: &Arc<Versioned<MachinePool>>| found.value.cluster == cluster;
        let found = found.iter().find_map(|name| Some((name, machine_pools.get(name).filter(is_its)?)));
        if let Some((name, found)) = found {
            return Ok(Owner::MachinePool {
                name: name.name.to_string(),
                generation: found.value.generation,
                replicas: found.value.replicas,
            });
        }
        if machine_pools.get(key).is_some() {
            return Ok(Owner::Taken);
        }
        let (now, created) = (self.server_clock.now(), pool.metadata().creation_timestamp.as_ref());
        let age = now.zip(created).and_then(|(now, created)| Duration::try_from(now.duration_since(created.0)).ok());
        Ok(Owner::Absent { age: age.unwrap_or_default() })
    }

    /// Another pool of the group, to which it belongs.
    fn elder(&self, key: &Key, pool: &NstanceMachinePool, group: &str) -> Option<String> {
        let same = self.kinds.indexes.pools.keys(&group.into());
        let others = same.into_iter().filter(|other| other != key && other.namespace == key.namespace);
        let others = others.filter_map(|other| self.kinds.pools.get(&other));
        let seniority = |metadata: &ObjectMeta| {
            let created = metadata.creation_timestamp.as_ref().map(|time| time.0);
            // Of two that were made in the same second the one that has begun goes on.
            let has_begun = metadata
                .uid
                .as_deref()
                .is_some_and(|uid| !self.kinds.indexes.owned_groups.keys(&uid.into()).is_empty());
            (created, !has_begun, metadata.name.clone())
        };
        let own = seniority(&pool.metadata);
        let elders = others.map(|other| seniority(&other.value.metadata)).filter(|other| *other < own);
        elders.min().and_then(|(_, _, name)| name)
    }

    async fn shard_groups(&self, key: &Key, pool: &NstanceMachinePool, group: &str) -> Result<Vec<ShardGroup>, Error> {
        let indexes = &self.kinds.indexes;
        let mut keys = indexes.shard_groups.keys(&group.into());
        keys.extend(indexes.owned_groups.keys(&pool.metadata.uid.as_deref().unwrap_or_default().into()));
        // Also what another made under the name of one of the pool's.
        let shards = pool.spec.iter().flat_map(|spec| &spec.shards);
        keys.extend(shards.map(|shard| Key::new(key.namespace.clone(), shard_group_name(group, shard))));
        keys.retain(|found| found.namespace == key.namespace);
        keys.sort();
        keys.dedup();
        let mut groups = Vec::new();
        for found in keys {
            self.kinds.shard_groups.settle(&found).await?;
            groups.extend(self.kinds.shard_groups.get(&found).map(|found| shard_group(&found.value)));
        }
        Ok(groups)
    }

    async fn members(&self, key: &Key, pool: &NstanceMachinePool) -> Result<Vec<Member>, Error> {
        let mut members = Vec::new();
        let uid = pool.metadata.uid.as_deref().unwrap_or_default();
        for found in self.kinds.indexes.members.keys(&uid.into()) {
            if found.namespace != key.namespace {
                continue;
            }
            self.kinds.members.settle(&found).await?;
            members.extend(self.kinds.members.get(&found).map(|found| self.member(&found.value)));
        }
        Ok(members)
    }

    /// Instances whose name an NstanceMachine has that is not this pool's.
    fn taken(&self, key: &Key, pool: &NstanceMachinePool, shards: &BTreeMap<String, Shard>) -> BTreeSet<String> {
        let groups = shards.values().filter_map(|shard| shard.answer()?.group.as_ref());
        let is_foreign = |id: &&String| {
            let found = self.kinds.members.get(&Key::new(key.namespace.clone(), id.as_str()));
            found.is_some_and(|found| {
                let owner = owner(&found.value.metadata, NstanceMachinePool::KIND);
                owner.map(|owner| &owner.uid) != pool.metadata.uid.as_ref()
            })
        };
        groups.flat_map(Group::instances).map(|instance| &instance.id).filter(is_foreign).cloned().collect()
    }

    fn member(&self, member: &NstanceMachine) -> Member {
        let machine = match self.kinds.owner_of(member) {
            machine::Owner::Machine(owner) => Some(owner),
            machine::Owner::Unknown | machine::Owner::Unset | machine::Owner::Gone => None,
        };
        let id = member.spec.as_ref().and_then(|spec| spec.provider_id.as_deref());
        let is_cordoned = self.kinds.nodes_of(id).iter().any(|(_, is_cordoned)| *is_cordoned);
        let namespace = member.metadata.namespace.as_deref().unwrap_or_default();
        let facts = |name: &str| self.kinds.machines.get(&Key::new(namespace, name));
        let marks = |name: &str| facts(name).map(|found| (found.value.is_marked, found.value.is_paused));
        Member {
            instance_id: member.metadata.name.clone().unwrap_or_default(),
            shard: shard_of(member).map(str::to_owned),
            uid: member.metadata.uid.clone().unwrap_or_default(),
            resource_version: member.metadata.resource_version.clone().unwrap_or_default(),
            is_deleting: member.metadata.deletion_timestamp.is_some(),
            machine: machine.map(|owner| {
                let (is_marked, is_paused) = marks(&owner.name).unwrap_or_default();
                Machine {
                    is_marked,
                    is_paused,
                    name: owner.name,
                    uid: owner.uid,
                    resource_version: owner.resource_version,
                    is_deleting: owner.is_deleting,
                    has_hook: owner.has_hook,
                    is_excluded: owner.is_excluded,
                    is_cordoned,
                }
            }),
        }
    }
}

fn shard_group(found: &api::machine::NstanceShardGroup) -> ShardGroup {
    let (metadata, status) = (&found.metadata, found.status.clone().unwrap_or_default());
    let ready = status.condition(ConditionType::Ready);
    ShardGroup {
        name: metadata.name.clone().unwrap_or_default(),
        uid: metadata.uid.clone().unwrap_or_default(),
        resource_version: metadata.resource_version.clone().unwrap_or_default(),
        owner_uid: owner(metadata, NstanceMachinePool::KIND)
            .filter(|owner| owner.controller == Some(true))
            .map(|owner| owner.uid.clone()),
        spec: found.spec.clone().unwrap_or_default(),
        is_deleting: metadata.deletion_timestamp.is_some(),
        is_ready: ready.is_some_and(|ready| ready.status == ConditionStatus::True),
        message: ready.map_or_else(|| "not reported yet".to_owned(), |ready| ready.message.clone()),
        is_static: status.is_static,
        is_synced: status.last_sync_time.is_some(),
        provider_ids: status.provider_ids,
        config: status.config,
    }
}
