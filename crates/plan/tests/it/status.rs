//! What is reported: rows P19 to P25, P29 to P31, P35 to P37, P42, P53.

use std::time::Duration;

use api::condition::{ConditionStatus, ConditionType, Reason};
use api::performer::{PerformerStatus, Phase};
use plan::performers::{Foreign, Observed, PodFacts, PodPhase, Scheduled, Slot, Waiting};
use plan::round::{Plan, Progress, Refusal};
use serde_json::json;

use crate::world::{World, at, basic, done, failed, going, rejected, with};

pub fn reason(status: &PerformerStatus, kind: ConditionType) -> (ConditionStatus, Reason) {
    let condition = status.condition(kind).unwrap();
    (condition.status, condition.reason)
}

pub fn degraded(world: &World) -> Option<Reason> {
    let (holds, reason) = reason(&world.status(), ConditionType::Degraded);
    (holds == ConditionStatus::True).then_some(reason)
}

/// The status of `world` as it is, without acting.
fn seen(world: &World, phase_unknown: bool) -> PerformerStatus {
    let report = world.report(&world.observed(), &Plan::default(), &[]);
    report.fallback.filter(|_| !phase_unknown).unwrap_or(report.status)
}

pub fn wait(world: &mut World, reason: &str) {
    world.pod_mut().waiting = Some(Box::new(Waiting { reason: reason.into(), message: "words".into() }));
}

#[test]
fn p19_phase_table() {
    let mut world = World::running(basic());
    let mut phase = |pod_phase, is_ready| {
        world.pod_mut().phase = pod_phase;
        world.pod_mut().is_ready = is_ready;
        seen(&world, true).phase.unwrap()
    };
    assert_eq!(phase(PodPhase::Pending, false), Phase::Pending);
    assert_eq!(phase(PodPhase::Running, true), Phase::Running);
    assert_eq!(phase(PodPhase::Running, false), Phase::Pending);
    assert_eq!(phase(PodPhase::Failed, false), Phase::Failed);
    assert_eq!(phase(PodPhase::Succeeded, false), Phase::Unknown);
    assert_eq!(phase(PodPhase::Unknown, false), Phase::Unknown);
    world.pod = None;
    assert_eq!(seen(&world, true).phase, Some(Phase::Pending));
    world.performer.status.as_mut().unwrap().phase = Some(Phase::Upgrading);
    assert_eq!(seen(&world, true).phase, Some(Phase::Upgrading));
    world.delete();
    assert_eq!(seen(&world, true).phase, Some(Phase::Terminating));
}

#[test]
fn p53_the_old_enum_gets_failed_instead_of_unknown() {
    let mut world = World::running(basic());
    for phase in [PodPhase::Succeeded, PodPhase::Unknown] {
        world.end_pod(phase);
        assert_eq!(seen(&world, false).phase, Some(Phase::Failed));
    }
}

#[test]
fn p20_ready_is_false_when_absent_deleting_or_unready() {
    let mut world = World::running(basic());
    assert!(seen(&world, true).ready);
    world.pod_mut().is_ready = false;
    assert!(!seen(&world, true).ready);
    world.pod_mut().is_ready = true;
    world.pod_mut().deletion = Some(going(at(30), 30));
    assert!(!seen(&world, true).ready);
    world.pod = None;
    assert!(!seen(&world, true).ready);
    assert_eq!(seen(&world, true).pod_name, None);
}

