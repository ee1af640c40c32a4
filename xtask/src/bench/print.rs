//! The results for people.

use std::{collections::BTreeMap, fmt::Display};

use super::{
    change::Change,
    conditions::{Conditions, Host},
    floor::{Floor, RawCreates},
    goal::Goal,
    handover::HandOver,
    life::{Rest, Restart},
    load::Load,
    operator::Usage,
    plain::Plain,
    tally::{AllWrites, Tally, each},
    times::Times,
};

/// The beginning of all conditions.
pub fn host(host: &Host) -> String {
    format!(
        "Conditions
  machine     {}, {} cores, {} MB, {}, load average {:.2} at the start
  benchmark   strata {}, profile {}, the system's allocator\n",
        host.cpu, host.cores, host.memory_mb, host.kernel, host.load_average, host.strata, host.benchmark_profile,
    )
}

pub fn conditions(c: &Conditions) -> String {
    format!(
        "{}  operator    {}, {}, profile {}, {}
  programs    {}
  etcd fsync  {}
  audit log   {}
  limits      {}
  nodes       {} simulated
  objects     {}, written by {} requests at once\n",
        host(&c.host),
        c.operator.program.display(),
        c.operator.version,
        c.operator.profile,
        if c.operator.is_given { "given by --operator" } else { "built from the same checkout" },
        programs(&c.programs),
        if c.etcd_fsync { "on" } else { "off" },
        c.audit_log,
        c.client_limits,
        c.nodes,
        c.count,
        c.writers,
    )
}

pub fn programs<S: Display>(versions: &BTreeMap<S, S>) -> String {
    versions.iter().map(|(name, version)| format!("{name} {version}")).collect::<Vec<_>>().join(", ")
}

pub fn raw_creates(rates: &[RawCreates]) -> String {
    rates.iter().fold("Floor one: creates of 1 KB ConfigMaps".to_owned(), |text, rate| {
        format!("{text}\n  {:>2} clients  {:>6.0} /s", rate.clients, rate.per_second)
    }) + "\n"
}

pub fn floor(floor: &Floor) -> String {
    format!(
        "Floor two: pods and Services alone, {} requests at once, owners there before
  wall to all pods ready   {:.2} s
  writes of all clients    {}\n",
        floor.writers,
        floor.wall_seconds,
        all_writes(&floor.all_writes),
    )
}

fn all_writes(writes: &AllWrites) -> String {
    format!("{:.2} each, and {:.2} events", writes.objects, writes.events)
}

pub fn plain(plain: &Plain, load: &Load) -> String {
    format!(
        "Floor three: the operator's requests by a plain loop of the benchmark, one client
  wall to all Ready        {:.2} s; the operator's is {:.2} ×
  half of them Ready       {:.2} s; the operator's is {:.2} ×
  CPU                      {:.2} ms each; the operator's is {:.2} ×
  own requests each        {}
  the operator's           {}
  writes of all clients    {}\n",
        plain.wall_seconds,
        load.wall_seconds / plain.wall_seconds,
        plain.half_seconds,
        load.half_seconds / plain.half_seconds,
        plain.cpu_ms / each(load.count, 1),
        load.cpu_ms / plain.cpu_ms,
        tally(&plain.own, load.count),
        tally(&load.own, load.count),
        all_writes(&plain.all_writes),
    )
}

pub fn load(load: &Load, floor: &Floor) -> String {
    format!(
        "{} performers from nothing to Ready
  wall                     {:.2} s = {:.2} × floor two (creating them took {:.2} s of it)
  half of them Ready       {:.2} s
  writes of all clients    {}; floor two: {}
  own requests each        {}
  CPU                      {:.2} ms each
  memory before            {}
  memory after             {}\n",
        load.count,
        load.wall_seconds,
        load.wall_seconds / floor.wall_seconds,
        load.creating_seconds,
        load.half_seconds,
        all_writes(&load.all_writes),
        all_writes(&floor.all_writes),
        tally(&load.own, load.count),
        load.cpu_ms / each(load.count, 1),
        memory(&load.before),
        memory(&load.after),
    )
}

