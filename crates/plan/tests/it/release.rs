//! HelmReleases: what the planner does in a small world of Helm's storage and one runner.

mod clock;
mod wants;
mod world;

use std::time::Duration;

use api::condition::{ConditionStatus, ConditionType, Reason};
use api::workspace::{
    FINALIZER, FORCE_ANNOTATION, OperationKind, RECONCILE_ANNOTATION, ROLLBACK_ANNOTATION, ReleaseOperation, TestResult,
};
use plan::releases::{
    Action, Ask, Chart, Dependency, Difference, Drift, Failure, FailureClass, Former, Identity, Job, Known, Policy,
    Replicas, Round, Stored, StoredStatus, Surroundings, Values, cycle, status,
};
use plan::round::Progress;
use serde_json::{Value, json};

use world::{Cut, Plan, World, former, stored, workload};

use OperationKind::{Install, Rollback, Test, Uninstall, Upgrade};

#[test]
fn an_install_settles_and_planning_again_does_nothing() {
    let mut world = World::new(json!({}));
    world.settle();
    assert_eq!(world.kinds(), [Install]);
    assert_eq!(world.condition(ConditionType::Ready), (ConditionStatus::True, Reason::InstallSucceeded));
    let status = world.object.status.clone().unwrap();
    assert_eq!((status.observed_generation, status.operation, status.failures), (Some(1), None, 0));
    assert_eq!(status.history[0].chart_version.as_deref(), Some("1.0.0"));
    let again = world.plan();
    assert_eq!((again.steps, again.next_look), (vec![], None));
    let before = world.object.status.clone();
    let _ = world.round();
    assert_eq!(world.object.status, before);
}

#[test]
fn w28_a_restart_of_an_unchanged_release_plans_nothing() {
    let mut world = World::new(json!({}));
    world.settle();
    let text = serde_json::to_string(&world.object).unwrap();
    world.object = serde_json::from_str(&text).unwrap();
    world.observed.drift = Drift::NotLooked;
    assert_eq!(world.plan(), Plan::default());
}

#[test]
fn revisions_tell_when_the_release_and_when_they_were_deployed() {
    let mut world = World::new(json!({}));
    world.settle();
    let (first, second) = (world.now, world.now + Duration::from_mins(1));
    world.now = second;
    world.change("v2");
    world.settle();
    let history = &world.object.status.as_ref().unwrap().history;
    let times: Vec<_> = history.iter().map(|known| (known.first_deployed, known.last_deployed)).collect();
    assert_eq!(times, [(Some(first), Some(second)), (Some(first), Some(first))]);
}

#[test]
fn w03_a_pin_alone_is_an_upgrade() {
    let mut world = World::new(json!({}));
    world.settle();
    world.object.spec.as_mut().unwrap().chart.digest = Some("sha256:1".into());
    world.settle();
    assert_eq!(world.kinds(), [Install, Upgrade]);
}

#[test]
fn w03_version_repo_or_values_alone_are_an_upgrade() {
    let changes: [fn(&mut World); 3] = [
        |world| world.change("v2"),
        |world| world.observed.chart = Chart::Resolved { version: "1.0.1".into(), digest: None, is_checked: true },
        |world| world.object.spec.as_mut().unwrap().chart.repo = "http://elsewhere".into(),
    ];
    for change in changes {
        let mut world = World::new(json!({}));
        world.settle();
        change(&mut world);
        world.settle();
        assert_eq!(world.kinds(), [Install, Upgrade]);
    }
}

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

