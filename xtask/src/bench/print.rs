//! The results for people.

use super::{
    change::{Change, Times},
    conditions::Conditions,
    floor::{Floor, RawCreates},
    goal::Goal,
    handover::HandOver,
    life::{Rest, Restart},
    load::Load,
    operator::Usage,
    plain::Plain,
    tally::{AllWrites, Tally, each},
};

pub fn conditions(c: &Conditions) -> String {
    let programs: Vec<String> = c.programs.iter().map(|(name, version)| format!("{name} {version}")).collect();
    format!(
        "Conditions
  machine     {}, {} cores, {} MB, {}, load average {:.2}
  strata      {}
  programs    {}
  etcd fsync  {}
  audit log   {}
  limits      {}
  nodes       {} simulated
  objects     {}, written by {} requests at once\n",
        c.cpu,
        c.cores,
        c.memory_mb,
        c.kernel,
        c.load_average,
        c.strata,
        programs.join(", "),
        if c.etcd_fsync { "on" } else { "off" },
        c.audit_log,
        c.client_limits,
        c.nodes,
        c.count,
        c.writers,
    )
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
  writes of everybody      {}\n",
        floor.writers,
        floor.wall_seconds,
        all_writes(&floor.all_writes),
    )
}

fn all_writes(writes: &AllWrites) -> String {
    format!("{:.2} each, and {:.2} events", writes.objects, writes.events)
}

pub fn plain(plain: &Plain, count: usize) -> String {
    format!(
        "Floor three: the operator's requests by a plain loop, one client
  wall to all Ready        {:.2} s
  CPU                      {:.2} ms each
  writes of everybody      {}\n",
        plain.wall_seconds,
        plain.cpu_ms / each(count, 1),
        all_writes(&plain.all_writes),
    )
}

pub fn load(load: &Load, floor: &Floor, plain: &Plain) -> String {
    format!(
        "{} performers from nothing to Ready
  wall                     {:.2} s = {:.2} × floor two, {:.2} × floor three (creating them took {:.2} s of it)
  writes of everybody      {}; floor two: {}
  own requests each        {}
  CPU                      {:.2} ms each = {:.2} × floor three
  memory before            {}
  memory after             {}\n",
        load.count,
        load.wall_seconds,
        load.wall_seconds / floor.wall_seconds,
        load.wall_seconds / plain.wall_seconds,
        load.creating_seconds,
        all_writes(&load.all_writes),
        all_writes(&floor.all_writes),
        tally(&load.own, load.count),
        load.cpu_ms / each(load.count, 1),
        load.cpu_ms / plain.cpu_ms,
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
  old pod gone → create sent     {}
  slowest of all                 {}\n",
        change.changes,
        times(&change.whole),
        times(&change.delete),
        times(&change.create),
        change.slowest,
    )
}

fn times(times: &Times) -> String {
    format!("p50 {:.1} ms, p99 {:.1} ms, slowest {:.1} ms", times.p50, times.p99, times.slowest)
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
    println!("Goals\n  {:<44} {:>10} {:>10} {:>7}  {:<8} peer", "", "goal", "measured", "ratio", "");
    for goal in goals {
        let ratio = goal.ratio().map_or_else(|| "–".to_owned(), |ratio| format!("{ratio:.2}"));
        let verdict = if goal.is_met() { "met" } else { "MISSED" };
        let peer = goal.peer.map_or_else(|| "–".to_owned(), |peer| format!("{peer} {}", goal.unit));
        let what = if goal.unit.is_empty() { goal.what.to_owned() } else { format!("{} ({})", goal.what, goal.unit) };
        println!("  {what:<44} {:>10.2} {:>10.2} {ratio:>7}  {verdict:<8} {peer}", goal.limit, goal.measured);
    }
    println!("  peer: {peer}");
    for goal in goals.iter().filter(|goal| !goal.is_met()) {
        println!("missed: {} by {:.2} {}", goal.what, goal.measured - goal.limit, goal.unit);
    }
}
