//! What is wrong: that it is told once, with its remedy, and for as long as it lasts. The plain cases
//! of the rows are in `status`.

use std::time::Duration;

use api::condition::{ConditionStatus, ConditionType, Reason};
use plan::performers::{Exit, Outcome, PodPhase, Scheduled, ServiceFacts, ServiceType};
use serde_json::json;

use crate::status::{degraded, reason, wait};
use crate::world::{World, at, basic, going, with};

#[test]
fn other_container_trouble_is_named() {
    for word in ["CreateContainerConfigError", "CreateContainerError", "RunContainerError"] {
        let mut world = World::new(basic());
        world.settle();
        wait(&mut world, word);
        world.step();
        assert_eq!(degraded(&world), Some(Reason::ContainerConfigError), "{word}");
    }
}

#[test]
fn a_failing_retry_writes_nothing() {
    let mut world = World::new(basic());
    world.settle();
    let now = world.now;
    world.pod_mut().scheduled = Scheduled::Yes(Some(now));
    wait(&mut world, "ErrImagePull");
    world.settle();
    let writes = world.written.len();
    for word in ["ImagePullBackOff", "ErrImagePull"] {
        wait(&mut world, word);
        world.settle();
    }
    world.advance(Duration::from_mins(5));
    world.settle();
    assert_eq!(&*world.pod.as_ref().unwrap().uid, "pod-2", "replaced meanwhile");
    wait(&mut world, "ErrImagePull");
    world.settle();
    assert_eq!(world.written.len(), writes);
    world.start_pod();
    world.settle();
    assert_eq!(degraded(&world), None);
}

#[test]
fn a_pod_its_service_cannot_find_is_not_ready_and_that_is_told_once() {
    let mut world = World::new(basic());
    world.settle();
    world.written.clear();
    for _ in 0..3 {
        world.start_pod();
        world.pod_mut().is_selected = false;
        world.settle();
        assert_eq!((degraded(&world), world.status().ready), (Some(Reason::LabelMissing), false));
        world.advance(Duration::from_mins(5));
        world.settle();
    }
    assert_eq!(world.written.len(), 1, "{:#?}", world.written);
    world.start_pod();
    world.settle();
    assert_eq!((degraded(&world), world.status().ready), (None, true));
}

#[test]
fn a_crash_loop_does_not_flicker() {
    let mut world = World::new(basic());
    world.settle();
    let crash = |world: &mut World, restarts| {
        let finished_at = Some(world.now);
        world.pod_mut().phase = PodPhase::Running;
        world.pod_mut().exit = Some(Box::new(Exit { code: 137, reason: "OOMKilled".into(), finished_at }));
        world.pod_mut().restarts = restarts;
        wait(world, "CrashLoopBackOff");
        world.settle();
    };
    crash(&mut world, 1);
    assert_eq!(degraded(&world), Some(Reason::CrashLoop));
    let message = world.status().conditions[2].message.clone();
    assert!(message.contains("137 (OOMKilled)") && message.contains("kubectl logs"), "{message}");
    let writes = world.written.len();
    for restarts in 2..5 {
        world.pod_mut().waiting = None;
        world.pod_mut().restarts = restarts;
        world.advance(Duration::from_mins(1));
        world.settle();
        crash(&mut world, restarts);
    }
    assert_eq!(world.written.len(), writes);
    world.pod_mut().waiting = None;
    world.advance(Duration::from_mins(11));
    world.settle();
    assert_eq!(degraded(&world), None, "it has run for long");
}

#[test]
fn the_first_reason_of_the_order_is_told() {
    let mut world = World::new(with(basic(), json!({ "hardwareRequirements": { "gpuCount": 1 } })));
    world.settle();
    world.pod_mut().scheduled = Scheduled::Unschedulable("full".into());
    world.settle();
    assert_eq!(degraded(&world), Some(Reason::HardwareUnavailable));
    wait(&mut world, "CrashLoopBackOff");
    world.settle();
    assert_eq!(degraded(&world), Some(Reason::CrashLoop));
    wait(&mut world, "ErrImagePull");
    world.settle();
    assert_eq!(degraded(&world), Some(Reason::ImagePullFailed));
    world.performer.spec = None;
    world.settle();
    assert_eq!(degraded(&world), Some(Reason::InvalidSpec));
    world.service = Some(ServiceFacts::default());
    world.settle();
    assert_eq!(degraded(&world), Some(Reason::NameTaken));
}

