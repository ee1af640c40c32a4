//! What is done and when: rows P08, P23 to P28, P32 to P36, P49.

use std::time::Duration;

use api::condition::Reason;
use api::performer::{FINALIZER, LABEL_PERFORMER, Phase};
use plan::performers::{
    Action, Cause, ImageWriter, Observed, PodFacts, PodPhase, PortFacts, Scheduled, ServiceFacts, ServiceType, Slot,
    TargetPort, Waiting,
};
use plan::round::Plan;
use serde_json::json;

use crate::world::{World, basic, going};

fn names(plan: &Plan<Action>) -> Vec<&'static str> {
    let name = |action: &Action| match action {
        Action::AddFinalizer { .. } => "AddFinalizer",
        Action::DeletePod { .. } => "DeletePod",
        Action::CreatePod(_) => "CreatePod",
        Action::CreateService(_) => "CreateService",
        Action::RepairService { .. } => "RepairService",
        Action::DeleteService { .. } => "DeleteService",
        Action::ReleaseFinalizer { .. } => "ReleaseFinalizer",
    };
    plan.actions().map(name).collect()
}

fn blocked(plan: &Plan<Action>) -> Option<Reason> {
    plan.blocked.first().map(|why| why.reason)
}

fn cause(plan: &Plan<Action>) -> Option<Cause> {
    plan.actions().find_map(|a| match a {
        Action::DeletePod { cause, .. } => Some(*cause),
        _ => None,
    })
}

#[test]
fn p08_finalizer_then_pod_then_service() {
    let mut world = World::new(basic());
    world.performer.metadata.finalizers = Some(vec!["other/one".to_owned()]);
    let plan = world.round();
    assert_eq!(names(&plan), ["AddFinalizer", "CreatePod", "CreateService"]);
    let stored = world.performer.metadata.finalizers.as_deref().unwrap();
    assert_eq!(stored, ["other/one", "hourglass.eigenlayer.io/performer-finalizer"]);
    assert_eq!(names(&world.plan()), [""; 0]);
}

#[test]
fn p17_a_missing_or_edited_service_is_repaired() {
    let mut world = World::running(basic());
    let right = world.service.clone().unwrap();
    world.service = None;
    assert_eq!(names(&world.plan()), ["CreateService"]);
    let grpc = right.ports[0].clone();
    let ports = |ports: &[PortFacts]| ServiceFacts { ports: ports.into(), ..right.clone() };
    let mut edits = vec![
        ServiceFacts { service_type: ServiceType::Other, ..right.clone() },
        ServiceFacts { selector: std::iter::once(("app".into(), "x".into())).collect(), ..right.clone() },
        ports(&[]),
        ports(&[PortFacts { port: 1, ..grpc.clone() }]),
        ports(&[PortFacts { name: "other".into(), ..grpc.clone() }]),
        ports(&[PortFacts { target: TargetPort::Number(9090), ..grpc.clone() }]),
        ports(&[PortFacts { is_tcp: false, ..grpc.clone() }]),
        ports(&[grpc.clone(), PortFacts { name: "second".into(), port: 2, ..grpc }]),
    ];
    let widened = right.selector.iter().cloned().chain([("extra".into(), "y".into())]).collect();
    edits.push(ServiceFacts { selector: widened, ..right.clone() });
    for edited in edits {
        world.service = Some(edited.clone());
        assert_eq!(names(&world.round()), ["RepairService"], "{edited:?}");
        assert_eq!(world.service.as_ref(), Some(&right));
        assert_eq!(names(&world.plan()), [""; 0]);
    }
}

#[test]
fn p23_image_change_reports_then_replaces() {
    let mut world = World::running(basic());
    world.edit(json!({ "image": "repo:2" }));
    let plan = world.round();
    assert_eq!(cause(&plan), Some(Cause::Upgrade));
    assert!(plan.steps[0].announced, "the status says so before the pod goes");
    assert_eq!(world.written.len(), 1, "once");
    assert_eq!(world.status().phase, Some(Phase::Upgrading));
    let waiting = world.round();
    assert_eq!(names(&waiting), [""; 0], "the dying pod is left alone");
    world.settle();
    assert_eq!(&*world.pod.as_ref().unwrap().image, "repo:2");
}