/// A step may take as long as a webhook that hangs: what clients rely on is stored before it.
#[test]
fn p20_a_loss_is_stored_before_the_first_step() {
    let mut world = World::running(basic());
    let announced = |world: &World| world.plan().steps.iter().map(|step| step.announced).collect::<Vec<_>>();
    world.service = None;
    assert_eq!(announced(&world), [false], "the pod serves, there is nothing to take back");
    world.set_ready(false);
    assert_eq!(announced(&world), [true]);
    world.pod = None;
    assert_eq!(announced(&world), [true, false], "before the pod, and so before the Service");
    world.announce();
    assert_eq!((world.status().ready, world.status().phase), (false, Some(Phase::Pending)));
    assert_eq!((world.status().pod_name, world.status().ready_time), (None, None));
    assert_eq!(degraded(&world), None);
    assert_eq!(announced(&world), [false, false], "once");
    world.settle();
    world.start_pod();
    world.settle();
    assert!(world.status().ready);
}

#[test]
fn p21_ready_time_set_kept_and_renewed() {
    let mut world = World::new(basic());
    world.settle();
    assert_eq!(world.status().ready_time, None);
    world.advance(Duration::from_secs(5));
    world.start_pod();
    world.settle();
    assert_eq!(world.status().ready_time, Some(at(5)));
    world.advance(Duration::from_secs(5));
    world.set_ready(false);
    world.settle();
    assert_eq!((world.status().ready, world.status().ready_time), (false, Some(at(5))));
    assert_eq!(reason(&world.status(), ConditionType::Available).1, Reason::PodNotReady);
    world.advance(Duration::from_secs(5));
    world.set_ready(true);
    world.settle();
    assert_eq!((world.status().ready, world.status().ready_time), (true, Some(at(5))));
    world.pod = None;
    world.settle();
    assert_eq!(world.status().ready_time, None);
    world.advance(Duration::from_secs(5));
    world.start_pod();
    world.settle();
    assert_eq!(world.status().ready_time, Some(at(20)));
}

#[test]
fn p21_ready_time_is_the_new_pods_even_within_one_second() {
    let mut world = World::running(basic());
    world.policy.failure_delay = Duration::ZERO;
    world.end_pod(PodPhase::Failed);
    world.settle();
    assert_eq!(world.pod.as_ref().unwrap().created_at, Some(at(0)));
    assert_eq!(world.status().ready_time, None);
}

#[test]
fn p21_ready_time_survives_a_node_whose_clock_is_behind() {
    let mut world = World::running(basic());
    world.performer.status.as_mut().unwrap().ready_time = None;
    world.pod_mut().ready_changed_at = Some(at(-600));
    world.settle();
    assert_eq!(world.status().ready_time, Some(at(0)));
    world.set_ready(false);
    world.settle();
    assert_eq!(world.status().ready_time, Some(at(0)));
}

#[test]
fn p22_endpoint_has_port_and_namespace_before_the_pod_is_ready() {
    let mut world = World::new(with(basic(), json!({ "config": { "grpcPort": 8080 } })));
    world.step();
    let status = world.status();
    assert_eq!(status.grpc_endpoint.as_deref(), Some("performer-p.ns.svc.cluster.local:8080"));
    assert_eq!(status.service_name.as_deref(), Some("performer-p"));
    assert_eq!(status.pod_name.as_deref(), Some("performer-p"));
}

#[test]
fn p23_upgrade_is_reported_from_start_to_ready() {
    let mut world = World::running(basic());
    assert_eq!(world.status().last_upgrade, None);
    world.advance(Duration::from_secs(100));
    world.edit(json!({ "image": "repo:2" }));
    world.settle();
    let during = world.status();
    assert_eq!((during.phase, during.ready), (Some(Phase::Upgrading), false));
    assert_eq!((during.last_upgrade, during.ready_time), (Some(at(100)), None));
    let progressing = reason(&during, ConditionType::Progressing);
    assert_eq!(progressing, (ConditionStatus::True, Reason::UpgradeInProgress));
    assert_eq!(world.written.len(), 1, "one status from the announcement to the new pod");
    world.advance(Duration::from_secs(100));
    world.start_pod();
    world.settle();
    let done = world.status();
    assert_eq!((done.phase, done.ready), (Some(Phase::Running), true));
    assert_eq!((done.last_upgrade, done.ready_time), (Some(at(100)), Some(at(200))));
    assert_eq!(world.written.len(), 2);
}

