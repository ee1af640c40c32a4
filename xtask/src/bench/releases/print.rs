//! The results for people.

use super::{bare::Bare, children::Children, load::Load, requests::Requests, unchanged::Unchanged};
use crate::bench::{print::memory, tally::each};

pub fn bare(bare: &Bare) -> String {
    format!(
        "Bare loop: helm upgrade --install, {} at once, half before and half after the operator's turn
  wall                     {:.2} s for {}, {:.2} /s\n",
        bare.parallel,
        bare.wall_seconds,
        bare.count,
        each(bare.count, 1) / bare.wall_seconds,
    )
}

pub fn load(load: &Load, bare: &Bare) -> String {
    format!(
        "{} releases from nothing to Ready
  wall                     {:.2} s = {:.3} × the bare loop, {:.2} /s
  requests each            {}
  rounds                   {:.2} each
  CPU                      {:.2} ms each
  memory                   {}\n",
        load.count,
        load.wall_seconds,
        load.wall_seconds / bare.wall_seconds,
        each(load.count, 1) / load.wall_seconds,
        requests(&load.requests, load.count),
        load.rounds / each(load.count, 1),
        load.cpu_ms / each(load.count, 1),
        memory(&load.usage),
    )
}

pub fn children(children: &Children) -> String {
    format!(
        "Processes while {} upgrades ran
  helm                     at most {:.1} MB resident
  guard                    at most {:.1} MB
  operator                 at most {:.1} MB since its start\n",
        children.seen, children.helm_peak_mb, children.guard_peak_mb, children.operator_peak_mb,
    )
}

pub fn unchanged(unchanged: &Unchanged) -> String {
    format!(
        "Restart with {} unchanged releases
  caches filled            {:.0} ms after the process started
  all looked at            {:.0} ms after the process started
  CPU                      {:.3} ms each, all of the start in it
  requests                 {}
  memory                   {}\n",
        unchanged.count,
        unchanged.ready_seconds * 1000.0,
        unchanged.checked_seconds * 1000.0,
        unchanged.cpu_ms_each,
        requests(&unchanged.requests, 1),
        memory(&unchanged.usage),
    )
}

fn requests(requests: &Requests, by: usize) -> String {
    let digits = if by == 1 { 0 } else { 2 };
    let own = requests.own.iter().map(|(what, total)| format!("{what} {:.digits$}", each(*total, by)));
    own.chain([format!("helm's {:.digits$}", each(requests.helm, by))]).collect::<Vec<_>>().join(", ")
}
