//! What becomes of groups through the whole server: requests over the network, its rounds, and its events.

use shard::{
    client::{Client, Watch, Watched},
    clock::Clock,
    identity::Role,
    server::Bound,
    store::{Expect, Store, layout::ShardLayout},
    wire::{self, Fence, agent_service_client::AgentServiceClient},
};
use tonic::Code;

use super::{
    rpc::agent_of,
    zone::{Server, Zone, eventually, upsert},
};

/// No instance of a static group: its events would be between those that are looked at.
const CONFIG: &str = r#"{
    "cluster": {"id": "dev"},
    "shard": {"id": "a", "provider": {"kind": "process"}, "subnet_pools": {"one": ["s1"], "two": ["s2"]}},
    "templates": {
        "web": {"kind": "web", "arch": "amd64", "subnet_pool": "one", "instance_type": "small"},
        "other": {"kind": "oth", "arch": "amd64", "subnet_pool": "one"},
    },
    "groups": {"default": {"fixed": {"template": "web", "size": 0}}},
}"#;

/// A zone by a clock of its own, its leader, and an operator of its tenant.
async fn begin() -> (Zone, Server, Bound, Client) {
    let zone = Zone::with(CONFIG, Clock::stepped("2026-01-01T00:00:00Z".parse().expect("a time"))).await;
    let mut server = zone.start("s1");
    let bound = server.leads().await;
    let client = zone.client(&bound.operator.to_string(), ("dev", "default", Role::Operator));
    (zone, server, bound, client)
}

#[tokio::test]
async fn a31_a_request_to_change_what_the_configuration_says_of_a_static_group_is_refused_and_changes_nothing() {
    let (zone, server, _, client) = begin().await;
    let fence = Fence::default();
    let stored = || zone.store.snapshot().remove(&ShardLayout::new("a").groups());
    let before = (client.list_groups().await.unwrap(), stored());
    let with = |change: fn(&mut wire::GroupConfig)| {
        let mut request = upsert("fixed", 2);
        let config = request.config.as_mut().expect("a configuration");
        config.template.clear();
        change(config);
        request
    };
    let cases = [
        ("config.template", with(|config| config.template = "other".to_owned())),
        ("config.subnet_pool", with(|config| config.subnet_pool = "two".to_owned())),
        ("config.args", with(|config| drop(config.args.insert("image".to_owned(), "x".to_owned())))),
    ];
    for (field, request) in cases {
        let refused = client.upsert_group(request, &fence).await.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
        assert!(refused.to_string().contains(field), "{refused}");
        assert_eq!((client.list_groups().await.unwrap(), stored()), before, "{field}");
    }
    // The same request without them.
    let group = client.upsert_group(with(|_| {}), &fence).await.unwrap();
    assert_eq!((group.size, &*group.template, &*group.subnet_pool, group.is_static), (2, "web", "one", true));
    server.stop().await;
}

/// Its agent registers and reports once: from then on the instance is a healthy one.
async fn report(zone: &Zone, bound: &Bound, id: &str) {
    let report = wire::HealthReportRequest { instance_id: id.to_owned(), ..wire::HealthReportRequest::default() };
    let mut agent = AgentServiceClient::new(agent_of(zone, bound, id).await);
    agent.submit_health_report(tokio_stream::iter([report])).await.expect("a report of its own");
}

/// The group's instances, the oldest first, once there are so many.
async fn members(client: &Client, count: usize) -> Vec<String> {
    let full = || async {
        let group = client.list_groups().await.ok()?.into_iter().find(|group| group.key == "web")?;
        let mut ids: Vec<String> = group.instances.into_iter().map(|one| one.instance_id).collect();
        ids.sort();
        (ids.len() == count).then_some(ids)
    };
    eventually("the group's instances", full).await
}

