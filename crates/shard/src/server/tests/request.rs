//! Requests of operators and agents, without a network.

use std::{sync::Arc, time::Duration};

use futures::{FutureExt, StreamExt};
use plan::shard::refusal::Code;

use super::world::{CONFIG, World};
use crate::{
    server::TermError,
    wire::{self, Fence},
};

fn upsert(key: &str, size: i32) -> wire::UpsertGroupRequest {
    let config = wire::GroupConfig { template: "web".to_owned(), size, ..wire::GroupConfig::default() };
    wire::UpsertGroupRequest { key: key.to_owned(), config: Some(config), remove_first: vec![] }
}

fn code(error: &TermError) -> Option<Code> {
    match error {
        TermError::Refused(refusal) => Some(refusal.code),
        _ => None,
    }
}

#[tokio::test(start_paused = true)]
async fn a81_a_static_group_has_its_size_before_any_operator_and_survives_its_deletion() {
    let world = World::new().await;
    let server = world.start().await;
    server.settle(&world).await.unwrap();
    let groups = server.groups("default");
    assert_eq!((groups.len(), groups[0].size, groups[0].actual_size, groups[0].is_static), (1, 1, 1, true));
    assert_eq!(groups[0].instances[0].node_provider_id, format!("process:///a/{}", groups[0].instances[0].instance_id));
    let asked = server.term.instance_status("default", &groups[0].instances[0].instance_id).unwrap();
    assert_eq!(asked.node_provider_id, groups[0].instances[0].node_provider_id, "asked for by itself it says the same");
    let fence = Fence::default();
    let mut override_size = upsert("fixed", 3);
    override_size.config.as_mut().unwrap().template.clear();
    assert_eq!(server.term.upsert_group("default", override_size, &fence).await.unwrap().size, 3);
    let mut events = server.term.watch_groups("default");
    assert_eq!(events.next().await.unwrap().unwrap().group.unwrap().size, 3, "the snapshot");
    server.term.delete_group("default", "fixed", &fence).await.unwrap();
    let event = events.next().await.unwrap().unwrap();
    assert_eq!((event.r#type, event.group.unwrap().size), (1, 1), "the static values, not a deletion");
}

#[tokio::test(start_paused = true)]
async fn a81_an_overridden_group_that_leaves_the_configuration_keeps_its_instances() {
    let world = World::new().await;
    let server = world.start().await;
    let mut override_size = upsert("fixed", 2);
    override_size.config.as_mut().unwrap().template.clear();
    server.term.upsert_group("default", override_size, &Fence::default()).await.unwrap();
    server.settle(&world).await.unwrap();
    let before = server.groups("default").remove(0);
    assert_eq!((before.is_static, before.actual_size), (true, 2));
    let groups = r#""groups": {"default": {"fixed": {"template": "web", "size": 1}}},"#;
    world.configure(&CONFIG.replace(groups, "")).await;
    server.term.refresh_config("default").await.unwrap();
    server.settle(&world).await.unwrap();
    for server in [server, world.start().await] {
        let after = server.groups("default").remove(0);
        assert_eq!((&after.template, &after.subnet_pool, after.size), (&before.template, &before.subnet_pool, 2));
        assert_eq!((after.is_static, &after.instances), (false, &before.instances));
    }
    // One that was not overridden is gone, and its instances drain.
    let world = World::new().await;
    let server = world.start().await;
    server.settle(&world).await.unwrap();
    world.configure(&CONFIG.replace(groups, "")).await;
    server.term.refresh_config("default").await.unwrap();
    server.settle(&world).await.unwrap();
    assert_eq!(server.groups("default"), []);
    assert!(world.records().values().all(|record| record.leaving.is_some()));
}

#[tokio::test(start_paused = true)]
async fn a79_no_request_reaches_another_tenant() {
    let world = World::new().await;
    let mut server = world.start().await;
    let (term, fence) = (Arc::clone(&server.term), Fence::default());
    term.upsert_group("acme", upsert("web", 1), &fence).await.unwrap();
    let mut foreign = (term.watch_groups("default"), term.watch_instances("default"), term.watch_errors("default"));
    assert_eq!(foreign.0.next().await.unwrap().unwrap().group.unwrap().key, "fixed");
    server.settle(&world).await.unwrap();
    let id = server.groups("acme")[0].instances[0].instance_id.clone();
    assert!(server.groups("default").iter().all(|group| group.key != "web"));
    let config = wire::InstanceConfig { group: "web".to_owned(), ..wire::InstanceConfig::default() };
    let request = wire::CreateInstanceRequest { instance_id: String::new(), config: Some(config) };
    let error = term.create_instance("default", request, &fence).await.unwrap_err();
    assert_eq!(code(&error), Some(Code::NotFound), "another tenant's group is none of this one's");
    let denied = [
        term.instance_status("default", &id).err(),
        term.acknowledge_drained("default", &id, &Fence::default()).err(),
        term.delete_instance("default", &id, &Fence::default()).await.err(),
        term.report_health("default", &id, None).err(),
    ];
    for error in denied {
        assert_eq!(code(&error.expect("refused")), Some(Code::PermissionDenied));
    }
    term.delete_group("default", "web", &fence).await.unwrap();
    assert_eq!(server.groups("acme").len(), 1, "another tenant's group of that name");
    term.upsert_group("default", upsert("web", 0), &fence).await.unwrap();
    assert_eq!(foreign.0.next().await.unwrap().unwrap().group.unwrap().tenant, "default");
    assert_eq!(server.groups("acme")[0].size, 1, "a group of the same name is another one");
    let mut own = (term.watch_instances("acme"), term.watch_errors("acme"));
    world.cloud.refuse(Some("quota exceeded"));
    term.delete_instance("acme", &id, &Fence::default()).await.unwrap();
    server.settle(&world).await.unwrap();
    assert!(own.1.next().await.unwrap().unwrap().error.contains("quota exceeded"));
    world.cloud.refuse(None);
    server.pass(&world, std::time::Duration::from_secs(10), &std::collections::BTreeSet::new()).await.unwrap();
    server.settle(&world).await.unwrap();
    assert_eq!(own.0.next().await.unwrap().unwrap().instance_id, id);
    let sent = (foreign.0.next().now_or_never(), foreign.1.next().now_or_never(), foreign.2.next().now_or_never());
    assert!(sent.0.is_none() && sent.1.is_none() && sent.2.is_none(), "{sent:?}");
}

#[tokio::test(start_paused = true)]
async fn a79_a_refresh_quotes_nothing_of_a_configuration_that_is_of_all_tenants() {
    let world = World::new().await;
    let server = world.start().await;
    world.configure(&CONFIG.replace("\"size\": 1", "\"size\": -1")).await;
    let error = server.term.refresh_config("acme").await.unwrap_err();
    let TermError::Config { problems, .. } = &error else { panic!("{error}") };
    let problem = problems[0].clone();
    let status = tonic::Status::from(error);
    assert_eq!(status.code(), tonic::Code::FailedPrecondition);
    let said = status.message();
    assert!(said.contains("strata shard validate"), "{said}");
    assert!(!said.contains(&problem.field) && !said.contains(&problem.message) && !said.contains("fixed"), "{said}");
    assert_eq!(code(&server.term.refresh_config("").await.unwrap_err()), Some(Code::InvalidArgument));
}

#[tokio::test(start_paused = true)]
async fn a79_refreshes_of_one_tenant_wait_for_each_other_and_anothers_for_one_of_them() {
    let world = World::new().await;
    let server = world.start().await;
    server.faults.set(crate::store::Fault::Slow(std::time::Duration::from_millis(10)));
    let ended = std::cell::Cell::new(0);
    let many = futures::future::join_all((0..20).map(|_| async {
        server.term.refresh_config("acme").await.unwrap();
        ended.set(ended.get() + 1);
    }));
    let other = async {
        server.term.refresh_config("default").await.unwrap();
        ended.get()
    };
    let (_, before) = tokio::join!(many, other);
    assert!(before < 3, "{before} of another tenant were first");
    assert_eq!(ended.get(), 20);
}

#[tokio::test(start_paused = true)]
async fn a87_a_known_request_id_has_its_answer_and_older_requests_are_refused() {
    let world = World::new().await;
    let server = world.start().await;
    let term = &server.term;
    let fence = |epoch, generation, id: &str| Fence {
        epoch: Some(epoch),
        generation: Some(generation),
        request_id: (!id.is_empty()).then(|| id.to_owned()),
    };
    let first = term.upsert_group("default", upsert("web", 1), &fence(1, 5, "r1")).await.unwrap();
    let again = term.upsert_group("default", upsert("web", 9), &fence(1, 5, "r1")).await.unwrap();
    assert_eq!(first, again, "the same id, the same answer");
    for old in [fence(1, 4, ""), fence(0, 9, "")] {
        let error = term.upsert_group("default", upsert("web", 2), &old).await.unwrap_err();
        assert_eq!(code(&error), Some(Code::FailedPrecondition));
        assert_eq!(code(&term.delete_group("default", "web", &old).await.unwrap_err()), Some(Code::FailedPrecondition));
    }
    let successor = world.start().await;
    let error = successor.term.upsert_group("default", upsert("web", 2), &fence(1, 4, "")).await.unwrap_err();
    assert_eq!(code(&error), Some(Code::FailedPrecondition), "also after a fail-over");
    assert_eq!(successor.term.upsert_group("default", upsert("web", 2), &fence(2, 1, "")).await.unwrap().size, 2);
}

#[tokio::test(start_paused = true)]
async fn a71_a_change_of_the_groups_file_by_another_hand_is_taken_over() {
    use crate::store::{Expect, Store, layout::ShardLayout};
    let world = World::new().await;
    let server = world.start().await;
    let fence = Fence::default();
    server.term.upsert_group("default", upsert("web", 1), &fence).await.unwrap();
    let key = ShardLayout::new("a").groups();
    let object = world.store.get(&key).await.unwrap().unwrap();
    let text = String::from_utf8(object.body).unwrap().replace("\"web\": {", "\"other\": {");
    world.store.put(&key, text.into_bytes(), Expect::Content(object.etag)).await.unwrap();
    server.term.upsert_group("default", upsert("third", 0), &fence).await.unwrap();
    let keys: Vec<_> = server.groups("default").into_iter().map(|group| group.key).collect();
    assert_eq!(keys, ["fixed", "other", "third"]);
}

#[tokio::test(start_paused = true)]
async fn a71_a_change_of_the_groups_file_in_between_is_a_conflict_and_loses_nothing() {
    use crate::store::{Expect, Fault, Store, layout::ShardLayout};
    let world = World::new().await;
    let server = world.start().await;
    let fence = Fence::default();
    server.term.upsert_group("default", upsert("web", 1), &fence).await.unwrap();
    let key = ShardLayout::new("a").groups();
    // A second for each call to storage: the file is read at the first, and written at the third.
    let second = std::time::Duration::from_secs(1);
    server.faults.set(Fault::Slow(second));
    let other = async {
        tokio::time::sleep(second * 3 / 2).await;
        let object = world.store.get(&key).await.unwrap().unwrap();
        let text = String::from_utf8(object.body).unwrap().replace("\"web\": {", "\"other\": {");
        world.store.put(&key, text.into_bytes(), Expect::Content(object.etag)).await.unwrap();
    };
    let (refused, ()) = tokio::join!(server.term.upsert_group("default", upsert("third", 1), &fence), other);
    assert_eq!(tonic::Status::from(refused.unwrap_err()).code(), tonic::Code::Aborted);
    server.faults.set(Fault::None);
    server.term.upsert_group("default", upsert("third", 1), &fence).await.unwrap();
    let keys: Vec<_> = server.groups("default").into_iter().map(|group| group.key).collect();
    assert_eq!(keys, ["fixed", "other", "third"]);
}

#[tokio::test(start_paused = true)]
async fn a87_a_repeated_creation_makes_one_instance_also_after_a_failover() {
    let world = World::new().await;
    let server = world.start().await;
    let fence = Fence { request_id: Some("r1".to_owned()), epoch: Some(3), ..Fence::default() };
    let config = wire::InstanceConfig { group: "fixed".to_owned(), ..wire::InstanceConfig::default() };
    let request = wire::CreateInstanceRequest { instance_id: String::new(), config: Some(config) };
    let first = server.term.create_instance("default", request.clone(), &fence).await.unwrap();
    assert_eq!(server.term.create_instance("default", request.clone(), &fence).await.unwrap(), first);
    let successor = world.start().await;
    assert_eq!(successor.term.create_instance("default", request.clone(), &fence).await.unwrap(), first);
    successor.term.upsert_group("default", upsert("web", 0), &fence).await.unwrap();
    let last = world.start().await;
    let stale = Fence { epoch: Some(2), ..Fence::default() };
    let (term, id) = (&last.term, &first.instance_id);
    let refused = [
        term.create_instance("default", request, &stale).await.err(),
        term.delete_instance("default", id, &stale).await.err(),
        term.acknowledge_drained("default", id, &stale).err(),
        term.upsert_group("default", upsert("never", 1), &stale).await.err(),
    ];
    for error in refused {
        assert_eq!(code(&error.expect("refused")), Some(Code::FailedPrecondition));
    }
    assert_eq!(term.delete_instance("default", id, &fence).await.unwrap().status, "deleting");
}

#[tokio::test(start_paused = true)]
async fn a87_a_creation_that_was_not_stored_is_made_when_it_is_asked_for_again() {
    let world = World::new().await;
    let server = world.start().await;
    let fence = Fence { request_id: Some("r1".to_owned()), ..Fence::default() };
    let config = wire::InstanceConfig { group: "fixed".to_owned(), ..wire::InstanceConfig::default() };
    let request = wire::CreateInstanceRequest { instance_id: String::new(), config: Some(config) };
    server.faults.set(crate::store::Fault::Refusing);
    server.term.create_instance("default", request.clone(), &fence).await.unwrap_err();
    server.faults.set(crate::store::Fault::None);
    let made = server.term.create_instance("default", request, &fence).await.unwrap();
    let successor = world.start().await;
    successor.term.instance_status("default", &made.instance_id).expect("it is stored");
}

#[tokio::test(start_paused = true)]
async fn a82_every_deletion_is_sent_with_its_reason_also_after_a_failover() {
    let world = World::new().await;
    let server = world.start().await;
    let fence = Fence::default();
    server.term.upsert_group("default", upsert("web", 2), &fence).await.unwrap();
    server.settle(&world).await.unwrap();
    let mut events = server.term.watch_instances("default");
    server.term.upsert_group("default", upsert("web", 1), &fence).await.unwrap();
    server.settle(&world).await.unwrap();
    let notice = events.next().await.unwrap().unwrap();
    assert_eq!((&*notice.status, &*notice.reason), ("pending_deletion", "scale-down"));
    let (since, end) = (notice.unhealthy_at.unwrap().seconds, notice.delete_at.unwrap().seconds);
    assert_eq!(end - since, 300);
    server.term.acknowledge_drained("default", &notice.instance_id, &Fence::default()).unwrap();
    server.settle(&world).await.unwrap();
    let deleted = events.next().await.unwrap().unwrap();
    assert_eq!((&*deleted.status, &*deleted.reason), ("deleted", "scale-down"));
    assert_eq!(deleted.instance_id, notice.instance_id);
    let other = server.groups("default").into_iter().find(|group| group.key == "web").unwrap();
    let other = other.instances[0].instance_id.clone();
    assert_eq!(server.term.delete_instance("default", &other, &Fence::default()).await.unwrap().status, "deleting");
    server.settle(&world).await.unwrap();
    assert_eq!(server.term.delete_instance("default", &other, &Fence::default()).await.unwrap().status, "deleted");
    let successor = world.start().await;
    let mut events = successor.term.watch_instances("default");
    let mut reasons = Vec::new();
    while let Some(Some(Ok(event))) = events.next().now_or_never() {
        reasons.push((event.status, event.reason));
    }
    let pair = |reason: &str| ("deleted".to_owned(), reason.to_owned());
    assert_eq!(reasons, [pair("scale-down"), pair("request")]);
}

#[tokio::test(start_paused = true)]
async fn a82_a_late_watcher_learns_how_much_of_the_drain_is_left() {
    let world = World::new().await;
    let server = world.start().await;
    server.term.upsert_group("default", upsert("web", 1), &Fence::default()).await.unwrap();
    server.settle(&world).await.unwrap();
    let mut events = server.term.watch_instances("default");
    server.term.upsert_group("default", upsert("web", 0), &Fence::default()).await.unwrap();
    server.settle(&world).await.unwrap();
    let left = |event: wire::InstanceEvent| event.time_left.unwrap().seconds;
    let at_once = left(events.next().await.unwrap().unwrap());
    assert!((290..=300).contains(&at_once), "{at_once}");
    tokio::time::advance(Duration::from_secs(100)).await;
    // A clock that is set takes nothing of the time.
    for by in [0, 24] {
        world.clock.step(jiff::SignedDuration::from_hours(by));
        let late = left(server.term.watch_instances("default").next().await.unwrap().unwrap());
        assert!((190..=200).contains(&late), "{late}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_bad_configuration_is_refused_and_the_last_good_one_stays() {
    let world = World::new().await;
    let server = world.start().await;
    server.settle(&world).await.unwrap();
    let etag = server.term.config_status().etag;
    for bad in ["{", &CONFIG.replace("\"size\": 1", "\"size\": -1"), &CONFIG.replace("\"process\"", "\"aws\"")] {
        world.configure(bad).await;
        let error = server.term.refresh_config("default").await.unwrap_err();
        assert!(matches!(error, TermError::Config { .. }), "{error}");
        assert!(error.to_string().contains("config.jsonc has 1 problem: "), "{error}");
        assert_eq!(server.term.config_status().etag, etag);
        assert_eq!(server.groups("default")[0].size, 1);
    }
    world.configure(&CONFIG.replace("\"size\": 1", "\"size\": 2")).await;
    let mut events = server.term.watch_groups("default");
    events.next().await.unwrap().unwrap();
    assert!(server.term.refresh_config("default").await.unwrap().updated);
    assert_eq!(events.next().await.unwrap().unwrap().group.unwrap().size, 2);
    assert!(!server.term.refresh_config("default").await.unwrap().updated);
    server.settle(&world).await.unwrap();
    assert_eq!(world.cloud.machines().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_provider_that_refuses_is_reported_and_asked_again() {
    let world = World::new().await;
    let mut server = world.start().await;
    world.cloud.refuse(Some("quota exceeded"));
    let mut errors = server.term.watch_errors("default");
    server.settle(&world).await.unwrap();
    let event = errors.next().await.unwrap().unwrap();
    assert_eq!((&*event.group, &*event.error), ("fixed", "Failed to create instance: quota exceeded"));
    server.settle(&world).await.unwrap();
    assert!(errors.next().now_or_never().is_none(), "not before its retry is due");
    assert_eq!(world.records().len(), 1, "the same instance is tried again");
    world.cloud.refuse(None);
    let none = std::collections::BTreeSet::new();
    server.pass(&world, std::time::Duration::from_secs(10), &none).await.unwrap();
    server.settle(&world).await.unwrap();
    assert_eq!(world.cloud.machines().len(), 1);
    world.consistent();
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_is_asked_for_while_the_provider_refuses_is_made_later() {
    let world = World::new().await;
    let mut server = world.start().await;
    world.cloud.refuse(Some("quota exceeded"));
    server.settle(&world).await.unwrap();
    let config = wire::InstanceConfig { group: "fixed".to_owned(), ..wire::InstanceConfig::default() };
    let request = wire::CreateInstanceRequest { instance_id: String::new(), config: Some(config) };
    for _ in 0..2 {
        // Its group's own creations wait for their retry: that is no answer to this request.
        let answer = server.term.create_instance("default", request.clone(), &Fence::default()).await.unwrap();
        assert_eq!(answer.status, "pending");
        assert_eq!(server.term.instance_status("default", &answer.instance_id).unwrap().status, "pending");
    }
    world.cloud.refuse(None);
    let none = std::collections::BTreeSet::new();
    for _ in 0..3 {
        server.pass(&world, std::time::Duration::from_secs(10), &none).await.unwrap();
        server.settle(&world).await.unwrap();
    }
    assert_eq!(world.cloud.machines().len(), 3, "the group's own, and two that were asked for");
    world.consistent();
}

#[tokio::test(start_paused = true)]
async fn the_configuration_of_another_shard_or_cluster_is_refused() {
    let world = World::new().await;
    let server = world.start().await;
    server.settle(&world).await.unwrap();
    for (bad, field) in [
        (CONFIG.replace("\"id\": \"a\"", "\"id\": \"b\""), "shard.id"),
        (CONFIG.replace("\"dev\"", "\"prod\""), "cluster.id"),
    ] {
        world.configure(&bad).await;
        let error = server.term.refresh_config("default").await.unwrap_err();
        assert!(matches!(&error, TermError::Config { problems, .. } if problems[0].field == field), "{error}");
        let Some(Err(error)) = world.try_start(crate::store::Faults::default()).await else { panic!("it leads") };
        assert!(error.to_string().contains(field), "{error}");
        world.configure(CONFIG).await;
    }
}

#[tokio::test(start_paused = true)]
async fn full_subnets_are_reported_and_spill_to_the_next() {
    let world = World::new().await;
    let server = world.start().await;
    world.cloud.set_room("s1", 1);
    world.cloud.set_room("s2", 1);
    server.term.upsert_group("default", upsert("web", 2), &Fence::default()).await.unwrap();
    let mut errors = server.term.watch_errors("default");
    server.settle(&world).await.unwrap();
    assert_eq!(world.cloud.machines().len(), 2);
    assert!(errors.next().await.unwrap().unwrap().error.contains("subnet of the pool is full"));
    let config = wire::InstanceConfig { group: "web".to_owned(), ..wire::InstanceConfig::default() };
    let request = wire::CreateInstanceRequest { instance_id: String::new(), config: Some(config) };
    let error = server.term.create_instance("default", request, &Fence::default()).await.unwrap_err();
    assert_eq!(code(&error), Some(Code::ResourceExhausted));
}

#[tokio::test(start_paused = true)]
async fn a_settled_shard_writes_nothing_and_an_instance_costs_four_writes() {
    let world = World::new().await;
    let server = world.start().await;
    server.settle(&world).await.unwrap();
    let before = server.faults.effects();
    server.settle(&world).await.unwrap();
    assert_eq!(server.faults.effects(), before, "at rest");
    let fence = Fence::default();
    server.term.upsert_group("default", upsert("web", 1), &fence).await.unwrap();
    server.settle(&world).await.unwrap();
    server.term.upsert_group("default", upsert("web", 0), &fence).await.unwrap();
    server.settle(&world).await.unwrap();
    let drained = world.records().into_values().find(|record| record.group == "web").unwrap();
    server.term.acknowledge_drained("default", drained.id.as_str(), &Fence::default()).unwrap();
    server.settle(&world).await.unwrap();
    // Two requests, four writes of the record, two calls of the provider.
    assert_eq!(server.faults.effects() - before, 2 + 4 + 2);
}

#[tokio::test(start_paused = true)]
async fn a_list_shows_every_change_since_the_last_one() {
    use plan::shard::instance::MachineStatus;
    let world = World::new().await;
    let server = world.start().await;
    let seen = || {
        let (group, again) = (server.groups("default").remove(0), server.groups("default").remove(0));
        assert_eq!(group, again, "what did not change is the same");
        let statuses: Vec<_> = group.instances.iter().map(|instance| instance.status.clone()).collect();
        (group.size, group.actual_size, statuses)
    };
    let running = || "running".to_owned();
    assert_eq!(seen(), (1, 0, vec![]));
    server.settle(&world).await.unwrap();
    assert_eq!(seen(), (1, 1, vec![running()]));
    let mut larger = upsert("fixed", 2);
    larger.config.as_mut().unwrap().template.clear();
    server.term.upsert_group("default", larger, &Fence::default()).await.unwrap();
    assert_eq!(seen(), (2, 1, vec![running()]));
    server.settle(&world).await.unwrap();
    assert_eq!(seen(), (2, 2, vec![running(), running()]));
    let first = server.groups("default")[0].instances[0].instance_id.clone();
    world.cloud.set_status(&first, Some(MachineStatus::Stopping));
    server.term.observe().await.unwrap();
    assert_eq!(seen(), (2, 2, vec!["stopping".to_owned(), running()]));
    world.configure(&CONFIG.replace("\"size\": 1", "\"size\": 1, \"vars\": {\"a\": \"b\"}")).await;
    server.term.refresh_config("default").await.unwrap();
    assert_eq!(server.groups("default")[0].vars.get("a").map(String::as_str), Some("b"));
}
