//! The calls of the cluster autoscaler's provider `clusterapi`, version 1.36: what it lists, how it finds a node's group and
//! Machine, and how it grows and shrinks a group. Its informers are lists here.

use std::fmt::Debug;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::{
    core::v1::{Node, Pod, Taint},
    policy::v1::PodDisruptionBudget,
};
use kube::{
    Api,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams},
};
use process::Clock;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::{
    machine::{budget, is_there, pod, settled, until_condition, until_gone},
    scene::Scene,
    zones::{CLUSTER, TENANT},
};

const GROUP: &str = "cluster.x-k8s.io";
const MIN_SIZE: &str = "cluster.x-k8s.io/cluster-api-autoscaler-node-group-min-size";
const MAX_SIZE: &str = "cluster.x-k8s.io/cluster-api-autoscaler-node-group-max-size";
const CPU: &str = "capacity.cluster-autoscaler.kubernetes.io/cpu";
const MEMORY: &str = "capacity.cluster-autoscaler.kubernetes.io/memory";
const MARK: &str = "cluster.x-k8s.io/delete-machine";
const TAINT: &str = "ToBeDeletedByClusterAutoscaler";

pub struct Autoscaler<'a> {
    scene: &'a Scene,
    version: String,
}

/// A group of nodes that it may change.
#[derive(Debug)]
pub struct Group {
    pub id: String,
    min: i32,
    max: i32,
    object: DynamicObject,
}

/// What follows the last slash: by this it compares provider IDs.
fn normalized(id: &str) -> &str {
    id.rsplit('/').next().unwrap_or_default()
}

fn annotation<'a>(object: &'a DynamicObject, key: &str) -> Option<&'a str> {
    object.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

fn owner(object: &DynamicObject, kind: &str) -> Option<String> {
    let owners = object.metadata.owner_references.as_deref().unwrap_or_default();
    owners.iter().find(|owner| owner.kind == kind).map(|owner| owner.name.clone())
}

fn kind(object: &DynamicObject) -> &str {
    object.types.as_ref().map_or("", |types| types.kind.as_str())
}

fn name(object: &DynamicObject) -> &str {
    object.metadata.name.as_deref().unwrap_or_default()
}

impl<'a> Autoscaler<'a> {
    /// Asks the server for its version of Cluster API, and whether it has all kinds that groups may be.
    pub async fn new(scene: &'a Scene) -> Result<Self> {
        let groups = scene.client.list_api_groups().await?.groups;
        let group = groups.into_iter().find(|group| group.name == GROUP).context("no Cluster API")?;
        let version = group.preferred_version.context("no version")?.version;
        let resources = scene.client.list_api_group_resources(&format!("{GROUP}/{version}")).await?.resources;
        for resource in ["machines", "machinesets", "machinedeployments", "machinepools", "machinepools/scale"] {
            ensure!(resources.iter().any(|found| found.name == resource), "no {resource}");
        }
        Ok(Self { scene, version })
    }