#[test]
fn a_pod_that_does_not_go_is_looked_at_again_when_its_time_is_over() {
    let mut world = World::running(basic());
    let now = world.now;
    world.pod_mut().deletion = Some(going(now, 30));
    let plan = world.round();
    assert_eq!((names(&plan), blocked(&plan), plan.next_look), (vec![], None, Some(Duration::from_mins(1))));
    world.advance(Duration::from_mins(1));
    let plan = world.round();
    assert_eq!((names(&plan), blocked(&plan), plan.next_look), (vec![], Some(Reason::PodStuck), None));
}

#[test]
fn p24_version_change_is_an_upgrade() {
    let mut world = World::running(basic());
    world.edit(json!({ "version": "2" }));
    assert_eq!(cause(&world.round()), Some(Cause::Upgrade));
}

#[test]
fn p25_other_changes_replace_the_pod_without_upgrade() {
    for change in [
        json!({ "config": { "environment": { "A": "1" } } }),
        json!({ "config": { "args": ["-v"] } }),
        json!({ "config": { "grpcPort": 8080 } }),
        json!({ "resources": { "limits": { "cpu": 1 } } }),
        json!({ "scheduling": { "nodeSelector": { "a": "b" } } }),
        json!({ "imagePullPolicy": "Always" }),
        json!({ "avsAddress": "0xCD" }),
    ] {
        let mut world = World::running(basic());
        world.edit(change.clone());
        assert_eq!(cause(&world.plan()), Some(Cause::SpecChanged), "{change}");
        world.settle();
        world.start_pod();
        world.settle();
        assert!(world.written.iter().all(|s| s.phase != Some(Phase::Upgrading)), "{change}");
        assert!(world.status().ready && world.status().last_upgrade.is_none(), "{change}");
    }
}

#[test]
fn p25_a_port_change_moves_pod_and_service_together() {
    let mut world = World::running(basic());
    world.edit(json!({ "config": { "grpcPort": 8080 } }));
    assert_eq!(names(&world.plan()), ["DeletePod", "RepairService"]);
}

#[test]
fn p26_image_flipped_twice_ends_on_the_last() {
    for rounds_between in 0..6 {
        let mut world = World::running(basic());
        for image in ["repo:2", "repo:3"] {
            world.edit(json!({ "image": image }));
            for _ in 0..rounds_between {
                world.step();
            }
        }
        world.settle();
        world.start_pod();
        world.settle();
        assert_eq!(&*world.pod.as_ref().unwrap().image, "repo:3");
        assert_eq!(world.status().phase, Some(Phase::Running), "{rounds_between}");
        assert!(world.status().last_upgrade.is_some());
    }
}

#[test]
fn an_image_flipped_back_before_the_deletion_keeps_the_pod() {
    let mut world = World::running(basic());
    world.edit(json!({ "image": "repo:2" }));
    world.announce();
    assert_eq!(world.status().phase, Some(Phase::Upgrading));
    world.edit(json!({ "image": "repo:1" }));
    world.settle();
    assert_eq!(&*world.pod.as_ref().unwrap().uid, "pod-1");
    assert_eq!(world.status().phase, Some(Phase::Running));
}

#[test]
fn p27_failed_pod_is_replaced_with_growing_delay() {
    let mut world = World::running(basic());
    for (phase, delay) in [(PodPhase::Failed, 10), (PodPhase::Failed, 20), (PodPhase::Succeeded, 40)] {
        world.end_pod(phase);
        let plan = world.round();
        assert_eq!((names(&plan), plan.next_look), (vec![], Some(Duration::from_secs(delay))));
        world.advance(Duration::from_secs(delay));
        let plan = world.round();
        assert_eq!(names(&plan), ["DeletePod", "CreatePod"]);
        assert_eq!(cause(&plan), Some(Cause::Ended));
    }
    assert_eq!(world.pod.as_ref().unwrap().replacements, 3);
    for _ in 0..10 {
        world.end_pod(PodPhase::Failed);
        let wait = world.plan().next_look.unwrap();
        assert!(wait <= Duration::from_mins(5));
        world.advance(wait);
        world.step();
    }
}

