//! What the original left in a cluster goes on under this operator, instance by instance.

use std::{collections::BTreeMap, fmt::Write};

use anyhow::{Context, Result};
use api::machine::{API_VERSION, NstanceMachine, NstanceMachinePool, NstanceShardGroup};
use base64::{Engine, engine::general_purpose::STANDARD};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use serde_json::{Value, json};
use shard::{identity::key_pair, wire};
use testbed::ControlPlane;

use crate::{
    scene::{POLL, Scene},
    zones::{CLUSTER, TENANT},
};

const BOTH: &[&str] = &["dev-1", "dev-2"];
const NAME: &str = "dev--default";

/// Every instance with the shard that has it.
fn instances(scene: &Scene) -> BTreeMap<String, String> {
    let cloud = &scene.zones.cloud;
    let shard = |id: &str| cloud.order(id).map(|order| order.shard).unwrap_or_default();
    cloud.machines().into_iter().map(|found| (found.instance_id.clone(), shard(&found.instance_id))).collect()
}

/// The original's operator asked for these sizes.
async fn ask(scene: &Scene, group: &str, sizes: [i32; 2]) -> Result<()> {
    for (shard, size) in BOTH.iter().zip(sizes) {
        let config = wire::GroupConfig { template: "test".to_owned(), size, ..wire::GroupConfig::default() };
        let request = wire::UpsertGroupRequest {
            key: group.to_owned(),
            config: Some(config),
            ..wire::UpsertGroupRequest::default()
        };
        scene.zones.client(shard)?.upsert_group(request, &wire::Fence::default()).await?;
    }
    Ok(())
}

/// The key in the form that Go writes: PKCS#8 without the public part.
fn as_go_writes(der: &[u8]) -> String {
    // Version 0, Ed25519, and a string of 32 bytes in a string of 34.
    let head = [0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20];
    let seed = &der[head.len()..head.len() + 32];
    format!("-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n", STANDARD.encode([&head, seed].concat()))
}

/// What the original keeps beside its pools; its nonce it has deleted.
async fn leave_identity(scene: &Scene) -> Result<Value> {
    let key = key_pair();
    let private = as_go_writes(key.serialized_der());
    let certificate = scene.zones.certificate(&key.public_key_pem())?;
    let secret = |name: &str, entries: Value| {
        json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name, "namespace": scene.namespace },
            "stringData": entries,
        })
    };
    let tls = json!({ "tls.crt": certificate, "tls.key": private });
    let keys = json!({ "private.key": private, "public.key": key.public_key_pem() });
    scene.api::<Secret>().delete("nstance-operator-nonce", &DeleteParams::default()).await?;
    let secrets = [secret("nstance-operator-key", keys), secret("nstance-operator-cert", tls.clone())];
    ControlPlane::shared().await?.install(&secrets).await?;
    Ok(tls)
}

async fn leave_cluster(scene: &Scene) -> Result<()> {
    let metadata = json!({ "name": NAME, "namespace": scene.namespace });
    let endpoint = json!({ "host": "10.0.0.1", "port": 443 });
    let reference = json!({ "apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "NstanceCluster", "name": NAME });
    let objects = [
        json!({
            "apiVersion": API_VERSION, "kind": "NstanceCluster", "metadata": metadata,
            "spec": { "controlPlaneEndpoint": endpoint },
        }),
        json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "metadata": metadata,
            "spec": { "infrastructureRef": reference, "controlPlaneEndpoint": endpoint },
        }),
    ];
    Ok(ControlPlane::shared().await?.install(&objects).await?)
}

