//! What is wrong: that it is reported once, with its remedy, and for as long as it lasts. The plain cases
//! of the rows are in `status`.

use std::time::Duration;

use api::condition::{ConditionStatus, ConditionType, Reason};
use plan::performers::{Exit, PodPhase, Scheduled, ServiceFacts, ServiceType, Waiting};
use serde_json::json;

use crate::status::{degraded, reason, wait};
use crate::world::{World, at, basic, done, failed, going, rejected, unable, with};

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
fn a_pod_its_service_cannot_find_is_not_ready_and_that_is_reported_once() {
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
fn the_first_reason_of_the_order_is_reported() {
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
    for outcome in [rejected("webhook"), failed()] {
        world.service_write = outcome;
        world.step();
        assert_eq!(degraded(&world), Some(Reason::ServiceRejected));
    }
    assert_eq!(world.written.len(), 1);
    world.service_write = done();
    world.step();
    assert_eq!(degraded(&world), None);
}

#[test]
fn a_refusal_is_forgotten_only_when_its_action_was_reached() {
    let mut world = World::running(basic());
    world.service = None;
    world.service_write = rejected("quota");
    world.step();
    world.pod = None;
    world.pod_creation = failed();
    world.step();
    assert_eq!(degraded(&world), Some(Reason::ServiceRejected), "the pod's failure ended the round before");
}

#[test]
fn long_words_of_others_are_cut_at_a_character() {
    let mut world = World::new(basic());
    world.pod_creation = rejected("ü".repeat(40_000));
    world.step();
    let message = &world.status().conditions[2].message;
    assert_eq!((message.chars().count(), message.ends_with("ü…")), (4097, true));
    world.pod_creation = failed();
    world.step();
    assert_eq!(world.written.len(), 1, "a cut message is no news");
}

#[test]
fn a_pod_that_does_not_go_is_reported_with_the_remedy() {
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
        assert_eq!(world.written.len(), 2, "reported once");
        world.pod = None;
        world.settle();
        world.start_pod();
        world.settle();
        assert_eq!((degraded(&world), world.status().ready), (None, true));
    }
}