    fn api(&self, kind: &str) -> Api<DynamicObject> {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(GROUP, &self.version, kind));
        Api::namespaced_with(self.scene.client.clone(), &self.scene.namespace, &resource)
    }

    async fn list(&self, kind: &str) -> Result<Vec<DynamicObject>> {
        let mut found = self.api(kind).list(&ListParams::default()).await?;
        let types = kube::core::TypeMeta { api_version: format!("{GROUP}/{}", self.version), kind: kind.to_owned() };
        for object in &mut found.items {
            object.types = Some(types.clone());
        }
        Ok(found.items)
    }

    /// Everything that it may scale, of its cluster.
    pub async fn groups(&self) -> Result<Vec<Group>> {
        let mut groups = Vec::new();
        for kind in ["MachineSet", "MachineDeployment", "MachinePool"] {
            for object in self.list(kind).await? {
                let is_ours = object.data["spec"]["clusterName"] == format!("{CLUSTER}--{TENANT}");
                // A MachineDeployment stands for its MachineSets.
                if is_ours && !(kind == "MachineSet" && owner(&object, "MachineDeployment").is_some()) {
                    groups.extend(self.group(object).await?);
                }
            }
        }
        Ok(groups)
    }

    pub async fn named(&self, id: &str) -> Result<Group> {
        let found = self.groups().await?.into_iter().find(|group| group.id == id);
        found.with_context(|| format!("the autoscaler has no group {id}"))
    }

    /// A group without room between its limits is none, and so is an empty one of unknown capacity.
    async fn group(&self, object: DynamicObject) -> Result<Option<Group>> {
        let size = |key| annotation(&object, key).map_or(Ok(0), str::parse::<i32>);
        let (min, max) = (size(MIN_SIZE)?, size(MAX_SIZE)?);
        ensure!(0 <= min && min <= max, "{min} to {max}");
        let is_empty = object.data["spec"]["replicas"] == 0;
        if max - min < 1 || (is_empty && !self.has_capacity(&object).await?) {
            return Ok(None);
        }
        let id = format!("{}/{}/{}", kind(&object), self.scene.namespace, name(&object));
        Ok(Some(Group { id, min, max, object }))
    }

    /// What a node of the group would have: by its annotations, or by the infrastructure object.
    async fn has_capacity(&self, object: &DynamicObject) -> Result<bool> {
        let reference = &object.data["spec"]["template"]["spec"]["infrastructureRef"];
        let word = |field: &str| reference[field].as_str().unwrap_or_default();
        let groups = self.scene.client.list_api_groups().await?.groups;
        let group = groups.into_iter().find(|group| group.name == word("apiGroup")).context("no such group")?;
        let version = group.preferred_version.context("no version")?.version;
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(&group.name, &version, word("kind")));
        let objects =
            Api::<DynamicObject>::namespaced_with(self.scene.client.clone(), &self.scene.namespace, &resource);
        let capacity = objects.get(word("name")).await?.data["status"]["capacity"].clone();
        let is_known = |key: &str, field: &str| annotation(object, key).is_some() || capacity[field].is_string();
        Ok(is_known(CPU, "cpu") && is_known(MEMORY, "memory"))
    }

    pub async fn replicas(&self, group: &Group) -> Result<i32> {
        let scale = self.api(kind(&group.object)).get_scale(name(&group.object)).await?;
        Ok(scale.spec.and_then(|spec| spec.replicas).unwrap_or_default())
    }

    async fn set_size(&self, group: &Group, replicas: i32) -> Result<()> {
        ensure!((group.min..=group.max).contains(&replicas), "{replicas} is not within {} to {}", group.min, group.max);
        let patch = Patch::Merge(json!({ "spec": { "replicas": replicas } }));
        self.api(kind(&group.object)).patch_scale(name(&group.object), &PatchParams::default(), &patch).await?;
        Ok(())
    }

    pub async fn increase(&self, group: &Group, by: i32) -> Result<()> {
        let size = self.replicas(group).await?;
        self.set_size(group, size + by).await
    }

    /// Takes back what was asked for and never came; never for nodes that there are.
    pub async fn decrease_target(&self, group: &Group, by: i32) -> Result<()> {
        let size = self.replicas(group).await?;
        ensure!(usize::try_from(size - by)? >= self.nodes(group).await?.len(), "it would delete nodes");
        self.set_size(group, size - by).await
    }

    /// Provider IDs of the group's instances: those of Nodes must be equal to them.
    pub async fn nodes(&self, group: &Group) -> Result<Vec<String>> {
        let ids = |value: &Value| {
            let ids = value.as_array().cloned().unwrap_or_default();
            ids.iter().filter_map(Value::as_str).map(str::to_owned).collect()
        };
        let object = self.api(kind(&group.object)).get(name(&group.object)).await?;
        if kind(&group.object) == "MachinePool" {
            return Ok(ids(&object.data["spec"]["providerIDList"]));
        }
        let labels = object.data["spec"]["selector"]["matchLabels"].as_object().cloned().unwrap_or_default();
        let labels: Vec<_> =
            labels.iter().map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default())).collect();
        let machines = self.api("Machine").list(&ListParams::default().labels(&labels.join(","))).await?;
        let id = |machine: &DynamicObject| machine.data["spec"]["providerID"].as_str().map(str::to_owned);
        Ok(machines
            .items
            .iter()
            .filter(|machine| machine.metadata.deletion_timestamp.is_none())
            .filter_map(id)
            .collect())
    }

    async fn machine(&self, provider_id: &str) -> Result<Option<DynamicObject>> {
        let is_it = |machine: &DynamicObject| {
            let id = machine.data["spec"]["providerID"].as_str().unwrap_or_default();
            normalized(id) == normalized(provider_id)
        };
        let mut found: Vec<_> = self.list("Machine").await?.into_iter().filter(is_it).collect();
        ensure!(found.len() <= 1, "{} Machines have {provider_id}", found.len());
        Ok(found.pop())
    }

    /// The pool that lists the node, or what the owners of its Machine lead to.
    pub async fn group_of(&self, node: &Node) -> Result<Option<Group>> {
        let id = provider_id(node);
        let lists = |pool: &DynamicObject| {
            let ids = pool.data["spec"]["providerIDList"].as_array().cloned().unwrap_or_default();
            ids.iter().filter_map(Value::as_str).any(|found| normalized(found) == normalized(&id))
        };
        let mut pools: Vec<_> = self.list("MachinePool").await?.into_iter().filter(lists).collect();
        ensure!(pools.len() <= 1, "{} MachinePools list {id}", pools.len());
        if let Some(pool) = pools.pop() {
            return self.group(pool).await;
        }
        let Some(machine) = self.machine(&id).await? else { return Ok(None) };
        let Some(set) = owner(&machine, "MachineSet") else { return Ok(None) };
        let sets = self.list("MachineSet").await?;
        let set = sets.into_iter().find(|found| name(found) == set).context("no such MachineSet")?;
        let Some(deployment) = owner(&set, "MachineDeployment") else { return self.group(set).await };
        let deployments = self.list("MachineDeployment").await?;
        let deployment = deployments.into_iter().find(|found| name(found) == deployment);
        self.group(deployment.context("no such MachineDeployment")?).await
    }

    /// Marks the Machine of each node, and lowers the size by one.
    pub async fn delete_nodes(&self, group: &Group, nodes: &[Node]) -> Result<()> {
        let mut replicas = self.replicas(group).await?;
        ensure!(replicas > group.min && usize::try_from(replicas - group.min)? >= nodes.len(), "the least is reached");
        for node in nodes {
            let found = self.group_of(node).await?.with_context(|| format!("no group has {}", provider_id(node)))?;
            ensure!(found.id == group.id, "{} is in {}", provider_id(node), found.id);
        }
        for node in nodes {
            let Some(machine) = self.machine(&provider_id(node)).await? else {
                bail!("unknown machine for node {}", provider_id(node));
            };
            if machine.metadata.deletion_timestamp.is_none() {
                self.mark(name(&machine)).await?;
                replicas -= 1;
                self.set_size(group, replicas).await?;
            }
        }
        Ok(())
    }

    async fn mark(&self, machine: &str) -> Result<()> {
        let at = Clock::default().now().to_string();
        let mark = |found: &mut DynamicObject| {
            found.metadata.annotations.get_or_insert_default().insert(MARK.to_owned(), at.clone());
        };
        store(&self.api("Machine"), machine, mark).await
    }

    /// As its core does before it deletes a node.
    async fn taint(&self, node: &str) -> Result<()> {
        let taint: Taint = serde_json::from_value(json!({ "key": TAINT, "value": "1", "effect": "NoSchedule" }))?;
        let add = |found: &mut Node| {
            found.spec.get_or_insert_default().taints.get_or_insert_default().push(taint.clone());
        };
        store(&Api::<Node>::all(self.scene.client.clone()), node, add).await
    }

    /// Nodes of the group, by their exact provider IDs; `None` until all of them have joined.
    async fn joined(&self, group: &Group) -> Result<Option<Vec<Node>>> {
        let all = Api::<Node>::all(self.scene.client.clone()).list(&ListParams::default()).await?.items;
        let ids = self.nodes(group).await?;
        let found: Vec<_> = all.into_iter().filter(|node| ids.contains(&provider_id(node))).collect();
        Ok((found.len() == ids.len()).then_some(found))
    }

    /// Waits until so many nodes have joined.
    pub async fn until_joined(&self, group: &Group, count: usize) -> Result<Vec<Node>> {
        let look = || async { Ok(self.joined(group).await?.is_some_and(|nodes| nodes.len() == count)) };
        self.scene.until(&format!("{count} nodes of {} have joined", group.id), look).await?;
        self.joined(group).await?.context("they had joined")
    }
}

