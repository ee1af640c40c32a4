//! What a release asks for, and that it asks for nothing at rest.

use std::time::Duration;

use api::condition::Reason;
use api::workspace::{
    FINALIZER, HelmRelease, HelmReleaseStatus, ReadValues, ResolvedChart, StoppedWorkload, ValuesKind,
};
use jiff::Timestamp;
use plan::Clocks;
use plan::fact::{Class, Fact, Failure, Want};
use plan::releases::{
    Action, Answer, Ask, Difference, Identity, Job, MOST_REVISIONS, Note, Observed, Policy, Resolved, Stored,
    StoredStatus, plan, reference_digest, report,
};
use plan::round::{Inputs, Plan, Progress, Report, Round};
use serde_json::{Value, json};

use super::world::stored;

type Known = Inputs<Note, Ask, Answer>;

fn release(spec: Value) -> HelmRelease {
    let mut full = json!({ "chart": { "repo": "http://charts", "name": "four", "version": "1.0.0" } });
    full.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    let metadata = json!({ "name": "web", "namespace": "team", "uid": "u", "generation": 1 });
    serde_json::from_value(json!({ "metadata": metadata, "spec": full })).unwrap()
}

fn observed(revisions: Vec<Stored>) -> Observed {
    Observed {
        namespace: "team".into(),
        release: "web".into(),
        revisions,
        sources: vec![],
        credentials: None,
        job: Job::Idle,
        dependencies: vec![],
        cycle: None,
        is_watched: true,
        object_changes: 0,
        is_changing: false,
        rival: None,
        clocks: Clocks::default(),
    }
}

fn now() -> Timestamp {
    Timestamp::from_second(1_000_000).unwrap()
}

fn planned(object: &HelmRelease, observed: &Observed, inputs: &Known) -> Plan<Action, Ask> {
    plan(object, observed, inputs, &Policy::default())
}

fn named(wants: &[Want<Ask>]) -> Vec<&'static str> {
    let name = |ask: &Ask| match ask {
        Ask::Revisions { .. } => "revisions",
        Ask::Source { .. } => "source",
        Ask::Chart { .. } => "chart",
        Ask::Identity { .. } => "identity",
        Ask::Drift { .. } => "drift",
        Ask::Replicas { .. } => "replicas",
        Ask::HoldsData { .. } => "data",
        Ask::NamespaceTerminating { .. } => "namespace",
    };
    wants.iter().map(|want| name(&want.ask)).collect()
}

fn asks(plan: &Plan<Action, Ask>) -> Vec<&'static str> {
    named(&plan.wants)
}

/// Answers everything that is asked for, as a server in order would, until nothing is.
fn answered(object: &HelmRelease, observed: &Observed, inputs: &mut Known) -> (Plan<Action, Ask>, usize) {
    for fetches in 0..10 {
        let plan = planned(object, observed, inputs);
        let missing: Vec<_> =
            plan.wants.iter().map(|want| want.ask.clone()).filter(|ask| inputs.facts.get(ask).is_none()).collect();
        if missing.is_empty() {
            return (plan, fetches);
        }
        for ask in missing {
            let value = answer(&ask);
            inputs.facts.insert(ask, Fact::Known { value, age: Duration::ZERO });
        }
    }
    panic!("it asks for ever");
}

fn answer(ask: &Ask) -> Answer {
    match ask {
        Ask::Revisions { .. } => Answer::Revisions(vec![]),
        Ask::Source { kind, name, key, version, .. } => Answer::Source(Ok(ReadValues {
            kind: *kind,
            name: name.clone(),
            key: key.clone(),
            version: version.clone(),
            digest: "d".into(),
        })),
        Ask::Chart { .. } => Answer::Chart(Ok(Resolved { version: "1.0.0".into(), digest: "c".into() })),
        Ask::Identity { .. } => Answer::Identity(Identity::Usable),
        Ask::Drift { .. } => Answer::Drift(Ok(vec![])),
        Ask::Replicas { .. } => Answer::Replicas(Ok(vec![])),
        Ask::HoldsData { .. } => Answer::HoldsData(Some(false)),
        Ask::NamespaceTerminating { .. } => Answer::NamespaceTerminating(false),
    }
}

