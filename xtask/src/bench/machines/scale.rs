//! One pool from nothing to all its instances.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use api::{
    condition::{ConditionStatus, ConditionType},
    machine::{API_VERSION, NstanceMachine, NstanceMachinePool},
};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api,
    api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams},
};
use serde::Serialize;
use serde_json::{Value, json};

use super::zones::{CLUSTER, TEMPLATE, TENANT, Zones};
use crate::bench::{
    follow::Follower,
    ground::{Ground, OPERATOR_NAMESPACE, WRITERS},
    operator::{Operator, Usage},
    progress,
    tally::{by_resource, of_operator},
};

/// As the audit log names Cluster API.
const CAPI_USER: &str = "system:serviceaccount:capi-system:capi-manager";

/// Lists of many objects give no event; this is the resolution of what is read from them.
const LOOK: Duration = Duration::from_millis(500);

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Scale {
    pub instances: usize,
    /// From the patch of `replicas` until the pool's `providerIDList` has all of them.
    pub published_seconds: f64,
    /// Until each has its NstanceMachine.
    pub members_seconds: f64,
    /// Until Cluster API has made a Machine for each: its own part.
    pub machines_seconds: f64,
    /// Until the last of all writes that follow from it.
    pub settled_seconds: f64,
    /// From the first Node until Cluster API has linked each to its Machine.
    pub linked_seconds: f64,
    /// Of the operator, by verb and resource; its lease aside.
    pub own: BTreeMap<String, usize>,
    pub capi_requests: usize,
    pub cpu_ms: f64,
    pub usage: Usage,
}

pub async fn measure(ground: &Ground, operator: &Operator, zones: &Zones) -> Result<Scale> {
    let pools: Api<NstanceMachinePool> = Api::namespaced(ground.client.clone(), OPERATOR_NAMESPACE);
    let mut following = Follower::open(pools.clone()).await?;
    create_pool(ground, &pools, zones).await?;
    following.until(ground.patience(), "the empty pool Ready", is_ready).await?;
    ground.settled().await?;

    let (mark, before) = (ground.mark()?, operator.usage()?);
    let started = Instant::now();
    let patch = Patch::Merge(json!({ "spec": { "replicas": ground.count } }));
    capi(ground, "MachinePool").patch(TEMPLATE, &PatchParams::default(), &patch).await?;
    let has_all =
        |pool: &NstanceMachinePool| pool.spec.as_ref().is_some_and(|spec| spec.provider_id_list.len() == ground.count);
    let published = following.until(ground.patience(), "all provider IDs published", has_all).await?;
    let members: Api<NstanceMachine> = Api::namespaced(ground.client.clone(), OPERATOR_NAMESPACE);
    let counted = async || Ok(members.list_metadata(&ListParams::default()).await?.items.len());
    let members_at = until(ground, "an NstanceMachine for each", counted).await?;
    let machines = capi(ground, "Machine");
    let counted = async || Ok(machines.list_metadata(&ListParams::default()).await?.items.len());
    let machines_at = until(ground, "a Machine for each", counted).await?;
    ground.settled().await?;
    let settled = Instant::now();
    let entries = ground.entries_after(mark)?;
    let cpu_ms = operator.usage()?.cpu_ms - before.cpu_ms;

    progress("the instances join as Nodes");
    let joined = Instant::now();
    join(ground, zones).await?;
    let counted = async || {
        let all = machines.list(&ListParams::default()).await?.items;
        Ok(all.iter().filter(|machine| machine.data["status"]["nodeRef"]["name"].is_string()).count())
    };
    let linked = until(ground, "a Node for each Machine", counted).await?;
    ground.settled().await?;
    let seconds = |at: Instant| at.duration_since(started).as_secs_f64();
    Ok(Scale {
        instances: ground.count,
        published_seconds: seconds(published),
        members_seconds: seconds(members_at),
        machines_seconds: seconds(machines_at),
        settled_seconds: seconds(settled),
        linked_seconds: linked.duration_since(joined).as_secs_f64(),
        own: by_resource(of_operator(&entries)),
        capi_requests: entries.iter().filter(|entry| entry.user == CAPI_USER).count(),
        cpu_ms,
        usage: operator.usage()?,
    })
}

fn capi(ground: &Ground, kind: &str) -> Api<DynamicObject> {
    Api::namespaced_with(ground.client.clone(), OPERATOR_NAMESPACE, &capi_resource(kind))
}

fn capi_resource(kind: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("cluster.x-k8s.io", "v1beta2", kind))
}

async fn create_pool(ground: &Ground, pools: &Api<NstanceMachinePool>, zones: &Zones) -> Result<()> {
    let pool: Value = json!({
        "apiVersion": API_VERSION, "kind": "NstanceMachinePool", "metadata": { "name": TEMPLATE },
        "spec": { "group": TEMPLATE, "shards": zones.names(), "template": TEMPLATE },
    });
    pools.create(&PostParams::default(), &serde_json::from_value(pool)?).await?;
    let cluster = format!("{CLUSTER}--{TENANT}");
    let infrastructure = json!({ "apiGroup": api::machine::GROUP, "kind": "NstanceMachinePool", "name": TEMPLATE });
    let template =
        json!({ "clusterName": cluster, "bootstrap": { "dataSecretName": "" }, "infrastructureRef": infrastructure });
    let spec = json!({ "clusterName": cluster, "replicas": 0, "template": { "spec": template } });
    let object = DynamicObject::new(TEMPLATE, &capi_resource("MachinePool")).data(json!({ "spec": spec }));
    capi(ground, "MachinePool").create(&PostParams::default(), &object).await?;
    Ok(())
}

fn is_ready(pool: &NstanceMachinePool) -> bool {
    let ready = pool.status.as_ref().and_then(|status| status.condition(ConditionType::Ready));
    ready.is_some_and(|ready| ready.status == ConditionStatus::True)
}

/// Waits until there are as many as there should be.
async fn until(ground: &Ground, what: &str, count: impl AsyncFn() -> Result<usize>) -> Result<Instant> {
    let deadline = Instant::now() + ground.patience();
    loop {
        let found = count().await?;
        if found == ground.count {
            return Ok(Instant::now());
        }
        if Instant::now() > deadline {
            bail!("{what}: {found} of {} within {:?}", ground.count, ground.patience());
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// A Node for each instance, as its kubelet would register it. Nothing renews their heartbeats.
async fn join(ground: &Ground, zones: &Zones) -> Result<()> {
    let nodes = &Api::<Node>::all(ground.client.clone());
    let node = |id: String| async move {
        let shard = zones.cloud.order(&id).map(|order| order.shard).unwrap_or_default();
        let node = json!({
            "metadata": { "name": id }, "spec": { "providerID": format!("process:///{shard}/{id}") },
            "status": { "conditions": [{ "type": "Ready", "status": "True", "reason": "KubeletReady" }] },
        });
        nodes.create(&PostParams::default(), &serde_json::from_value(node)?).await?;
        anyhow::Ok(())
    };
    let ids = zones.cloud.machines().into_iter().map(|machine| machine.instance_id);
    stream::iter(ids.map(node)).buffer_unordered(WRITERS).try_collect().await
}
