//! Reads what makes up a group, with the user's own rights.

use std::collections::BTreeMap;

use api::machine::{
    GROUP, GROUP_LABEL, NstanceMachine, NstanceMachinePool, NstanceShardGroup, PAUSED_ANNOTATION, POOL_LABEL,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{
    Client,
    api::{ApiResource, DynamicObject, GroupVersionKind},
};
use serde::{Deserialize, de::DeserializeOwned};

use crate::{
    Failure,
    objects::{CLUSTER_API_GROUP, Objects, decode},
};

/// What the commands call it.
const NOUN: &str = "group";

/// A value of a label has at most so many characters; Cluster API writes a hash in place of a longer one.
const LONGEST_LABEL: usize = 63;

/// How alike a name must be to be suggested: one letter in three may differ.
const LIKENESS: f32 = 0.66;

/// More suggestions are no help.
const SUGGESTIONS: usize = 3;

/// The kinds that a group is made of, in one namespace or in all.
pub struct Reader {
    client: Client,
    pub pools: Objects,
    pub machine_pools: Objects,
    shard_groups: Objects,
    machines: Objects,
    cluster_machines: Objects,
}

/// A pool and its MachinePool.
#[derive(Clone, Debug, Default)]
pub struct Group {
    pub pool: NstanceMachinePool,
    pub machine_pool: Option<MachinePool>,
}

/// A group with all that belongs to it.
#[derive(Clone, Debug, Default)]
pub struct Whole {
    pub group: Group,
    pub shard_groups: Vec<NstanceShardGroup>,
    pub machines: Vec<NstanceMachine>,
    /// The Node of each machine that has one, by the machine's name.
    pub nodes: BTreeMap<String, String>,
}

/// What the commands need of Cluster API's kind.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct MachinePool {
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub spec: MachinePoolSpec,
    #[serde(default)]
    pub status: MachinePoolStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MachinePoolSpec {
    #[serde(default)]
    pub cluster_name: String,
    pub replicas: Option<i32>,
    #[serde(default)]
    template: Template,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MachinePoolStatus {
    pub ready_replicas: Option<i32>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct Template {
    #[serde(default)]
    spec: Referring,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Referring {
    #[serde(default)]
    infrastructure_ref: Reference,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Reference {
    #[serde(default)]
    api_group: String,
    #[serde(default)]
    kind: String,
    #[serde(default)]
    name: String,
}

/// A Machine of Cluster API, for the name of its Node.
#[derive(Debug, Deserialize)]
struct ClusterMachine {
    #[serde(default)]
    spec: Referring,
    #[serde(default)]
    status: ClusterMachineStatus,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ClusterMachineStatus {
    #[serde(default)]
    node_ref: Option<NodeReference>,
}

#[derive(Debug, Deserialize)]
struct NodeReference {
    #[serde(default)]
    name: String,
}

impl MachinePool {
    pub fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    /// Whether it says how many instances this pool has.
    fn is_of(&self, pool: &NstanceMachinePool) -> bool {
        let Reference { api_group, kind, name } = &self.spec.template.spec.infrastructure_ref;
        (api_group.as_str(), kind.as_str()) == (GROUP, NstanceMachinePool::KIND)
            && Some(name) == pool.metadata.name.as_ref()
            && self.metadata.namespace == pool.metadata.namespace
    }
}

impl Group {
    /// The group's key.
    pub fn key(&self) -> &str {
        self.pool.spec.as_ref().map_or("", |spec| spec.group.as_str())
    }

    pub fn pool_name(&self) -> &str {
        self.pool.metadata.name.as_deref().unwrap_or_default()
    }
}

/// Whether an object itself is paused.
pub fn is_paused(metadata: &ObjectMeta) -> bool {
    metadata.annotations.as_ref().is_some_and(|annotations| annotations.contains_key(PAUSED_ANNOTATION))
}

impl Reader {
    pub fn new(client: Client, namespace: Option<&str>) -> Self {
        let objects =
            |resource: ApiResource| Objects::new(client.clone(), namespace.map(str::to_owned), resource, NOUN);
        let of_cluster_api =
            |kind: &str| ApiResource::from_gvk(&GroupVersionKind::gvk(CLUSTER_API_GROUP, "v1beta2", kind));
        Self {
            pools: objects(ApiResource::erase::<NstanceMachinePool>(&())),
            machine_pools: objects(of_cluster_api("MachinePool")),
            shard_groups: objects(ApiResource::erase::<NstanceShardGroup>(&())),
            machines: objects(ApiResource::erase::<NstanceMachine>(&())),
            cluster_machines: objects(of_cluster_api("Machine")),
            client,
        }
    }

    /// Every group, by namespace and key.
    pub async fn list(&self, selector: Option<&str>) -> Result<Vec<Group>, Failure> {
        let pools: Vec<NstanceMachinePool> = decoded(&self.pools.list(selector).await?)?;
        let machine_pools: Vec<MachinePool> = decoded(&self.machine_pools.list(None).await?)?;
        let mut groups: Vec<Group> = pools.into_iter().map(|pool| group(pool, &machine_pools)).collect();
        groups.sort_by(|one, other| {
            let key = |group: &Group| (group.pool.metadata.namespace.clone(), group.key().to_owned());
            key(one).cmp(&key(other))
        });
        Ok(groups)
    }

    /// The group of this key, or else that of the pool of this name.
    pub async fn find(&self, name: &str) -> Result<Group, Failure> {
        let groups = self.list(None).await?;
        match pick(&groups, name) {
            Some(found) => Ok(found.clone()),
            None => Err(self.unknown(name, &groups).await),
        }
    }

    /// The same with all that belongs to it.
    pub async fn whole(&self, group: Group) -> Result<Whole, Failure> {
        self.parts(group).await.map_err(|Unread { objects, error }| objects.failure(&error, "list", ""))
    }

    /// A group that was found before, as it is now.
    pub async fn look(&self, pool: &str, machine_pool: &str) -> kube::Result<Whole> {
        let pool = decode_one(&self.pools.try_get(pool).await?)?;
        let machine_pool = Some(decode_one(&self.machine_pools.try_get(machine_pool).await?)?);
        self.parts(Group { pool, machine_pool }).await.map_err(|unread| unread.error)
    }

    async fn parts(&self, group: Group) -> Result<Whole, Unread<'_>> {
        let uid = group.pool.metadata.uid.clone().unwrap_or_default();
        let of_group = selector(GROUP_LABEL, group.key());
        let mut shard_groups: Vec<NstanceShardGroup> = read(&self.shard_groups, of_group.as_deref()).await?;
        shard_groups.retain(|found| is_owned(&found.metadata, &uid));
        let members = group.machine_pool.as_ref().and_then(|pool| selector(POOL_LABEL, pool.name()));
        let mut machines: Vec<NstanceMachine> = read(&self.machines, members.as_deref()).await?;
        machines.retain(|found| is_owned(&found.metadata, &uid));
        let cluster_machines: Vec<ClusterMachine> = read(&self.cluster_machines, members.as_deref()).await?;
        let nodes = cluster_machines.into_iter().filter_map(|machine| {
            let Reference { kind, name, .. } = machine.spec.infrastructure_ref;
            let node = machine.status.node_ref.filter(|_| kind == NstanceMachine::KIND)?;
            Some((name, node.name))
        });
        let nodes = nodes.filter(|(_, node)| !node.is_empty()).collect();
        Ok(Whole { group, shard_groups, machines, nodes })
    }

    /// Says which groups there are instead, here or in another namespace.
    async fn unknown(&self, name: &str, groups: &[Group]) -> Failure {
        let failure = Failure::new(format!("there is no group {name} {}", self.pools.place()));
        let all = Self::new(self.client.clone(), None);
        // Only for the hint: without the right to look, there is none of this kind.
        let everywhere = if groups.is_empty() || close(name, groups).is_empty() {
            all.pools.list(None).await.ok().and_then(|found| decoded::<NstanceMachinePool>(&found).ok())
        } else {
            None
        };
        let elsewhere: Vec<Group> =
            everywhere.into_iter().flatten().map(|pool| Group { pool, machine_pool: None }).collect();
        failure.hint(advice(name, groups, &elsewhere))
    }
}

/// What could not be read, and why.
struct Unread<'a> {
    objects: &'a Objects,
    error: kube::Error,
}

async fn read<'a, T: DeserializeOwned>(objects: &'a Objects, selector: Option<&str>) -> Result<Vec<T>, Unread<'a>> {
    let unread = |error| Unread { objects, error };
    let found = objects.try_list(selector).await.map_err(unread)?;
    found.iter().map(|object| decode_one(object).map_err(unread)).collect()
}

fn decode_one<T: DeserializeOwned>(object: &DynamicObject) -> kube::Result<T> {
    let value = serde_json::to_value(object).and_then(serde_json::from_value);
    value.map_err(kube::Error::SerdeError)
}

fn group(pool: NstanceMachinePool, machine_pools: &[MachinePool]) -> Group {
    let machine_pool = machine_pools.iter().find(|machine_pool| machine_pool.is_of(&pool)).cloned();
    Group { pool, machine_pool }
}

/// By key before name. Of several pools of one key the oldest has the group.
fn pick<'a>(groups: &'a [Group], name: &str) -> Option<&'a Group> {
    let of_key = groups.iter().filter(|group| group.key() == name);
    let oldest = of_key.min_by_key(|group| {
        let metadata = &group.pool.metadata;
        (metadata.creation_timestamp.as_ref().map(|time| time.0), metadata.name.clone())
    });
    oldest.or_else(|| groups.iter().find(|group| group.pool_name() == name))
}

