//! The way of a release out.

use std::time::Duration;

use api::condition::{ConditionStatus, ConditionType, Reason};
use api::workspace::FINALIZER;
use api::workspace::OperationKind::{Install, Uninstall};
use plan::releases::{Action, FailureClass, Identity, Job, Policy, StoredStatus};
use serde_json::json;

use super::{
    interruption::rest_in_time,
    not_found,
    world::{World, stored},
};

#[test]
fn w29_deletion_uninstalls_before_the_finalizer_goes() {
    let mut world = World::new(json!({}));
    world.settle();
    world.delete();
    world.settle();
    assert_eq!(world.kinds(), [Install, Uninstall]);
    assert!(world.is_gone);

    let mut gone = World::new(json!({}));
    gone.settle();
    gone.storage().clear();
    gone.delete();
    gone.settle();
    assert_eq!(gone.kinds(), [Install]);
    assert!(gone.is_gone);
}

#[test]
fn w29_a_failed_uninstall_is_tried_again_and_keeps_the_finalizer() {
    let failures = [
        (FailureClass::Other, Reason::UninstallFailed),
        (FailureClass::Forbidden, Reason::Forbidden),
        (FailureClass::Timeout, Reason::TimedOut),
    ];
    for (class, reason) in failures {
        let mut world = fails_to_uninstall(class);
        let plan = world.rest();
        assert!(!world.is_gone);
        assert_eq!(plan.blocked[0].reason, reason);
        world.now += plan.next_look.unwrap();
        world.settle();
        assert!(world.is_gone);
        assert_eq!(world.kinds(), [Install, Uninstall, Uninstall]);
    }
}

fn fails_to_uninstall(class: FailureClass) -> World {
    let mut world = World::new(json!({}));
    world.settle();
    world.delete();
    world.failures = vec![class];
    let _ = world.round();
    world
}

#[test]
fn w39_in_a_dying_namespace_one_failed_uninstall_is_enough() {
    for class in [FailureClass::Other, FailureClass::Forbidden] {
        let mut world = fails_to_uninstall(class);
        world.observed.is_namespace_terminating = true;
        world.settle();
        assert!(world.is_gone);
        assert_eq!(world.kinds(), [Install, Uninstall]);
    }
}

#[test]
fn w39_a_failure_before_the_deletion_does_not_spare_the_uninstall() {
    let mut world = World::new(json!({}));
    world.failures = vec![FailureClass::Other];
    world.settle();
    world.observed.is_namespace_terminating = true;
    world.delete();
    world.settle();
    assert_eq!(world.kinds(), [Install, Uninstall]);
    assert!(world.is_gone);
}

#[test]
fn w39_in_a_dying_namespace_the_finalizer_goes_when_helm_cannot_act() {
    let mut world = World::new(json!({ "serviceAccountName": "deployer" }));
    world.settle();
    world.delete();
    world.observed.identity = Identity::AccountMissing("deployer".into());
    assert_eq!(world.rest().blocked[0].reason, Reason::ServiceAccountMissing);
    world.observed.is_namespace_terminating = true;
    world.settle();
    assert!(world.is_gone);
}

#[test]
fn deleting_during_an_install_cancels_it_first() {
    let mut world = World::new(json!({}));
    world.object.metadata.finalizers = Some(vec![FINALIZER.into()]);
    world.observed.job = Job::Running(Install);
    world.delete();
    assert_eq!(world.plan().actions().collect::<Vec<_>>(), [&Action::Cancel]);
    world.observed.job = Job::Ending(Install);
    assert!(world.plan().steps.is_empty(), "once is enough");
}

#[test]
fn w29_a_release_that_helm_could_not_see_is_not_taken_for_uninstalled() {
    let mut world = World::new(json!({}));
    world.settle();
    let kept = world.storage().clone();
    world.delete();
    for pause in [2, 4] {
        while world.observed.job == Job::Idle {
            let _ = world.round();
        }
        *world.storage() = kept.clone();
        let plan = world.rest();
        assert_eq!(plan.next_look, Some(Duration::from_secs(pause)));
        assert_eq!(world.condition(ConditionType::Ready), (ConditionStatus::False, Reason::UninstallFailed));
        world.now += Duration::from_secs(pause);
    }
    rest_in_time(&mut world);
    assert!(world.is_gone);
}

#[test]
fn a_suspended_release_is_not_touched_and_its_deletion_leaves_it() {
    let mut world = World::new(json!({}));
    world.settle();
    world.object.spec.as_mut().unwrap().suspend = Some(true);
    world.change("v2");
    let plan = world.rest();
    assert_eq!(plan.blocked[0].reason, Reason::Suspended);
    world.delete();
    world.settle();
    assert!(world.is_gone);
    assert_eq!(world.kinds(), [Install]);
}

#[test]
fn a_release_that_was_never_touched_stays_when_its_object_goes() {
    let mut world = World::new(json!({}));
    let at = world.now;
    world.storage().push(stored(7, StoredStatus::Deployed, at));
    world.observed.chart = not_found();
    world.settle();
    world.delete();
    world.settle();
    assert!(world.is_gone && world.operations.is_empty());
}

#[test]
fn w29_a_spec_that_became_invalid_is_uninstalled_all_the_same() {
    let changes: [fn(&mut World); 5] = [
        |world| world.object.spec.as_mut().unwrap().memory = Some("900Gi".into()),
        |world| world.object.spec.as_mut().unwrap().timeout = Some("99999h".parse().unwrap()),
        |world| {
            let rollback = serde_json::from_value(json!({ "timeout": "99999h" })).unwrap();
            world.object.spec.as_mut().unwrap().rollback = Some(rollback);
        },
        |world| world.object.spec.as_mut().unwrap().timeout = Some("0s".parse().unwrap()),
        |world| world.object.spec.as_mut().unwrap().chart.repo = "ftp://x".into(),
    ];
    for change in changes {
        let mut world = World::new(json!({}));
        world.settle();
        change(&mut world);
        assert!(!world.rest().blocked.is_empty());
        world.delete();
        world.settle();
        assert!(world.is_gone);
        assert_eq!(world.kinds(), [Install, Uninstall]);
        assert!(world.operations[1].timeout <= Policy::default().longest_timeout);
    }
}
