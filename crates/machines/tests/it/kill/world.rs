//! What there is, and what a place lacks of it.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use api::machine::{NstanceMachine, NstanceMachinePool, NstanceMachineSpec, NstanceShardGroup, POOL_LABEL};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api, ResourceExt,
    api::{DynamicObject, ListParams},
};
use serde_json::json;
use shard::client::Client;

use super::place::{Place, Stage};
use crate::{scene::Scene, zones::listed};

const HOOK: &str = "pre-drain.delete.hook.machine.cluster.x-k8s.io/strata";

pub struct World {
    machines: BTreeMap<String, DynamicObject>,
    machine_pools: BTreeSet<String>,
    members: Vec<NstanceMachine>,
    pools: BTreeMap<String, NstanceMachinePool>,
    shard_groups: Vec<NstanceShardGroup>,
    nodes: BTreeSet<String>,
    /// Those that are not under deletion.
    pods: BTreeSet<String>,
    /// Size of each group, summed over the shards.
    sizes: BTreeMap<String, i32>,
    /// Group, shard, and whether it was made by itself.
    instances: BTreeMap<String, (String, String, bool)>,
}

impl World {
    /// Objects are read from the API server's cache: it is looked at often.
    pub async fn read(scene: &Scene, shards: &[Client]) -> Result<Self> {
        let all = ListParams::default().match_any();
        let machines = scene.capi("Machine").list(&all).await?.items;
        let pods = scene.api::<Pod>().list(&all).await?.items;
        let pods = pods.into_iter().filter(|pod| pod.metadata.deletion_timestamp.is_none());
        let mut sizes = BTreeMap::new();
        for shard in shards {
            for group in listed(shard).await? {
                *sizes.entry(group.key).or_default() += group.size;
            }
        }
        let mut instances = BTreeMap::new();
        for machine in scene.zones.cloud.machines() {
            if let Some(order) = scene.zones.cloud.order(&machine.instance_id) {
                instances.insert(machine.instance_id, (order.group, order.shard, order.on_demand));
            }
        }
        Ok(Self {
            machines: machines.into_iter().map(|machine| (machine.name_any(), machine)).collect(),
            machine_pools: scene.capi("MachinePool").list(&all).await?.iter().map(ResourceExt::name_any).collect(),
            members: scene.api::<NstanceMachine>().list(&all).await?.items,
            pools: scene
                .api()
                .list(&all)
                .await?
                .into_iter()
                .map(|pool: NstanceMachinePool| (pool.name_any(), pool))
                .collect(),
            shard_groups: scene.api::<NstanceShardGroup>().list(&all).await?.items,
            nodes: Api::<Node>::all(scene.client.clone()).list(&all).await?.iter().map(ResourceExt::name_any).collect(),
            pods: pods.map(|pod| pod.name_any()).collect(),
            sizes,
            instances,
        })
    }

    /// Members of a group.
    pub fn instances_of(&self, group: &str) -> BTreeSet<String> {
        self.select(group, false)
    }

    /// Those made by themselves as well.
    pub fn all_instances_of(&self, group: &str) -> BTreeSet<String> {
        let mut all = self.select(group, false);
        all.extend(self.select(group, true));
        all
    }

    fn select(&self, group: &str, is_own: bool) -> BTreeSet<String> {
        let found = self.instances.iter().filter(|(_, (of, _, own))| of == group && *own == is_own);
        found.map(|(id, _)| id.clone()).collect()
    }

    pub fn has_pod(&self, name: &str) -> bool {
        self.pods.contains(name)
    }

    /// What is still to come for a place at the end of a stage.
    pub fn lacks(&self, stage: Stage, place: &Place) -> Option<String> {
        let group = place.group.as_str();
        let still = (stage == Stage::Notice && self.instances.contains_key(&place.victim))
            .then(|| format!("{} is there", place.victim));
        let problem = still.or_else(|| self.lacks_members(stage, group)).or_else(|| self.lacks_own(stage, group));
        let problem = problem.or_else(|| match stage {
            Stage::Delete => self.remains(group),
            _ => self.lacks_pool(stage, group),
        });
        let problem = problem.or_else(|| {
            let there = self.all_instances_of(group);
            let is_left = |id: &&String| self.nodes.contains(*id) || self.machines.contains_key(*id);
            let left = place.ever.difference(&there).find(is_left);
            left.map(|id| format!("Node or Machine {id} of a gone instance is there"))
        });
        problem.map(|problem| format!("{group}: {problem}"))
    }

