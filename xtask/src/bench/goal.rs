//! What was aimed at, and how far off the measurement is.

use serde::Serialize;

use super::{Results, tally::each};

/// Published figures of the Go operator that strata replaces, taken on the same kind of machine with 500 performers.
pub const PEER: Peer =
    Peer { count: 500, wall_seconds: 74.0, writes_each: 6.1, cpu_ms_each: 8.0, writes_per_second_at_rest: 11.0 };

/// How many performers the goal of CPU at rest is stated for: periodic checks grow with their number.
const AT_REST: usize = 500;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Peer {
    pub count: usize,
    pub wall_seconds: f64,
    pub writes_each: f64,
    pub cpu_ms_each: f64,
    pub writes_per_second_at_rest: f64,
}

/// Less is better in all of them.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Goal {
    pub what: String,
    pub unit: &'static str,
    /// At most this. `None` where the goal is stated for other circumstances: the figure is shown without a verdict.
    pub limit: Option<f64>,
    pub measured: f64,
    pub peer: Option<f64>,
}

impl Goal {
    pub fn new(what: impl Into<String>, unit: &'static str, limit: f64, measured: f64, peer: Option<f64>) -> Self {
        Self { what: what.into(), unit, limit: Some(limit), measured, peer }
    }

    /// A goal that is stated for these circumstances only.
    pub fn only_if(self, is_stated: bool) -> Self {
        Self { limit: self.limit.filter(|_| is_stated), ..self }
    }

    pub fn is_met(&self) -> Option<bool> {
        self.limit.map(|limit| self.measured <= limit)
    }

    /// None where the goal is nothing at all.
    pub fn ratio(&self) -> Option<f64> {
        self.limit.filter(|limit| *limit > 0.0).map(|limit| self.measured / limit)
    }
}

pub fn goals(results: &Results) -> Vec<Goal> {
    let Results { floor, plain, load, rest, change, restart, terminated, killed, .. } = results;
    let count = load.count;
    // What 500 and 5000 performers may take; a count between counts as 5000.
    let memory = if count <= 500 { 6.0 } else { 22.0 };
    let peer = |value: f64| (count == PEER.count).then_some(value);
    let at_rest = &rest.requests;
    let noise = at_rest.writes() + at_rest.events + at_rest.gets + at_rest.lists;
    let (wall, cpu) = (load.wall_seconds, load.cpu_ms / each(count, 1));
    vec![
        Goal::new("wall to all Ready, by floor two", "s", 1.6 * floor.wall_seconds, wall, peer(PEER.wall_seconds)),
        Goal::new("wall to all Ready, by floor three", "s", 1.1 * plain.wall_seconds, wall, None),
        Goal::new("own writes each", "", 4.5, each(load.own.writes(), count), peer(PEER.writes_each)),
        Goal::new("GETs each", "", 0.0, each(load.own.gets, count), None),
        Goal::new("CPU each", "ms", 1.5 * plain.cpu_ms / each(count, 1), cpu, peer(PEER.cpu_ms_each)),
        Goal::new("anonymous memory, all Ready", "MB", memory, load.after.anonymous_mb, None),
        Goal::new("anonymous memory, after a restart", "MB", memory, restart.settled.anonymous_mb, None),
        Goal::new(
            "requests at rest, lease and watches aside",
            "/s",
            0.0,
            each(noise, 1) / rest.seconds,
            peer(PEER.writes_per_second_at_rest),
        ),
        Goal::new("CPU at rest", "millicores", 0.7, rest.millicores, None).only_if(count == AT_REST),
        Goal::new("change seen to delete sent, p50", "ms", 15.0, change.delete.p50_ms, None),
        Goal::new("change seen to delete sent, p99", "ms", 50.0, change.delete.p99_ms, None),
        Goal::new("old pod gone to create sent, p50", "ms", 15.0, change.create.p50_ms, None),
        Goal::new("old pod gone to create sent, p99", "ms", 50.0, change.create.p99_ms, None),
        Goal::new("hand-over after SIGTERM (slowest)", "ms", 250.0, terminated.slowest_ms, None),
        Goal::new(
            "take-over after SIGKILL (slowest)",
            "ms",
            1000.0 * each(usize::try_from(killed.lease_seconds).unwrap_or(0), 1),
            killed.slowest_ms,
            None,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_under_other_circumstances_has_no_verdict() {
        let goal = |measured| Goal::new("CPU at rest", "millicores", 0.7, measured, None);
        assert_eq!(goal(0.7).only_if(true).is_met(), Some(true));
        assert_eq!(goal(0.8).is_met(), Some(false));
        assert_eq!(goal(f64::NAN).is_met(), Some(false), "what could not be measured is no success");
        let elsewhere = goal(0.95).only_if(false);
        assert!(elsewhere.is_met().is_none() && elsewhere.ratio().is_none());
    }
}