#[test]
fn p23_upgrade_of_a_broken_image_stays_upgrading_and_says_why() {
    let mut world = World::running(basic());
    world.edit(json!({ "image": "repo:" }));
    world.settle();
    wait(&mut world, "InvalidImageName");
    world.settle();
    assert_eq!(world.status().phase, Some(Phase::Upgrading));
    assert_eq!(degraded(&world), Some(Reason::ImagePullFailed));
}

#[test]
fn p24_version_only_change_is_reported_as_upgrade() {
    let mut world = World::running(basic());
    world.edit(json!({ "version": "2" }));
    world.settle();
    assert_eq!(world.status().phase, Some(Phase::Upgrading));
    assert_eq!(world.status().last_upgrade, Some(at(0)));
    world.start_pod();
    world.settle();
    assert_eq!(world.status().phase, Some(Phase::Running));
}

#[test]
fn recreation_after_failure_is_no_upgrade() {
    let mut world = World::running(basic());
    world.end_pod(PodPhase::Failed);
    world.settle();
    assert_eq!((world.status().phase, degraded(&world)), (Some(Phase::Failed), Some(Reason::PodFailed)));
    world.advance(Duration::from_secs(10));
    world.settle();
    assert_eq!((world.status().phase, world.status().last_upgrade), (Some(Phase::Pending), None));
    assert_eq!(world.status().ready_time, None);
}

#[test]
fn p29_conditions_in_order_with_stable_times() {
    use ConditionStatus::{False, True};
    let mut world = World::new(basic());
    world.settle();
    let kinds: Vec<_> = world.status().conditions.iter().map(|c| (c.kind, c.status, c.reason)).collect();
    assert_eq!(
        kinds,
        [
            (ConditionType::Progressing, True, Reason::Scheduled),
            (ConditionType::Degraded, False, Reason::Scheduled),
            (ConditionType::Available, False, Reason::Scheduled),
        ]
    );
    world.advance(Duration::from_secs(9));
    world.start_pod();
    world.settle();
    let ready = world.status();
    let kinds: Vec<_> = ready.conditions.iter().map(|c| (c.status, c.reason, c.last_transition_time)).collect();
    assert_eq!(
        kinds,
        [(False, Reason::PodReady, at(9)), (False, Reason::PodReady, at(0)), (True, Reason::PodReady, at(9)),]
    );
    assert_eq!(ready.conditions[2].message, "Performer pod is ready and running");
    assert!(ready.conditions.iter().all(|c| c.observed_generation == Some(1)));
    world.performer.metadata.generation = Some(2);
    world.advance(Duration::from_secs(9));
    world.settle();
    let later = world.status();
    assert!(later.conditions.iter().all(|c| c.observed_generation == Some(2)));
    assert_eq!(later.conditions[2].last_transition_time, at(9));
}

#[test]
fn a_normal_start_is_reported_twice() {
    let mut world = World::new(basic());
    world.settle();
    world.advance(Duration::from_millis(700));
    world.pod_mut().scheduled = Scheduled::Yes(Some(at(1)));
    world.settle();
    wait(&mut world, "ContainerCreating");
    world.settle();
    world.pod_mut().waiting = None;
    world.pod_mut().phase = PodPhase::Running;
    world.set_ready(false);
    world.settle();
    world.advance(Duration::from_millis(700));
    world.set_ready(true);
    world.settle();
    assert_eq!(world.written.len(), 2, "{:#?}", world.written);
}

#[test]
fn p30_image_trouble_is_named_at_once() {
    for word in ["ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"] {
        let mut world = World::new(basic());
        world.settle();
        wait(&mut world, word);
        world.step();
        assert_eq!(degraded(&world), Some(Reason::ImagePullFailed), "{word}");
        let available = world.status().condition(ConditionType::Available).unwrap().clone();
        assert!(available.message.contains("repo:1") && available.message.contains(word), "{}", available.message);
    }
}

