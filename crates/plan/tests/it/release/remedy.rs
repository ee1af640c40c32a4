//! What follows a failure: attempts, rollbacks, uninstalls.

use api::condition::{ConditionStatus, ConditionType, Reason};
use api::workspace::OperationKind::{Install, Rollback, Uninstall, Upgrade};
use api::workspace::{FORCE_ANNOTATION, ROLLBACK_ANNOTATION};
use plan::releases::{Action, FailureClass, Former, StoredStatus};
use serde_json::{Value, json};

use super::world::{Plan, World, stored};

#[test]
fn w30_a_failure_is_not_retried_blindly_and_a_change_tries_again() {
    let mut world = World::new(json!({}));
    world.failures = vec![FailureClass::Other];
    let plan = world.rest();
    assert_eq!(world.kinds(), [Install]);
    assert_eq!(plan.blocked[0].reason, Reason::InstallFailed);
    assert_eq!(world.condition(ConditionType::Ready), (ConditionStatus::False, Reason::InstallFailed));
    assert_eq!(world.object.status.as_ref().unwrap().last_output.as_deref(), Some("it broke"));
    world.settle();
    assert_eq!(world.kinds(), [Install]);
    world.change("v2");
    world.settle();
    assert_eq!(world.kinds(), [Install, Install]);
    assert_eq!(world.condition(ConditionType::Ready).0, ConditionStatus::True);
}

fn set(world: &mut World, field: &str, value: Value) {
    let mut spec = json!(world.object.spec);
    spec[field] = value;
    world.object.spec = serde_json::from_value(spec).unwrap();
    world.object.metadata.generation = world.object.metadata.generation.map(|generation| generation + 1);
}

#[test]
fn w30_a_change_of_how_it_is_attempted_tries_again_as_often_as_the_first_time() {
    for (field, value) in [
        ("timeout", json!("10m")),
        ("wait", json!(false)),
        ("memory", json!("512Mi")),
        ("crds", json!("createReplace")),
        ("serviceAccountName", json!("helm")),
        ("install", json!({ "remediation": "uninstall" })),
        ("upgrade", json!({ "retries": 1 })),
    ] {
        let mut world = World::new(json!({}));
        world.failures = vec![FailureClass::Timeout; 2];
        world.settle();
        assert_eq!(world.kinds(), [Install]);
        for (other, value) in [("stopped", json!(true)), ("suspend", json!(true)), ("suspend", json!(false))] {
            set(&mut world, other, value);
            world.settle();
            assert_eq!(world.kinds(), [Install], "{other} is no other attempt");
        }
        set(&mut world, field, value);
        world.settle();
        assert_eq!(world.kinds()[..2], [Install, Install], "{field}");
        assert_eq!(world.object.status.as_ref().unwrap().failures, 1, "{field}");
        let count = world.operations.len();
        world.settle();
        assert_eq!(world.operations.len(), count, "{field}");
    }
}

#[test]
fn w31_other_settings_are_tried_and_remedied_although_the_former_were() {
    let mut world = World::new(json!({ "upgrade": { "remediation": "rollback" } }));
    world.settle();
    world.change("bad");
    world.failures = vec![FailureClass::Timeout];
    world.settle();
    assert_eq!(world.kinds(), [Install, Upgrade, Rollback]);
    world.failures = vec![FailureClass::Timeout];
    set(&mut world, "timeout", json!("10m"));
    world.settle();
    assert_eq!(world.kinds(), [Install, Upgrade, Rollback, Upgrade, Rollback]);
    set(&mut world, "timeout", json!("20m"));
    world.settle();
    assert_eq!(world.kinds()[5..], [Upgrade]);
    assert_eq!(world.condition(ConditionType::Ready), (ConditionStatus::True, Reason::UpgradeSucceeded));
}

#[test]
fn what_failed_before_settings_were_noted_is_not_tried_again_for_them() {
    let mut world = World::new(json!({}));
    world.failures = vec![FailureClass::Timeout];
    world.settle();
    let status = world.object.status.as_mut().unwrap();
    assert!(status.last_attempted_settings.take().is_some());
    set(&mut world, "timeout", json!("10m"));
    world.settle();
    assert_eq!(world.kinds(), [Install]);
    // Those of the first look stand for them.
    set(&mut world, "timeout", json!("20m"));
    world.settle();
    assert_eq!(world.kinds(), [Install, Install]);
}

#[test]
fn a_force_annotation_tries_again_once() {
    let mut world = World::new(json!({}));
    world.failures = vec![FailureClass::Other];
    world.settle();
    world.annotate(FORCE_ANNOTATION, "now");
    world.settle();
    assert_eq!(world.kinds(), [Install, Install]);
    world.settle();
    assert_eq!(world.kinds(), [Install, Install]);
}

