//! Objects in storage that cannot be read: they are named and kept, and what they are about is not taken for absent.

use std::{collections::BTreeSet, sync::atomic::Ordering, time::Duration};

use futures::{FutureExt, StreamExt};
use plan::shard::{id::InstanceId, instance::Record};
use serde_json::json;
use tonic::Code;

use super::world::{CONFIG, Server, World};
use crate::{
    provider::{Order, Provider},
    server::TermError,
    store::{Expect, Fault, Faults, Store, layout::ShardLayout},
    wire::{self, Fence},
};

fn upsert(key: &str, size: i32) -> wire::UpsertGroupRequest {
    let config = wire::GroupConfig { template: "web".to_owned(), size, ..wire::GroupConfig::default() };
    wire::UpsertGroupRequest { key: key.to_owned(), config: Some(config), remove_first: vec![] }
}

/// What becomes of a record's text.
type Damage = fn(&[u8]) -> Vec<u8>;

fn layout() -> ShardLayout {
    ShardLayout::new("a")
}

/// Writes over an object as a bad disk or a hasty hand does.
async fn overwrite(world: &World, key: &str, body: &[u8]) {
    let expect = world.store.get(key).await.unwrap().map_or(Expect::Absent, |object| Expect::Content(object.etag));
    world.store.put(key, body.to_vec(), expect).await.unwrap();
}

/// Minutes in which the machines are looked at as often as the server does by itself.
async fn rest(world: &World, server: &mut Server) {
    for _ in 0..6 {
        server.pass(world, Duration::from_mins(2), &BTreeSet::new()).await.unwrap();
        server.term.recheck().await.unwrap();
        server.term.sweep().await.unwrap();
        server.settle(world).await.unwrap();
    }
}

/// A zone with three instances of `web`, one of which is returned with its key.
async fn three() -> (World, Server, Record, String) {
    let world = World::new().await;
    world.registers.store(true, Ordering::Relaxed);
    let server = world.start().await;
    server.term.upsert_group("default", upsert("web", 3), &Fence::default()).await.unwrap();
    server.settle(&world).await.unwrap();
    let record = world.records().into_values().find(|record| record.group == "web").expect("an instance");
    let key = layout().instance("default", &record.id.storage_key());
    (world, server, record, key)
}

fn machines(world: &World) -> BTreeSet<String> {
    world.cloud.machines().into_iter().map(|machine| machine.instance_id).collect()
}

/// What clients see of a group's instances.
fn statuses(server: &Server, group: &str) -> Vec<(String, String)> {
    let groups = server.groups("default");
    let group = groups.iter().find(|one| one.key == group).expect("the group");
    assert_eq!(usize::try_from(group.actual_size).unwrap(), group.instances.len());
    assert_eq!(group.provider_ids.len(), group.instances.len());
    let mut all: Vec<_> = group.instances.iter().map(|one| (one.instance_id.clone(), one.status.clone())).collect();
    all.sort();
    all
}

#[track_caller]
fn refused<T: std::fmt::Debug>(outcome: Result<T, TermError>, code: Code) {
    let status = tonic::Status::from(outcome.expect_err("refused"));
    assert_eq!(status.code(), code, "{status}");
    assert!(status.message().starts_with("instance_id"), "{status}");
}

/// Every question about the instance is refused with a code that says nothing about whether it is there.
async fn is_unknown(server: &Server, id: &str) {
    let (term, fence) = (&server.term, Fence::default());
    refused(term.instance_status("default", id), Code::Internal);
    refused(term.acknowledge_drained("default", id, &fence), Code::Internal);
    refused(term.delete_instance("default", id, &fence).await, Code::Internal);
    refused(term.report_health("default", id, None), Code::Internal);
    refused(term.delete_instance("acme", id, &fence).await, Code::PermissionDenied);
    let config = wire::InstanceConfig { group: "web".to_owned(), ..wire::InstanceConfig::default() };
    let request = wire::CreateInstanceRequest { instance_id: id.to_owned(), config: Some(config) };
    refused(term.create_instance("default", request, &fence).await, Code::AlreadyExists);
    term.may_register("default", id).expect("its agent may be there");
}