#[test]
fn p27_a_pod_that_lived_long_starts_the_count_afresh() {
    let mut world = World::running(basic());
    world.pod_mut().replacements = 4;
    world.advance(Duration::from_mins(6));
    world.end_pod(PodPhase::Failed);
    assert_eq!(world.plan().next_look, Some(Duration::from_secs(10)));
    world.advance(Duration::from_secs(10));
    world.step();
    assert_eq!(world.pod.as_ref().unwrap().replacements, 1);
}

#[test]
fn p27_a_changed_spec_starts_the_count_afresh() {
    let mut world = World::running(basic());
    world.pod_mut().replacements = 4;
    world.edit(json!({ "config": { "args": ["-v"] } }));
    world.settle();
    assert_eq!(world.pod.as_ref().unwrap().replacements, 0);
}

#[test]
fn an_ended_pod_held_by_a_finalizer_is_deleted_and_awaited() {
    let mut world = World::running(basic());
    world.pod_mut().has_finalizers = true;
    world.end_pod(PodPhase::Failed);
    world.advance(Duration::from_secs(10));
    assert_eq!(names(&world.round()), ["DeletePod"]);
    assert_eq!(names(&world.round()), [""; 0]);
    world.pod = None;
    world.step();
    assert_eq!(world.pod.as_ref().unwrap().replacements, 1, "the count survives the gap");
}

#[test]
fn p28_pending_for_image_reasons_is_replaced_with_growing_limit() {
    let mut world = World::new(basic());
    world.settle();
    for minutes in [5, 10, 20, 40, 60, 60] {
        let now = world.now;
        world.pod_mut().scheduled = Scheduled::Yes(Some(now));
        world.pod_mut().waiting = Some(Box::new(Waiting { reason: "ImagePullBackOff".into(), message: "no".into() }));
        let limit = Duration::from_mins(minutes);
        assert_eq!(world.plan().next_look, Some(limit));
        world.advance(limit.saturating_sub(Duration::from_secs(1)));
        assert_eq!(names(&world.plan()), [""; 0]);
        world.advance(Duration::from_secs(1));
        assert_eq!(cause(&world.plan()), Some(Cause::PendingTooLong));
        world.settle();
    }
}

#[test]
fn p28_waiting_for_capacity_is_never_cut_short() {
    let mut world = World::new(basic());
    world.settle();
    for scheduled in [Scheduled::NotYet, Scheduled::Unschedulable("0/3 nodes".into())] {
        world.pod_mut().scheduled = scheduled;
        world.advance(Duration::from_hours(10));
        let plan = world.plan();
        assert_eq!((names(&plan), plan.next_look), (vec![], None));
    }
    let now = world.now;
    world.pod_mut().scheduled = Scheduled::Yes(Some(now));
    assert_eq!(world.plan().next_look, Some(Duration::from_mins(5)), "its time runs from the node on");
}

#[test]
fn p32_deletion_removes_waits_and_releases() {
    let mut world = World::running(basic());
    world.delete();
    assert_eq!(names(&world.round()), ["DeletePod", "DeleteService"]);
    assert_eq!(world.status().phase, Some(Phase::Terminating));
    let waiting = world.round();
    assert_eq!(names(&waiting), [""; 0]);
    world.pod = None;
    assert_eq!(names(&world.round()), ["ReleaseFinalizer"]);
    assert!(!world.has_finalizer());
    assert_eq!(names(&world.plan()), [""; 0]);
}

#[test]
fn p32_already_missing_objects_are_success() {
    let mut world = World::running(basic());
    world.pod = None;
    world.service = None;
    world.delete();
    assert_eq!(names(&world.plan()), ["ReleaseFinalizer"]);
}

#[test]
fn deletion_waits_no_longer_than_grace_and_margin() {
    let mut world = World::running(basic());
    world.delete();
    world.step();
    let now = world.now;
    world.pod_mut().deletion = Some(going(now, 30));
    assert_eq!(world.plan().next_look, Some(Duration::from_mins(1)));
    world.advance(Duration::from_mins(1));
    assert_eq!(names(&world.plan()), ["ReleaseFinalizer"]);
}

