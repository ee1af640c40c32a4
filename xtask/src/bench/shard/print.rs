//! The results for people.

use super::{
    failover::FailOver,
    floor::RawWrites,
    life::{Load, Rest},
};
use crate::bench::{
    conditions::Host,
    operator::Usage,
    print::{self, memory, times},
    tally::each,
    times::Times,
};

pub fn conditions(host: &Host) -> String {
    format!("{}  storage     files, each write synced\n", print::host(host))
}

pub fn floor(rates: &[RawWrites]) -> String {
    let lines =
        rates.iter().map(|rate| format!("  {:>2} writers               {:.0} /s\n", rate.writers, rate.per_second));
    std::iter::once("Floor: conditional writes of the same store\n".to_owned()).chain(lines).collect()
}

pub fn life(
    load: &Load,
    upsert: &Times,
    list: &Times,
    snapshot: &Times,
    rest: &Rest,
    writes: f64,
    usage: &Usage,
) -> String {
    format!(
        "{} instances
  from nothing             {:.1} s, {:.0} /s
  UpsertGroup              {}
  ListGroups               {}
  snapshot                 {}
  at rest                  {} writes in {:.0} s, and {} of locks
  writes per life          {writes:.2}
  memory                   {}\n",
        load.instances,
        load.wall_seconds,
        each(load.instances, 1) / load.wall_seconds,
        times(upsert),
        times(list),
        times(snapshot),
        rest.writes,
        rest.seconds,
        rest.lock_writes,
        memory(usage),
    )
}

pub fn fail_over(terminated: &FailOver, killed: &FailOver) -> String {
    let line = |what: &str, times: &FailOver| {
        format!(
            "  after {what:<18} median {:.0} ms, slowest {:.0} ms of {}\n",
            times.median_ms, times.slowest_ms, times.times
        )
    };
    format!("Fail-over to an answer of the next leader\n{}{}", line("SIGTERM", terminated), line("SIGKILL", killed))
}