#[test]
fn a_container_that_admission_added_is_named_when_it_does_not_start() {
    for (word, reason) in [("ErrImagePull", Reason::ImagePullFailed), ("CrashLoopBackOff", Reason::CrashLoop)] {
        let mut world = World::new(basic());
        world.settle();
        wait(&mut world, "PodInitializing");
        let waiting = Waiting { reason: word.into(), message: "why".into() };
        world.pod_mut().foreign = Some(Box::new(Foreign { name: "mesh-init".into(), waiting }));
        world.step();
        assert_eq!(degraded(&world), Some(reason), "{word}");
        let message = world.status().condition(ConditionType::Degraded).unwrap().message.clone();
        assert!(message.contains("mesh-init") && message.contains(word) && message.contains("why"), "{message}");
        world.pod_mut().foreign = None;
        world.start_pod();
        world.settle();
        assert_eq!(degraded(&world), None);
    }
}

#[test]
fn p31_unschedulable_names_hardware_when_some_was_asked_for() {
    let cases = [
        (json!({}), Reason::SchedulingFailed),
        (json!({ "hardwareRequirements": { "customLabels": { "a": "b" } } }), Reason::SchedulingFailed),
        (json!({ "hardwareRequirements": { "gpuCount": 1 } }), Reason::HardwareUnavailable),
        (json!({ "hardwareRequirements": { "teeRequired": true } }), Reason::HardwareUnavailable),
        (json!({ "resources": { "limits": { "nvidia.com/gpu": 1 } } }), Reason::HardwareUnavailable),
    ];
    for (change, expected) in cases {
        let mut world = World::new(with(basic(), change.clone()));
        world.settle();
        world.pod_mut().scheduled = Scheduled::Unschedulable("0/3 nodes are available".into());
        world.step();
        assert_eq!(degraded(&world), Some(expected), "{change}");
        let now = world.now;
        world.pod_mut().scheduled = Scheduled::Yes(Some(now));
        world.step();
        assert_eq!(degraded(&world), None, "{change}");
    }
}

#[test]
fn p35_a_foreign_object_is_reported() {
    let mut world = World::new(basic());
    world.pod = Some(PodFacts { phase: PodPhase::Running, is_ready: true, ..PodFacts::default() });
    world.settle();
    let status = world.status();
    assert_eq!(degraded(&world), Some(Reason::NameTaken));
    assert_eq!((status.ready, status.pod_name.as_deref()), (false, None));
    assert_eq!(reason(&status, ConditionType::Progressing), (ConditionStatus::False, Reason::NameTaken));
    world.pod = None;
    world.settle();
    assert_eq!((degraded(&world), world.pod.is_some()), (None, true));
}

#[test]
fn p36_a_bad_name_is_one_lasting_condition() {
    let mut world = World::new(basic());
    world.performer.metadata.name = Some("a.b".to_owned());
    world.settle();
    assert_eq!(degraded(&world), Some(Reason::InvalidName));
    assert_eq!(world.status().grpc_endpoint, None);
    world.advance(Duration::from_hours(1));
    world.settle();
    assert_eq!(world.written.len(), 1);
}

#[test]
fn p37_a_refused_pod_is_reported_once_and_recovers() {
    let mut world = World::new(basic());
    for message in ["quota: used 1", "quota: used 2"] {
        world.pod_creation = rejected(message);
        world.step();
        assert_eq!(degraded(&world), Some(Reason::PodRejected));
        assert!(world.status().conditions[2].message.ends_with("quota: used 1"));
    }
    assert!(world.service.is_some(), "a refused pod stops only what needs it");
    world.pod_creation = failed();
    world.step();
    assert_eq!(degraded(&world), Some(Reason::PodRejected), "no news is no recovery");
    assert_eq!(world.written.len(), 1);
    world.pod_creation = done();
    world.settle();
    assert_eq!((degraded(&world), world.service.is_some()), (None, true));
}

