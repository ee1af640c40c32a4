//! The operator with all instances at rest: what it asks the API server and the shards for.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use serde::Serialize;

use super::{
    meter::{Counts, Meter},
    zones::Zones,
};
use crate::bench::{
    ground::Ground,
    operator::{Operator, Usage},
    tally::{by_resource, each, of_operator},
};

/// Two polls of each shard.
const REST: Duration = Duration::from_mins(1);

/// A list of shards is read again within seconds.
const RELOAD: Duration = Duration::from_mins(1);
const LOOK: Duration = Duration::from_millis(100);

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Rest {
    pub seconds: f64,
    /// Of the operator, by verb and resource; its lease aside. A watch is logged when it ends.
    pub requests: BTreeMap<String, usize>,
    /// Those that are no watches.
    pub other_requests: usize,
    /// To all shards, by method.
    pub calls: Counts,
    pub lists_each: f64,
    /// Those that are no lists.
    pub other_calls: usize,
    pub millicores: f64,
    pub usage: Usage,
}

pub async fn measure(ground: &Ground, operator: &Operator, zones: &Zones) -> Result<Rest> {
    // Only now, so that nothing stood between the operator and its shards before.
    let mut meters = BTreeMap::new();
    for (shard, bound) in &zones.bound {
        meters.insert(shard.clone(), Meter::start(zones, bound.operator).await?);
    }
    zones.write_config(|shard, _| meters[shard].address)?;
    let deadline = Instant::now() + RELOAD;
    while !meters.values().all(|meter| meter.counts().contains_key("WatchErrors")) {
        ensure!(Instant::now() < deadline, "the operator does not follow its shards to their new addresses");
        tokio::time::sleep(LOOK).await;
    }
    ground.settled().await?;
    let all = || {
        let mut sum = Counts::new();
        for (method, calls) in meters.values().flat_map(Meter::counts) {
            *sum.entry(method).or_default() += calls;
        }
        sum
    };
    let (mark, before, called) = (ground.mark()?, operator.usage()?, all());
    tokio::time::sleep(REST).await;
    let usage = operator.usage()?;
    let mut calls = all();
    for (method, count) in &mut calls {
        *count -= called.get(method).copied().unwrap_or(0);
    }
    calls.retain(|_, count| *count > 0);
    let requests = by_resource(of_operator(&ground.entries_after(mark)?));
    let (lists, seconds) = (calls.get("ListGroups").copied().unwrap_or(0), REST.as_secs_f64());
    Ok(Rest {
        seconds,
        other_requests: requests.iter().filter(|(what, _)| !what.starts_with("watch ")).map(|(_, count)| count).sum(),
        requests,
        lists_each: each(lists, meters.len()) / (seconds / 30.0),
        other_calls: calls.values().sum::<usize>() - lists,
        calls,
        millicores: (usage.cpu_ms - before.cpu_ms) / seconds,
        usage,
    })
}
