//! What an operator, helm or another client left unfinished.

use std::time::Duration;

use api::condition::{ConditionStatus, ConditionType, Reason};
use api::workspace::OperationKind::{Install, Rollback, Uninstall, Upgrade};
use api::workspace::{OperationKind, ROLLBACK_ANNOTATION, ReleaseOperation};
use plan::releases::{Action, FailureClass, Job, Known, Stored, StoredStatus};
use serde_json::json;

use super::world::{Cut, World, stored};

#[test]
fn w27_an_install_cut_off_where_numbers_begin_anew_counts_for_what_it_did() {
    for left in [StoredStatus::PendingInstall, StoredStatus::Failed, StoredStatus::Deployed] {
        for with_operator in [true, false] {
            let mut world = World::new(json!({}));
            world.observed.holds_data = Some(false);
            world.failures = vec![FailureClass::Other];
            world.settle();
            world.change("v2");
            world.cut = Some(Cut { kind: Install, left: Some(left), with_operator });
            while world.cut.is_some() {
                let _ = world.round();
            }
            // It uninstalled the failed one first, so its record has the same number and another uid.
            let newest = world.storage().last_mut().unwrap();
            (newest.revision, newest.uid) = (1, "uid-anew".to_owned());
            world.now += Duration::from_mins(1);
            world.settle();
            world.now += Duration::from_mins(1);
            world.settle();
            assert_eq!(world.condition(ConditionType::Ready).0, ConditionStatus::True, "{left:?} {with_operator}");
            let expected: &[_] = if left == StoredStatus::Deployed { &[Install] } else { &[Install, Install] };
            assert_eq!(world.kinds(), expected, "{left:?} {with_operator}");
        }
    }
}

#[test]
fn w27_an_install_cut_off_while_it_removes_the_failed_one_goes_on() {
    for with_operator in [true, false] {
        let mut world = World::new(json!({}));
        world.observed.holds_data = Some(false);
        world.failures = vec![FailureClass::Other];
        world.settle();
        let failed = world.storage()[0].clone();
        world.change("v2");
        world.cut = Some(Cut { kind: Install, left: None, with_operator });
        while world.cut.is_some() {
            let _ = world.round();
        }
        world.storage().push(Stored { status: StoredStatus::Uninstalling, ..failed });
        // No longer than after any other interruption, although the record moved just now.
        let pause = if with_operator { 0 } else { 2 };
        world.settle();
        world.now += Duration::from_secs(pause);
        world.settle();
        assert_eq!(world.condition(ConditionType::Ready).0, ConditionStatus::True, "{with_operator}");
        assert_eq!(world.kinds(), [Install, Install]);
    }
}

/// The operator died during an operation: status names it, and no process carries it out.
fn interrupted(kind: OperationKind, revision: u32) -> ReleaseOperation {
    ReleaseOperation {
        kind,
        digest: String::new(),
        chart_version: Some("1.0.0".into()),
        revision,
        to_revision: None,
        to_digest: None,
        started_at: None,
    }
}

#[test]
fn w27_whatever_an_operator_left_behind_ends_deployed() {
    let pending = [None, Some(StoredStatus::PendingInstall), Some(StoredStatus::Failed), Some(StoredStatus::Deployed)];
    for left in pending {
        let mut world = World::new(json!({}));
        // As the dead operator wrote it before it started helm.
        let mut first = World::new(json!({}));
        let Some(Action::Start(operation)) = first.round().steps.pop().map(|step| step.action) else {
            panic!("nothing was started")
        };
        world.object.status.clone_from(&first.object.status);
        let at = world.now;
        world.storage().extend(left.map(|status| stored(1, status, at)));
        world.settle();
        assert_eq!(world.condition(ConditionType::Ready).0, ConditionStatus::True, "{left:?}");
        let status = world.object.status.clone().unwrap();
        assert_eq!(status.history[0].digest, Some(operation.digest), "{left:?}");
        assert_eq!((status.failures, status.operation), (0, None));
        let expected = usize::from(left != Some(StoredStatus::Deployed));
        assert_eq!(world.operations.len(), expected, "{left:?}");
    }
}

/// Rounds and pauses until nothing is left to do, which takes as many seconds as it says.
pub fn rest_in_time(world: &mut World) -> Duration {
    let mut waited = Duration::ZERO;
    while let Some(pause) = world.rest().next_look {
        waited += pause;
        world.now += pause;
    }
    waited
}

