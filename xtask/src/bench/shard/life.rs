//! A shard's day: instances from nothing, calls, rest, and instances that end.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use serde::Serialize;
use shard::{
    client::{Client, Watched},
    wire::{Fence, GroupConfig, UpsertGroupRequest},
};

use super::zone::Server;
use crate::bench::{tally::each, times::Times};

/// A p99 needs at least a hundred.
const CALLS: usize = 500;
const SNAPSHOTS: usize = 10;

/// Longer than any interval at which the server does something by itself, but for the collection every two minutes,
/// which only asks the provider.
const REST: Duration = Duration::from_secs(30);

/// For thousands of instances on a slow disk.
const PATIENCE: Duration = Duration::from_mins(20);

/// Between two looks at the sizes of groups.
const LOOK: Duration = Duration::from_millis(100);

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Load {
    pub instances: usize,
    pub wall_seconds: f64,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Rest {
    pub seconds: f64,
    /// All but those of the two locks.
    pub writes: usize,
    pub lock_writes: usize,
}

fn name(number: usize) -> String {
    format!("g{number:03}")
}

fn request(number: usize, size: usize, vars: BTreeMap<String, String>) -> Result<UpsertGroupRequest> {
    let config = GroupConfig { template: "web".to_owned(), size: i32::try_from(size)?, vars, ..GroupConfig::default() };
    Ok(UpsertGroupRequest { key: name(number), config: Some(config), remove_first: vec![] })
}

/// Waits until the groups have that many instances together.
async fn full(client: &Client, instances: usize) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let groups = client.list_groups().await?;
        let there: usize = groups.iter().map(|group| group.instances.len()).sum();
        if there == instances {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "{there} of {instances} instances after {} s", PATIENCE.as_secs());
        tokio::time::sleep(LOOK).await;
    }
}

pub async fn load(client: &Client, instances: usize, groups: usize) -> Result<Load> {
    let started = Instant::now();
    for number in 0..groups {
        // Those that do not divide evenly are in the first groups.
        let size = instances / groups + usize::from(number < instances % groups);
        client.upsert_group(request(number, size, BTreeMap::new())?, &Fence::default()).await?;
    }
    full(client, instances).await?;
    Ok(Load { instances, wall_seconds: started.elapsed().as_secs_f64() })
}

fn since(started: Instant) -> f64 {
    started.elapsed().as_secs_f64() * 1000.0
}

/// Changes of vars, which cost no instance.
pub async fn upserts(client: &Client, groups: usize) -> Result<Times> {
    let sizes: BTreeMap<String, usize> =
        client.list_groups().await?.into_iter().map(|group| (group.key, group.instances.len())).collect();
    let mut times = Vec::new();
    for number in 0..CALLS {
        let size = sizes.get(&name(number % groups)).copied().unwrap_or(0);
        let vars = BTreeMap::from([("number".to_owned(), number.to_string())]);
        let request = request(number % groups, size, vars)?;
        let started = Instant::now();
        client.upsert_group(request, &Fence::default()).await?;
        times.push(since(started));
    }
    Ok(Times::of(times))
}

pub async fn lists(client: &Client) -> Result<Times> {
    let mut times = Vec::new();
    for _ in 0..CALLS {
        let started = Instant::now();
        client.list_groups().await?;
        times.push(since(started));
    }
    Ok(Times::of(times))
}

/// From opening the watch to the last group with its instances.
pub async fn snapshots(client: &Client, groups: usize) -> Result<Times> {
    let mut times = Vec::new();
    for seed in 0..SNAPSHOTS {
        let started = Instant::now();
        let mut watch = client.watch_groups(u64::try_from(seed)?);
        let mut seen = 0;
        while seen < groups {
            match watch.next().await {
                Watched::Connected => {}
                Watched::Event(_) => seen += 1,
                Watched::Lost(error) => return Err(error.into()),
            }
        }
        times.push(since(started));
    }
    Ok(Times::of(times))
}

pub async fn rest(server: &Server) -> Result<Rest> {
    // What the calls before caused is over.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let before = server.writes().await?;
    tokio::time::sleep(REST).await;
    let after = server.writes().await?;
    let writes = after.records + after.groups + after.other - before.records - before.groups - before.other;
    Ok(Rest { seconds: REST.as_secs_f64(), writes, lock_writes: after.locks - before.locks })
}

/// Makes a group, drains it to nothing as an operator does, and counts the writes of its records.
pub async fn writes_per_life(client: &Client, server: &Server, size: usize) -> Result<f64> {
    let before = server.writes().await?.records;
    let (number, fence) = (999, Fence::default());
    client.upsert_group(request(number, size, BTreeMap::new())?, &fence).await?;
    let others: usize =
        client.list_groups().await?.iter().filter(|group| group.key != name(number)).map(|g| g.instances.len()).sum();
    full(client, others + size).await?;
    let mut events = client.watch_instances(1);
    client.upsert_group(request(number, 0, BTreeMap::new())?, &fence).await?;
    let mut deleted = 0;
    while deleted < size {
        match events.next().await {
            Watched::Connected => {}
            Watched::Event(event) if event.status == "deleted" => deleted += 1,
            Watched::Event(event) => client.acknowledge_drained(&event.instance_id, &fence).await?,
            Watched::Lost(error) => return Err(error.into()),
        }
    }
    client.delete_group(&name(number), &fence).await?;
    // The counts reach their file a little later.
    tokio::time::sleep(Duration::from_secs(1)).await;
    Ok(each(server.writes().await?.records - before, size))
}