/// Stores the whole object as it was read, with a change: another's in between is a conflict, and its caller tries again
/// later.
async fn store<K>(api: &Api<K>, name: &str, change: impl Fn(&mut K)) -> Result<()>
where
    K: Clone + DeserializeOwned + Serialize + Debug,
{
    loop {
        let mut found = api.get(name).await?;
        change(&mut found);
        match api.replace(name, &PostParams::default(), &found).await {
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            result => return result.map(drop).map_err(Into::into),
        }
    }
}

pub fn provider_id(node: &Node) -> String {
    node.spec.as_ref().and_then(|spec| spec.provider_id.clone()).unwrap_or_default()
}

fn names(nodes: &[Node]) -> Vec<String> {
    let mut names: Vec<_> = nodes.iter().filter_map(|node| node.metadata.name.clone()).collect();
    names.sort();
    names
}

/// Limits and, of some, the capacity of a node.
pub async fn annotate(scene: &Scene, kind: &str, name: &str, max: i32, has_capacity: bool) -> Result<()> {
    let mut annotations = json!({ MIN_SIZE: "0", MAX_SIZE: max.to_string() });
    if has_capacity {
        annotations[CPU] = json!("2");
        annotations[MEMORY] = json!("4Gi");
    }
    let patch = Patch::Merge(json!({ "metadata": { "annotations": annotations } }));
    scene.capi(kind).patch(name, &PatchParams::default(), &patch).await?;
    Ok(())
}

