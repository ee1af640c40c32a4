//! Stopped and started again.

use api::condition::{ConditionStatus, ConditionType, Reason};
use api::workspace::OperationKind::{Install, Test, Upgrade};
use plan::releases::{FailureClass, Policy, Replicas, Round, StoredStatus, Values, status};
use plan::round::Progress;
use serde_json::json;

use super::{
    not_found,
    world::{World, former, workload},
};

#[test]
fn w08_a_stopped_release_comes_back_with_its_former_replicas() {
    let mut world = World::new(json!({}));
    world.settle();
    world.object.spec.as_mut().unwrap().stopped = Some(true);
    world.settle();
    assert_eq!(world.observed.workloads, Replicas::Live(vec![workload(0)]));
    assert_eq!(world.object.status.as_ref().unwrap().stopped, [former(3)]);
    world.settle();
    world.object.spec.as_mut().unwrap().stopped = None;
    let _ = world.round();
    assert_eq!(world.condition(ConditionType::Ready), (ConditionStatus::Unknown, Reason::Starting));
    world.settle();
    assert_eq!(world.condition(ConditionType::Ready), (ConditionStatus::True, Reason::InstallSucceeded));
    assert_eq!(world.observed.workloads, Replicas::Live(vec![workload(3)]));
    assert!(world.object.status.as_ref().unwrap().stopped.is_empty());
    assert_eq!(world.kinds(), [Install]);
}

#[test]
fn w08_a_stopped_release_is_tested_when_its_replicas_are_back() {
    let mut world = World::new(json!({ "stopped": true, "test": { "enable": true } }));
    world.settle();
    assert_eq!(world.condition(ConditionType::Ready), (ConditionStatus::True, Reason::Stopped));
    assert_eq!(world.kinds(), [Install]);
    world.object.spec.as_mut().unwrap().stopped = None;
    let _ = world.round();
    assert_eq!(world.observed.workloads, Replicas::Live(vec![workload(3)]));
    assert_eq!(world.kinds(), [Install], "it was at zero in this round");
    world.settle();
    assert_eq!(world.kinds(), [Install, Test]);
    assert_eq!(world.condition(ConditionType::TestSuccess), (ConditionStatus::True, Reason::TestSucceeded));
    assert_eq!(world.condition(ConditionType::Ready), (ConditionStatus::True, Reason::InstallSucceeded));
}

#[test]
fn w08_whatever_hinders_an_upgrade_what_is_deployed_stops_and_starts() {
    let hindrances: [fn(&mut World); 3] = [
        |world| {
            world.failures = vec![FailureClass::Other];
            world.change("v2");
        },
        |world| world.observed.values = Values::Missing("Secret s is not there".into()),
        |world| world.observed.chart = not_found(),
    ];
    for hinder in hindrances {
        let mut world = World::new(json!({}));
        world.settle();
        hinder(&mut world);
        world.settle();
        let problem = world.condition(ConditionType::Ready);
        assert_eq!(problem.0, ConditionStatus::False);
        for (stopped, replicas) in [(true, 0), (false, 3)] {
            world.object.spec.as_mut().unwrap().stopped = Some(stopped);
            world.settle();
            assert_eq!(world.observed.workloads, Replicas::Live(vec![workload(replicas)]), "{problem:?}");
            assert_eq!(world.condition(ConditionType::Ready), problem);
        }
    }
}

#[test]
fn w08_an_upgrade_on_the_way_does_not_make_former_replicas_forgotten() {
    let mut world = World::new(json!({ "stopped": true }));
    world.settle();
    assert_eq!(world.observed.workloads, Replicas::Live(vec![workload(0)]));
    world.object.spec.as_mut().unwrap().stopped = None;
    world.change("v2");
    world.settle();
    assert_eq!(world.observed.workloads, Replicas::Live(vec![workload(3)]));
    assert_eq!(world.kinds(), [Install, Upgrade]);
}

#[test]
fn w08_what_a_failed_revision_does_not_show_keeps_its_former_replicas() {
    for (newest, kept) in [(StoredStatus::Failed, vec![workload(3)]), (StoredStatus::Deployed, vec![])] {
        let mut world = World::new(json!({}));
        world.settle();
        world.storage().last_mut().unwrap().status = newest;
        world.object.status.as_mut().unwrap().stopped = vec![workload(3)];
        world.observed.workloads = Replicas::Live(vec![]);
        let _ = world.round();
        assert_eq!(world.object.status.as_ref().unwrap().stopped, kept, "{newest:?}");
    }
}

#[test]
fn w08_who_scales_what_is_stopped_does_not_change_what_it_comes_back_to() {
    let mut world = World::new(json!({ "stopped": true }));
    world.settle();
    world.observed.workloads = Replicas::Live(vec![workload(1)]);
    world.settle();
    assert_eq!(world.observed.workloads, Replicas::Live(vec![workload(0)]));
    world.object.spec.as_mut().unwrap().stopped = None;
    world.settle();
    assert_eq!(world.observed.workloads, Replicas::Live(vec![workload(3)]));
}

#[test]
fn w08_replicas_are_remembered_before_anything_is_scaled() {
    let mut world = World::new(json!({}));
    world.settle();
    world.object.spec.as_mut().unwrap().stopped = Some(true);
    world.observed.workloads = Replicas::Live(vec![workload(3)]);
    let plan = world.plan();
    let policy = Policy::default();
    // The scaling fails half way.
    let round = Round {
        object: &world.object,
        observed: &world.observed,
        plan: &plan,
        progress: &[Progress::Skipped],
        announced: None,
        policy: &policy,
    };
    let after = status(&round, world.now);
    assert_eq!(after.stopped, [former(3)]);
    assert_eq!(after.condition(ConditionType::Ready).unwrap().status, ConditionStatus::Unknown);
}