fn reported(
    object: &HelmRelease,
    observed: &Observed,
    inputs: &Known,
    plan: &Plan<Action, Ask>,
) -> Report<HelmReleaseStatus, Note> {
    let progress = vec![Progress::Done(()); plan.steps.len()];
    let round = Round { object, observed, inputs, plan, progress: &progress };
    report(&round, now(), &Policy::default())
}

/// A release that is deployed and settled, with its status.
fn settled(spec: Value) -> (HelmRelease, Observed) {
    let mut object = release(spec);
    object.metadata.finalizers = Some(vec![api::workspace::FINALIZER.to_owned()]);
    let before = observed(vec![]);
    let mut inputs = Known::default();
    let (plan, _) = answered(&object, &before, &mut inputs);
    let started = reported(&object, &before, &inputs, &plan).status;
    let operation = started.operation.clone().expect("it was started");
    object.status = Some(started);
    let mut after = observed(vec![stored(1, StoredStatus::Deployed, now())]);
    after.job = Job::Finished(plan::releases::Ended { operation: (&operation).into(), result: Ok(()) });
    let mut inputs = Known::default();
    let revisions = Ask::Revisions {
        namespace: "team".into(),
        release: "web".into(),
        after: Some(plan::releases::Operation::from(&operation).label()),
    };
    let value = Answer::Revisions(after.revisions.clone());
    inputs.facts.insert(revisions, Fact::Known { value, age: Duration::ZERO });
    let (plan, _) = answered(&object, &after, &mut inputs);
    object.status = Some(reported(&object, &after, &inputs, &plan).status);
    after.job = Job::Idle;
    (object, after)
}

#[test]
fn an_install_asks_for_chart_and_account_and_then_starts() {
    let object = release(json!({}));
    let observed = observed(vec![]);
    let mut inputs = Known::default();
    let asking = planned(&object, &observed, &inputs);
    assert_eq!(asks(&asking), ["chart", "identity"]);
    assert!(reported(&object, &observed, &inputs, &asking).is_provisional, "it says only that the chart is fetched");
    let (plan, fetches) = answered(&object, &observed, &mut inputs);
    assert_eq!(fetches, 1, "both at once");
    assert!(matches!(plan.actions().last(), Some(Action::Start(_))), "{plan:?}");
    let start = plan.steps.last().unwrap();
    assert!(start.announced && start.is_job);
    assert_eq!(start.needs.len(), 1, "not before the finalizer is stored");
    assert!(!reported(&object, &observed, &inputs, &plan).is_provisional);
    assert_eq!(named(&start.rests_on), ["identity", "chart"]);
}

#[test]
fn w28_a_settled_release_asks_for_nothing() {
    let (object, observed) = settled(json!({}));
    let plan = planned(&object, &observed, &Known::default());
    assert_eq!(plan, Plan::default());
}

#[test]
fn only_a_source_that_changed_is_read() {
    let from = json!({ "valuesFrom": [{ "kind": "Secret", "name": "s" }, { "kind": "ConfigMap", "name": "c" }] });
    let (mut object, mut observed) = settled(json!({}));
    object.spec = release(from).spec;
    observed.sources = vec![Some("7".into()), Some("8".into())];
    let mut inputs = Known::default();
    let plan = planned(&object, &observed, &inputs);
    assert_eq!(asks(&plan)[..2], ["source", "source"]);
    assert!(plan.steps.is_empty(), "nothing is decided on values that are not known");
    let (plan, _) = answered(&object, &observed, &mut inputs);
    object.status = Some(reported(&object, &observed, &inputs, &plan).status);
    observed.sources[1] = Some("9".into());
    let plan = planned(&object, &observed, &Known::default());
    let versions: Vec<_> = plan
        .wants
        .iter()
        .filter_map(|want| match &want.ask {
            Ask::Source { kind, version, .. } => Some((*kind, version.as_str())),
            _ => None,
        })
        .collect();
    assert_eq!(versions, [(ValuesKind::ConfigMap, "9")]);
}

