//! Requests that are refused, and requests that are repeated: what is stored, made and sent stays as it was.

use std::{collections::BTreeMap, sync::Arc};

use futures::{FutureExt, StreamExt};
use plan::shard::id::InstanceId;
use tonic::Code;

use super::world::{CONFIG, Server, World};
use crate::{
    server::TermError,
    wire::{self, Fence},
};

/// A group with `size` of the template, changed.
fn upsert(key: &str, change: impl FnOnce(&mut wire::GroupConfig)) -> wire::UpsertGroupRequest {
    let mut config = wire::GroupConfig { template: "web".to_owned(), size: 1, ..wire::GroupConfig::default() };
    change(&mut config);
    wire::UpsertGroupRequest { key: key.to_owned(), config: Some(config), remove_first: vec![] }
}

fn create(
    change: impl FnOnce(&mut wire::CreateInstanceRequest, &mut wire::InstanceConfig),
) -> wire::CreateInstanceRequest {
    let mut config = wire::InstanceConfig { group: "fixed".to_owned(), ..wire::InstanceConfig::default() };
    let mut request = wire::CreateInstanceRequest::default();
    change(&mut request, &mut config);
    wire::CreateInstanceRequest { config: Some(config), ..request }
}

/// Everything that a request could change.
async fn state(world: &World, server: &Server) -> (BTreeMap<String, Vec<u8>>, Vec<wire::GroupStatus>, usize) {
    server.settle(world).await.unwrap();
    (world.store.snapshot(), server.groups("default"), world.cloud.made())
}

#[track_caller]
fn refused<T: std::fmt::Debug>(outcome: Result<T, TermError>, code: Code, field: &str) {
    let status = tonic::Status::from(outcome.expect_err(field));
    assert_eq!(status.code(), code, "{field}: {status}");
    assert!(status.message().starts_with(field), "{field}: {status}");
    assert!(status.message().len() < 400, "the answer does not repeat the question: {}", status.message().len());
}

async fn bad_groups(server: &Server) {
    use Code::{FailedPrecondition, InvalidArgument, NotFound};
    let vars = |key: &str, value: &str| BTreeMap::from([(key.to_owned(), value.to_owned())]);
    let many: BTreeMap<_, _> = (0..200).map(|number| (number.to_string(), String::new())).collect();
    let args = |config: &mut wire::GroupConfig| config.args = vars("a", "b");
    let unnamed = wire::UpsertGroupRequest { config: None, ..upsert("new", |_| ()) };
    let marked = |id: &str| wire::UpsertGroupRequest { remove_first: vec![id.to_owned()], ..upsert("new", |_| ()) };
    let crowd = vec![InstanceId::new("web", 1).to_string(); 1001];
    let crowd = wire::UpsertGroupRequest { remove_first: crowd, ..upsert("new", |_| ()) };
    let cases = [
        (upsert("", |_| ()), InvalidArgument, "key"),
        (upsert("Upper", |_| ()), InvalidArgument, "key"),
        (upsert("a--b", |_| ()), InvalidArgument, "key"),
        (upsert(&"x".repeat(100_000), |_| ()), InvalidArgument, "key"),
        (unnamed, InvalidArgument, "config"),
        (upsert("new", |config| config.size = -1), InvalidArgument, "config.size"),
        (upsert("new", |config| config.size = i32::MIN), InvalidArgument, "config.size"),
        (upsert("new", |config| config.size = i32::MAX), InvalidArgument, "config.size"),
        (upsert("fixed", |config| config.size = -1), InvalidArgument, "config.size"),
        (upsert("new", |config| config.template.clear()), InvalidArgument, "config.template"),
        (upsert("new", |config| config.template = "none".into()), NotFound, "config.template"),
        (upsert("new", |config| config.subnet_pool = "none".into()), InvalidArgument, "config.subnet_pool"),
        (upsert("new", |config| config.subnet_pool = "shut".into()), InvalidArgument, "config.subnet_pool"),
        (upsert("new", |config| config.vars = many), InvalidArgument, "config.vars"),
        (upsert("new", |config| config.vars = vars("", "x")), InvalidArgument, "config.vars"),
        (upsert("new", |config| config.vars = vars("x", &"x".repeat(5000))), InvalidArgument, "config.vars"),
        (upsert("new", args), InvalidArgument, "config.args"),
        (upsert("fixed", args), FailedPrecondition, "config.args"),
        (upsert("fixed", |config| config.template = "listed".into()), FailedPrecondition, "config.template"),
        (upsert("fixed", |config| config.subnet_pool = "one".into()), FailedPrecondition, "config.subnet_pool"),
        (marked("web1"), InvalidArgument, "remove_first"),
        (crowd, InvalidArgument, "remove_first"),
    ];
    for (request, code, field) in cases {
        refused(server.term.upsert_group("default", request, &Fence::default()).await, code, field);
    }
    let listed = |config: &mut wire::GroupConfig| {
        config.template = "listed".into();
        config.instance_type = "small".into();
    };
    refused(
        server.term.upsert_group("default", upsert("new", listed), &Fence::default()).await,
        InvalidArgument,
        "instance_type",
    );
    for key in ["", "Upper"] {
        refused(server.term.delete_group("default", key, &Fence::default()).await, InvalidArgument, "key");
    }
    server.term.delete_group("default", "never-was", &Fence::default()).await.unwrap();
}

