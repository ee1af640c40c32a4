//! Pool, shard groups and machines together: whatever happens, no instance is removed, and no Node deleted, before it is
//! drained; every deletion ends; and all of it comes to rest as declared.

mod world;

use std::collections::BTreeSet;

use proptest::prelude::*;

use self::world::{Event, World, instance};
use super::shard::{Group, Members};

fn check_settled(world: &World) {
    let mut instances = world.instances();
    assert_eq!(instances.len(), usize::try_from(world.replicas).unwrap());
    instances.sort();
    let members: Vec<_> = world.members.keys().cloned().collect();
    assert_eq!(members, instances, "one NstanceMachine for each instance");
    let machines: Vec<_> = world.machines.keys().cloned().collect();
    assert_eq!(machines, members, "one Machine for each NstanceMachine");
    assert!(world.machines.values().all(|machine| machine.has_hook && !machine.is_deleting && !machine.is_excluded));
    let published = &world.pool.spec.as_ref().unwrap().provider_id_list;
    assert_eq!(published.len(), members.len(), "{published:?}");
}

fn check_gone(world: &World) {
    assert!(world.is_pool_gone, "{world:#?}");
    // What belongs to no group is removed by its shard.
    let mut groups =
        world.servers.values().filter(|server| !server.has_lost).filter_map(|server| server.group.as_ref());
    assert_eq!(groups.next(), None);
    assert!(world.members.is_empty() && world.shard_groups.is_empty(), "{world:#?}");
    assert!(world.machines.is_empty(), "{:#?}", world.machines);
}

/// Two shards and so many instances, at rest.
fn settled(replicas: i64) -> World {
    let mut world = World::new(&["dev-1", "dev-2"], replicas);
    world.settle();
    check_settled(&world);
    world
}

#[test]
fn a95_a_pool_grows_and_shrinks_and_the_marked_one_goes() {
    let mut world = settled(5);
    let marked = world.machines.keys().nth(2).unwrap().clone();
    let before: BTreeSet<_> = world.instances().into_iter().collect();
    world.machines.get_mut(&marked).unwrap().is_marked = true;
    world.replicas = 4;
    world.settle();
    check_settled(&world);
    let after: BTreeSet<_> = world.instances().into_iter().collect();
    assert_eq!(before.difference(&after).collect::<Vec<_>>(), [&marked], "only it");
    assert!(after.is_subset(&before));
}

#[test]
fn a_machine_that_a_user_deletes_is_drained_and_replaced() {
    let mut world = settled(3);
    let victim = world.machines.keys().next().unwrap().clone();
    world.machines.get_mut(&victim).unwrap().is_deleting = true;
    world.settle();
    check_settled(&world);
    assert!(!world.members.contains_key(&victim));
}

#[test]
fn a41_a_silent_shard_loses_nothing_and_delays_no_other() {
    let mut world = settled(4);
    world.servers.get_mut("dev-2").unwrap().is_silent = true;
    let theirs = world.servers["dev-2"].group.clone();
    world.replicas = 8;
    for _ in 0..20 {
        world.tick();
    }
    assert_eq!(world.servers["dev-1"].group.as_ref().unwrap().instances().len(), 4, "up to its share");
    assert_eq!(world.servers["dev-2"].group, theirs);
    assert_eq!(world.members.len(), 6, "no Machine goes because a shard is silent");
    world.settle();
    check_settled(&world);
    assert_eq!(world.servers["dev-2"].group.as_ref().unwrap().size, 4);
}

#[test]
fn a53_a_lost_instance_takes_its_machine_with_it_and_is_replaced() {
    for is_said in [true, false] {
        let mut world = settled(4);
        let before: BTreeSet<_> = world.instances().into_iter().collect();
        world.happen(&Event::Lose(1, is_said));
        world.settle();
        check_settled(&world);
        let after: BTreeSet<_> = world.instances().into_iter().collect();
        assert_eq!(before.difference(&after).count(), 1, "said: {is_said}");
        assert_eq!(world.drains.len(), 0, "there is nothing to drain");
    }
}

#[test]
fn a90_a_shard_that_lost_its_groups_loses_no_machine() {
    let mut world = settled(6);
    let before: BTreeSet<_> = world.instances().into_iter().collect();
    // The size is lowered, and nothing is drained yet, while the shard loses its groups.
    world.are_drains_blocked = true;
    world.replicas = 4;
    for _ in 0..5 {
        world.tick();
    }
    for server in 0..2 {
        world.happen(&Event::LoseGroup(server));
    }
    world.tick();
    assert_eq!(world.members.len(), 6);
    assert_eq!(world.pool.spec.as_ref().unwrap().provider_id_list.len(), 6, "what was published stays");
    for _ in 0..20 {
        world.tick();
    }
    assert_eq!(world.instances().len(), 6, "nothing goes before it is drained");
    world.settle();
    check_settled(&world);
    let after: BTreeSet<_> = world.instances().into_iter().collect();
    assert!(after.is_subset(&before), "none was replaced");
}