#[test]
fn drift_is_looked_at_again_when_a_live_object_changes() {
    let (object, mut observed) = settled(json!({ "driftDetection": "enabled" }));
    let mut inputs = Known::default();
    let (plan, _) = answered(&object, &observed, &mut inputs);
    assert!(plan.steps.is_empty(), "{plan:?}");
    let object = HelmRelease { status: Some(reported(&object, &observed, &inputs, &plan).status), ..object };
    let at_rest = planned(&object, &observed, &inputs);
    assert!(at_rest.wants.iter().all(|want| inputs.facts.get(&want.ask).is_some()), "a known look costs nothing");
    observed.object_changes = 1;
    let changed = planned(&object, &observed, &inputs);
    let missing = changed.wants.iter().filter(|want| inputs.facts.get(&want.ask).is_none());
    assert_eq!(missing.count(), 1, "the look, and the account is known to be usable");
    let drift = changed.wants.iter().find(|want| matches!(want.ask, Ask::Drift { .. })).unwrap().ask.clone();
    let found = vec![Difference { object: "Deployment web".into(), what: "spec".into() }];
    inputs.facts.insert(drift.clone(), Fact::Known { value: Answer::Drift(Ok(found)), age: Duration::ZERO });
    let plan = planned(&object, &observed, &inputs);
    let correction = &plan.steps[0];
    assert!(matches!(correction.action, Action::CorrectDrift(_)) && correction.spoils.contains(&drift));
    assert_eq!(named(&correction.rests_on), ["drift", "identity"]);
    assert!(asks(&plan).contains(&"drift"), "what a step rests on is wanted, or its fetch would be for nothing");
}

#[test]
fn workloads_are_scaled_on_the_replicas_that_were_seen() {
    let (object, observed) = settled(json!({ "stopped": true }));
    let mut inputs = Known::default();
    let (plan, _) = answered(&object, &observed, &mut inputs);
    let replicas = plan.wants.iter().find(|want| matches!(want.ask, Ask::Replicas { .. })).unwrap().ask.clone();
    let live = vec![StoppedWorkload { kind: "Deployment".into(), name: "web".into(), replicas: 2, revision: None }];
    inputs.facts.insert(replicas, Fact::Known { value: Answer::Replicas(Ok(live)), age: Duration::ZERO });
    let plan = planned(&object, &observed, &inputs);
    let scale = plan.steps.last().unwrap();
    assert!(matches!(scale.action, Action::Scale(_)), "{plan:?}");
    assert_eq!(named(&scale.rests_on), ["replicas", "identity"]);
}

#[test]
fn what_is_still_being_read_changes_no_status() {
    let (mut object, mut observed) = settled(json!({}));
    // The cache has not seen Helm's newest record yet.
    object.status.as_mut().unwrap().history[0].revision = 2;
    let inputs = Known::default();
    let plan = planned(&object, &observed, &inputs);
    assert_eq!(asks(&plan), ["revisions"]);
    let report = reported(&object, &observed, &inputs, &plan);
    assert_eq!((Some(report.status), report.transitions), (object.status.clone(), vec![]));
    // No answer is an answer: it is reported, and nothing is done.
    let mut inputs = Known::default();
    let why = Failure { class: Class::Transient, message: "no answer".into() };
    inputs.facts.insert(plan.wants[0].ask.clone(), Fact::Unknown { why, last: None });
    observed.job = Job::Idle;
    let plan = planned(&object, &observed, &inputs);
    assert_eq!(plan.blocked[0].reason, api::condition::Reason::StateUnknown);
    assert!(plan.steps.is_empty());
}

#[test]
fn a_range_is_believed_for_an_interval_and_then_looked_up() {
    let (mut object, observed) = settled(json!({}));
    object.spec = release(json!({ "chart": { "repo": "http://charts", "name": "four", "version": "1.x" } })).spec;
    let reference = reference_digest(&object.spec.as_ref().unwrap().chart);
    let status = object.status.as_mut().unwrap();
    status.resolved = Some(ResolvedChart { reference, version: "1.0.0".into(), digest: None });
    let at = |inputs: &Known, seconds: u64| {
        let clocks = Clocks { server: None, uptime: Duration::from_secs(seconds) };
        let plan = planned(&object, &Observed { clocks, ..observed.clone() }, inputs);
        asks(&plan).contains(&"chart")
    };
    let first = reported(&object, &observed, &Known::default(), &planned(&object, &observed, &Known::default()));
    let inputs = Known { note: first.note, ..Known::default() };
    assert!(!at(&inputs, 599) && at(&inputs, 601));
}