fn check_cut(cut: Cut, steps: impl Fn(&mut World), wanted: (ConditionStatus, Reason), digest_of: u32) {
    let mut world = World::new(json!({ "upgrade": { "remediation": "rollback" } }));
    world.settle();
    world.change("v2");
    world.settle();
    world.cut = Some(cut);
    steps(&mut world);
    let waited = rest_in_time(&mut world);
    assert!(world.cut.is_none(), "{cut:?} never happened");
    assert_eq!(world.condition(ConditionType::Ready), wanted, "{cut:?}");
    let status = world.object.status.clone().unwrap();
    let digest = |revision: u32| status.history.iter().find(|e| e.revision == revision).unwrap().digest.clone();
    assert_eq!((status.history[0].status.as_str(), &status.history[0].digest), ("deployed", &digest(digest_of)));
    assert!(digest(digest_of).is_some() && status.operation.is_none(), "{cut:?}");
    // Whatever was done is not done again, and our own lock is not waited for.
    let again = usize::from(cut.left != Some(StoredStatus::Deployed));
    assert_eq!(
        world.operations.iter().filter(|operation| operation.kind == cut.kind).count(),
        again + usize::from(cut.kind == Upgrade),
        "{cut:?}"
    );
    let pause = if cut.with_operator || again == 0 { 0 } else { 2 };
    assert_eq!(waited.as_secs(), pause, "{cut:?}");
}

#[test]
fn w27_whatever_is_cut_off_is_done_again_unless_it_was_done() {
    let pending = |kind| if kind == Rollback { StoredStatus::PendingRollback } else { StoredStatus::PendingUpgrade };
    for (kind, with_operator) in [(Upgrade, true), (Upgrade, false), (Rollback, true), (Rollback, false)] {
        for left in [None, Some(pending(kind)), Some(StoredStatus::Failed), Some(StoredStatus::Deployed)] {
            let cut = Cut { kind, left, with_operator };
            if kind == Upgrade {
                let newest = if matches!(left, None | Some(StoredStatus::Deployed)) { 3 } else { 4 };
                check_cut(cut, |world| world.change("v3"), (ConditionStatus::True, Reason::UpgradeSucceeded), newest);
                continue;
            }
            let ask = |world: &mut World| world.annotate(ROLLBACK_ANNOTATION, "1@now");
            check_cut(cut, ask, (ConditionStatus::True, Reason::RollbackSucceeded), 1);
            let fail = |world: &mut World| {
                world.failures = vec![FailureClass::Other];
                world.change("v3");
            };
            check_cut(cut, fail, (ConditionStatus::False, Reason::UpgradeFailed), 2);
        }
    }
}

#[test]
fn w27_an_uninstall_as_remedy_goes_on_where_it_was_cut_off() {
    for with_operator in [true, false] {
        for left in [None, Some(StoredStatus::Uninstalling)] {
            let mut world = World::new(json!({ "install": { "remediation": "uninstall" } }));
            world.failures = vec![FailureClass::Other];
            world.cut = Some(Cut { kind: Uninstall, left, with_operator });
            rest_in_time(&mut world);
            assert!(world.cut.is_none());
            assert_eq!(world.kinds(), [Install, Uninstall], "{left:?}");
            assert_eq!(world.condition(ConditionType::Remediated), (ConditionStatus::True, Reason::UninstallSucceeded));
        }
    }
}

#[test]
fn w27_a_take_over_that_never_began_is_not_taken_for_done() {
    let mut world = World::new(json!({}));
    let at = world.now;
    world.storage().push(stored(4, StoredStatus::Deployed, at));
    world.cut = Some(Cut { kind: Upgrade, left: None, with_operator: true });
    world.settle();
    assert_eq!(world.kinds(), [Upgrade]);
}

#[test]
fn the_lock_of_another_client_is_left_alone_for_half_a_minute() {
    let mut world = World::new(json!({}));
    let at = world.now;
    world.storage().push(stored(1, StoredStatus::PendingInstall, at));
    let plan = world.rest();
    assert_eq!(plan.blocked[0].reason, Reason::Locked);
    assert_eq!(plan.next_look, Some(Duration::from_secs(30)));
    world.now += Duration::from_secs(30);
    world.settle();
    assert_eq!(world.kinds(), [Install]);
    assert_eq!(world.condition(ConditionType::Ready).0, ConditionStatus::True);
}

#[test]
fn an_uninstall_by_hand_is_left_to_end_and_the_release_comes_back() {
    let mut world = World::new(json!({}));
    world.settle();
    let at = world.now;
    *world.storage() = vec![stored(1, StoredStatus::Uninstalling, at)];
    assert_eq!(world.rest().blocked[0].reason, Reason::Locked);
    world.storage().clear();
    world.settle();
    assert_eq!(world.kinds(), [Install, Install]);
    assert_eq!(world.condition(ConditionType::Ready).0, ConditionStatus::True);
}