/// Keys that are nearly this one.
fn close<'a>(name: &str, groups: &'a [Group]) -> Vec<&'a str> {
    let keys: Vec<&str> = groups.iter().map(Group::key).collect();
    similar::get_close_matches(name, &keys, SUGGESTIONS, LIKENESS)
}

fn advice(name: &str, here: &[Group], elsewhere: &[Group]) -> String {
    if let Some(found) = pick(elsewhere, name) {
        let namespace = found.pool.metadata.namespace.as_deref().unwrap_or_default();
        return format!("namespace {namespace} has a group of this name: add -n {namespace}");
    }
    let close = close(name, here);
    if !close.is_empty() {
        return format!("did you mean {}? `strata group list` shows all", close.join(" or "));
    }
    "`strata group list -A` shows which there are; -n names another namespace".to_owned()
}

fn selector(label: &str, value: &str) -> Option<String> {
    (1..=LONGEST_LABEL).contains(&value.len()).then(|| format!("{label}={value}"))
}

fn is_owned(metadata: &ObjectMeta, uid: &str) -> bool {
    metadata.owner_references.iter().flatten().any(|owner| owner.uid == uid)
}

fn decoded<T: DeserializeOwned>(objects: &[DynamicObject]) -> Result<Vec<T>, Failure> {
    objects.iter().map(decode).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn groups(pools: &[(&str, &str, &str)]) -> Vec<Group> {
        let read = |&(name, key, created): &(&str, &str, &str)| {
            let metadata = json!({ "name": name, "namespace": "machines", "creationTimestamp": created });
            let pool = json!({ "metadata": metadata, "spec": { "group": key, "shards": ["a"] } });
            Group { pool: serde_json::from_value(pool).unwrap(), machine_pool: None }
        };
        pools.iter().map(read).collect()
    }

    const EARLY: &str = "2026-01-01T00:00:00Z";
    const LATE: &str = "2026-01-02T00:00:00Z";

    #[test]
    fn a_group_is_found_by_its_key_then_by_its_pools_name() {
        let groups = groups(&[("web", "other", EARLY), ("second", "web", LATE), ("first", "web", EARLY)]);
        let found = |name: &str| pick(&groups, name).map(Group::pool_name);
        assert_eq!(found("web"), Some("first"), "the oldest pool has the group");
        assert_eq!(found("second"), Some("second"));
        assert_eq!(found("none"), None);
    }

    #[test]
    fn an_unknown_group_is_answered_with_what_there_is() {
        let here = groups(&[("web", "web", EARLY), ("batch", "batch", EARLY)]);
        assert_eq!(advice("wbe", &here, &[]), "did you mean web? `strata group list` shows all");
        assert!(advice("gpu", &here, &[]).starts_with("`strata group list -A`"));
        let elsewhere = advice("web", &[], &here);
        assert_eq!(elsewhere, "namespace machines has a group of this name: add -n machines");
    }

    #[test]
    fn a_machine_pool_is_found_by_what_it_refers_to() {
        let read = |kind: &str, name: &str, namespace: &str| -> MachinePool {
            let reference = json!({ "apiGroup": GROUP, "kind": kind, "name": name });
            let spec = json!({ "clusterName": "c", "template": { "spec": { "infrastructureRef": reference } } });
            let metadata = json!({ "name": "any", "namespace": namespace });
            serde_json::from_value::<MachinePool>(json!({ "metadata": metadata, "spec": spec })).unwrap()
        };
        let pool = groups(&[("web", "web", EARLY)]).remove(0).pool;
        assert!(read("NstanceMachinePool", "web", "machines").is_of(&pool));
        assert!(!read("NstanceMachinePool", "web", "elsewhere").is_of(&pool));
        assert!(!read("NstanceMachinePool", "batch", "machines").is_of(&pool));
        assert!(!read("DockerMachinePool", "web", "machines").is_of(&pool));
        let bare: MachinePool =
            serde_json::from_value(json!({ "metadata": {}, "spec": Value::Null })).unwrap_or_default();
        assert!(!bare.is_of(&pool));
    }
}