#[test]
fn created_and_deleted_before_the_first_pass_gets_nothing() {
    let mut world = World::new(basic());
    world.delete();
    assert_eq!(names(&world.round()), [""; 0]);
    assert!(world.written.is_empty());
}

#[test]
fn p34_finalizer_cleared_by_hand_leaves_the_rest_to_garbage_collection() {
    let mut world = World::running(basic());
    world.performer.metadata.finalizers = None;
    world.delete();
    assert_eq!(names(&world.round()), [""; 0]);
    let mut alive = World::running(basic());
    alive.performer.metadata.finalizers = None;
    assert_eq!(names(&alive.plan()), ["AddFinalizer"]);
}

#[test]
fn p35_foreign_objects_block_and_are_left_alone() {
    for owner in [None, Some("uid of a former performer".into())] {
        let mut world = World::new(basic());
        world.pod = Some(PodFacts { owner_uid: owner.clone(), image: "stranger:1".into(), ..PodFacts::default() });
        let plan = world.round();
        assert_eq!((names(&plan), blocked(&plan)), (vec![], Some(Reason::NameTaken)));
        let mut world = World::new(basic());
        world.service = Some(ServiceFacts { owner_uid: owner, ..ServiceFacts::default() });
        let plan = world.round();
        assert_eq!((names(&plan), blocked(&plan)), (vec![], Some(Reason::NameTaken)));
        world.performer.metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
        world.delete();
        assert_eq!(names(&world.plan()), ["ReleaseFinalizer"]);
    }
}

#[test]
fn p36_a_bad_name_or_spec_gets_nothing_and_can_be_deleted() {
    let mut world = World::new(basic());
    world.performer.metadata.name = Some("x".repeat(54));
    let plan = world.round();
    assert_eq!((names(&plan), plan.next_look), (vec![], None));
    assert_eq!(blocked(&plan), Some(Reason::InvalidName));
    world.performer.metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
    world.delete();
    assert_eq!(names(&world.plan()), ["ReleaseFinalizer"]);
    let mut running = World::running(basic());
    running.performer.spec = None;
    assert_eq!(names(&running.plan()), [""; 0], "what runs keeps running");
}

#[test]
fn p49_a_put_that_drops_affinity_is_a_spec_change() {
    let affinity = json!({ "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{ "matchExpressions": [{ "key": "a", "operator": "Exists" }] }],
    } } });
    let mut spec = basic();
    spec["scheduling"] = json!({ "affinity": affinity });
    let mut world = World::running(spec);
    world.edit(json!({ "scheduling": { "affinity": null } }));
    assert_eq!(cause(&world.plan()), Some(Cause::SpecChanged));
    world.settle();
    world.start_pod();
    world.settle();
    assert!(world.status().ready);
}

#[test]
fn a_pod_of_the_original_operator_is_kept_while_its_image_fits() {
    let mut world = World::running(basic());
    world.pod_mut().input_hash = None;
    world.pod_mut().version = None;
    assert_eq!(names(&world.plan()), [""; 0]);
    world.edit(json!({ "config": { "environment": { "A": "1" } } }));
    assert_eq!(names(&world.plan()), [""; 0]);
    world.edit(json!({ "image": "repo:2" }));
    world.pod_mut().image = "".into();
    assert_eq!(names(&world.plan()), [""; 0], "its image is not known, so it is not another one");
    world.pod_mut().image = "repo:1".into();
    assert_eq!(cause(&world.plan()), Some(Cause::Upgrade));
}

#[test]
fn a_pod_its_service_cannot_find_is_replaced() {
    let mut world = World::running(basic());
    world.advance(Duration::from_secs(10));
    world.pod_mut().is_selected = false;
    assert_eq!(cause(&world.plan()), Some(Cause::Edited), "at once, for the pod is not young");
    world.settle();
    assert!(world.built.unwrap().metadata.labels.unwrap().contains_key(LABEL_PERFORMER));
}

