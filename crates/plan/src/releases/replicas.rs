//! Stopping and starting again: which workloads are scaled, and what is remembered of them.

use api::workspace::StoppedWorkload;

use super::{Replicas, Stored, StoredStatus};

fn is_same(one: &StoppedWorkload, other: &StoppedWorkload) -> bool {
    (&one.kind, &one.name) == (&other.kind, &other.name)
}

/// What has to be scaled, with the replicas that it shall have.
pub fn due(stopped: bool, former: &[StoppedWorkload], live: &[StoppedWorkload]) -> Vec<StoppedWorkload> {
    let wanted = |workload: &StoppedWorkload| {
        let known = former.iter().find(|known| is_same(known, workload));
        let replicas = if stopped { 0 } else { known.map_or(workload.replicas, |known| known.replicas) };
        StoppedWorkload { replicas, ..workload.clone() }
    };
    // Who scaled a stopped workload back up by hand, while starting, is left alone.
    let is_due = |workload: &&StoppedWorkload| {
        wanted(workload).replicas != workload.replicas && (stopped || workload.replicas == 0)
    };
    live.iter().filter(is_due).map(wanted).collect()
}

/// Former replicas are stored as soon as they are seen, so before anything is scaled, and forgotten when nothing is left
/// to be scaled back.
/// What a user scales up while it is stopped is no former replica, but what a newer revision brings is. What is not
/// seen is gone with a revision that is deployed, and of any other may be on its way.
pub fn remember(stopped: bool, newest: Option<&Stored>, former: &mut Vec<StoppedWorkload>, observed: &Replicas) {
    let Replicas::Live(live) = observed else { return };
    let revision = newest.map(|newest| newest.revision);
    let is_deployed = newest.is_some_and(|newest| newest.status == StoredStatus::Deployed);
    if stopped {
        for workload in live.iter().filter(|workload| workload.replicas > 0) {
            let is_known = |other: &StoppedWorkload| is_same(other, workload) && other.revision == revision;
            if !former.iter().any(is_known) {
                former.retain(|other| !is_same(other, workload));
                former.push(StoppedWorkload { revision, ..workload.clone() });
            }
        }
    } else {
        let due = due(stopped, former, live);
        let is_due = |workload: &StoppedWorkload| due.iter().any(|due| is_same(due, workload));
        let is_seen = |workload: &StoppedWorkload| live.iter().any(|live| is_same(live, workload));
        former.retain(|workload| is_due(workload) || !(is_deployed || is_seen(workload)));
    }
}
