//! The performers of the benchmark, and writing or removing many objects.

use std::{collections::HashSet, time::Instant};

use anyhow::Result;
use api::performer::{Performer, Phase};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Resource, api::PostParams};
use serde_json::json;

use super::{
    follow::Follower,
    ground::{Ground, WRITERS},
};

/// A small but complete performer, as a user would write it.
pub fn performer(namespace: &str, number: usize) -> Performer {
    let object = json!({
        "metadata": { "name": format!("bench-{number:04}"), "namespace": namespace },
        "spec": {
            "avsAddress": format!("0x{number:040x}"),
            "image": "registry.test/performer:v1",
            "version": "v1",
            "config": { "grpcPort": 9090, "environment": { "LOG_LEVEL": "info", "NETWORK": "mainnet" } },
            "resources": { "requests": { "cpu": "100m", "memory": "128Mi" } },
        },
    });
    serde_json::from_value(object).expect("a performer")
}

/// Creates all performers, [`WRITERS`] at a time, as quickly as the server takes them.
pub async fn create(ground: &Ground, namespace: &str) -> Result<Vec<Performer>> {
    let api: Api<Performer> = Api::namespaced(ground.client.clone(), namespace);
    let params = PostParams::default();
    let (api, params) = (&api, &params);
    let writes = (0..ground.count).map(|number| async move { api.create(params, &performer(namespace, number)).await });
    Ok(stream::iter(writes).buffer_unordered(WRITERS).try_collect().await?)
}

fn is_ready(performer: &Performer) -> bool {
    performer.status.as_ref().is_some_and(|status| status.ready && status.phase == Some(Phase::Running))
}

pub fn is_pod_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// When a watch had seen half of all performers Ready, and when the last one.
pub struct Ready {
    pub half: Instant,
    pub all: Instant,
}

pub async fn ready(ground: &Ground, performers: &mut Follower<Performer>) -> Result<Ready> {
    let (count, mut half) = (ground.count, None);
    let (mut half_ready, mut all_ready) = (all_ready(count.div_ceil(2), is_ready), all_ready(count, is_ready));
    let is_enough = |performer: &Performer| {
        if half_ready(performer) {
            half.get_or_insert_with(Instant::now);
        }
        all_ready(performer)
    };
    let all = performers.until(ground.patience(), "all performers Ready", is_enough).await?;
    Ok(Ready { half: half.unwrap_or(all), all })
}

/// Says yes once `count` different objects were ready.
pub fn all_ready<K: Resource>(count: usize, is_ready: fn(&K) -> bool) -> impl FnMut(&K) -> bool {
    let mut ready = HashSet::new();
    move |object| {
        if is_ready(object) {
            ready.extend(object.meta().name.clone());
        }
        ready.len() >= count
    }
}
