//! HelmReleases: what the planner does in a small world of Helm's storage and one runner.

mod clock;
mod dependency;
mod interruption;
mod remedy;
mod removal;
mod scale;
mod wants;
mod world;

use std::time::Duration;

use api::condition::{ConditionStatus, ConditionType, Reason};
use api::workspace::OperationKind::{Install, Rollback, Test, Upgrade};
use api::workspace::{FORCE_ANNOTATION, RECONCILE_ANNOTATION, ROLLBACK_ANNOTATION, TestResult};
use plan::releases::{
    Action, Ask, Chart, Dependency, Difference, Drift, Failure, FailureClass, Identity, Job, Known, Replicas,
    StoredStatus, Surroundings, Values,
};
use serde_json::{Value, json};

use world::{Plan, World, stored, workload};

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
fn revisions_show_when_the_release_and_when_they_were_deployed() {
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
fn w34_a_chart_that_is_not_found_is_quietly_looked_for_again() {
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
fn nothing_is_done_in_a_name_that_may_not_act() {
    let cases: [(Value, Hinder); 4] = [
        (json!({ "driftDetection": "enabled" }), |o| o.drift = Drift::NotLooked),
        (json!({ "driftDetection": "enabled" }), |o| {
            o.drift = Drift::Found(vec![Difference { object: "Deployment web".into(), what: "missing".into() }]);
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