#[test]
fn w31_what_follows_a_failed_install_is_an_install_again_and_removes_no_data() {
    for (holds_data, former, revision) in
        [(Some(false), Former::Uninstall, 1), (Some(true), Former::Adopt, 3), (None, Former::Adopt, 3)]
    {
        let mut world = World::new(json!({ "install": { "retries": 1 } }));
        world.observed.holds_data = holds_data;
        world.failures = vec![FailureClass::Other; 2];
        world.settle();
        assert_eq!(world.kinds(), [Install, Install]);
        let status = world.object.status.clone().unwrap();
        assert_eq!(status.failures, 2);
        assert_eq!(status.history[0].digest, status.last_attempted_digest, "{former:?}");
        // What was found out of this revision need not be found out again.
        world.observed.holds_data = None;
        world.change("v2");
        world.settle();
        let made: Vec<_> = world.operations.iter().map(|operation| (operation.kind, operation.former)).collect();
        assert_eq!(made, [(Install, Former::Absent), (Install, former), (Install, former)]);
        let status = world.object.status.as_ref().unwrap();
        assert_eq!((status.history[0].revision, status.history[0].status.as_str()), (revision, "deployed"));
        assert_eq!(world.condition(ConditionType::Ready), (ConditionStatus::True, Reason::InstallSucceeded));
        assert_eq!(world.plan(), Plan::default());
        world.change("v3");
        world.settle();
        assert_eq!((world.kinds().last(), world.operations[3].former), (Some(&Upgrade), Former::Absent));
        assert_eq!(world.condition(ConditionType::Ready), (ConditionStatus::True, Reason::UpgradeSucceeded));
    }
}

#[test]
fn w31_retries_then_rollback_to_the_last_good_revision() {
    let mut world = World::new(json!({ "upgrade": { "retries": 2, "remediation": "rollback" } }));
    world.settle();
    world.change("bad");
    world.failures = vec![FailureClass::Timeout; 3];
    let plan = world.rest();
    assert_eq!(world.kinds(), [Install, Upgrade, Upgrade, Upgrade, Rollback]);
    assert_eq!(world.operations[4].to_revision, Some(1));
    assert_eq!(plan.blocked[0].reason, Reason::TimedOut);
    assert_eq!(world.condition(ConditionType::Remediated), (ConditionStatus::True, Reason::RollbackSucceeded));
    assert_eq!(world.condition(ConditionType::Ready), (ConditionStatus::False, Reason::TimedOut));
    world.change("good");
    world.settle();
    assert_eq!(world.kinds().last(), Some(&Upgrade));
    assert_eq!(world.condition(ConditionType::Ready).0, ConditionStatus::True);
    assert_eq!(world.condition(ConditionType::Remediated).0, ConditionStatus::False);
}

#[test]
fn w31_a_failed_install_can_be_uninstalled() {
    let mut world = World::new(json!({ "install": { "retries": 1, "remediation": "uninstall" } }));
    world.failures = vec![FailureClass::Other; 2];
    world.settle();
    assert_eq!(world.kinds(), [Install, Install, Uninstall]);
    assert_eq!(world.condition(ConditionType::Remediated), (ConditionStatus::True, Reason::UninstallSucceeded));
    world.settle();
    assert_eq!(world.operations.len(), 3);
}

#[test]
fn a_rollback_is_known_by_what_it_went_back_to_although_helm_dropped_that_revision() {
    let mut world = World::new(json!({}));
    world.settle();
    world.change("v2");
    world.settle();
    world.annotate(ROLLBACK_ANNOTATION, "1");
    let _ = world.round();
    world.storage().remove(0);
    world.settle();
    assert_eq!(world.kinds(), [Install, Upgrade, Rollback]);
    assert_eq!(world.condition(ConditionType::Ready), (ConditionStatus::True, Reason::RollbackSucceeded));
}

#[test]
fn a_rollback_to_what_another_client_made_stays_too() {
    let mut world = World::new(json!({}));
    let at = world.now;
    world.storage().push(stored(1, StoredStatus::Deployed, at));
    world.settle();
    world.annotate(ROLLBACK_ANNOTATION, "1");
    world.settle();
    assert_eq!(world.kinds(), [Upgrade, Rollback]);
    assert_eq!(world.condition(ConditionType::Ready), (ConditionStatus::True, Reason::RollbackSucceeded));
}

#[test]
fn a_rollback_that_was_asked_for_stays_until_something_changes() {
    let mut world = World::new(json!({}));
    world.settle();
    world.change("v2");
    world.settle();
    world.annotate(ROLLBACK_ANNOTATION, "1@now");
    world.settle();
    assert_eq!(world.kinds(), [Install, Upgrade, Rollback]);
    assert_eq!(world.condition(ConditionType::Ready), (ConditionStatus::True, Reason::RollbackSucceeded));
    world.settle();
    assert_eq!(world.operations.len(), 3);
    world.change("v3");
    world.settle();
    assert_eq!(world.kinds().last(), Some(&Upgrade));
    world.annotate(ROLLBACK_ANNOTATION, "9@now");
    let refused: Vec<_> = world.round().actions().cloned().collect();
    assert!(
        matches!(&refused[..], [Action::RefuseRollback { message }] if message.contains("choose one of 1, 2, 3, 4"))
    );
    world.settle();
    assert_eq!(world.condition(ConditionType::Ready).0, ConditionStatus::True, "an impossible wish blocks nothing");
}

#[test]
fn w31_what_was_never_deployed_is_installed_however_often() {
    let mut world = World::new(json!({ "install": { "retries": 1 } }));
    world.failures = vec![FailureClass::Other; 2];
    world.settle();
    assert_eq!(world.kinds(), [Install, Install]);
    assert_eq!(world.condition(ConditionType::Ready), (ConditionStatus::False, Reason::InstallFailed));
    let mut again = World::new(json!({ "upgrade": { "remediation": "rollback" } }));
    let at = again.now;
    *again.storage() = vec![stored(1, StoredStatus::Superseded, at), stored(2, StoredStatus::Uninstalled, at)];
    again.failures = vec![FailureClass::Other];
    again.settle();
    assert_eq!(again.kinds(), [Install]);
}