#[test]
fn a_service_that_does_not_go_is_reported() {
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

const UNREACHABLE: &str =
    r#"Internal error occurred: failed calling webhook "a.test": dial tcp 10.0.0.7:443: connection refused"#;

#[test]
fn p37_what_the_server_is_unable_to_do_is_told_when_it_lasts() {
    let mut world = World::new(basic());
    world.pod_creation = unable(UNREACHABLE.to_owned());
    world.step();
    assert_eq!(degraded(&world), None, "most of that passes");
    world.advance(Duration::from_secs(9));
    world.pod_creation = failed();
    world.step();
    assert_eq!((degraded(&world), world.written.len()), (None, 1));
    world.advance(Duration::from_secs(1));
    world.pod_creation = unable(UNREACHABLE.to_owned());
    world.step();
    assert_eq!(degraded(&world), Some(Reason::PodRejected));
    assert!(world.status().conditions[2].message.ends_with(UNREACHABLE), "{:?}", world.status().conditions);
    world.restart();
    world.step();
    assert_eq!((degraded(&world), world.written.len()), (Some(Reason::PodRejected), 2), "reported until it is done");
    world.pod_creation = done();
    world.settle();
    assert_eq!(degraded(&world), None);
}

#[test]
fn p37_a_repair_that_the_server_is_unable_to_do_is_told_when_it_lasts() {
    let mut world = World::running(basic());
    world.service.as_mut().unwrap().service_type = ServiceType::Other;
    world.service_write = unable(UNREACHABLE.to_owned());
    world.step();
    assert_eq!(degraded(&world), None);
    world.advance(Duration::from_secs(10));
    world.step();
    assert_eq!(degraded(&world), Some(Reason::ServiceRejected));
}

#[test]
fn a_fault_that_passes_begins_anew_next_time() {
    let mut world = World::new(basic());
    for _ in 0..3 {
        world.pod_creation = unable(UNREACHABLE.to_owned());
        world.step();
        assert_eq!(degraded(&world), None);
        world.pod_creation = done();
        world.advance(Duration::from_secs(9));
        world.settle();
        world.pod = None;
    }
}

#[test]
fn a_message_follows_its_cause_and_not_its_numbers() {
    let shown = |world: &World| world.status().conditions[2].message.clone();
    let refuse = |world: &mut World, message: &str| {
        world.pod_creation = rejected(message);
        world.step();
    };
    let mut world = World::new(basic());
    refuse(&mut world, "exceeded quota: q, requested: memory=1Gi, used: memory=900Mi");
    refuse(&mut world, "exceeded quota: q, requested: memory=1Gi, used: memory=1.5Gi");
    assert_eq!(world.written.len(), 1, "the same refusal: {}", shown(&world));
    refuse(&mut world, "admission webhook denied the request: back-off 10s");
    assert_eq!(world.written.len(), 2);
    assert!(shown(&world).contains("admission webhook"), "{}", shown(&world));
    for words in ["back-off 1m20s", "back-off 5m0s", "back-off 2.5s"] {
        refuse(&mut world, &format!("admission webhook denied the request: {words}"));
    }
    assert_eq!(world.written.len(), 2);
    let transition = world.status().conditions[2].last_transition_time;
    world.advance(Duration::from_mins(1));
    refuse(&mut world, "pod a1b2c3d4-0e5f is gone");
    refuse(&mut world, "pod 99887766-a5b4 is gone");
    assert_eq!(world.written.len(), 3, "another uid is no other cause");
    assert_eq!(world.status().conditions[2].last_transition_time, transition, "the status is what it was");
}

#[test]
fn another_cause_of_a_failed_pull_is_reported_and_a_back_off_is_none() {
    let mut world = World::new(basic());
    world.settle();
    let pull = |world: &mut World, reason: &str, message: &str| {
        world.pod_mut().waiting = Some(Box::new(Waiting { reason: reason.into(), message: message.into() }));
        world.settle();
        world.status().conditions[2].message.clone()
    };
    assert!(pull(&mut world, "ErrImagePull", "not found").contains("not found"));
    let writes = world.written.len();
    assert!(pull(&mut world, "ImagePullBackOff", "Back-off pulling image").contains("not found"));
    assert!(pull(&mut world, "ErrImagePull", "not found").contains("not found"));
    assert_eq!(world.written.len(), writes, "the two take turns");
    assert!(pull(&mut world, "ErrImagePull", "no such host").contains("no such host"));
    assert_eq!(world.written.len(), writes + 1);
}

#[test]
fn p37_a_deletion_or_finalizer_that_the_server_refuses_is_reported_until_it_is_done() {
    let shows = |world: &mut World, expected: Reason| {
        let before = world.written.len();
        for outcome in [rejected("no deletions today"), failed(), rejected("no deletions today")] {
            world.other_write = outcome;
            world.step();
            assert_eq!(degraded(world), Some(expected));
        }
        assert_eq!(world.written.len(), before + 1, "said once");
        assert!(world.status().conditions[1].message.ends_with("no deletions today"), "{:?}", world.status());
    };
    let mut world = World::new(basic());
    shows(&mut world, Reason::ObjectRejected);
    world.other_write = done();
    world.settle();
    assert_eq!(degraded(&world), None);

    let mut world = World::running(basic());
    world.edit(json!({ "image": "repo:2" }));
    world.other_write = rejected("no deletions today");
    world.step();
    assert_eq!(degraded(&world), Some(Reason::PodStuck));
    world.other_write = done();
    world.settle();
    assert_eq!(degraded(&world), None);

    let mut world = World::running(basic());
    world.delete();
    shows(&mut world, Reason::PodStuck);
    world.other_write = done();
    world.settle();
    assert!(!world.has_finalizer());

    let mut world = World::running(basic());
    world.delete();
    world.pod = None;
    shows(&mut world, Reason::ServiceStuck);
}