#[test]
fn p37_a_refused_repair_of_the_service_is_told_until_it_is_done() {
    let mut world = World::running(basic());
    world.service.as_mut().unwrap().service_type = ServiceType::Other;
    for outcome in [Outcome::Rejected { message: "webhook".to_owned() }, Outcome::Failed] {
        world.service_write = outcome;
        world.step();
        assert_eq!(degraded(&world), Some(Reason::ServiceRejected));
    }
    assert_eq!(world.written.len(), 1);
    world.service_write = Outcome::Done;
    world.step();
    assert_eq!(degraded(&world), None);
}

#[test]
fn a_refusal_is_forgotten_only_when_its_action_was_reached() {
    let mut world = World::running(basic());
    world.service = None;
    world.service_write = Outcome::Rejected { message: "quota".to_owned() };
    world.step();
    world.pod = None;
    world.pod_creation = Outcome::Failed;
    world.step();
    assert_eq!(degraded(&world), Some(Reason::ServiceRejected), "the pod's failure ended the round before");
}

#[test]
fn long_words_of_others_are_cut_at_a_character() {
    let mut world = World::new(basic());
    world.pod_creation = Outcome::Rejected { message: "ü".repeat(40_000) };
    world.step();
    let message = &world.status().conditions[2].message;
    assert_eq!((message.chars().count(), message.ends_with("ü…")), (4097, true));
    world.pod_creation = Outcome::Failed;
    world.step();
    assert_eq!(world.written.len(), 1, "a cut message is no news");
}

#[test]
fn a_pod_that_does_not_go_is_told_with_the_remedy() {
    let cases = [
        (
            false,
            json!({ "image": "repo:2" }),
            Reason::UpgradeInProgress,
            "kubectl delete pod -n ns performer-p --force",
        ),
        (true, json!({ "avsAddress": "0xCD" }), Reason::PodReplaced, "kubectl edit pod -n ns performer-p"),
    ];
    for (has_finalizers, change, course, remedy) in cases {
        let mut world = World::running(basic());
        world.pod_mut().has_finalizers = has_finalizers;
        world.edit(change);
        world.step();
        world.step();
        world.pod_mut().deletion = Some(going(at(0), 30));
        world.advance(Duration::from_secs(59));
        world.step();
        assert_eq!((degraded(&world), world.written.len()), (None, 1), "it has its time");
        world.advance(Duration::from_secs(1));
        world.step();
        assert_eq!(degraded(&world), Some(Reason::PodStuck));
        let status = world.status();
        assert_eq!(reason(&status, ConditionType::Progressing), (ConditionStatus::True, course));
        assert_eq!(reason(&status, ConditionType::Available), (ConditionStatus::False, Reason::PodStuck));
        assert!(status.conditions[2].message.contains(remedy), "{}", status.conditions[2].message);
        world.advance(Duration::from_hours(1));
        world.step();
        assert_eq!(world.written.len(), 2, "told once");
        world.pod = None;
        world.settle();
        world.start_pod();
        world.settle();
        assert_eq!((degraded(&world), world.status().ready), (None, true));
    }
}

#[test]
fn a_service_that_does_not_go_is_told() {
    let mut world = World::running(basic());
    let now = world.now;
    world.service.as_mut().unwrap().deletion = Some(going(now, 0));
    world.settle();
    assert_eq!((degraded(&world), world.written.len()), (None, 0));
    world.advance(Duration::from_secs(30));
    world.settle();
    assert_eq!(degraded(&world), Some(Reason::ServiceStuck));
    assert!(world.status().conditions[2].message.contains("kubectl edit service -n ns performer-p"));
    world.service = None;
    world.settle();
    assert_eq!(degraded(&world), None);
}