#[tokio::test]
async fn a96_the_autoscaler_grows_a_pool_from_zero_and_shrinks_it_by_the_node_it_chose() -> Result<()> {
    let both = &["a", "b"];
    let scene = Scene::new("autoscaler", both).await?;
    for pool in ["web", "plain", "fixed"] {
        scene.create_pool(pool, both, Some(0)).await?;
    }
    annotate(&scene, "MachinePool", "web", 3, true).await?;
    annotate(&scene, "MachinePool", "plain", 3, false).await?;
    let autoscaler = Autoscaler::new(&scene).await?;
    let id = format!("MachinePool/{}/web", scene.namespace);
    let groups: Vec<_> = autoscaler.groups().await?.into_iter().map(|group| group.id).collect();
    assert_eq!(
        groups,
        std::slice::from_ref(&id),
        "without limits, or empty and of unknown capacity, a pool is no group"
    );

    let web = autoscaler.named(&id).await?;
    assert_eq!((autoscaler.replicas(&web).await?, autoscaler.nodes(&web).await?.len()), (0, 0));
    autoscaler.increase(&web, 2).await?;
    autoscaler.until_joined(&web, 2).await?;
    autoscaler.increase(&web, 1).await?;
    let nodes = autoscaler.until_joined(&web, 3).await?;
    assert!(autoscaler.increase(&web, 1).await.is_err(), "its limit is 3");
    assert_eq!(autoscaler.replicas(&web).await?, 3);
    settled(&scene, 3).await?;
    for node in &nodes {
        assert_eq!(autoscaler.group_of(node).await?.map(|group| group.id).as_ref(), Some(&id));
        assert!(autoscaler.machine(&provider_id(node)).await?.is_some(), "{node:?}");
    }

    // Of the shard that has one, so that the other has all that are left.
    let (theirs, rest): (Vec<_>, Vec<_>) =
        nodes.into_iter().partition(|node| provider_id(node).starts_with("process:///b/"));
    let (chosen, rest) = (names(&theirs).remove(0), names(&rest));
    pod(&scene, "one", &chosen).await?;
    budget(&scene).await?;
    autoscaler.taint(&chosen).await?;
    autoscaler.delete_nodes(&web, &theirs).await?;
    until_condition(&scene, &chosen, "Drained", "False/BlockedByPDB").await?;
    assert!(is_there(&scene, &chosen), "a budget holds it");
    scene.api::<PodDisruptionBudget>().delete("all", &DeleteParams::default()).await?;
    until_gone(&scene, &chosen).await?;
    assert!(scene.api::<Pod>().get_opt("one").await?.is_none(), "it was evicted");
    let left = autoscaler.until_joined(&web, 2).await?;
    assert_eq!(names(&left), rest, "the one that it chose went, and only it");
    assert_eq!(scene.zones.cloud.made(), 3, "none was replaced");

    never_came(&scene, &autoscaler, &web, &rest).await?;

    // All that are left, one after the other without a pause.
    let left = autoscaler.until_joined(&web, 2).await?;
    autoscaler.delete_nodes(&web, &left).await?;
    autoscaler.until_joined(&web, 0).await?;
    for node in &rest {
        until_gone(&scene, node).await?;
        assert!(!is_there(&scene, node));
    }
    scene.until_sizes("web", both, &[Some(0), Some(0)]).await?;
    assert_eq!(autoscaler.replicas(&web).await?, 0);
    Ok(())
}

/// The cloud has nothing more: the autoscaler takes its wish back, and no node that there is goes for it.
async fn never_came(scene: &Scene, autoscaler: &Autoscaler<'_>, group: &Group, nodes: &[String]) -> Result<()> {
    let both = &["a", "b"];
    scene.zones.cloud.refuse(Some("no quota left"));
    autoscaler.increase(group, 1).await?;
    scene.until_sizes("web", both, &[Some(2), Some(1)]).await?;
    autoscaler.decrease_target(group, 1).await?;
    scene.until_sizes("web", both, &[Some(2), Some(0)]).await?;
    scene.zones.cloud.refuse(None);
    scene.until_pool("web", "Ready", "True/Reconciled").await?;
    assert_eq!(names(&autoscaler.until_joined(group, 2).await?), nodes);
    assert!(nodes.iter().all(|node| is_there(scene, node)));
    Ok(())
}