#[test]
fn interruptions_are_tried_again_after_growing_pauses() {
    let mut world = World::new(json!({}));
    world.failures = vec![FailureClass::Interrupted; 30];
    let mut pauses = vec![];
    for _ in 0..20 {
        let plan = world.rest();
        let Some(pause) = plan.next_look else { break };
        pauses.push(pause.as_secs());
        world.now += pause;
    }
    // Then once in an interval.
    assert_eq!(pauses[..6], [2, 4, 8, 16, 32, 600]);
    assert_eq!(world.condition(ConditionType::Ready), (ConditionStatus::False, Reason::InstallFailed));
}

#[test]
fn what_the_operator_ended_itself_is_tried_again_after_32_seconds_at_most() {
    let mut world = World::new(json!({}));
    world.failures = vec![FailureClass::Cancelled; 8];
    let mut pauses = vec![];
    for _ in 0..8 {
        let pause = world.rest().next_look.expect("it is tried again");
        pauses.push(pause.as_secs());
        world.now += pause;
    }
    assert_eq!(pauses, [2, 4, 8, 16, 32, 32, 32, 32]);
    world.settle();
    assert_eq!(world.condition(ConditionType::Ready).0, ConditionStatus::True);
}

#[test]
fn after_an_interval_what_the_operator_ended_itself_costs_no_other() {
    let mut world = World::new(json!({}));
    world.failures = [vec![FailureClass::Interrupted; 6], vec![FailureClass::Cancelled]].concat();
    let mut pauses = vec![];
    for _ in 0..7 {
        let pause = world.rest().next_look.expect("it is tried again");
        pauses.push(pause.as_secs());
        world.now += pause;
    }
    assert_eq!(pauses, [2, 4, 8, 16, 32, 600, 32]);
}

#[test]
fn w31_what_was_only_interrupted_is_not_remedied() {
    let mut world = World::new(json!({ "upgrade": { "remediation": "uninstall" } }));
    world.settle();
    world.change("v2");
    // More often than it is borne with at a time.
    world.failures = vec![FailureClass::Unreachable; 8];
    rest_in_time(&mut world);
    assert_eq!(world.kinds(), [vec![Install], vec![Upgrade; 9]].concat());
    assert_eq!(world.condition(ConditionType::Ready).0, ConditionStatus::True);
}

#[test]
fn w35_interrupted_tests_are_tried_again_after_growing_pauses() {
    let mut world = World::new(json!({ "test": { "enable": true } }));
    while !world.kinds().contains(&Install) {
        let _ = world.round();
    }
    world.failures = vec![FailureClass::Interrupted; 3];
    let mut pauses = Vec::new();
    for _ in 0..3 {
        let plan = world.rest();
        let pause = plan.next_look.expect("it is tried again");
        pauses.push(pause.as_secs());
        world.now += pause;
    }
    assert_eq!(pauses, [2, 4, 8]);
    world.settle();
    assert_eq!(world.condition(ConditionType::TestSuccess).0, ConditionStatus::True);
}

#[test]
fn a_status_of_an_operation_that_never_began_is_not_in_the_way() {
    let mut world = World::new(json!({}));
    world.settle();
    world.object.status.as_mut().unwrap().operation = Some(interrupted(Upgrade, 1));
    world.settle();
    assert_eq!(world.kinds(), [Install]);
    assert_eq!(world.object.status.as_ref().unwrap().operation, None);
}

#[test]
fn an_end_is_not_taken_note_of_while_storage_is_unknown() {
    let mut world = World::new(json!({}));
    while world.operations.is_empty() {
        let _ = world.round();
    }
    let known = world.observed.storage.clone();
    world.observed.storage = Known::No("the API server is away".into());
    assert!(!world.observed.has_ended());
    let plan = world.plan();
    assert!(plan.steps.is_empty() && plan.next_look > Some(Duration::ZERO));
    world.observed.storage = known;
    world.settle();
    assert_eq!(world.kinds(), [Install]);
    assert_eq!(world.condition(ConditionType::Ready).0, ConditionStatus::True);
}

#[test]
fn what_waits_is_overtaken_by_a_change_and_by_suspension() {
    for change in [
        |world: &mut World| world.change("v2"),
        |world: &mut World| {
            world.object.spec.as_mut().unwrap().suspend = Some(true);
        },
    ] {
        let mut world = World::new(json!({}));
        while world.operations.is_empty() {
            let _ = world.round();
        }
        world.storage().clear();
        world.observed.job = Job::Waiting(Install);
        assert!(world.plan().steps.is_empty());
        change(&mut world);
        assert_eq!(world.plan().actions().collect::<Vec<_>>(), [&Action::Cancel]);
    }
}