#[test]
fn a98_nothing_goes_after_a_pause_before_it_is_drained() {
    let mut world = settled(4);
    let victim = world.machines.keys().next().unwrap().clone();
    // Without our hook Cluster API deletes the NstanceMachine while it is paused.
    let machine = world.machines.get_mut(&victim).unwrap();
    (machine.has_hook, machine.is_deleting) = (false, true);
    world.is_paused = true;
    world.happen(&Event::DeleteMember(0));
    for _ in 0..5 {
        world.tick();
    }
    world.settle();
    check_settled(&world);
}

#[test]
fn a_shard_group_that_a_user_deletes_comes_back_and_costs_no_member() {
    let mut world = settled(4);
    let before = world.instances();
    world.happen(&Event::DeleteShardGroup(0));
    world.settle();
    check_settled(&world);
    assert_eq!(world.instances(), before);
    assert_eq!(world.shard_groups.len(), 2);
    assert!(world.shard_groups.values().all(|group| group.object.metadata.deletion_timestamp.is_none()));
}

#[test]
fn a_shard_group_that_a_user_deletes_costs_no_member_while_the_pool_names_an_unknown_shard() {
    let mut world = settled(4);
    let before = world.instances();
    world.pool.spec.as_mut().unwrap().shards.push("dev-9".to_owned());
    world.happen(&Event::DeleteShardGroup(0));
    for _ in 0..5 {
        world.tick();
        assert!(world.machines.values().all(|machine| !machine.is_deleting));
    }
    world.pool.spec.as_mut().unwrap().shards.pop();
    world.settle();
    check_settled(&world);
    assert_eq!(world.instances(), before);
}

#[test]
fn a_member_that_a_user_deletes_takes_its_machine_with_it() {
    let mut world = settled(4);
    let victim = world.members.keys().next().unwrap().clone();
    world.happen(&Event::DeleteMember(0));
    world.settle();
    check_settled(&world);
    assert!(!world.members.contains_key(&victim));
}

#[test]
fn a37_a_pool_goes_through_drains() {
    let mut world = settled(5);
    world.delete_pool();
    world.settle();
    check_gone(&world);
}

#[test]
fn a_pool_of_a_static_group_goes_and_its_instances_stay_as_they_are() {
    let mut world = World::new(&["dev-1", "dev-2"], 3);
    for (name, size) in [("dev-1", 2), ("dev-2", 1)] {
        let members = (0..size).map(|number| instance(name, format!("{name}x{number}"))).collect();
        let group = Group { size, is_static: true, members: Members::Listed(members), ..Group::default() };
        world.servers.get_mut(name).unwrap().group = Some(group);
    }
    for id in world.instances() {
        let shard = &id[..5];
        world.nodes.insert(id.clone(), instance(shard, id.clone()).node_provider_id);
    }
    world.pool.spec.as_mut().unwrap().template = None;
    world.settle();
    check_settled(&world);
    let before = world.instances();
    world.delete_pool();
    world.settle();
    assert!(world.is_pool_gone && world.shard_groups.is_empty(), "{world:#?}");
    assert_eq!(world.instances(), before);
    assert_eq!(world.drains.len(), 0, "nothing is drained");
    assert!(world.machines.values().all(|machine| machine.has_hook && !machine.is_deleting));
}

fn any_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        2 => (0..9_i64).prop_map(Event::Scale),
        1 => (0..3_usize).prop_map(Event::Silence),
        1 => (0..3_usize).prop_map(Event::Voice),
        2 => (0..9_usize).prop_map(Event::Mark),
        1 => (0..9_usize).prop_map(Event::DeleteMachine),
        1 => (0..9_usize).prop_map(Event::DeleteMember),
        1 => (0..3_usize).prop_map(Event::DeleteShardGroup),
        1 => any::<bool>().prop_map(Event::Pause),
        1 => any::<bool>().prop_map(Event::TakeNodesAway),
        1 => any::<bool>().prop_map(Event::BlockDrains),
        1 => Just(Event::Expire),
        1 => (0..9_usize, any::<bool>()).prop_map(|(index, is_said)| Event::Lose(index, is_said)),
        1 => (0..3_usize).prop_map(Event::LoseGroup),
        1 => (0..9_usize).prop_map(Event::Kill),
        12 => Just(Event::Tick),
    ]
}

proptest! {
    // A case takes some 40 ms without optimisation; the tests of this crate take seconds together.
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn whatever_happens_nothing_goes_undrained_and_all_comes_to_rest(
        replicas in 0..9_i64,
        events in proptest::collection::vec(any_event(), 0..80),
        more in proptest::collection::vec(any_event(), 0..20),
    ) {
        let mut world = World::new(&["dev-1", "dev-2", "dev-3"], replicas);
        for event in &events {
            world.happen(event);
        }
        let mut end = world.clone();
        end.settle();
        check_settled(&end);
        // Deleted in the middle of it, the pool goes too.
        world.delete_pool();
        for event in &more {
            world.happen(event);
        }
        world.settle();
        check_gone(&world);
    }
}
