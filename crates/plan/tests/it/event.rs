//! Which events users see: row P47.

use std::time::Duration;

use plan::event::EventKind;
use plan::performers::{PodPhase, Waiting};
use serde_json::json;

use crate::world::{World, basic};

fn recorded(world: &mut World) -> Vec<&'static str> {
    std::mem::take(&mut world.events).into_iter().map(|e| e.reason).collect()
}

#[test]
fn p47_events_tell_a_life_once() {
    let mut world = World::new(basic());
    world.settle();
    assert_eq!(recorded(&mut world), ["PodCreated"]);
    world.start_pod();
    world.settle();
    assert_eq!(recorded(&mut world), ["PodReady"]);
    world.advance(Duration::from_mins(2));
    world.settle();
    assert_eq!(recorded(&mut world), [""; 0], "a resync records nothing");
    world.edit(json!({ "image": "repo:2" }));
    world.settle();
    assert_eq!(recorded(&mut world), ["UpgradeInProgress", "PodCreated"]);
    world.start_pod();
    world.settle();
    world.edit(json!({ "config": { "args": ["-v"] } }));
    world.settle();
    assert_eq!(recorded(&mut world), ["PodReady", "PodReplaced", "PodCreated"]);
    world.start_pod();
    world.settle();
    world.set_ready(false);
    world.settle();
    assert_eq!(recorded(&mut world), ["PodReady", "PodNotReady"]);
    world.delete();
    world.settle();
    assert_eq!(recorded(&mut world), ["PodDeleted", "ServiceDeleted", "Deleted"]);
}

#[test]
fn p47_failure_reasons_are_warnings_and_not_repeated() {
    let mut world = World::new(basic());
    world.settle();
    recorded(&mut world);
    let waiting = Waiting { reason: "ErrImagePull".into(), message: "not found".into() };
    world.pod_mut().waiting = Some(Box::new(waiting));
    world.settle();
    let event = world.events[0].clone();
    assert_eq!((event.kind, event.reason), (EventKind::Warning, "ImagePullFailed"));
    assert!(event.note.contains("not found"));
    world.settle();
    assert_eq!(recorded(&mut world), ["ImagePullFailed"]);
    world.start_pod();
    world.settle();
    world.end_pod(PodPhase::Failed);
    world.settle();
    world.advance(Duration::from_secs(10));
    world.settle();
    assert_eq!(recorded(&mut world), ["PodReady", "PodFailed", "PodReplaced", "PodCreated"]);
}

#[test]
fn events_hold_no_environment_value() {
    let mut world = World::new(basic());
    world.edit(json!({ "config": { "environment": { "TOKEN": "s3cret" } } }));
    world.settle();
    world.start_pod();
    world.settle();
    world.edit(json!({ "config": { "environment": { "TOKEN": "s3cret2" } } }));
    world.settle();
    assert!(!format!("{:?} {:?}", world.events, world.written).contains("s3cret"));
}
