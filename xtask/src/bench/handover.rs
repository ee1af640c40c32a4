//! Two replicas: how long no replica leads when the leader goes.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use anyhow::Result;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use rustix::process::Signal;
use serde::Serialize;

use super::{
    follow::Follower,
    ground::{Ground, OPERATOR_NAMESPACE},
    operator::{LEASE, LEASE_DURATION, Operator},
    times::percentile,
};

const TERMINATIONS: usize = 10;
/// Each takes most of a lease.
const KILLS: usize = 5;

/// Milliseconds from the signal to a client's watch seeing the other replica hold the lease; from then on it writes.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HandOver {
    pub times: usize,
    pub lease_seconds: u64,
    pub fastest_ms: f64,
    pub median_ms: f64,
    pub slowest_ms: f64,
}

pub async fn measure(ground: &Ground, program: &Path) -> Result<(HandOver, HandOver)> {
    let mut leader = Operator::start(ground, program, "replica-0").await?;
    leader.leads(ground).await?;
    let mut times = [Vec::new(), Vec::new()];
    for turn in 1..=TERMINATIONS + KILLS {
        let standby = Operator::start(ground, program, &format!("replica-{turn}")).await?;
        let is_kill = turn > TERMINATIONS;
        let signal = if is_kill { Signal::KILL } else { Signal::TERM };
        times[usize::from(is_kill)].push(succession(ground, &leader, &standby, signal).await?);
        leader = standby;
    }
    leader.stop().await?;
    let [terminated, killed] = times.map(HandOver::of);
    Ok((terminated, killed))
}

async fn succession(ground: &Ground, leader: &Operator, standby: &Operator, signal: Signal) -> Result<f64> {
    let mut leases = Follower::open(Api::<Lease>::namespaced(ground.client.clone(), OPERATOR_NAMESPACE)).await?;
    let started = Instant::now();
    leader.child().signal(signal)?;
    let is_taken = |lease: &Lease| lease.metadata.name.as_deref() == Some(LEASE) && standby.is_holder(lease);
    let patience = LEASE_DURATION * 10;
    let taken = leases.until(patience, "the other replica leads", is_taken).await?;
    // Its own exit is not part of the gap, but the next turn needs the machine to itself.
    let _ = tokio::time::timeout(Duration::from_secs(10), leader.child().exited()).await;
    Ok(taken.duration_since(started).as_secs_f64() * 1000.0)
}

impl HandOver {
    fn of(mut times: Vec<f64>) -> Self {
        times.sort_by(f64::total_cmp);
        Self {
            times: times.len(),
            lease_seconds: LEASE_DURATION.as_secs(),
            fastest_ms: times.first().copied().unwrap_or(f64::NAN),
            median_ms: percentile(&times, 50),
            slowest_ms: percentile(&times, 100),
        }
    }
}
