//! What the control plane itself takes: no operator can be quicker.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use api::performer::Performer;
use futures::{StreamExt, TryStreamExt, future::try_join_all, stream};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Service};
use kube::{
    Api,
    api::{DeleteParams, ListParams, ObjectMeta, PostParams},
};
use plan::performers::{Identity, pod, service, validate};
use serde::Serialize;

use super::{
    crowd,
    follow::Follower,
    ground::{Ground, WRITERS},
    tally::AllWrites,
};

/// Long enough for a steady rate, short enough that three of them are no burden.
const WINDOW: Duration = Duration::from_secs(5);
const CLIENTS: [usize; 3] = [1, 8, 64];
const PAYLOAD: usize = 1024;

/// Creates of 1 KB ConfigMaps, each client on a connection of its own.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RawCreates {
    pub clients: usize,
    pub per_second: f64,
}

pub async fn raw_creates(ground: &Ground) -> Result<Vec<RawCreates>> {
    let mut rates = Vec::new();
    for clients in CLIENTS {
        let namespace = ground.control_plane.namespace("raw").await?;
        let apis = try_join_all((0..clients).map(|_| ground.control_plane.client())).await?;
        let apis: Vec<Api<ConfigMap>> = apis.into_iter().map(|client| Api::namespaced(client, &namespace)).collect();
        // The first request of a client opens its connection.
        try_join_all(apis.iter().map(|api| api.get_opt("none"))).await?;
        let started = Instant::now();
        let writers = apis.iter().enumerate().map(|(client, api)| create_until(started + WINDOW, client, api));
        let created: usize = try_join_all(writers).await?.iter().sum();
        rates.push(RawCreates { clients, per_second: per_second(created, started.elapsed()) });
        // The controller-manager keeps one of its own in every namespace.
        let ours = ListParams::default().fields("metadata.name!=kube-root-ca.crt");
        apis[0].delete_collection(&DeleteParams::default(), &ours).await?;
        ground.settled().await?;
    }
    Ok(rates)
}

async fn create_until(end: Instant, client: usize, api: &Api<ConfigMap>) -> Result<usize> {
    let mut created = 0;
    while Instant::now() < end {
        let metadata = ObjectMeta { name: Some(format!("raw-{client}-{created}")), ..ObjectMeta::default() };
        let data = [("payload".to_owned(), "x".repeat(PAYLOAD))].into();
        let map = ConfigMap { metadata, data: Some(data), ..ConfigMap::default() };
        api.create(&PostParams::default(), &map).await?;
        created += 1;
    }
    Ok(created)
}

#[allow(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
fn per_second(count: usize, elapsed: Duration) -> f64 {
    count as f64 / elapsed.as_secs_f64()
}

/// The pods and Services of all performers, written by the benchmark.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Floor {
    pub writers: usize,
    pub wall_seconds: f64,
    pub all_writes: AllWrites,
}

/// The performers that own the objects are there before the clock starts, so that the floor holds nothing but pods
/// and Services, and all other controllers (garbage collector, endpoints) have the same work as with an operator.
pub async fn objects(ground: &Ground) -> Result<Floor> {
    let namespace = ground.control_plane.namespace("floor").await?;
    let performers = crowd::create(ground, &namespace).await?;
    ground.settled().await?;
    let mark = ground.mark()?;
    let mut pods = Follower::open(Api::<Pod>::namespaced(ground.client.clone(), &namespace)).await?;
    let started = Instant::now();
    let ready = pods.until(ground.patience(), "all pods ready", crowd::all_ready(ground.count, crowd::is_pod_ready));
    let (ended, ()) = futures::try_join!(ready, write_objects(ground, &namespace, &performers))?;
    ground.settled().await?;
    let all_writes = AllWrites::of(&ground.entries_after(mark)?, ground.count);
    Ok(Floor { writers: WRITERS, wall_seconds: ended.duration_since(started).as_secs_f64(), all_writes })
}

async fn write_objects(ground: &Ground, namespace: &str, performers: &[Performer]) -> Result<()> {
    let pods: &Api<Pod> = &Api::namespaced(ground.client.clone(), namespace);
    let services: &Api<Service> = &Api::namespaced(ground.client.clone(), namespace);
    let writes = performers.iter().map(|performer| async move {
        let desired = validate(performer).map_err(|invalid| anyhow::anyhow!(invalid.message))?;
        let identity = Identity::of(performer);
        let params = PostParams::default();
        pods.create(&params, &pod(&desired, &identity, 0)).await.context("a pod of the floor")?;
        services.create(&params, &service(&desired, &identity)).await.context("a Service of the floor")?;
        anyhow::Ok(())
    });
    stream::iter(writes).buffer_unordered(WRITERS).try_collect().await
}
