//! The results for people.

use super::{
    failover::FailOver,
    floor::RawWrites,
    life::{Load, Rest, Times},
};
use crate::bench::{conditions::Host, operator::Usage, print::memory, tally::each};

pub fn host(host: &Host) -> String {
    format!(
        "Conditions
  machine                  {}, {} cores, {} MB, {}
  load average             {:.2} at the start
  strata                   {}
  storage                  files, each write synced\n",
        host.cpu, host.cores, host.memory_mb, host.kernel, host.load_average, host.strata,
    )
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

pub fn times(times: &Times) -> String {
    format!("p50 {:.2} ms, p99 {:.2} ms, slowest {:.2} ms", times.p50_ms, times.p99_ms, times.slowest_ms)
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
