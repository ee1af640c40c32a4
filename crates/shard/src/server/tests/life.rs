//! How instances end, and what their agents' silence leads to: the server's half, on a stepped clock.

use std::{collections::BTreeSet, sync::atomic::Ordering, time::Duration};

use futures::{FutureExt, StreamExt};
use jiff::SignedDuration;
use plan::shard::instance::MachineStatus;

use super::world::{CONFIG, Server, World};
use crate::{
    server::Watched,
    wire::{self, Fence},
};

type Events = Watched<wire::InstanceEvent>;

fn none() -> BTreeSet<String> {
    BTreeSet::new()
}

/// The one living instance.
fn only(world: &World) -> String {
    let records = world.records();
    let mut living = records.values().filter(|record| record.deleted_at.is_none());
    let one = living.next().expect("an instance").id.to_string();
    assert!(living.next().is_none(), "one instance");
    one
}

/// Everything that was sent.
fn sent(events: &mut Events) -> Vec<wire::InstanceEvent> {
    std::iter::from_fn(|| events.next().now_or_never()?.map(|event| event.expect("an event"))).collect()
}

/// Acknowledges drains until the instance is deleted, and checks what watchers were sent: a notice if it drains, the
/// deletion, and the deletion again from the next leader.
async fn ends(world: &World, server: &Server, events: &mut Events, id: &str, reason: &str, drains: bool) {
    let mut seen = Vec::new();
    for _ in 0..4 {
        server.settle(world).await.unwrap();
        for event in sent(events).into_iter().filter(|event| event.instance_id == id) {
            if event.status == "pending_deletion" {
                server.term.acknowledge_drained("default", id, &Fence::default()).unwrap();
            }
            seen.push((event.status, event.reason));
        }
    }
    let pair = |status: &str| (status.to_owned(), reason.to_owned());
    let all = [pair("pending_deletion"), pair("deleted")];
    assert_eq!(seen, all[usize::from(!drains)..], "{reason}");
    let successor = world.start().await;
    let again = sent(&mut successor.term.watch_instances("default"));
    let again = again.iter().filter(|event| event.instance_id == id).map(|event| (&*event.status, &*event.reason));
    assert_eq!(again.collect::<Vec<_>>(), [("deleted", reason)], "after a fail-over");
    world.consistent();
}

async fn begin(config: &str) -> (World, Server, Events) {
    let world = World::with_config(config).await;
    let server = world.start().await;
    server.settle(&world).await.unwrap();
    let events = server.term.watch_instances("default");
    (world, server, events)
}

#[tokio::test(start_paused = true)]
async fn a82_a74_a75_an_instance_that_fails_ends_as_unhealthy() {
    let (world, mut server, mut events) = begin(CONFIG).await;
    let id = only(&world);
    // Its agent is silent for three intervals; the replacement is made before the notice is sent.
    let silent = BTreeSet::from([id.clone()]);
    server.pass(&world, Duration::from_mins(3), &silent).await.unwrap();
    server.term.observe().await.unwrap();
    server.term.settle_due().await.unwrap();
    assert_eq!(world.cloud.machines().len(), 2, "the replacement first");
    assert!(sent(&mut events).is_empty(), "then the notice");
    server.report(&world, &silent);
    server.term.settle_due().await.unwrap();
    ends(&world, &server, &mut events, &id, "unhealthy", true).await;

    let (world, server, mut events) = begin(CONFIG).await;
    let id = only(&world);
    world.cloud.set_status(&id, Some(MachineStatus::Stopped));
    ends(&world, &server, &mut events, &id, "unhealthy", false).await;
}

#[tokio::test(start_paused = true)]
async fn a82_a76_a_spot_notice_drains_until_the_machine_ends_and_one_that_was_too_late_is_a_preemption() {
    let (world, server, mut events) = begin(CONFIG).await;
    let id = only(&world);
    let deadline = world.clock.now() + SignedDuration::from_mins(2);
    for _ in 0..3 {
        server.term.report_health("default", &id, Some(Some(deadline))).unwrap();
        server.term.settle_due().await.unwrap();
    }
    let leaving = world.records()[&id].leaving.clone().expect("it drains");
    assert_eq!(leaving.delete_at, deadline, "not the drain timeout");
    assert_eq!(world.cloud.made(), 2, "a repeated notice makes no second replacement");
    ends(&world, &server, &mut events, &id, "spot-terminating", true).await;

    let (world, server, mut events) = begin(CONFIG).await;
    let id = only(&world);
    server.term.report_health("default", &id, Some(None)).unwrap();
    world.cloud.set_status(&id, Some(MachineStatus::Stopped));
    ends(&world, &server, &mut events, &id, "preemption", false).await;
}

