//! The results for people.

use std::collections::BTreeMap;

use super::{
    cluster::{Built, Replaced},
    list::Listed,
};
use crate::bench::{conditions::Host, shard::print::times};

pub fn conditions(host: &Host, programs: &BTreeMap<&str, &str>) -> String {
    let programs: Vec<_> = programs.iter().map(|(name, version)| format!("{name} {version}")).collect();
    format!(
        "Conditions
  machine                  {}, {} cores, {} MB, {}
  load average             {:.2} at the start
  strata                   {}
  programs                 {}, all built before
  etcd                     fsync off, as in tests and `strata dev`\n",
        host.cpu,
        host.cores,
        host.memory_mb,
        host.kernel,
        host.load_average,
        host.strata,
        programs.join(", "),
    )
}

pub fn cluster(built: &Built) -> String {
    format!(
        "{} control planes and {} workers, by the script of stock programs
  nothing to all Ready     {:.1} s
  memory of all processes  {:.2} GiB at most, {:.2} once all were ready\n",
        built.control_planes, built.workers, built.wall_seconds, built.most_gib, built.settled_gib,
    )
}

pub fn replacement(replaced: &Replaced) -> String {
    format!(
        "One control plane replaced by the same script
  delete to member + Node  {:.1} s
  memory of all processes  {:.2} GiB at most\n",
        replaced.wall_seconds, replaced.most_gib,
    )
}

pub fn list(list: &Listed) -> String {
    format!(
        "{} servers of one project
  calls for all of them    {} by strata's client
  one call                 {}
  the whole list           {}, decoded\n",
        list.servers,
        list.calls_per_list,
        times(&list.call),
        times(&list.client_list),
    )
}