/// Requests divided by `by`; what did not occur is left out.
fn tally(tally: &Tally, by: usize) -> String {
    let parts = [
        ("finalizer", tally.finalizer),
        ("pod", tally.pod),
        ("Service", tally.service),
        ("status", tally.status),
        ("other writes", tally.other_writes),
        ("events", tally.events),
        ("leases", tally.leases),
        ("GET", tally.gets),
        ("LIST", tally.lists),
        ("ended WATCH", tally.watches_ended),
        ("refused", tally.refused),
    ];
    let digits = if by == 1 { 0 } else { 3 };
    let parts = parts.iter().filter(|(_, total)| *total > 0);
    let parts: Vec<String> = parts.map(|(name, total)| format!("{name} {:.digits$}", each(*total, by))).collect();
    if parts.is_empty() { "none".to_owned() } else { parts.join(", ") }
}

pub fn memory(usage: &Usage) -> String {
    format!(
        "{:.1} MB anonymous, {:.1} resident ({:.1} of it the program file), at most {:.1}",
        usage.anonymous_mb, usage.rss_mb, usage.rss_file_mb, usage.peak_mb
    )
}

pub fn rest(rest: &Rest) -> String {
    format!(
        "{} s at rest
  requests                 {}
  CPU                      {:.2} millicores
  memory                   {}\n",
        rest.seconds,
        tally(&rest.requests, 1),
        rest.millicores,
        memory(&rest.usage),
    )
}

pub fn change(change: &Change) -> String {
    format!(
        "Spec change to new pod, {} one after another
  whole                          {}
  patch answered → delete sent   {}
    of it the status before it   {}
  old pod gone → create sent     {}
  slowest of all                 {}\n",
        change.changes,
        times(&change.whole),
        times(&change.delete),
        times(&change.announced),
        times(&change.create),
        change.slowest,
    )
}

pub fn times(times: &Times) -> String {
    format!("p50 {:.2} ms, p99 {:.2} ms, slowest {:.2} ms", times.p50_ms, times.p99_ms, times.slowest_ms)
}

pub fn restart(restart: &Restart) -> String {
    format!(
        "Start with {} performers
  caches filled            {:.0} ms after the process started
  memory then              {}
  memory after all rounds  {}
  requests                 {}\n",
        restart.count,
        restart.ready_seconds * 1000.0,
        memory(&restart.ready),
        memory(&restart.settled),
        tally(&restart.requests, 1),
    )
}

pub fn hand_over(signal: &str, times: &HandOver) -> String {
    format!(
        "Two replicas at rest, lease {} s: {signal} to the other holding the lease, {} times
  fastest {:.0} ms, median {:.0} ms, slowest {:.0} ms\n",
        times.lease_seconds, times.times, times.fastest_ms, times.median_ms, times.slowest_ms,
    )
}

pub fn goals(goals: &[Goal], peer: &str) {
    let dash = || "–".to_owned();
    let label = |goal: &Goal| match goal.unit {
        "" => goal.what.clone(),
        unit => format!("{} ({unit})", goal.what),
    };
    let width = goals.iter().map(|goal| label(goal).chars().count()).max().unwrap_or(0);
    println!("Goals\n  {:<width$} {:>10} {:>10} {:>7}  {:<8} peer", "", "goal", "measured", "ratio", "");
    for goal in goals {
        let limit = goal.limit.map_or_else(dash, |limit| format!("{limit:.2}"));
        let ratio = goal.ratio().map_or_else(dash, |ratio| format!("{ratio:.2}"));
        let peer = goal.peer.map_or_else(dash, |peer| format!("{peer} {}", goal.unit));
        let what = label(goal);
        let verdict = match goal.is_met() {
            Some(true) => "met",
            Some(false) => "MISSED",
            None => "–",
        };
        println!("  {what:<width$} {limit:>10} {:>10.2} {ratio:>7}  {verdict:<8} {peer}", goal.measured);
    }
    println!("  peer: {peer}");
    for goal in goals {
        if let (Some(limit), Some(false)) = (goal.limit, goal.is_met()) {
            println!("missed: {} by {:.2} {}", goal.what, goal.measured - limit, goal.unit);
        }
    }
}