async fn bad_instances(server: &Server, taken: &str) {
    use Code::{AlreadyExists, InvalidArgument, NotFound, ResourceExhausted};
    let term = &server.term;
    refused(
        term.create_instance("default", wire::CreateInstanceRequest::default(), &Fence::default()).await,
        InvalidArgument,
        "config",
    );
    let other_kind = InstanceId::new("abc", 1).to_string();
    let long = BTreeMap::from([("x".to_owned(), "x".repeat(5000))]);
    let cases = [
        (create(|_, config| config.group.clear()), InvalidArgument, "config.group"),
        (create(|_, config| config.group = "none".into()), NotFound, "config.group"),
        (create(|_, config| config.template = "none".into()), NotFound, "config.template"),
        (create(|_, config| config.subnet_pool = "none".into()), InvalidArgument, "config.subnet_pool"),
        (create(|_, config| config.subnet_pool = "shut".into()), InvalidArgument, "config.subnet_pool"),
        (create(|_, config| config.subnet_pool = "full".into()), ResourceExhausted, "config.subnet_pool"),
        (create(|_, config| config.vars = long), InvalidArgument, "config.vars"),
        (create(|request, _| request.instance_id = "x".into()), InvalidArgument, "instance_id"),
        (create(|request, _| request.instance_id = other_kind), InvalidArgument, "instance_id"),
        (create(|request, _| request.instance_id = taken.into()), AlreadyExists, "instance_id"),
    ];
    for (request, code, field) in cases {
        refused(term.create_instance("default", request, &Fence::default()).await, code, field);
    }
    let listed = create(|_, config| {
        config.template = "listed".into();
        config.instance_type = "small".into();
    });
    refused(term.create_instance("default", listed, &Fence::default()).await, InvalidArgument, "instance_type");
    let unknown = InstanceId::new("web", 99).to_string();
    for (id, code) in [("x", InvalidArgument), (&*unknown, NotFound)] {
        refused(term.instance_status("default", id), code, "instance_id");
        refused(term.acknowledge_drained("default", id, &Fence::default()), code, "instance_id");
        refused(term.report_health("default", id, None), code, "instance_id");
    }
    refused(term.delete_instance("default", "x", &Fence::default()).await, InvalidArgument, "instance_id");
    let answer = term.delete_instance("default", &unknown, &Fence::default()).await.unwrap();
    assert_eq!(answer.status, "unknown", "one that is not there is no error");
    for outcome in [
        term.instance_status("acme", taken).err(),
        term.acknowledge_drained("acme", taken, &Fence::default()).err(),
        term.delete_instance("acme", taken, &Fence::default()).await.err(),
    ] {
        refused(outcome.map_or(Ok(()), Err), Code::PermissionDenied, "instance_id");
    }
}