#[test]
fn p37_a_refused_service_is_reported_even_while_the_pod_is_ready() {
    let mut world = World::new(basic());
    world.service_write = rejected("quota");
    world.step();
    world.start_pod();
    for outcome in [rejected("quota"), failed()] {
        world.service_write = outcome;
        world.step();
        assert_eq!(degraded(&world), Some(Reason::ServiceRejected));
        let available = reason(&world.status(), ConditionType::Available);
        assert_eq!(available, (ConditionStatus::False, Reason::ServiceRejected));
    }
    world.service_write = done();
    world.settle();
    assert_eq!((degraded(&world), world.status().ready), (None, true));
}

#[test]
fn a_terminating_namespace_is_not_reported() {
    let mut world = World::new(basic());
    world.pod_creation = Progress::Refused(Refusal::NamespaceTerminating);
    world.step();
    assert!(world.written.is_empty());
}

#[test]
fn unknown_surroundings_change_nothing() {
    let mut world = World::running(basic());
    world.now = at(99);
    let observed = Observed { pod: Slot::Unknown, ..world.observed() };
    assert_eq!(world.report(&observed, &Plan::default(), &[]).status, world.status());
}

#[test]
fn p25_a_replacement_is_reported_twice_and_says_so() {
    let mut world = World::running(basic());
    world.edit(json!({ "config": { "args": ["-v"] } }));
    for _ in 0..3 {
        world.step();
        let available = reason(&world.status(), ConditionType::Available);
        assert_eq!(available, (ConditionStatus::False, Reason::PodReplaced), "while the old pod goes");
    }
    world.settle();
    let progressing = reason(&world.status(), ConditionType::Progressing);
    assert_eq!(progressing, (ConditionStatus::True, Reason::PodReplaced), "while the new pod starts");
    assert_eq!((world.written.len(), degraded(&world)), (1, None));
    world.start_pod();
    world.settle();
    assert_eq!(world.written.len(), 2);
    world.pod_mut().deletion = Some(going(at(0), 30));
    world.step();
    assert_eq!(reason(&world.status(), ConditionType::Progressing), progressing, "deleted by hand");
}

/// The operator stops after any round of an upgrade and another goes on from what is stored.
#[test]
fn p42_an_upgrade_cut_anywhere_ends_the_same() {
    for rounds in 0..5 {
        for is_status_lost in [false, true] {
            let mut world = World::running(basic());
            world.edit(json!({ "image": "repo:2" }));
            for _ in 0..rounds {
                let stored = world.performer.status.clone();
                world.step();
                if is_status_lost && world.pod.as_ref().is_some_and(|p| p.deletion.is_some()) {
                    world.performer.status = stored;
                }
            }
            world.replacements = 0;
            world.settle();
            world.start_pod();
            world.settle();
            let status = world.status();
            assert_eq!(status.phase, Some(Phase::Running));
            assert_eq!(status.last_upgrade, Some(at(0)), "{rounds} {is_status_lost}");
        }
    }
}

#[test]
fn only_a_first_status_without_trouble_is_provisional() {
    let mut world = World::running(basic());
    let is_provisional = |world: &World| world.report(&world.observed(), &Plan::default(), &[]).is_provisional;
    let stored = world.performer.status.take();
    assert!(!is_provisional(&world), "a ready pod is reported at once");
    (world.pod_mut().phase, world.pod_mut().is_ready) = (PodPhase::Pending, false);
    assert!(is_provisional(&world));
    wait(&mut world, "ErrImagePull");
    assert!(!is_provisional(&world), "trouble is reported at once");
    world.pod_mut().waiting = None;
    world.performer.status = stored;
    assert!(!is_provisional(&world), "what was reported before is corrected at once");
}