#[test]
fn a_label_that_is_always_taken_away_does_not_make_us_replace_without_end() {
    let mut world = World::new(basic());
    world.settle();
    for delay in [10, 20, 40, 80, 160, 300, 300] {
        world.pod_mut().is_selected = false;
        let plan = world.round();
        assert_eq!((names(&plan), plan.next_look), (vec![], Some(Duration::from_secs(delay))));
        world.advance(Duration::from_secs(delay));
        assert_eq!(cause(&world.round()), Some(Cause::Edited));
        world.pod = None;
        world.step();
    }
}

#[test]
fn an_edited_image_is_replaced_and_a_rewritten_one_is_not() {
    // The image, who set it, and whether that pod is replaced.
    let cases = [
        ("repo:1", ImageWriter::Us, None),
        ("mirror/repo:1", ImageWriter::Us, None),
        ("mirror/repo:1", ImageWriter::SomeoneElse, Some(Cause::Edited)),
        ("repo:1", ImageWriter::SomeoneElse, None),
    ];
    for (image, writer, expected) in cases {
        let mut world = World::running(basic());
        world.pod_mut().asked_image = (image != "repo:1").then(|| "repo:1".into());
        world.pod_mut().image = image.into();
        world.pod_mut().image_writer = writer;
        world.advance(Duration::from_hours(1));
        assert_eq!(cause(&world.plan()), expected, "{image} set by {writer:?}");
    }
}

#[test]
fn clocks_that_disagree_do_not_hold_up_an_upgrade() {
    let mut world = World::running(basic());
    let ahead = world.now + jiff::SignedDuration::from_mins(10);
    world.pod_mut().created_at = Some(ahead);
    world.edit(json!({ "image": "repo:2" }));
    world.settle();
    assert_eq!(&*world.pod.as_ref().unwrap().image, "repo:2");
}

#[test]
fn nothing_is_done_on_unknown() {
    let world = World::running(basic());
    for is_deletion in [false, true] {
        let mut performer = world.performer.clone();
        if is_deletion {
            performer.metadata.deletion_timestamp =
                Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(world.now));
        }
        for observed in [
            Observed { service: Slot::Absent, ..Observed::default() },
            Observed { pod: Slot::Absent, ..Observed::default() },
            Observed::default(),
        ] {
            let plan = plan::performers::plan(&performer, &observed, &world.policy);
            assert_eq!(names(&plan), [""; 0], "{observed:?}");
        }
    }
}

#[test]
fn an_old_performer_beside_a_newer_pod_is_read_before_anything_is_done() {
    for change in [json!({ "config": { "args": ["-v"] } }), json!({ "image": "repo:2" })] {
        let mut world = World::running(basic());
        let old = world.performer.clone();
        world.edit(change.clone());
        world.settle();
        world.start_pod();
        world.settle();
        let current = std::mem::replace(&mut world.performer, old);
        let (pod, writes) = (world.pod.clone(), world.written.len());
        world.service.as_mut().unwrap().service_type = ServiceType::Other;
        let plan = world.round();
        assert_eq!((names(&plan), plan.next_look), (vec![], Some(Duration::ZERO)), "{change}");
        assert_eq!(world.written.len(), writes, "nothing is said either");
        world.performer = current;
        world.is_performer_read = true;
        world.settle();
        assert_eq!(world.pod, pod);
    }
}

#[test]
fn a_pod_that_speaks_of_a_generation_that_never_was_does_not_stop_us() {
    let mut world = World::running(basic());
    world.pod_mut().made_for = Some(99);
    world.edit(json!({ "config": { "args": ["-v"] } }));
    world.is_performer_read = true;
    assert_eq!(cause(&world.plan()), Some(Cause::SpecChanged));
    world.is_performer_read = false;
    world.delete();
    assert_eq!(cause(&world.plan()), Some(Cause::Deletion), "a deletion is never taken back");
}

#[test]
fn a_pod_is_not_replaced_for_its_generation() {
    let mut world = World::running(basic());
    world.performer.metadata.generation = Some(7);
    assert_eq!(names(&world.plan()), [""; 0], "made for an earlier generation of the same inputs");
    world.pod_mut().made_for = None;
    assert_eq!(names(&world.plan()), [""; 0], "made before the generation was kept");
}
