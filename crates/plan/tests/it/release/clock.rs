//! Waits of releases and the clocks they are measured by: a wall clock of ours decides none of them, and no clock ends the
//! patience with another client's lock early.

use std::time::Duration;

use api::condition::Reason;
use jiff::SignedDuration;
use plan::releases::{FailureClass, StoredStatus};
use serde_json::json;

use super::world::{World, stored};

const HOUR: SignedDuration = SignedDuration::from_hours(1);
const SKEWS: [SignedDuration; 3] = [HOUR, SignedDuration::ZERO, SignedDuration::from_hours(-1)];

/// A world with another client's lock that was last changed so long ago by the server's clock.
fn locked(by_server: SignedDuration) -> World {
    let mut world = World::new(json!({}));
    let at = world.now - by_server;
    world.storage().push(stored(1, StoredStatus::PendingInstall, at));
    world
}

#[test]
fn the_patience_with_a_lock_is_as_long_as_it_says_whatever_any_clock_shows() {
    for (skew, changed) in SKEWS.into_iter().flat_map(|skew| SKEWS.map(|changed| (skew, changed))) {
        let mut world = locked(changed);
        world.skew = skew;
        assert_eq!(world.rest().next_look, Some(Duration::from_secs(30)), "{skew}, {changed}");
        world.skew = -skew;
        world.now += Duration::from_secs(29);
        let plan = world.rest();
        assert_eq!((plan.next_look, plan.blocked[0].reason), (Some(Duration::from_secs(1)), Reason::Locked));
        world.now += Duration::from_secs(1);
        assert!(!world.plan().steps.is_empty(), "the patience is over");
    }
}

#[test]
fn a_lock_that_moves_or_that_a_new_process_sees_is_borne_with_anew() {
    let mut world = locked(SignedDuration::ZERO);
    world.settle();
    world.now += Duration::from_secs(29);
    world.storage()[0].resource_version = "moved".into();
    assert_eq!(world.rest().next_look, Some(Duration::from_secs(30)));
    world.now += Duration::from_secs(29);
    world.restart();
    assert_eq!(world.rest().next_look, Some(Duration::from_secs(30)));
    // A look that fails in between says nothing against it.
    world.now += Duration::from_secs(20);
    let known = world.observed.storage.clone();
    world.observed.storage = plan::releases::Known::No("no answer".into());
    world.settle();
    world.observed.storage = known;
    assert_eq!(world.rest().next_look, Some(Duration::from_secs(10)));
}

#[test]
fn a_pause_between_attempts_is_as_long_as_it_says_whatever_our_clock_shows() {
    for (skew, is_time_known) in SKEWS.into_iter().flat_map(|skew| [(skew, true), (skew, false)]) {
        let mut world = World::new(json!({}));
        (world.skew, world.is_time_known) = (skew, is_time_known);
        world.failures = vec![FailureClass::Interrupted; 3];
        assert_eq!(world.rest().next_look, Some(Duration::from_secs(2)), "{skew}, {is_time_known}");
        world.skew = -skew;
        world.now += Duration::from_secs(1);
        assert_eq!(world.rest().next_look, Some(Duration::from_secs(1)), "{skew}, {is_time_known}");
        world.now += Duration::from_secs(1);
        assert_eq!(world.rest().next_look, Some(Duration::from_secs(4)), "{skew}, {is_time_known}");
        // Another replica counts on, by the server's clock, or begins the pause anew.
        world.now += Duration::from_secs(3);
        world.restart();
        let left = if is_time_known { 1 } else { 4 };
        assert_eq!(world.rest().next_look, Some(Duration::from_secs(left)), "{skew}, {is_time_known}");
    }
}
