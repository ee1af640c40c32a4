//! A changed spec until the new pod is there.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use api::performer::{Performer, owned_name};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
};
use serde::Serialize;
use serde_json::json;

use super::{follow::Follower, ground::Ground};

/// One after another; a p99 needs at least a hundred.
const CHANGES: usize = 200;

/// Milliseconds from sending a new image to a client's watch seeing the pod that has it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Change {
    pub changes: usize,
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub slowest_ms: f64,
}

pub async fn measure(ground: &Ground, namespace: &str) -> Result<Change> {
    let performers: Api<Performer> = Api::namespaced(ground.client.clone(), namespace);
    let mut pods = Follower::open(Api::<Pod>::namespaced(ground.client.clone(), namespace)).await?;
    let names = performers.list_metadata(&kube::api::ListParams::default()).await?;
    let image = "registry.test/performer:v2";
    let mut times = Vec::new();
    for name in names.items.iter().map(ResourceExt::name_any).take(CHANGES) {
        let patch = json!({ "spec": { "image": image } });
        let started = Instant::now();
        performers.patch(&name, &PatchParams::default(), &Patch::Merge(&patch)).await?;
        let pod_name = owned_name(&name);
        let is_new = |pod: &Pod| {
            let container = pod.spec.as_ref().and_then(|spec| spec.containers.first());
            pod.name_any() == pod_name && container.and_then(|container| container.image.as_deref()) == Some(image)
        };
        let seen = pods.until(Duration::from_mins(2), "the new pod", is_new).await.with_context(|| name.clone())?;
        times.push(seen.duration_since(started).as_secs_f64() * 1000.0);
    }
    times.sort_by(f64::total_cmp);
    ground.settled().await?;
    Ok(Change {
        changes: times.len(),
        p50_ms: percentile(&times, 50),
        p99_ms: percentile(&times, 99),
        slowest_ms: percentile(&times, 100),
    })
}

/// The smallest value that so many per cent of the sorted values do not exceed.
pub fn percentile(sorted: &[f64], percent: usize) -> f64 {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use std::cmp::Ordering;

    use super::*;

    #[test]
    fn percentiles_are_values_that_occurred() {
        let values: Vec<f64> = (1..=200).map(f64::from).collect();
        let check = |values: &[f64], percent, expected: f64| {
            assert_eq!(percentile(values, percent).total_cmp(&expected), Ordering::Equal, "{percent} %");
        };
        check(&values, 50, 100.0);
        check(&values, 99, 198.0);
        check(&values, 100, 200.0);
        check(&[7.0], 99, 7.0);
    }
}