#[tokio::test(start_paused = true)]
async fn an_instance_whose_record_is_damaged_is_unknown_and_the_rest_goes_on() {
    let whole = |record: &Record| serde_json::to_vec_pretty(record).unwrap();
    let damages: [Damage; 5] = [
        |_| Vec::new(),
        |whole| whole[..whole.len() / 2].to_vec(),
        |_| b"\xff\x00garbage".to_vec(),
        |_| b"[1, 2]".to_vec(),
        |whole| {
            String::from_utf8_lossy(whole).replace("\"created_at\": \"", "\"created_at\": 7, \"was\": \"").into_bytes()
        },
    ];
    for damage in damages {
        let (world, server, record, key) = three().await;
        drop(server);
        let (id, body) = (record.id.to_string(), damage(&whole(&record)));
        overwrite(&world, &key, &body).await;
        let before = machines(&world);
        let mut next = world.start().await;
        assert_eq!(next.term.damaged(), 1);
        for _ in 0..2 {
            rest(&world, &mut next).await;
            assert_eq!(machines(&world), before, "none is removed, and none made in its place");
            let seen = statuses(&next, "web");
            assert_eq!(seen.len(), 3, "an operator that misses it would take its Node for gone");
            assert!(seen.contains(&(id.clone(), "unknown".to_owned())), "{seen:?}");
            is_unknown(&next, &id).await;
            // The leader after this one as well.
            next = world.start().await;
        }
        let fence = Fence::default();
        next.term.upsert_group("default", upsert("zoo", 2), &fence).await.unwrap();
        next.term.upsert_group("default", upsert("web", 4), &fence).await.unwrap();
        next.settle(&world).await.unwrap();
        assert_eq!(machines(&world).len(), before.len() + 3, "two of another group, and one more of its own");
        assert_eq!(world.store.get(&key).await.unwrap().unwrap().body, body, "its bytes are kept");
        overwrite(&world, &key, &whole(&record)).await;
        rest(&world, &mut next).await;
        assert_eq!(next.term.damaged(), 0);
        assert!(statuses(&next, "web").contains(&(id.clone(), "running".to_owned())));
        assert_eq!(machines(&world).len(), before.len() + 3, "it has its place again");
        world.consistent();
        next.term.delete_instance("default", &id, &fence).await.expect("it is known again");
    }
}

#[tokio::test(start_paused = true)]
async fn a_damaged_record_that_is_removed_takes_its_machine_with_it() {
    let (world, server, record, key) = three().await;
    drop(server);
    overwrite(&world, &key, b"{").await;
    let mut next = world.start().await;
    rest(&world, &mut next).await;
    assert!(machines(&world).contains(record.id.as_str()));
    world.store.delete(&key).await.unwrap();
    rest(&world, &mut next).await;
    assert!(!machines(&world).contains(record.id.as_str()));
    assert_eq!((next.term.damaged(), statuses(&next, "web").len()), (0, 3), "another is in its place");
    world.consistent();
}

#[tokio::test(start_paused = true)]
async fn a_record_that_is_listed_and_said_not_to_be_there_is_not_gone() {
    let (world, server, _, key) = three().await;
    drop(server);
    let before = machines(&world);
    let faults = Faults::default();
    faults.set(Fault::Hiding("/instance/"));
    assert!(matches!(world.try_start(faults).await, Some(Err(TermError::Store(_)))));
    let whole = world.store.get(&key).await.unwrap().unwrap().body;
    overwrite(&world, &key, b"{").await;
    let mut next = world.start().await;
    next.faults.set(Fault::Hiding("/instance/"));
    next.term.recheck().await.unwrap_err();
    assert_eq!(next.term.damaged(), 1);
    next.faults.set(Fault::None);
    overwrite(&world, &key, &whole).await;
    rest(&world, &mut next).await;
    assert_eq!((next.term.damaged(), machines(&world)), (0, before));
}