#[tokio::test(start_paused = true)]
async fn a82_a77_instances_expire_by_their_age() {
    let ages = r#""expiry": {"eligible_age": "2h", "forced_age": "5h", "ondemand_age": "1h"}, "subnet_pools""#;
    let aged = CONFIG.replace("\"subnet_pools\"", ages);
    for (hours, reason) in [(2, "eligible-expiry"), (6, "forced-expiry")] {
        let (world, mut server, mut events) = begin(&aged).await;
        let id = only(&world);
        server.pass(&world, Duration::from_hours(hours), &none()).await.unwrap();
        ends(&world, &server, &mut events, &id, reason, true).await;
        assert_eq!(world.cloud.made(), 2, "it was replaced");
    }
    let (world, mut server, mut events) = begin(&aged).await;
    let config = wire::InstanceConfig { group: "fixed".to_owned(), ..wire::InstanceConfig::default() };
    let request = wire::CreateInstanceRequest { instance_id: String::new(), config: Some(config) };
    let id = server.term.create_instance("default", request, &Fence::default()).await.unwrap().instance_id;
    server.pass(&world, Duration::from_hours(1), &none()).await.unwrap();
    ends(&world, &server, &mut events, &id, "ondemand-expiry", true).await;
    assert_eq!(world.cloud.made(), 2, "it was not replaced");
}

#[tokio::test(start_paused = true)]
async fn a82_a73_drift_replaces_and_without_drain_time_no_notice_is_sent() {
    let drifted = |config: &str| config.replace("\"kind\": \"web\"", "\"userdata\": \"new\", \"kind\": \"web\"");
    let at_once = CONFIG.replace("\"size\": 1", "\"size\": 1, \"drain_timeout\": \"0\"");
    for (config, drains) in [(CONFIG, true), (&*at_once, false)] {
        let (world, server, mut events) = begin(config).await;
        let id = only(&world);
        world.configure(&drifted(config)).await;
        assert!(server.term.refresh_config("default").await.unwrap().updated);
        ends(&world, &server, &mut events, &id, "config-drift", drains).await;
        assert_eq!(world.cloud.order(&only(&world)).unwrap().userdata, "new");
    }
}

#[tokio::test(start_paused = true)]
async fn a78_an_instance_that_registered_is_not_taken_for_one_that_never_did_by_the_next_leader() {
    let (world, mut server, _) = begin(CONFIG).await;
    let id = only(&world);
    world.registers.store(true, Ordering::Relaxed);
    server.pass(&world, Duration::from_mins(6), &none()).await.unwrap();
    let successor = world.start().await;
    // Before its agent has reported to the new leader.
    successor.term.settle_due().await.unwrap();
    assert_eq!(only(&world), id);
}

#[tokio::test(start_paused = true)]
async fn a73_a_drain_that_is_not_acknowledged_ends_by_its_time() {
    let (world, mut server, mut events) = begin(CONFIG).await;
    let id = only(&world);
    world.configure(&CONFIG.replace("\"size\": 1", "\"size\": 0")).await;
    server.term.refresh_config("default").await.unwrap();
    server.settle(&world).await.unwrap();
    server.pass(&world, Duration::from_secs(299), &none()).await.unwrap();
    server.settle(&world).await.unwrap();
    assert_eq!(sent(&mut events).len(), 1, "the notice alone");
    server.pass(&world, Duration::from_secs(1), &none()).await.unwrap();
    server.settle(&world).await.unwrap();
    let ends: Vec<_> = sent(&mut events).into_iter().map(|event| (event.instance_id, event.status)).collect();
    assert_eq!(ends, [(id, "deleted".to_owned())]);
    world.consistent();
}

