//! The operator at rest, and its start with everything already there.

use std::{path::Path, time::Duration};

use anyhow::Result;
use serde::Serialize;

use super::{
    ground::Ground,
    operator::{Operator, Usage},
    tally::Tally,
};

pub const REST: Duration = Duration::from_mins(1);

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Rest {
    pub seconds: f64,
    pub requests: Tally,
    pub millicores: f64,
    pub usage: Usage,
}

pub async fn rest(ground: &Ground, operator: &Operator) -> Result<Rest> {
    let (mark, before) = (ground.mark()?, operator.usage()?);
    tokio::time::sleep(REST).await;
    let usage = operator.usage()?;
    let seconds = REST.as_secs_f64();
    let requests = Tally::of(&ground.entries_after(mark)?);
    Ok(Rest { seconds, requests, millicores: (usage.cpu_ms - before.cpu_ms) / seconds, usage })
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Restart {
    pub count: usize,
    /// From the start of the process to `/readyz` 200.
    pub ready_seconds: f64,
    pub ready: Usage,
    /// After the first round of every object.
    pub settled: Usage,
    pub requests: Tally,
}

pub async fn restart(ground: &Ground, program: &Path) -> Result<Restart> {
    ground.settled().await?;
    let mark = ground.mark()?;
    let operator = Operator::start(ground, program, "operator-restarted").await?;
    let ready_seconds = operator.started().elapsed().as_secs_f64();
    let ready = operator.usage()?;
    operator.leads(ground).await?;
    ground.settled().await?;
    let (settled, requests) = (operator.usage()?, Tally::of(&ground.entries_after(mark)?));
    operator.stop().await?;
    Ok(Restart { count: ground.count, ready_seconds, ready, settled, requests })
}