/// A pool as its operator leaves it, with the raw IDs of the provider, and its shard groups with these sizes.
async fn leave_pool(scene: &Scene, mut pool: Value, sizes: [i32; 2]) -> Result<()> {
    let control_plane = ControlPlane::shared().await?;
    let name = pool["metadata"]["name"].as_str().context("a name")?.to_owned();
    let group = pool["spec"]["group"].as_str().context("a group")?.to_owned();
    let managed = json!({ "nstance.dev/managed-by": "nstance-operator" });
    let mut ids: Vec<String> = instances(scene).into_keys().collect();
    ids.sort();
    pool["metadata"] = json!({
        "name": name, "namespace": scene.namespace, "annotations": managed,
        "finalizers": ["nstancemachinepool.infrastructure.cluster.x-k8s.io/finalizer"],
    });
    pool["spec"]["providerIDList"] = json!(ids);
    control_plane.install(&[pool]).await?;
    scene.create_machine_pool(&name, Some(sizes.iter().sum())).await?;
    let made = scene.api::<NstanceMachinePool>().get(&name).await?;
    let owner = json!({
        "apiVersion": API_VERSION, "kind": "NstanceMachinePool", "name": name, "uid": made.metadata.uid,
        "controller": true, "blockOwnerDeletion": true,
    });
    for (shard, size) in BOTH.iter().zip(sizes) {
        let metadata = json!({
            "name": format!("{group}--{shard}"), "namespace": scene.namespace, "ownerReferences": [owner],
            "labels": { "nstance.dev/group": group, "nstance.dev/shard": shard },
            "finalizers": ["nstanceshardgroup.infrastructure.cluster.x-k8s.io/finalizer"],
        });
        let spec = json!({ "group": group, "shard": shard, "size": size, "template": "test" });
        let found = json!({
            "apiVersion": API_VERSION, "kind": "NstanceShardGroup", "metadata": metadata, "spec": spec,
        });
        control_plane.install(&[found]).await?;
        let here: Vec<_> = instances(scene).into_iter().filter(|(_, at)| at == shard).map(|(id, _)| id).collect();
        let status = json!({ "observedGeneration": 1, "replicas": here.len(), "providerIDs": here });
        let groups = scene.api::<NstanceShardGroup>();
        let patch = Patch::Merge(json!({ "status": status }));
        groups.patch_status(&format!("{group}--{shard}"), &PatchParams::default(), &patch).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a99_the_originals_configuration_secrets_and_pools_go_on_without_a_change_to_any_instance() -> Result<()> {
    let Some(published) = testbed::published() else { return Ok(()) };
    let mut scene = Scene::without_operator("takeover", BOTH, json!({})).await?;
    // A pool, and a group that the original has not imported yet, of which the shards have uneven shares.
    ask(&scene, "example", [2, 1]).await?;
    scene.until("its instances run", || async { Ok(instances(&scene).len() == 3) }).await?;
    let text = std::fs::read_to_string(published.join("manifests/nstance/examples-nstancemachinepool.yaml"))?;
    let tls = leave_identity(&scene).await?;
    leave_cluster(&scene).await?;
    leave_pool(&scene, serde_saphyr::from_str(&text)?, [2, 1]).await?;
    ask(&scene, "later", [0, 2]).await?;
    scene.until("all instances run", || async { Ok(instances(&scene).len() == 5) }).await?;
    let before = instances(&scene);

    let mut config = format!("cluster_id: {CLUSTER}\ntenant: {TENANT}\nsleep:\n  enabled: false\nshards:\n");
    for (shard, address) in scene.zones.addresses() {
        let (registration, operator) = (&address["registration_addr"], &address["operator_addr"]);
        writeln!(config, "  {shard}: {{ registration_addr: {registration}, operator_addr: {operator} }}")?;
    }
    scene.write_config(&config)?;
    scene.start().await?;
    for pool in ["example", "later"] {
        scene.until(pool, || async { Ok(scene.pool(pool).await?.is_some()) }).await?;
        scene.until_pool(pool, "Ready", "True/Reconciled").await?;
    }
    let are_known = || async {
        let machines = scene.capi("Machine").list(&ListParams::default()).await?.items;
        let is_linked = machines.iter().all(|machine| machine.data["status"]["nodeRef"]["name"].is_string());
        let members = scene.api::<NstanceMachine>().list(&ListParams::default()).await?.items;
        let names = members.into_iter().filter_map(|member| member.metadata.name);
        Ok(machines.len() == 5 && is_linked && names.eq(before.keys().cloned()))
    };
    scene.until("every instance has its Machine and its Node", are_known).await?;
    // Whatever the operator has in mind would be asked for with the next lists.
    tokio::time::sleep(POLL * 2).await;
    assert_eq!((instances(&scene), scene.zones.cloud.made()), (before, 5));
    assert_eq!(scene.sizes("example", BOTH).await?, [Some(2), Some(1)]);
    assert_eq!(scene.sizes("later", BOTH).await?, [Some(0), Some(2)]);
    let spec = scene.pool("example").await?.and_then(|pool| pool.spec).context("the pool")?;
    assert_eq!(spec.provider_id_list.len(), 3, "{:?}", spec.provider_id_list);
    let stored = scene.api::<Secret>().get("nstance-operator-cert").await?.data.context("entries")?;
    for (entry, bytes) in stored {
        assert_eq!(String::from_utf8(bytes.0)?, tls[&entry].as_str().unwrap_or_default(), "{entry} is as it was");
    }
    // From here on it is a pool as any other.
    scene.scale("example", 4).await?;
    scene.until("one more instance", || async { Ok(instances(&scene).len() == 6) }).await
}