/// The operator died during an operation: status tells of it, nobody carries it out.
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
fn rest_in_time(world: &mut World) -> Duration {
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
    // Whatever was done is not done again, and our own lock is waited for by nobody.
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
fn somebody_elses_lock_is_left_alone_for_half_a_minute() {
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
fn a_release_that_helm_installed_is_taken_over_with_one_upgrade() {
    let mut world = World::new(json!({}));
    let at = world.now;
    world.storage().push(stored(4, StoredStatus::Deployed, at));
    world.settle();
    assert_eq!(world.kinds(), [Upgrade]);
    world.settle();
    assert_eq!(world.kinds(), [Upgrade]);
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
fn a_range_is_looked_up_again_although_what_it_led_to_failed() {
    let chart = json!({ "repo": "http://charts", "name": "four", "version": "^1.0" });
    let mut world = World::new(json!({ "chart": chart, "interval": "1m" }));
    world.failures = vec![FailureClass::Other];
    assert_eq!(world.rest().next_look, Some(Duration::from_mins(1)));
    world.observed.chart = Chart::Resolved { version: "1.0.1".into(), digest: None, is_checked: true };
    world.settle();
    assert_eq!(world.condition(ConditionType::Ready), (ConditionStatus::True, Reason::InstallSucceeded));
}

#[test]
fn a_look_that_was_asked_for_is_over_when_the_answer_is_there() {
    let mut world = World::new(json!({}));
    world.settle();
    world.annotate(RECONCILE_ANNOTATION, "now");
    let handled = |world: &World| world.object.status.as_ref().unwrap().last_handled_reconcile.clone();
    world.observed.chart = Chart::Resolved { version: "1.0.0".into(), digest: None, is_checked: false };
    world.settle();
    assert_eq!(handled(&world), None);
    world.observed.chart = Chart::Resolved { version: "1.0.0".into(), digest: None, is_checked: true };
    world.settle();
    assert_eq!(handled(&world).as_deref(), Some("now"));
}

#[test]
fn a_long_annotation_is_acted_on_once_and_kept_short() {
    let mut world = World::new(json!({}));
    world.settle();
    let long = "1@".to_owned() + &"x".repeat(200 << 10);
    for annotation in [RECONCILE_ANNOTATION, FORCE_ANNOTATION, ROLLBACK_ANNOTATION] {
        world.annotate(annotation, &long);
    }
    world.settle();
    assert_eq!(world.kinds(), [Install, Rollback, Upgrade]);
    let status = world.object.status.clone().unwrap();
    for kept in [&status.last_handled_reconcile, &status.last_handled_force, &status.last_handled_rollback] {
        assert!(kept.as_ref().is_some_and(|kept| kept.len() < 100), "{} bytes", json!(status).to_string().len());
    }
    world.settle();
    assert_eq!(world.operations.len(), 3, "each was acted on");
    // As an earlier version stored it.
    world.object.status.as_mut().unwrap().last_handled_force = Some(long);
    world.settle();
    assert_eq!(world.operations.len(), 3);
}

#[test]
fn what_others_write_of_any_length_is_shown_in_part() {
    let mut world = World::new(json!({}));
    world.observed.values = Values::Invalid("x".repeat(1 << 20));
    world.settle();
    let status = world.object.status.unwrap();
    assert!(status.conditions.iter().all(|condition| condition.message.len() < 5000));
}

#[test]
fn w39_in_a_dying_namespace_the_finalizer_goes_when_nobody_can_act() {
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
fn nothing_is_decided_while_helm_is_at_work_or_on_an_unknown_storage() {
    let mut world = World::new(json!({}));
    world.observed.job = Job::Running(Install);
    assert!(world.plan().steps.is_empty());
    world.observed.job = Job::Idle;
    world.observed.storage = Known::No("the API server is away".into());
    let plan = world.plan();
    assert!(matches!(plan.actions().collect::<Vec<_>>()[..], [Action::AddFinalizer { .. }]));
    assert_eq!(plan.blocked[0].reason, Reason::StateUnknown);

    let mut world = World::new(json!({}));
    world.settle();
    world.observed.storage = Known::No("the API server is away".into());
    world.delete();
    assert!(world.plan().steps.is_empty());
}

type Hinder = fn(&mut Surroundings);

#[test]
fn what_hinders_is_named() {
    let cases: [(Hinder, Reason); 7] = [
        (|o| o.values = Values::Missing("Secret a".into()), Reason::ValuesMissing),
        (|o| o.values = Values::Invalid("key big".into()), Reason::ValuesInvalid),
        (|o| o.identity = Identity::AccountRequired, Reason::ServiceAccountRequired),
        (|o| o.identity = Identity::AccountMissing("a".into()), Reason::ServiceAccountMissing),
        (|o| o.cycle = Some(vec!["a".into(), "b".into(), "a".into()]), Reason::DependencyCycle),
        (
            |o| o.dependencies = vec![Dependency { name: "db".into(), is_there: true, is_ready: false }],
            Reason::DependencyNotReady,
        ),
        (|o| o.chart = not_found(), Reason::ChartNotFound),
    ];
    for (hinder, reason) in cases {
        let mut world = World::new(json!({}));
        hinder(&mut world.observed);
        let plan = world.rest();
        assert_eq!(plan.blocked[0].reason, reason);
        assert_eq!(world.condition(ConditionType::Ready), (ConditionStatus::False, reason));
        assert!(world.operations.is_empty());
        let before = world.object.status.clone();
        let _ = world.round();
        assert_eq!(world.object.status, before, "a blocked release is quiet");
    }
}

fn not_found() -> Chart {
    let failure = Failure { class: FailureClass::NotFound, message: "no version 9.9.9".into() };
    Chart::Failed(failure)
}

#[test]
fn w33_a_cycle_is_shown_as_a_way_back() {
    let needs = |name: &str| match name {
        "a" => vec!["x".to_owned(), "b".to_owned()],
        "b" => vec!["a".to_owned()],
        _ => vec![],
    };
    assert_eq!(cycle("a", needs), Some(vec!["a".into(), "b".into(), "a".into()]));
    assert_eq!(cycle("x", needs), None);
}

#[test]
fn w33_a_chain_of_any_length_is_searched_with_little_stack_and_little_work() {
    // Far less than a thread has; a call per link would need many times as much.
    let small = std::thread::Builder::new().stack_size(128 << 10);
    let search = small.spawn(|| {
        let looked = std::cell::Cell::new(0);
        let needs = |name: &str| {
            looked.set(looked.get() + 1);
            let number: u32 = name.parse().unwrap();
            vec![if number == 100_000 { "0".to_owned() } else { (number + 1).to_string() }]
        };
        assert_eq!(cycle("0", needs), None);
        assert!(looked.get() <= 1001, "{} releases were looked at", looked.get());
        cycle("99500", needs)
    });
    let found = search.unwrap().join().expect("the stack suffices");
    assert_eq!(found, None, "too long to be found");
    let ring = |name: &str| vec![((name.parse::<u32>().unwrap() + 1) % 500).to_string()];
    let mut world = World::new(json!({}));
    world.observed.cycle = cycle("0", ring);
    let message = world.rest().blocked.remove(0).message;
    assert!(message.starts_with("cycle: 0 → 1 → ") && message.ends_with(" → 499 → 0"), "{message}");
    assert!(message.contains(" → … 481 more … → ") && message.len() < 300, "{message}");
}

#[test]
fn w35_tests_run_once_per_revision_and_are_reported() {
    let mut world = World::new(json!({ "test": { "enable": true } }));
    world.settle();
    assert_eq!(world.kinds(), [Install, Test]);
    assert_eq!(world.condition(ConditionType::TestSuccess).0, ConditionStatus::True);
    world.change("v2");
    world.failures = vec![];
    let _ = world.round();
    world.failures = vec![FailureClass::Other];
    world.settle();
    assert_eq!(world.kinds(), [Install, Test, Upgrade, Test]);
    assert_eq!(world.object.status.as_ref().unwrap().history[0].test, Some(TestResult::Failed));
    assert_eq!(world.condition(ConditionType::Ready), (ConditionStatus::False, Reason::TestFailed));
}

#[test]
fn w32_drift_is_reported_or_corrected() {
    let found = || Drift::Found(vec![Difference { object: "Deployment web".into(), what: "spec.replicas".into() }]);
    for (mode, corrected) in [("warn", false), ("enabled", true)] {
        let mut world = World::new(json!({ "driftDetection": mode }));
        world.settle();
        assert_eq!(world.condition(ConditionType::Drifted), (ConditionStatus::False, Reason::NoDrift));
        world.observed.drift = found();
        let plan = world.round();
        assert_eq!(plan.actions().any(|action| matches!(action, Action::CorrectDrift(_))), corrected);
        let reason = if corrected { Reason::DriftCorrected } else { Reason::DriftDetected };
        assert_eq!(world.condition(ConditionType::Drifted).1, reason);
        assert_eq!(world.condition(ConditionType::Ready).0, ConditionStatus::True);
    }
}

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
        let trouble = world.condition(ConditionType::Ready);
        assert_eq!(trouble.0, ConditionStatus::False);
        for (stopped, replicas) in [(true, 0), (false, 3)] {
            world.object.spec.as_mut().unwrap().stopped = Some(stopped);
            world.settle();
            assert_eq!(world.observed.workloads, Replicas::Live(vec![workload(replicas)]), "{trouble:?}");
            assert_eq!(world.condition(ConditionType::Ready), trouble);
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
fn w32_drift_is_set_back_although_an_upgrade_is_hindered() {
    let mut world = World::new(json!({ "driftDetection": "enabled" }));
    world.settle();
    world.observed.values = Values::Missing("Secret s is not there".into());
    world.observed.drift = Drift::Found(vec![]);
    let plan = world.rest();
    assert_eq!(plan.blocked.first().map(|why| why.reason), Some(Reason::ValuesMissing));
    assert_eq!(world.observed.drift, Drift::None);
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
fn a_rollback_to_what_somebody_else_made_stays_too() {
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
fn a_status_of_an_operation_that_never_began_is_not_in_the_way() {
    let mut world = World::new(json!({}));
    world.settle();
    world.object.status.as_mut().unwrap().operation = Some(interrupted(Upgrade, 1));
    world.settle();
    assert_eq!(world.kinds(), [Install]);
    assert_eq!(world.object.status.as_ref().unwrap().operation, None);
}

#[test]
fn w21_what_cannot_run_is_refused_and_says_what_to_do() {
    let local = json!({ "repo": "file:///charts/four", "name": "four" });
    let cases = [
        (json!({ "memory": "2Gi" }), Reason::MemoryExceedsBudget, "--helm-memory"),
        (json!({ "memory": "64Mi" }), Reason::InvalidSpec, "128Mi"),
        (json!({ "memory": "1280Mi" }), Reason::InvalidSpec, "--helm-max-operation-memory"),
        (
            json!({ "timeout": "99999h" }),
            Reason::InvalidSpec,
            "spec.timeout is 99999h, the limit for one release is 1h",
        ),
        (json!({ "rollback": { "timeout": "61m" } }), Reason::InvalidSpec, "--helm-max-timeout"),
        (json!({ "targetNamespace": "else" }), Reason::InvalidSpec, "--helm-other-namespaces"),
        (json!({ "chart": local }), Reason::InvalidSpec, "--helm-local-charts"),
    ];
    for (spec, reason, remedy) in cases {
        let mut world = World::new(spec);
        world.observed.chart = Chart::Fetching;
        let blocked = world.rest().blocked.remove(0);
        assert_eq!(world.condition(ConditionType::Ready), (ConditionStatus::False, reason));
        assert_eq!(blocked.reason, reason);
        assert!(blocked.message.contains(remedy), "{}", blocked.message);
        assert!(world.operations.is_empty());
    }
}

#[test]
fn w34_a_chart_that_cannot_be_had_is_quietly_looked_for_again() {
    let mut world = World::new(json!({}));
    world.observed.chart = Chart::Fetching;
    world.settle();
    assert_eq!(world.condition(ConditionType::Ready), (ConditionStatus::Unknown, Reason::Fetching));
    world.observed.chart = not_found();
    world.settle();
    let said = world.object.status.clone();
    world.observed.chart = Chart::Fetching;
    world.settle();
    assert_eq!(world.object.status, said);
    world.object.metadata.generation = Some(2);
    world.settle();
    assert_eq!(world.condition(ConditionType::Ready), (ConditionStatus::Unknown, Reason::Fetching));
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

#[test]
fn nothing_is_done_in_a_name_that_nobody_may_act_in() {
    let cases: [(Value, Hinder); 4] = [
        (json!({ "driftDetection": "enabled" }), |o| o.drift = Drift::NotLooked),
        (json!({ "driftDetection": "enabled" }), |o| {
            o.drift = Drift::Found(vec![Difference { object: "Deployment web".into(), what: "is gone".into() }]);
        }),
        (json!({ "stopped": true }), |o| o.workloads = Replicas::NotLooked),
        (json!({ "stopped": true }), |o| o.workloads = Replicas::Live(vec![workload(3)])),
    ];
    for (spec, change) in cases {
        for identity in [Identity::AccountRequired, Identity::AccountMissing("a".into())] {
            let mut world = World::new(spec.clone());
            world.settle();
            change(&mut world.observed);
            let is_checked = world.plan().wants.iter().any(|want| matches!(want.ask, Ask::Identity { .. }));
            assert!(is_checked, "{spec}");
            world.observed.identity = identity;
            let plan = world.plan();
            assert!(plan.steps.is_empty() && !plan.blocked.is_empty(), "{spec}: {plan:?}");
        }
    }
    let mut world = World::new(json!({}));
    world.settle();
    world.observed.identity = Identity::AccountRequired;
    world.annotate(ROLLBACK_ANNOTATION, "1@now");
    assert!(world.plan().steps.is_empty());
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
