//! Two servers: how long none answers when the leader goes.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use plan::shard::election::Timing;
use rustix::process::Signal;
use serde::Serialize;

use super::zone::{Server, Zone};
use crate::bench::times::Times;

const TERMINATIONS: usize = 5;
/// Each takes the leader's timeout.
const KILLS: usize = 2;

/// A standby holds its connection to the leader by then.
const SETTLE: Duration = Duration::from_secs(2);

/// Milliseconds from the signal to an answer of the other server, with everything in it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FailOver {
    pub times: usize,
    pub leader_timeout_ms: f64,
    pub median_ms: f64,
    pub slowest_ms: f64,
}

pub async fn measure(zone: &Zone, first: Server) -> Result<(FailOver, FailOver)> {
    let mut leader = first;
    let mut times = [Vec::new(), Vec::new()];
    for turn in 1..=TERMINATIONS + KILLS {
        let standby = zone.start(&format!("standby-{turn}")).await?;
        tokio::time::sleep(SETTLE).await;
        let is_kill = turn > TERMINATIONS;
        let signal = if is_kill { Signal::KILL } else { Signal::TERM };
        let started = Instant::now();
        leader.child().signal(signal)?;
        let listening = standby.leads().await?;
        zone.client(&listening)?.list_groups().await.context("the next leader does not answer")?;
        times[usize::from(is_kill)].push(started.elapsed().as_secs_f64() * 1000.0);
        leader = standby;
    }
    leader.child().terminate(Duration::from_secs(10)).await?;
    let timeout = Timing::default().timeout.as_secs_f64() * 1000.0;
    let [terminated, killed] = times.map(|times| {
        let times = Times::of(times);
        FailOver {
            times: times.count,
            leader_timeout_ms: timeout,
            median_ms: times.p50_ms,
            slowest_ms: times.slowest_ms,
        }
    });
    Ok((terminated, killed))
}