#[tokio::test(start_paused = true)]
async fn a86_every_refused_request_has_its_code_and_changes_nothing() {
    let pools = r#""dynamic_subnet_pools": ["one", "full"], "subnet_pools": {"shut": ["s3"], "full": ["s4"], "one": ["s1", "s2"]}"#;
    let config = CONFIG.replace(r#""subnet_pools": {"one": ["s1", "s2"]}"#, pools);
    let world = World::with_config(&config).await;
    world.cloud.set_room("s4", 0);
    let server = world.start().await;
    let before = state(&world, &server).await;
    let taken = before.1[0].instances[0].instance_id.clone();
    let mut events = (
        server.term.watch_groups("default"),
        server.term.watch_instances("default"),
        server.term.watch_errors("default"),
    );
    assert_eq!(events.0.next().await.unwrap().unwrap().group.unwrap().key, "fixed");
    bad_groups(&server).await;
    bad_instances(&server, &taken).await;
    assert_eq!(state(&world, &server).await, before);
    let sent = (events.0.next().now_or_never(), events.1.next().now_or_never(), events.2.next().now_or_never());
    assert!(sent.0.is_none() && sent.1.is_none() && sent.2.is_none(), "{sent:?}");
    let successor = world.start().await;
    assert_eq!(state(&world, &successor).await.1, before.1, "nor does the next leader know of it");
}

fn fence(epoch: u64, generation: u64, id: &str) -> Fence {
    let request_id = (!id.is_empty()).then(|| id.to_owned());
    Fence { epoch: Some(epoch), generation: Some(generation), request_id }
}

#[tokio::test(start_paused = true)]
async fn a87_every_call_repeats_its_answer_to_a_known_request_id() {
    let world = World::new().await;
    let server = world.start().await;
    server.settle(&world).await.unwrap();
    let (term, id) = (&server.term, |name: &str| fence(1, 1, name));
    let group = term.upsert_group("default", upsert("web", |_| ()), &id("u")).await.unwrap();
    let made = term.create_instance("default", create(|_, _| ()), &id("c")).await.unwrap();
    let other = term.create_instance("default", create(|_, _| ()), &id("c2")).await.unwrap();
    assert_ne!(made.instance_id, other.instance_id);
    let deleting = term.delete_instance("default", &made.instance_id, &id("d")).await.unwrap();
    term.acknowledge_drained("default", &other.instance_id, &id("a")).unwrap();
    term.delete_group("default", "web", &id("g")).await.unwrap();
    let before = state(&world, &server).await;
    assert_eq!(term.upsert_group("default", upsert("web", |config| config.size = 7), &id("u")).await.unwrap(), group);
    assert_eq!(term.create_instance("default", create(|_, _| ()), &id("c")).await.unwrap(), made);
    assert_eq!(term.delete_instance("default", &made.instance_id, &id("d")).await.unwrap(), deleting);
    assert_eq!(
        term.delete_instance("default", &made.instance_id, &id("d2")).await.unwrap().status,
        "deleted",
        "another request has another answer"
    );
    term.acknowledge_drained("default", &other.instance_id, &id("a")).unwrap();
    let again = term.acknowledge_drained("default", &other.instance_id, &id("a2"));
    refused(again, Code::NotFound, "instance_id");
    term.delete_group("default", "web", &id("g")).await.unwrap();
    assert_eq!(state(&world, &server).await, before, "a repeated request has no effect");
    // The same id in another call, or of another tenant, is another request.
    let acme = term.upsert_group("acme", upsert("own", |_| ()), &id("u")).await.unwrap();
    assert_eq!((&*acme.tenant, &*acme.key), ("acme", "own"));
    let third = term.create_instance("default", create(|_, _| ()), &id("u")).await.unwrap();
    assert!(third.instance_id.starts_with("web"), "{third:?}");
}

/// After a request of epoch 2 and generation 5.
async fn refuses_what_is_old(server: &Server, id: &str) {
    let (term, code) = (&server.term, Code::FailedPrecondition);
    for (old, field) in [(fence(1, 9, ""), "strata-epoch"), (fence(2, 4, ""), "strata-generation")] {
        let larger = upsert("web", |config| config.size = 9);
        refused(term.upsert_group("default", larger, &old).await, code, field);
        refused(term.delete_group("default", "web", &old).await, code, field);
    }
    let (old, field) = (fence(1, 9, "new"), "strata-epoch");
    refused(term.create_instance("default", create(|_, _| ()), &old).await, code, field);
    refused(term.delete_instance("default", id, &old).await, code, field);
    refused(term.acknowledge_drained("default", id, &old), code, field);
}

#[tokio::test(start_paused = true)]
async fn a87_an_older_epoch_or_generation_changes_nothing_also_after_a_failover() {
    let world = World::new().await;
    let server = world.start().await;
    let group = |size| upsert("web", move |config| config.size = size);
    server.term.upsert_group("default", group(1), &fence(2, 5, "")).await.unwrap();
    let before = state(&world, &server).await;
    let id = before.1.iter().find(|group| group.key == "web").unwrap().instances[0].instance_id.clone();
    refuses_what_is_old(&server, &id).await;
    assert_eq!(state(&world, &server).await, before);
    let successor = world.start().await;
    refuses_what_is_old(&successor, &id).await;
    assert_eq!(state(&world, &successor).await.1, before.1);
    // Another tenant's operator has epochs of its own, and a newer one of this tenant is welcome.
    successor.term.upsert_group("acme", group(0), &fence(1, 1, "")).await.unwrap();
    assert_eq!(successor.term.upsert_group("default", group(0), &fence(3, 1, "")).await.unwrap().size, 0);
}

#[tokio::test(start_paused = true)]
async fn the_certificate_log_forgets_what_ended_long_ago() {
    use crate::{
        identity::LogEntry,
        store::{Expect, Store, layout::ShardLayout},
    };
    let world = World::new().await;
    let server = world.start().await;
    let layout = ShardLayout::new("a");
    let now = world.clock.now();
    for (number, hours) in [(1, -24 * 8), (2, -24 * 6), (3, 24 * 365)] {
        let entry = LogEntry {
            id: format!("web0{number}"),
            tenant: "default".to_owned(),
            role: "agent".to_owned(),
            issued_at: now,
            expires_at: now + jiff::SignedDuration::from_hours(hours),
        };
        let key = layout.certificate("default", i64::from(number), &entry.id);
        world.store.put(&key, serde_json::to_vec(&entry).unwrap(), Expect::Absent).await.unwrap();
    }
    let damaged = layout.certificate("default", 4, "web04");
    world.store.put(&damaged, b"{".to_vec(), Expect::Absent).await.unwrap();
    assert_eq!(server.term.purge_certificate_log().await.unwrap(), 1);
    let left = world.store.list(&layout.certificates()).await.unwrap();
    let names: Vec<_> = left.iter().map(|key| key.rsplit('/').next().unwrap()).collect();
    assert_eq!(names, ["default.2.web02.json", "default.3.web03.json", "default.4.web04.json"]);
    let _next = world.start().await;
    assert!(matches!(server.term.purge_certificate_log().await, Ok(0) | Err(TermError::Lost(_))));
    world.clock.step(jiff::SignedDuration::from_hours(24 * 400));
    assert!(server.term.purge_certificate_log().await.is_err(), "a stale leader removes nothing");
}

#[tokio::test(start_paused = true)]
async fn nonces_of_operators_are_forgotten_long_after_their_end_by_the_clusters_leader() {
    use crate::store::{
        Election, Expect, Role, Store,
        layout::{CLUSTER_LOCK, OPERATOR_NONCES, operator_nonce},
    };
    let world = World::new().await;
    let server = world.start().await;
    let mut election = Election::new(
        Arc::new(world.store.clone()),
        CLUSTER_LOCK,
        "s0",
        "127.0.0.1:1",
        plan::shard::election::Timing::default(),
    );
    let Role::Leader(lead) = election.look().await.unwrap() else { panic!("it leads the cluster") };
    for (name, text) in [
        ("old", "expires: 2025-12-24T23:00:00Z\nkey"),
        ("young", "expires: 2025-12-26T00:00:00Z\nkey"),
        ("silent", "key"),
    ] {
        world.store.put(&operator_nonce(name), text.into(), Expect::Absent).await.unwrap();
    }
    assert_eq!(server.term.purge_operator_nonces(&lead).await.unwrap(), 1);
    let left = world.store.list(OPERATOR_NONCES).await.unwrap();
    assert_eq!(left, ["silent", "young"].map(operator_nonce));
    world.clock.step(jiff::SignedDuration::from_hours(24 * 400));
    election.release().await.unwrap();
    assert!(server.term.purge_operator_nonces(&lead).await.is_err(), "who does not lead the cluster removes nothing");
}