#[tokio::test(start_paused = true)]
async fn a_record_that_is_damaged_while_a_server_leads_is_quarantined_by_its_next_write() {
    let (world, mut server, record, key) = three().await;
    let (id, fence) = (record.id.to_string(), Fence::default());
    let before = machines(&world);
    overwrite(&world, &key, b"{").await;
    assert!(server.term.delete_instance("default", &id, &fence).await.is_err());
    rest(&world, &mut server).await;
    assert_eq!((server.term.damaged(), machines(&world)), (1, before.clone()));
    assert!(statuses(&server, "web").contains(&(id.clone(), "unknown".to_owned())));
    is_unknown(&server, &id).await;
    overwrite(&world, &key, &serde_json::to_vec(&record).unwrap()).await;
    assert!(server.term.refresh_config("default").await.is_ok());
    assert_eq!(server.term.damaged(), 0, "a refresh reads it at once");
    rest(&world, &mut server).await;
    assert_eq!(machines(&world), before);
}

/// A copy of a record beside it, and a file that says nothing.
#[tokio::test(start_paused = true)]
async fn files_that_no_server_wrote_are_named_and_sweep_nothing_that_they_may_be_about() {
    let (world, server, record, key) = three().await;
    drop(server);
    let copy = format!("{key}.bak");
    let stale = Record { template: "other".to_owned(), ..record.clone() };
    overwrite(&world, &copy, &serde_json::to_vec(&stale).unwrap()).await;
    let before = machines(&world);
    let mut next = world.start().await;
    rest(&world, &mut next).await;
    assert_eq!((next.term.damaged(), machines(&world)), (1, before));
    assert_eq!(statuses(&next, "web").len(), 3, "it is counted once");
    assert_eq!(next.term.instance_status("default", record.id.as_str()).unwrap().status, "running");

    let notes = format!("{}notes.txt", layout().instances());
    overwrite(&world, &notes, b"remember the milk").await;
    let mut next = world.start().await;
    let orphan = InstanceId::new("web", 99).to_string();
    let (cluster, shard) = ("dev".to_owned(), "a".to_owned());
    world.cloud.create(&Order { instance_id: orphan.clone(), cluster, shard, ..Order::default() }).await.unwrap();
    rest(&world, &mut next).await;
    assert!(machines(&world).contains(&orphan), "the file may have been its record");
    world.store.delete(&notes).await.unwrap();
    rest(&world, &mut next).await;
    assert!(!machines(&world).contains(&orphan));
}

#[tokio::test(start_paused = true)]
async fn groups_that_cannot_be_read_drain_nothing_and_are_named_with_the_remedy() {
    let (world, mut server, _, _) = three().await;
    let (key, before) = (layout().groups(), machines(&world));
    let good = world.store.get(&key).await.unwrap().unwrap().body;
    for bad in [&b"{"[..], b"[]", b"\xff", b"null"] {
        overwrite(&world, &key, bad).await;
        let named = |error: &TermError| {
            let text = error.to_string();
            assert!(text.contains(&key) && text.contains("restore it from a backup"), "{text}");
        };
        named(&server.term.upsert_group("default", upsert("web", 1), &Fence::default()).await.unwrap_err());
        rest(&world, &mut server).await;
        assert_eq!(machines(&world), before, "the leader goes on with what it knows");
        let Some(Err(error)) = world.try_start(Faults::default()).await else { panic!("it leads without its groups") };
        named(&error);
        assert_eq!(machines(&world), before);
        overwrite(&world, &key, &good).await;
        server = world.start().await;
    }
    server.term.upsert_group("default", upsert("web", 4), &Fence::default()).await.expect("they are readable again");
}