    fn lacks_members(&self, stage: Stage, group: &str) -> Option<String> {
        let instances = self.instances_of(group);
        if instances.len() != stage.size() {
            return Some(format!("instances {instances:?} instead of {}", stage.size()));
        }
        let members = self.members_of(group, true);
        if members != instances {
            return Some(format!("NstanceMachines {members:?} of instances {instances:?}"));
        }
        instances.iter().find_map(|id| self.unsettled(id, id))
    }

    fn lacks_own(&self, stage: Stage, group: &str) -> Option<String> {
        let count = usize::from(stage == Stage::OnDemand);
        let (instances, members) = (self.select(group, true), self.members_of(group, false));
        if (instances.len(), members.len()) != (count, count) {
            return Some(format!("on demand: NstanceMachines {members:?}, instances {instances:?}"));
        }
        members.iter().zip(&instances).find_map(|(machine, id)| self.unsettled(machine, id))
    }

    fn members_of(&self, group: &str, of_pool: bool) -> BTreeSet<String> {
        let is_it = |member: &&NstanceMachine| {
            member.spec.as_ref().map(NstanceMachineSpec::group) == Some(group)
                && member.labels().contains_key(POOL_LABEL) == of_pool
        };
        self.members.iter().filter(is_it).map(ResourceExt::name_any).collect()
    }

    /// What a Machine and its instance lack.
    fn unsettled(&self, machine: &str, instance: &str) -> Option<String> {
        let Some(found) = self.machines.get(machine) else { return Some(format!("no Machine {machine}")) };
        let node = &found.data["status"]["nodeRef"]["name"];
        if node != instance || !self.nodes.contains(instance) {
            return Some(format!("Machine {machine} has nodeRef {node} instead of {instance}"));
        }
        if found.metadata.deletion_timestamp.is_some() {
            return Some(format!("Machine {machine} is under deletion"));
        }
        (!found.annotations().contains_key(HOOK)).then(|| format!("Machine {machine} has no hook"))
    }

    fn lacks_pool(&self, stage: Stage, group: &str) -> Option<String> {
        let Some(pool) = self.pools.get(group) else { return Some("no pool".to_owned()) };
        let status = json!(pool.status);
        let ready = status["conditions"].as_array().into_iter().flatten().find(|one| one["type"] == "Ready");
        if ready.is_none_or(|ready| ready["status"] != "True") {
            return Some(format!("pool is not Ready: {ready:?}"));
        }
        let id = |(id, (_, shard, _)): (&String, &(String, String, bool))| format!("process:///{shard}/{id}");
        let members = self.instances.iter().filter(|(_, (of, _, own))| of == group && !own);
        let wanted: BTreeSet<String> = members.map(id).collect();
        let published = pool.spec.as_ref().map(|spec| spec.provider_id_list.clone()).unwrap_or_default();
        if published.iter().cloned().collect::<BTreeSet<_>>() != wanted || published.len() != wanted.len() {
            return Some(format!("published {published:?} instead of {wanted:?}"));
        }
        let size = self.sizes.get(group).copied();
        (size != i32::try_from(stage.size()).ok()).then(|| format!("size {size:?} on the shards"))
    }

    /// What is left of a pool that goes.
    fn remains(&self, group: &str) -> Option<String> {
        let shard_groups = self.shard_groups.iter().filter(|found| found.name_any().starts_with(group)).count();
        let is_there = self.pools.contains_key(group) || self.machine_pools.contains(group);
        let on_shards = self.sizes.get(group);
        let is_left = is_there || shard_groups > 0 || on_shards.is_some();
        is_left
            .then(|| format!("pool {is_there}, shard groups {shard_groups}, size on the shards {on_shards:?} are left"))
    }

    /// Machines, NstanceMachines and instances that belong to none of these.
    pub fn strangers(&self, places: &[Place]) -> Vec<String> {
        let known: BTreeSet<String> = places.iter().flat_map(|place| self.all_instances_of(&place.group)).collect();
        let is_known = |name: &String| known.contains(name) || places.iter().any(|place| name.contains(&place.group));
        let names = self.instances.keys().chain(self.machines.keys()).cloned();
        names.chain(self.members.iter().map(ResourceExt::name_any)).filter(|name| !is_known(name)).collect()
    }
}
