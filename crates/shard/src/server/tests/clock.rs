//! The wall clock is set, or wrong from the beginning: nothing expires, is swept or forgotten for it.

use std::{collections::BTreeSet, time::Duration};

use jiff::SignedDuration;
use plan::shard::id::InstanceId;

use super::world::{CONFIG, Server, World};
use crate::{
    provider::{Order, Provider},
    wire::{self, Fence},
};

const DAY: SignedDuration = SignedDuration::from_hours(24);

async fn pass(world: &World, server: &mut Server, minutes: u64) {
    server.pass(world, Duration::from_mins(minutes), &BTreeSet::new()).await.unwrap();
    server.settle(world).await.unwrap();
}

/// A static instance and one on demand, which expire after two hours.
async fn aged() -> (World, Server) {
    let ages = r#""expiry": {"eligible_age": "2h", "forced_age": "3h", "ondemand_age": "2h"}, "subnet_pools""#;
    let world = World::with_config(&CONFIG.replace("\"subnet_pools\"", ages)).await;
    world.registers.store(true, std::sync::atomic::Ordering::Relaxed);
    let server = world.start().await;
    server.settle(&world).await.unwrap();
    let config = wire::InstanceConfig { group: "fixed".to_owned(), ..wire::InstanceConfig::default() };
    let request = wire::CreateInstanceRequest { instance_id: String::new(), config: Some(config) };
    server.term.create_instance("default", request, &Fence::default()).await.unwrap();
    server.settle(&world).await.unwrap();
    (world, server)
}

fn none_leaves(world: &World) -> bool {
    world.cloud.made() == 2 && world.records().values().all(|record| record.leaving.is_none())
}

#[tokio::test(start_paused = true)]
async fn a77_a_clock_that_is_set_makes_no_instance_old() {
    let (world, mut server) = aged().await;
    for by in [DAY, -2 * DAY, DAY] {
        world.clock.step(by);
        server.settle(&world).await.unwrap();
        pass(&world, &mut server, 30).await;
        assert!(none_leaves(&world), "{by:?}");
    }
    // Its age goes on by the time that passes.
    pass(&world, &mut server, 31).await;
    let on_demand = world.records().into_values().find(|record| record.on_demand).unwrap();
    assert!(on_demand.leaving.is_some());
    assert_eq!(world.cloud.made(), 3, "the static one is replaced");
}

#[tokio::test(start_paused = true)]
async fn a77_a_leader_that_begins_with_a_wrong_clock_expires_nothing_before_it_is_set() {
    let (world, server) = aged().await;
    drop(server);
    world.clock.step(DAY);
    let mut next = world.start().await;
    next.settle(&world).await.unwrap();
    pass(&world, &mut next, 4).await;
    assert!(none_leaves(&world), "it has known them for four minutes");
    world.clock.step(-DAY);
    pass(&world, &mut next, 10).await;
    assert!(none_leaves(&world), "they are as young as they were");
}

/// A machine that no record owns.
async fn orphan(world: &World, number: u128) -> String {
    let instance_id = InstanceId::new("web", number).to_string();
    let (cluster, shard) = ("dev".to_owned(), "a".to_owned());
    let order = Order { instance_id: instance_id.clone(), cluster, shard, ..Order::default() };
    world.cloud.create(&order).await.unwrap();
    instance_id
}

#[tokio::test(start_paused = true)]
async fn a_machine_without_a_record_is_swept_by_the_time_that_passes_and_not_by_the_clock() {
    let world = World::new().await;
    let mut server = world.start().await;
    server.settle(&world).await.unwrap();
    let orphan = orphan(&world, 99).await;
    for by in [SignedDuration::ZERO, DAY] {
        world.clock.step(by);
        assert_eq!(server.term.sweep().await.unwrap(), 0, "{by:?}");
    }
    pass(&world, &mut server, 4).await;
    assert_eq!(server.term.sweep().await.unwrap(), 0, "another server may be about to store its record");
    pass(&world, &mut server, 1).await;
    assert_eq!(server.term.sweep().await.unwrap(), 1);
    assert!(world.cloud.order(&orphan).is_none());
    world.consistent();
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_cannot_be_removed_keeps_no_other_from_being_swept() {
    let world = World::new().await;
    let mut server = world.start().await;
    let (stuck, other) = (orphan(&world, 98).await, orphan(&world, 99).await);
    world.cloud.lock(&stuck);
    assert_eq!(server.term.sweep().await.unwrap(), 0);
    pass(&world, &mut server, 5).await;
    assert_eq!(server.term.sweep().await.unwrap(), 1);
    assert!(world.cloud.order(&stuck).is_some() && world.cloud.order(&other).is_none());
}

#[tokio::test(start_paused = true)]
async fn a82_a_clock_that_is_set_forgets_no_deletion() {
    let world = World::new().await;
    let mut server = world.start().await;
    server.settle(&world).await.unwrap();
    let id = world.records().into_keys().next().unwrap();
    server.term.delete_instance("default", &id, &Fence::default()).await.unwrap();
    server.settle(&world).await.unwrap();
    assert!(world.records()[&id].deleted_at.is_some());
    world.clock.step(DAY);
    server.settle(&world).await.unwrap();
    pass(&world, &mut server, 29).await;
    assert!(world.records().contains_key(&id), "a watcher that was away learns of it");
    pass(&world, &mut server, 1).await;
    assert!(!world.records().contains_key(&id));
}