#[tokio::test(start_paused = true)]
async fn groups_that_vanish_while_a_server_leads_drain_nothing() {
    let (world, mut server, _, _) = three().await;
    let (key, before, fence) = (layout().groups(), machines(&world), Fence::default());
    let good = world.store.get(&key).await.unwrap().unwrap().body;
    world.store.delete(&key).await.unwrap();
    for _ in 0..2 {
        let error = server.term.upsert_group("default", upsert("web", 1), &fence).await.unwrap_err();
        assert!(error.to_string().contains("is missing"), "{error}");
        assert!(server.term.refresh_config("default").await.is_err());
        rest(&world, &mut server).await;
        assert_eq!(machines(&world), before);
    }
    overwrite(&world, &key, &good).await;
    server.term.upsert_group("default", upsert("web", 3), &fence).await.expect("they are there again");
    server.term.delete_group("default", "web", &fence).await.unwrap();
    server.term.upsert_group("default", upsert("zoo", 0), &fence).await.expect("without a group it is there as well");
}

#[tokio::test(start_paused = true)]
async fn groups_that_vanish_while_no_server_leads_are_lost_and_not_empty() {
    let (world, server, _, _) = three().await;
    let (key, before, fence) = (layout().groups(), machines(&world), Fence::default());
    let good = world.store.get(&key).await.unwrap().unwrap().body;
    // Also where the mark is lost with them: then the instances of the group speak for it.
    for is_marked in [true, false] {
        world.store.delete(&key).await.unwrap();
        if !is_marked {
            world.store.delete(&layout().groups_written()).await.unwrap();
        }
        for _ in 0..2 {
            let Some(Err(error)) = world.try_start(Faults::default()).await else { panic!("it leads without groups") };
            let text = error.to_string();
            assert!(text.contains(&key) && text.contains("missing") && text.contains("restore it"), "{text}");
            assert_eq!((machines(&world), world.store.get(&key).await.unwrap()), (before.clone(), None));
        }
        overwrite(&world, &key, &good).await;
        let mut next = world.start().await;
        rest(&world, &mut next).await;
        assert_eq!(machines(&world), before);
        assert!(world.store.get(&layout().groups_written()).await.unwrap().is_some());
    }
    drop(server);
    // An administrator who means it says so.
    overwrite(&world, &key, b"{}").await;
    let mut next = world.start().await;
    rest(&world, &mut next).await;
    assert_eq!(machines(&world).len(), 1, "only the static group's");
    next.term.upsert_group("default", upsert("web", 1), &fence).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_shard_without_a_file_of_groups_starts_if_it_never_had_one() {
    let world = World::new().await;
    let mut server = world.start().await;
    server.settle(&world).await.unwrap();
    let empty = world.store.get(&layout().groups()).await.unwrap().expect("written at the first lead").body;
    assert_eq!(empty, b"{}");
    // As the version before left it: instances of the static group, and nothing about requests.
    drop(server);
    for key in [layout().groups(), layout().groups_written()] {
        world.store.delete(&key).await.unwrap();
    }
    server = world.start().await;
    rest(&world, &mut server).await;
    assert_eq!(machines(&world).len(), 1);
    let writes = world.store.snapshot();
    for key in [layout().groups(), layout().groups_written()] {
        assert!(writes.contains_key(&key), "{key}");
    }
}

/// A leader at rest notices it by itself, and its restoration.
#[tokio::test(start_paused = true)]
async fn a_leader_without_requests_notices_that_its_groups_vanished() {
    let (world, mut server, _, _) = three().await;
    let (key, before) = (layout().groups(), machines(&world));
    let good = world.store.get(&key).await.unwrap().unwrap().body;
    assert!(!server.term.groups_damaged());
    world.store.delete(&key).await.unwrap();
    rest(&world, &mut server).await;
    assert!(server.term.groups_damaged());
    overwrite(&world, &key, &good).await;
    rest(&world, &mut server).await;
    assert!(!server.term.groups_damaged());
    assert_eq!(machines(&world), before);
}

async fn stored(world: &World, key: &str) -> serde_json::Value {
    serde_json::from_slice(&world.store.get(key).await.unwrap().unwrap().body).unwrap()
}

/// A group that is not known is left alone and shown; every other group goes on.
async fn only_web_is_left_alone(world: &World, server: &mut Server, before: &BTreeSet<String>) {
    assert_eq!(server.term.unknown_groups(), 1);
    rest(world, server).await;
    assert_eq!(&machines(world), before, "none is removed, and none made");
    assert_eq!(statuses(server, "web").len(), 3, "an operator that misses them would take their Nodes for gone");
    let shown = server.groups("default").into_iter().find(|group| group.key == "web").unwrap();
    assert_eq!((shown.size, shown.actual_size), (3, 3));
    let config = wire::InstanceConfig { group: "web".to_owned(), ..wire::InstanceConfig::default() };
    let request = wire::CreateInstanceRequest { instance_id: String::new(), config: Some(config) };
    let refused = server.term.create_instance("default", request, &Fence::default()).await.unwrap_err();
    assert_eq!(tonic::Status::from(refused).code(), Code::Internal, "no code for a group that is gone");
    server.term.upsert_group("default", upsert("zoo", 1), &Fence::default()).await.unwrap();
    server.settle(world).await.unwrap();
    assert_eq!(machines(world).len(), before.len() + 1);
    server.term.delete_group("default", "zoo", &Fence::default()).await.unwrap();
    rest(world, server).await;
    assert_eq!(&machines(world), before, "what is decided elsewhere is carried out");
}

#[tokio::test(start_paused = true)]
async fn a_group_that_cannot_be_read_is_unknown_and_the_others_go_on() {
    let (world, mut server, _, _) = three().await;
    let (key, before, fence) = (layout().groups(), machines(&world), Fence::default());
    let good: serde_json::Value = stored(&world, &key).await;
    for damage in [json!({"size": "three"}), json!({"template": "web", "size": -3}), json!([]), json!(null)] {
        let mut bad = good.clone();
        bad["default"]["web"] = damage.clone();
        overwrite(&world, &key, bad.to_string().as_bytes()).await;
        // Of the leader, which notices it with the next request, and of its successor.
        server.term.upsert_group("default", upsert("other", 0), &fence).await.unwrap();
        for _ in 0..2 {
            only_web_is_left_alone(&world, &mut server, &before).await;
            server = world.start().await;
        }
        assert_eq!(stored(&world, &key).await["default"]["web"], damage, "what was written since lost nothing of it");
        overwrite(&world, &key, good.to_string().as_bytes()).await;
        rest(&world, &mut server).await;
        assert_eq!(server.term.unknown_groups(), 0, "read again at the next look");
        server.term.upsert_group("default", upsert("web", 3), &fence).await.expect("it is known again");
        rest(&world, &mut server).await;
        assert_eq!(machines(&world).len(), before.len());
    }
}

#[tokio::test(start_paused = true)]
async fn the_groups_of_a_tenant_that_cannot_be_read_are_unknown_and_other_tenants_go_on() {
    let (world, mut server, _, _) = three().await;
    let (key, fence) = (layout().groups(), Fence::default());
    server.term.upsert_group("acme", upsert("own", 2), &fence).await.unwrap();
    server.settle(&world).await.unwrap();
    let own = server.groups("acme").remove(0).instances.remove(0).instance_id;
    let before = machines(&world);
    let mut bad = stored(&world, &key).await;
    bad["acme"] = "lost".into();
    overwrite(&world, &key, bad.to_string().as_bytes()).await;
    drop(server);
    server = world.start().await;
    for outcome in [
        server.term.upsert_group("acme", upsert("own", 1), &fence).await.map(drop),
        server.term.upsert_group("acme", upsert("new", 1), &fence).await.map(drop),
        server.term.delete_group("acme", "own", &fence).await,
        server.term.tenant_readable("acme"),
    ] {
        assert_eq!(tonic::Status::from(outcome.unwrap_err()).code(), Code::Internal);
    }
    rest(&world, &mut server).await;
    assert_eq!(machines(&world), before);
    server.term.tenant_readable("default").unwrap();
    server.term.upsert_group("default", upsert("web", 4), &fence).await.unwrap();
    // What a request asks of an instance is carried out all the same.
    server.term.delete_instance("acme", &own, &fence).await.unwrap();
    rest(&world, &mut server).await;
    assert!(!machines(&world).contains(&own));
    assert_eq!(machines(&world).len(), before.len(), "one more there, one less here");
    assert_eq!(stored(&world, &key).await["acme"], "lost", "kept for a repair");
}

#[tokio::test(start_paused = true)]
async fn a_template_that_leaves_the_configuration_drains_no_group_of_requests() {
    let (world, mut server, _, _) = three().await;
    let before = machines(&world);
    let renamed = CONFIG
        .replace("\"web\": {\"kind\"", "\"web-2\": {\"kind\"")
        .replace("\"template\": \"web\"", "\"template\": \"web-2\"");
    world.configure(&renamed).await;
    let mut events = server.term.watch_groups("default");
    while events.next().now_or_never().is_some() {}
    server.term.refresh_config("default").await.unwrap();
    while let Some(Some(event)) = events.next().now_or_never() {
        assert_eq!(event.unwrap().r#type, 1, "none is deleted");
    }
    for _ in 0..2 {
        assert_eq!(server.term.unknown_groups(), 1);
        rest(&world, &mut server).await;
        assert_eq!(machines(&world), before);
        assert_eq!(statuses(&server, "web").len(), 3);
        server = world.start().await;
    }
    // A request with a template that is there makes it whole; so would the old one.
    let mut repaired = upsert("web", 3);
    repaired.config.as_mut().unwrap().template = "web-2".to_owned();
    server.term.upsert_group("default", repaired, &Fence::default()).await.unwrap();
    assert_eq!(server.term.unknown_groups(), 0);
    rest(&world, &mut server).await;
    assert_eq!(machines(&world).len(), before.len());
}

#[tokio::test(start_paused = true)]
async fn the_keys_of_agents_go_with_their_instances_and_none_registers_afterwards() {
    let (world, mut server, record, _) = three().await;
    let (id, fence) = (record.id.to_string(), Fence::default());
    let keys = async || world.store.list(&layout().agent_keys()).await.unwrap();
    server.report(&world, &BTreeSet::new());
    let own = layout().agent_key(&id);
    assert!(keys().await.contains(&own));
    server.term.may_register("default", &id).expect("its certificate may be renewed");
    refused(server.term.may_register("acme", &id), Code::PermissionDenied);
    server.term.delete_instance("default", &id, &fence).await.unwrap();
    server.settle(&world).await.unwrap();
    let gone =
        |outcome: Result<(), TermError>| assert_eq!(tonic::Status::from(outcome.unwrap_err()).code(), Code::NotFound);
    gone(server.term.may_register("default", &id));
    for _ in 0..3 {
        rest(&world, &mut server).await;
    }
    assert!(!world.records().contains_key(&id), "it is purged");
    gone(server.term.may_register("default", &id));
    assert!(!keys().await.contains(&own));
    // What an earlier version, or a record that was removed by hand, left.
    let stray = format!("{}notes.pem", layout().agent_keys());
    for key in [&own, &stray] {
        overwrite(&world, key, b"key").await;
    }
    let living = keys().await.len();
    assert_eq!(server.term.purge_agent_keys().await.unwrap(), 1);
    let left = keys().await;
    assert!(!left.contains(&own) && left.contains(&stray) && left.len() == living - 1, "{left:?}");
    // A record that cannot be read keeps its key.
    let other = world.records().into_values().find(|record| record.deleted_at.is_none()).unwrap();
    overwrite(&world, &layout().instance("default", &other.id.storage_key()), b"{").await;
    let next = world.start().await;
    assert_eq!(next.term.purge_agent_keys().await.unwrap(), 0);
}
