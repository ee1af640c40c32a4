//! The results for people.

use std::fmt::Write as _;

use super::{drain::Drain, rest::Rest, scale::Scale};
use crate::bench::{print::memory, tally::each};

pub fn scale(scale: &Scale, shards: usize) -> String {
    let own: Vec<_> = scale.own.iter().map(|(what, count)| format!("{count} {what}")).collect();
    let requests: usize = scale.own.values().sum();
    format!(
        "{} instances over {shards} shards, from the patch of replicas
  all provider IDs         {:.1} s
  all NstanceMachines      {:.1} s
  all Machines             {:.1} s (made by Cluster API, {} requests)
  nothing written any more {:.1} s
  Nodes linked             {:.1} s after the first one joined
  operator's requests      {:.1} each: {}
  operator's CPU           {:.1} ms each
  memory                   {}\n",
        scale.instances,
        scale.published_seconds,
        scale.members_seconds,
        scale.machines_seconds,
        scale.capi_requests,
        scale.settled_seconds,
        scale.linked_seconds,
        each(requests, scale.instances),
        own.join(", "),
        scale.cpu_ms / each(scale.instances, 1),
        memory(&scale.usage),
    )
}

pub fn rest(rest: &Rest) -> String {
    let list = |counts: &std::collections::BTreeMap<String, usize>| {
        let words: Vec<_> = counts.iter().map(|(what, count)| format!("{count} {what}")).collect();
        if words.is_empty() { "none".to_owned() } else { words.join(", ") }
    };
    format!(
        "At rest for {:.0} s
  API requests             {} (the lease aside)
  calls to all shards      {}
  CPU                      {:.2} millicores
  memory                   {}\n",
        rest.seconds,
        list(&rest.requests),
        list(&rest.calls),
        rest.millicores,
        memory(&rest.usage),
    )
}

pub fn drains(drains: &[Drain]) -> String {
    let mut text = "Drains                         wall      beyond    evictions  refused    GETs per pod\n".to_owned();
    for drain in drains {
        let who = if drain.is_ours { "strata" } else { "kubectl" };
        let _ = writeln!(
            text,
            "  {:<20} {who:<8} {:>6.1} s {:>8.0} ms {:>8.2} {:>9.2} {:>9.2}",
            drain.what, drain.wall_seconds, drain.beyond_ms, drain.evictions_each, drain.refused_each, drain.gets_each,
        );
    }
    text
}
