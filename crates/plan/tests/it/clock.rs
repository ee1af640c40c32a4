//! Waits and the clocks they are measured by: a wall clock of ours decides none of them.

use std::time::Duration;

use jiff::SignedDuration;
use plan::performers::{Action, Cause, Exit, PodPhase, Scheduled};
use plan::round::Plan;

use crate::world::{World, basic, going};

const HOUR: SignedDuration = SignedDuration::from_hours(1);

/// What is waited for, how it begins, and how many seconds it takes.
type Wait = (&'static str, fn(&mut World), u64);

const WAITS: [Wait; 6] = [
    ("an ended pod", |world| world.end_pod(PodPhase::Failed), 10),
    ("a pod that does not start", begin_to_start, 300),
    ("a pod without its label", |world| world.pod_mut().is_selected = false, 10),
    ("a pod that does not go", |world| world.pod_mut().deletion = Some(going(world.now, 30)), 60),
    ("a Service that does not go", |world| world.service.as_mut().unwrap().deletion = Some(going(world.now, 0)), 30),
    ("a deletion", delete, 60),
];

fn begin_to_start(world: &mut World) {
    let now = world.now;
    world.pod_mut().phase = PodPhase::Pending;
    world.pod_mut().is_ready = false;
    world.pod_mut().scheduled = Scheduled::Yes(Some(now));
}

fn delete(world: &mut World) {
    world.delete();
    world.step();
    let now = world.now;
    world.pod_mut().deletion = Some(going(now, 30));
}

/// Whether the wait is over: something is done or said.
fn is_over(plan: &Plan<Action>) -> bool {
    !plan.steps.is_empty() || !plan.blocked.is_empty()
}

fn wait(plan: &Plan<Action>) -> Option<u64> {
    plan.next_look.map(|wait| wait.as_secs())
}

#[test]
fn a_wall_clock_that_is_wrong_or_stepped_changes_no_wait() {
    for (what, begin, seconds) in WAITS {
        for skew in [-HOUR, SignedDuration::ZERO, HOUR] {
            for step in [-HOUR, SignedDuration::ZERO, HOUR] {
                let mut world = World::running(basic());
                world.skew = skew;
                begin(&mut world);
                assert_eq!(wait(&world.round()), Some(seconds), "{what}, {skew} ahead");
                world.skew += step;
                world.advance(Duration::from_secs(seconds - 1));
                let plan = world.round();
                assert_eq!((is_over(&plan), wait(&plan)), (false, Some(1)), "{what}, stepped by {step}");
                world.advance(Duration::from_secs(1));
                assert!(is_over(&world.round()), "{what}, {skew} ahead, stepped by {step}");
            }
        }
    }
}

#[test]
fn a_restart_does_not_begin_a_wait_anew() {
    for (what, begin, seconds) in WAITS {
        let mut world = World::running(basic());
        begin(&mut world);
        world.step();
        world.advance(Duration::from_secs(seconds - 2));
        for left in [2, 1] {
            world.restart();
            assert_eq!(wait(&world.plan()), Some(left), "{what}");
            world.advance(Duration::from_secs(1));
        }
        world.restart();
        assert!(is_over(&world.plan()), "{what}");
    }
}

#[test]
fn where_the_servers_time_is_not_known_a_wait_lasts_from_when_it_is_seen() {
    for (what, begin, seconds) in WAITS {
        let mut world = World::running(basic());
        world.is_time_known = false;
        begin(&mut world);
        world.advance(Duration::from_secs(seconds));
        assert_eq!(wait(&world.plan()), Some(seconds), "{what}: one delay more, at most");
        world.advance(Duration::from_secs(seconds));
        assert!(is_over(&world.plan()), "{what}");
    }
}

/// A node stamps what it reports with its own clock.
#[test]
fn a_nodes_clock_neither_shortens_nor_stretches_a_wait() {
    for ahead in [-HOUR, HOUR] {
        let mut world = World::new(basic());
        world.settle();
        let end = world.now.checked_add(ahead).unwrap();
        world.pod_mut().phase = PodPhase::Failed;
        world.pod_mut().exit = Some(Box::new(Exit { code: 1, reason: "".into(), finished_at: Some(end) }));
        world.pod_mut().ready_changed_at = Some(end);
        for delay in [10, 20, 40] {
            assert_eq!(wait(&world.round()), Some(delay), "a node {ahead} ahead");
            world.advance(Duration::from_secs(delay));
            assert!(is_over(&world.round()), "a node {ahead} ahead");
            let end = world.now.checked_add(ahead).unwrap();
            world.pod_mut().phase = PodPhase::Failed;
            world.pod_mut().ready_changed_at = Some(end);
        }
    }
}

#[test]
fn the_servers_clock_may_jump_as_well() {
    for (what, begin, seconds) in WAITS {
        let mut world = World::running(basic());
        begin(&mut world);
        world.step();
        world.now = world.now.checked_add(HOUR).unwrap();
        let plan = world.round();
        assert_eq!((is_over(&plan), wait(&plan)), (false, Some(seconds)), "{what}: it was seen before");
    }
}

#[test]
fn a_crash_loop_is_reported_by_any_wall_clock() {
    for skew in [-HOUR, HOUR] {
        let mut world = World::running(basic());
        world.skew = skew;
        let now = world.now;
        world.set_ready(false);
        world.pod_mut().restarts = 3;
        world.pod_mut().exit = Some(Box::new(Exit { code: 1, reason: "".into(), finished_at: Some(now) }));
        world.step();
        assert_eq!(crate::status::degraded(&world), Some(api::condition::Reason::CrashLoop), "{skew} ahead");
    }
}

#[test]
fn a_stepped_clock_replaces_no_pod_that_is_pulling_its_image() {
    let mut world = World::new(basic());
    world.settle();
    let now = world.now;
    world.pod_mut().scheduled = Scheduled::Yes(Some(now));
    world.step();
    world.skew = HOUR;
    world.restart();
    let plan = world.round();
    let deletes = |action: &Action| matches!(action, Action::DeletePod { cause: Cause::PendingTooLong, .. });
    assert!(!plan.actions().any(deletes), "also not after a restart under that clock");
}