#[test]
fn a_snapshot_read_back_from_a_file_plans_the_same() {
    for spec in [json!({}), json!({ "driftDetection": "enabled", "stopped": true })] {
        let (object, observed) = settled(spec);
        let mut inputs = Known::default();
        let (plan, _) = answered(&object, &observed, &mut inputs);
        let text = serde_json::to_string(&(&object, &observed, &inputs)).unwrap();
        let (object, observed, inputs): (HelmRelease, Observed, Known) = serde_json::from_str(&text).unwrap();
        assert_eq!(planned(&object, &observed, &inputs), plan);
    }
}

#[test]
fn a_look_at_storage_while_helm_works_on_it_decides_nothing_later() {
    let (mut object, mut observed) = settled(json!({}));
    // The revision that status knows is gone: a failed install is removed before the next one.
    observed.revisions.clear();
    let status = object.status.as_mut().unwrap();
    status.last_attempted_at = None;
    observed.job = Job::Running(api::workspace::OperationKind::Install);
    assert!(!asks(&planned(&object, &observed, &Known::default())).contains(&"revisions"));
    observed.job = Job::Idle;
    object.metadata.deletion_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::UNIX_EPOCH));
    let question = |object: &HelmRelease| {
        let mut inputs = Known::default();
        let (plan, _) = answered(object, &observed, &mut inputs);
        let [release] = &plan.steps[..] else { panic!("{plan:?}") };
        assert!(matches!(release.action, Action::ReleaseFinalizer { .. }), "{release:?}");
        let [rest] = &release.rests_on[..] else { panic!("the finalizer rests on what is stored: {release:?}") };
        rest.ask.clone()
    };
    let before = question(&object);
    object.status.as_mut().unwrap().last_attempted_at = Some(now());
    assert_ne!(question(&object), before, "what was read before an end is not believed after it");
}

#[test]
fn nothing_is_decided_on_more_revisions_than_any_history_has() {
    let (object, mut observed) = settled(json!({}));
    let record = |number: usize| stored(u32::try_from(number).unwrap(), StoredStatus::PendingInstall, now());
    observed.revisions = (1..=MOST_REVISIONS + 1).map(record).collect();
    let mut inputs = Known::default();
    let (plan, _) = answered(&object, &observed, &mut inputs);
    assert!(plan.steps.is_empty() && !asks(&plan).contains(&"revisions"), "{plan:?}");
    let [blocked] = &plan.blocked[..] else { panic!("{plan:?}") };
    assert_eq!(blocked.reason, api::condition::Reason::StateUnknown);
    assert!(blocked.message.contains("more than 1000 Secrets with the labels owner=helm,name=web"), "{blocked:?}");
}

#[test]
fn what_is_asked_is_small_however_large_an_annotation_is() {
    let (mut object, observed) = settled(json!({}));
    let request = "x".repeat(256 << 10);
    object.spec = release(json!({ "chart": { "repo": "http://charts", "name": "four", "version": "1.x" } })).spec;
    object.metadata.annotations = Some([(api::workspace::RECONCILE_ANNOTATION.to_owned(), request)].into());
    let plan = planned(&object, &observed, &Known::default());
    let chart = plan.wants.iter().find(|want| matches!(want.ask, Ask::Chart { .. })).unwrap();
    assert!(serde_json::to_string(&chart.ask).unwrap().len() < 1000);
}

#[test]
fn a_release_whose_status_cannot_be_read_is_left_as_it_is() {
    let mut object = release(json!({}));
    object.metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
    let unreadable = HelmReleaseStatus { is_unreadable: true, ..HelmReleaseStatus::default() };
    object.status = Some(unreadable.clone());
    let there = observed(vec![stored(1, StoredStatus::Deployed, now())]);
    for is_deleting in [false, true] {
        object.metadata.deletion_timestamp =
            is_deleting.then(|| k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now()));
        // Also if it was written to a file and read back.
        let object: HelmRelease = serde_json::from_str(&serde_json::to_string(&object).unwrap()).unwrap();
        let plan = planned(&object, &there, &Known::default());
        assert_eq!((plan.steps.len(), plan.wants.len()), (0, 0), "{plan:?}");
        assert_eq!(plan.blocked[0].reason, Reason::StateUnknown);
        let report = reported(&object, &there, &Known::default(), &plan);
        assert_eq!(report.status, unreadable, "nothing is written over it");
        assert!(report.transitions[0].note.contains("upgrade"), "{:?}", report.transitions);
    }
}
