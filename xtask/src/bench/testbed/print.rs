//! The results for people.

use std::collections::BTreeMap;

use super::{
    cluster::{Built, Replaced},
    list::Listed,
};
use crate::bench::{
    conditions::Host,
    print::{self, times},
};

pub fn conditions(host: &Host, programs: &BTreeMap<&str, &str>) -> String {
    format!(
        "{}  programs    {}, all built before
  etcd        fsync off, as in tests and `strata dev`\n",
        print::host(host),
        print::programs(programs),
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