async fn next(events: &mut Watch<wire::InstanceEvent>) -> (String, String, String) {
    match events.next().await {
        Watched::Event(event) => (event.instance_id, event.status, event.reason),
        other => panic!("{other:?}"),
    }
}

/// The next instance that drains: its machine is there until the operator says that it is drained.
async fn drains(zone: &Zone, events: &mut Watch<wire::InstanceEvent>, reason: &str) -> String {
    let (id, status, why) = next(events).await;
    assert_eq!((&*status, &*why), ("pending_deletion", reason));
    assert!(zone.cloud.order(&id).is_some(), "it is not deleted before it is drained");
    id
}

async fn drained(client: &Client, zone: &Zone, events: &mut Watch<wire::InstanceEvent>, id: &str, reason: &str) {
    client.acknowledge_drained(id, &Fence::default()).await.expect("it is acknowledged");
    assert_eq!(next(events).await, (id.to_owned(), "deleted".to_owned(), reason.to_owned()));
    assert!(zone.cloud.order(id).is_none());
}

#[tokio::test]
async fn a85_a_smaller_size_drains_the_marked_then_those_on_their_way_then_the_oldest() {
    let (zone, server, bound, client) = begin().await;
    let fence = Fence::default();
    let mut events = client.watch_instances(1);
    assert!(matches!(events.next().await, Watched::Connected));
    client.upsert_group(upsert("web", 4), &fence).await.unwrap();
    let ids = members(&client, 4).await;
    for id in &ids[..3] {
        report(&zone, &bound, id).await;
    }
    let marked = wire::UpsertGroupRequest { remove_first: vec![ids[2].clone()], ..upsert("web", 3) };
    client.upsert_group(marked, &fence).await.unwrap();
    assert_eq!(drains(&zone, &mut events, "scale-down").await, ids[2]);
    // One that drains does not count: each smaller size takes another.
    for (size, victim) in [(2, &ids[3]), (1, &ids[0])] {
        client.upsert_group(upsert("web", size), &fence).await.unwrap();
        assert_eq!(&drains(&zone, &mut events, "scale-down").await, victim);
    }
    assert_eq!(zone.cloud.machines().len(), 4, "all of them drain");
    for id in [&ids[0], &ids[2], &ids[3]] {
        drained(&client, &zone, &mut events, id, "scale-down").await;
    }
    assert_eq!(members(&client, 1).await, [ids[1].clone()]);
    server.stop().await;
}

#[tokio::test]
async fn a85_a_changed_template_rotates_one_instance_at_a_time_and_costs_none_before_its_replacement_reports() {
    let (zone, server, bound, client) = begin().await;
    let mut events = client.watch_instances(1);
    assert!(matches!(events.next().await, Watched::Connected));
    client.upsert_group(upsert("web", 2), &Fence::default()).await.unwrap();
    let old = members(&client, 2).await;
    for id in &old {
        report(&zone, &bound, id).await;
    }
    let key = ShardLayout::new("a").config();
    let etag = zone.store.get(&key).await.unwrap().expect("a configuration").etag;
    let changed = CONFIG.replace("small", "large").into_bytes();
    zone.store.put(&key, changed, Expect::Content(etag)).await.unwrap();
    assert!(client.refresh_config().await.unwrap().updated);
    let mut gone = Vec::new();
    for _ in &old {
        let replacement = members(&client, 3).await.pop().expect("the newest");
        assert_eq!(zone.cloud.order(&replacement).expect("its machine").instance_type, "large");
        report(&zone, &bound, &replacement).await;
        let victim = drains(&zone, &mut events, "config-drift").await;
        assert_eq!(zone.cloud.machines().len(), 3, "one is replaced at a time");
        drained(&client, &zone, &mut events, &victim, "config-drift").await;
        gone.push(victim);
    }
    gone.sort();
    assert_eq!(gone, old);
    let new = members(&client, 2).await;
    assert!(new.iter().all(|id| !old.contains(id)));
    server.stop().await;
}
