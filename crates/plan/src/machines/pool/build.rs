//! The objects that a pool needs.

use api::machine::{
    API_VERSION, CLUSTER_LABEL, GROUP, GROUP_LABEL, MACHINE_FINALIZER, MANAGED_BY, MANAGED_BY_ANNOTATION,
    NstanceMachine, NstanceMachinePool, NstanceMachinePoolSpec, NstanceShardGroup, NstanceShardGroupSpec, POOL_LABEL,
    SHARD_LABEL, pool_label, shard_group_name,
};
use serde_json::{Value, json};

/// The version of Cluster API's own kinds.
const CLUSTER_API: &str = "cluster.x-k8s.io/v1beta2";

fn name(pool: &NstanceMachinePool) -> &str {
    pool.metadata.name.as_deref().unwrap_or_default()
}

fn owner(pool: &NstanceMachinePool, is_controller: bool) -> Value {
    let mut owner = json!({
        "apiVersion": API_VERSION,
        "kind": NstanceMachinePool::KIND,
        "name": name(pool),
        "uid": pool.metadata.uid,
    });
    if is_controller {
        owner["controller"] = json!(true);
        owner["blockOwnerDeletion"] = json!(true);
    }
    owner
}

/// The MachinePool of a pool that has none.
pub fn machine_pool(name: &str, namespace: &str, cluster: &str, replicas: i32) -> Value {
    json!({
        "apiVersion": CLUSTER_API,
        "kind": "MachinePool",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "annotations": { MANAGED_BY_ANNOTATION: MANAGED_BY },
        },
        "spec": {
            "clusterName": cluster,
            "replicas": replicas,
            "template": { "spec": {
                "clusterName": cluster,
                // The shard's template has what an instance starts with.
                "bootstrap": { "dataSecretName": "" },
                "infrastructureRef": { "apiGroup": GROUP, "kind": NstanceMachinePool::KIND, "name": name },
            } },
        },
    })
}

/// What the pool declares for one of its shards.
pub(super) fn shard_group_spec(spec: &NstanceMachinePoolSpec, shard: &str, size: i32) -> NstanceShardGroupSpec {
    let text = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    NstanceShardGroupSpec {
        group: spec.group.clone(),
        shard: shard.to_owned(),
        size: Some(size),
        template: spec.template.as_deref().and_then(text),
        instance_type: spec.instance_type.as_deref().and_then(text),
        subnet_pool: text(spec.subnet_pool()),
        subnets: Vec::new(),
        vars: spec.vars.clone(),
    }
}

pub(super) fn shard_group(pool: &NstanceMachinePool, spec: &NstanceShardGroupSpec) -> Value {
    json!({
        "apiVersion": API_VERSION,
        "kind": NstanceShardGroup::KIND,
        "metadata": {
            "name": shard_group_name(&spec.group, &spec.shard),
            "namespace": pool.metadata.namespace,
            "labels": { GROUP_LABEL: spec.group, SHARD_LABEL: spec.shard },
            "ownerReferences": [owner(pool, true)],
        },
        "spec": spec,
    })
}

/// For an instance that a shard reports. Cluster API becomes its controller, so the pool is an owner only.
pub(super) fn machine(pool: &NstanceMachinePool, cluster: &str, owner_name: &str, shard: &str, id: &str) -> Value {
    let group = pool.spec.as_ref().map_or("", |spec| spec.group.as_str());
    json!({
        "apiVersion": API_VERSION,
        "kind": NstanceMachine::KIND,
        "metadata": {
            "name": id,
            "namespace": pool.metadata.namespace,
            "labels": { CLUSTER_LABEL: cluster, POOL_LABEL: pool_label(owner_name), SHARD_LABEL: shard },
            // From the start: deleted without it, the object would leave its Machine and its instance behind.
            "finalizers": [MACHINE_FINALIZER],
            "ownerReferences": [owner(pool, false)],
        },
        "spec": { "group": group },
    })
}
