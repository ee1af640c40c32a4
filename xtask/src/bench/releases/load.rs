//! All releases from nothing to Ready.

use std::time::Instant;

use anyhow::Result;
use api::{
    condition::{ConditionStatus, ConditionType},
    workspace::HelmRelease,
};
use futures::{StreamExt, TryStreamExt, stream};
use kube::{Api, api::PostParams};
use serde::Serialize;
use serde_json::json;

use super::{CHART, requests::Requests};
use crate::bench::{
    crowd::all_ready,
    follow::Follower,
    ground::{Ground, WRITERS},
    operator::{Operator, Usage},
};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Load {
    pub count: usize,
    /// From the first create to the moment at which a client's watch has seen the last one Ready.
    pub wall_seconds: f64,
    pub requests: Requests,
    pub rounds: f64,
    pub cpu_ms: f64,
    pub usage: Usage,
}

pub async fn measure(ground: &Ground, operator: &Operator, namespace: &str, repo: &str) -> Result<Load> {
    ground.settled().await?;
    let (mark, before) = (ground.mark()?, operator.usage()?);
    let api: Api<HelmRelease> = Api::namespaced(ground.client.clone(), namespace);
    let mut releases = Follower::open(api.clone()).await?;
    let started = Instant::now();
    let ready = releases.until(ground.patience(), "all releases Ready", all_ready(ground.count, is_ready));
    let (api, params) = (&api, &PostParams::default());
    let writes = (0..ground.count).map(|number| async move { api.create(params, &release(number, repo)).await });
    let create = async {
        stream::iter(writes).buffer_unordered(WRITERS).try_collect::<Vec<_>>().await?;
        Ok(())
    };
    let (ended, ()) = futures::try_join!(ready, create)?;
    ground.settled().await?;
    let usage = operator.usage()?;
    Ok(Load {
        count: ground.count,
        wall_seconds: ended.duration_since(started).as_secs_f64(),
        requests: Requests::of(&ground.entries_after(mark)?),
        rounds: operator.metric(super::unchanged::ROUNDS).await?,
        cpu_ms: usage.cpu_ms - before.cpu_ms,
        usage,
    })
}

fn release(number: usize, repo: &str) -> HelmRelease {
    let object = json!({
        "metadata": { "name": format!("bench-{number:04}") },
        "spec": {
            "chart": { "repo": repo, "name": CHART.0, "version": CHART.1 },
            "values": { "note": "bench" },
            "wait": false,
        },
    });
    serde_json::from_value(object).expect("a release")
}

pub fn is_ready(release: &HelmRelease) -> bool {
    let ready = release.status.as_ref().and_then(|status| status.condition(ConditionType::Ready));
    ready.is_some_and(|ready| {
        ready.status == ConditionStatus::True && ready.observed_generation == release.metadata.generation
    })
}