#[tokio::test(start_paused = true)]
async fn a_machine_whose_agent_hung_up_is_looked_at_until_it_is_back() {
    let (world, server, _) = begin(CONFIG).await;
    let (term, id) = (&server.term, only(&world));
    let (first, second) = (term.health_stream("default", &id), term.health_stream("default", &id));
    drop(first);
    assert_eq!(term.follow_up().await, None, "it has another stream open");
    drop(second);
    let mut waits = Vec::new();
    while let Some(next) = term.follow_up().await {
        let wait = next.duration_since(world.clock.now());
        waits.push(wait.as_secs());
        tokio::time::advance(wait.unsigned_abs()).await;
    }
    let least = [3, 6, 12, 24, 30, 30, 30, 30];
    assert_eq!(waits.len(), least.len());
    assert!(waits.iter().zip(least).all(|(wait, least)| *wait >= least && *wait <= least * 5 / 4), "{waits:?}");
    drop(term.health_stream("default", &id));
    assert!(term.follow_up().await.is_some());
    term.report_health("default", &id, None).unwrap();
    assert_eq!(term.follow_up().await, None, "it is back");
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_hangs_up_again_and_again_uses_up_no_requests() {
    let (world, server, _) = begin(CONFIG).await;
    let (term, id) = (&server.term, only(&world));
    drop(term.health_stream("default", &id));
    let next = term.follow_up().await;
    drop(term.health_stream("default", &id));
    assert_eq!(term.follow_up().await, next, "not back, and not looked at again before that");
    for _ in 0..10 {
        term.report_health("default", &id, None).unwrap();
        drop(term.health_stream("default", &id));
        let wait = term.follow_up().await.expect("it is looked at later").duration_since(world.clock.now());
        assert!((290..=300).contains(&wait.as_secs()), "back, and looked at a moment ago: {wait:?}");
    }
    tokio::time::advance(Duration::from_mins(5)).await;
    let wait = term.follow_up().await.expect("looked at now").duration_since(world.clock.now());
    assert!(wait.as_secs() < 10, "{wait:?}");
}

#[tokio::test(start_paused = true)]
async fn a74_a_machine_that_stopped_is_noticed_when_its_agent_hangs_up() {
    use crate::store::Fault;
    let (world, server, mut events) = begin(CONFIG).await;
    let (term, id) = (&server.term, only(&world));
    let mut errors = term.watch_errors("default");
    world.cloud.set_status(&id, Some(MachineStatus::Stopped));
    server.faults.set(Fault::Refusing);
    drop(term.health_stream("default", &id));
    let next = term.follow_up().await.expect("nothing was learned");
    let error = errors.next().await.unwrap().unwrap();
    assert!(error.error.starts_with("Failed to get instance status: "), "{}", error.error);
    server.faults.set(Fault::None);
    tokio::time::advance(next.duration_since(world.clock.now()).unsigned_abs()).await;
    assert_eq!(term.follow_up().await, None);
    // Without a look at all machines.
    term.settle_due().await.unwrap();
    assert_eq!(sent(&mut events).iter().map(|event| &*event.reason).collect::<Vec<_>>(), ["unhealthy"]);
    assert_eq!(world.cloud.machines().len(), 1, "replaced");
    drop(term.health_stream("acme", &id));
    drop(term.health_stream("default", "web01"));
    assert_eq!(term.follow_up().await, None, "a stream of no instance is no one's");
}

#[tokio::test(start_paused = true)]
async fn a_copy_of_a_machine_with_its_labels_is_neither_its_machine_nor_swept() {
    let (world, mut server, mut events) = begin(CONFIG).await;
    let id = only(&world);
    // After it in the list, and before it.
    let names = [format!("{id}-copy"), "a-copy".to_owned()];
    for name in &names {
        world.cloud.copy(&id, name);
    }
    let count = world.cloud.machines().len();
    world.registers.store(true, Ordering::Relaxed);
    server.report(&world, &none());
    for status in [MachineStatus::Running, MachineStatus::Stopped] {
        for name in &names {
            world.cloud.set_status(name, Some(status));
        }
        // At the second look it is old enough.
        for _ in 0..2 {
            server.pass(&world, Duration::from_mins(10), &none()).await.unwrap();
            assert_eq!(server.term.sweep().await.unwrap(), 0, "{status:?}");
            server.term.settle_due().await.unwrap();
            assert_eq!((only(&world), sent(&mut events)), (id.clone(), vec![]), "{status:?}");
            assert_eq!(server.term.instance_status("default", &id).unwrap().status, "running", "{status:?}");
            assert_eq!(world.cloud.machines().len(), count, "{status:?}");
        }
        // The next leader sees it so.
        server = world.start().await;
        events = server.term.watch_instances("default");
    }
}

#[tokio::test(start_paused = true)]
async fn a_machine_of_which_the_provider_knows_nothing_is_neither_replaced_nor_swept() {
    let (world, mut server, mut events) = begin(CONFIG).await;
    let id = only(&world);
    world.registers.store(true, Ordering::Relaxed);
    server.report(&world, &none());
    world.cloud.set_status(&id, Some(MachineStatus::Unknown));
    for _ in 0..2 {
        server.pass(&world, Duration::from_mins(10), &BTreeSet::from([id.clone()])).await.unwrap();
        assert_eq!(server.term.sweep().await.unwrap(), 0);
        server.term.settle_due().await.unwrap();
        assert_eq!((only(&world), sent(&mut events)), (id.clone(), vec![]));
        assert_eq!(server.term.instance_status("default", &id).unwrap().status, "unknown");
        // The next leader begins all the same.
        server = world.start().await;
        events = server.term.watch_instances("default");
    }
    world.cloud.set_status(&id, Some(MachineStatus::Stopped));
    ends(&world, &server, &mut events, &id, "unhealthy", false).await;
}
