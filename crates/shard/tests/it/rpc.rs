//! Calls over the network: registration, groups, instances, watches, identities.

use shard::{
    client::{CallError, Client, Registrant, Watched},
    identity::{Authority, Claims, Role, client_tls, key_pair},
    server::Bound,
    store::{Expect, Store, layout::ShardLayout},
    wire::{self, Fence, agent_service_client::AgentServiceClient, operator_service_client::OperatorServiceClient},
};
use tonic::{Code, transport::Channel};

use super::zone::{Zone, eventually, reported, upsert};

#[tokio::test]
async fn an_operator_registers_scales_drains_and_hears_of_it() {
    let zone = Zone::new().await;
    let mut server = zone.start("s1");
    let bound = server.leads().await;
    let tls = zone.register(bound.registration, "default").await;
    let client = Client::new(bound.operator.to_string().parse().unwrap(), tls);
    let mut instances = client.watch_instances(1);
    assert!(matches!(instances.next().await, Watched::Connected));
    let fence = Fence::default();
    assert_eq!(client.upsert_group(upsert("web", 2), &fence).await.unwrap().size, 2);
    let full = |size: i32| {
        let client = &client;
        move || async move {
            let groups = client.list_groups().await.ok()?;
            groups.into_iter().find(|group| group.key == "web" && group.actual_size == size)
        }
    };
    let group = eventually("two instances", full(2)).await;
    let victim = group.instances[1].clone();
    assert_eq!(client.instance_status(&victim.instance_id).await.unwrap().status, "running");
    let shrink = wire::UpsertGroupRequest { remove_first: vec![victim.instance_id.clone()], ..upsert("web", 1) };
    client.upsert_group(shrink, &fence).await.unwrap();
    let Watched::Event(notice) = instances.next().await else { panic!("a notice") };
    assert_eq!((&notice.instance_id, &*notice.status), (&victim.instance_id, "pending_deletion"));
    client.acknowledge_drained(&notice.instance_id, &fence).await.unwrap();
    let Watched::Event(deleted) = instances.next().await else { panic!("a deletion") };
    assert_eq!((&*deleted.status, &*deleted.reason), ("deleted", "scale-down"));
    assert_eq!(client.instance_status(&victim.instance_id).await.unwrap_err().code(), Code::NotFound);
    let renewed = client.renew_certificate(key_pair().public_key_pem().into_bytes()).await.unwrap();
    assert!(renewed.expires_at.is_some());
    server.stop().await;
}

#[tokio::test]
async fn certificates_last_as_long_as_the_configuration_says_that_was_read_last() {
    let zone = Zone::new().await;
    let mut server = zone.start("s1");
    let bound = server.leads().await;
    let tls = zone.register(bound.registration, "default").await;
    let client = Client::new(bound.operator.to_string().parse().unwrap(), tls);
    let hours = async || {
        let renewed = client.renew_certificate(key_pair().public_key_pem().into_bytes()).await.unwrap();
        let left = renewed.expires_at.unwrap().seconds - zone.clock.now().as_second();
        // Begun ones count.
        (left + 3599) / 3600
    };
    assert_eq!(hours().await, 24);
    let key = ShardLayout::new("a").config();
    let before = zone.store.get(&key).await.unwrap().expect("a configuration");
    let text = String::from_utf8(before.body).unwrap();
    let shorter = text.replacen('{', r#"{"certificates": {"operator": {"ttl": 2}},"#, 1).into_bytes();
    let etag = zone.store.put(&key, shorter, Expect::Content(before.etag)).await.unwrap();
    assert!(client.refresh_config().await.unwrap().updated);
    assert_eq!(hours().await, 2);
    zone.store.put(&key, text.into_bytes(), Expect::Content(etag)).await.unwrap();
    assert!(client.refresh_config().await.unwrap().updated);
    assert_eq!(hours().await, 24);
    server.stop().await;
}

#[tokio::test]
async fn who_a_client_is_decides_the_code() {
    let zone = Zone::new().await;
    let mut server = zone.start("s1");
    let operator = server.leads().await.operator.to_string();
    let none = Client::new(operator.parse().unwrap(), zone.tls(None));
    assert_eq!(none.list_groups().await.unwrap_err().code(), Code::Unauthenticated);
    let agent = zone.client(&operator, ("web01", "default", Role::Agent));
    assert_eq!(agent.list_groups().await.unwrap_err().code(), Code::PermissionDenied);
    let other = zone.client(&operator, ("dev", "acme", Role::Operator));
    assert_eq!(other.list_groups().await.unwrap(), [], "another tenant has its own groups");
    let (foreign, _) = Authority::create("dev", zone.clock.now()).unwrap();
    let key = key_pair();
    let public = key.public_key_pem();
    let (subject, now) = (("dev", "default", Role::Operator), zone.clock.now());
    let day = std::time::Duration::from_hours(24);
    let (certificate, _) = foreign.issue_client(subject, public.as_bytes(), now, day).unwrap();
    let pair = Some((&*certificate, &*key.serialize_pem()));
    let clock = std::sync::Arc::new(zone.clock.clone());
    let tls = client_tls(zone.authority.certificate_pem(), pair, clock).unwrap();
    let stranger = Client::new(operator.parse().unwrap(), tls);
    assert_eq!(stranger.list_groups().await.unwrap_err().code(), Code::Unavailable, "no handshake");
    server.stop().await;
}

#[tokio::test]
async fn a72_a_newer_watch_of_a_tenant_replaces_the_older_which_stays_open_and_silent() {
    let zone = Zone::new().await;
    let mut server = zone.start("s1");
    let address = server.leads().await.operator.to_string();
    let client = |tenant| zone.client(&address, ("dev", tenant, Role::Operator));
    let keys = |event: Watched<wire::GroupEvent>| match event {
        Watched::Event(event) => event.group.unwrap().key,
        other => panic!("{other:?}"),
    };
    let (mut older, mut other, mut newer) =
        (client("default").watch_groups(1), client("acme").watch_groups(1), client("default").watch_groups(1));
    for watch in [&mut older, &mut other, &mut newer] {
        assert!(matches!(watch.next().await, Watched::Connected));
    }
    assert_eq!(keys(newer.next().await), "fixed", "the snapshot");
    client("default").upsert_group(upsert("web", 0), &Fence::default()).await.unwrap();
    client("acme").upsert_group(upsert("own", 0), &Fence::default()).await.unwrap();
    assert_eq!(keys(newer.next().await), "web");
    assert_eq!(keys(other.next().await), "own");
    // What the older one had been sent before it was replaced may arrive; nothing after it does, and no end.
    let silent = std::time::Duration::from_millis(200);
    if let Ok(event) = tokio::time::timeout(silent, older.next()).await {
        assert_eq!(keys(event), "fixed");
        assert!(tokio::time::timeout(silent, older.next()).await.is_err(), "open and silent");
    }
    server.stop().await;
}

#[tokio::test]
async fn features_that_are_cut_are_unimplemented_or_silent() {
    let zone = Zone::new().await;
    let mut server = zone.start("s1");
    let bound = server.leads().await;
    let operator = zone.client(&bound.operator.to_string(), ("dev", "default", Role::Operator));
    let mut raw = OperatorServiceClient::new(operator.channel());
    let tenant = || "default".to_owned();
    let sleep = wire::SleepTenantRequest { tenant: tenant(), ..wire::SleepTenantRequest::default() };
    assert_eq!(raw.sleep_tenant(sleep).await.unwrap_err().code(), Code::Unimplemented);
    let wake = wire::WakeTenantRequest { tenant: tenant(), listener: None };
    assert_eq!(raw.wake_tenant(wake).await.unwrap_err().code(), Code::Unimplemented);
    let status = wire::GetTenantStatusRequest { tenant: tenant() };
    assert_eq!(raw.get_tenant_status(status).await.unwrap_err().code(), Code::Unimplemented);
    let agent = zone.client(&bound.agent.to_string(), ("web01", "default", Role::Agent));
    let mut agent = AgentServiceClient::new(agent.channel());
    let mut keys = agent.receive_key_requests(()).await.unwrap().into_inner();
    let mut files = agent.receive_files(()).await.unwrap().into_inner();
    let silent = std::time::Duration::from_millis(100);
    assert!(tokio::time::timeout(silent, keys.message()).await.is_err());
    assert!(tokio::time::timeout(silent, files.message()).await.is_err());
    server.stop().await;
}

/// Registers the agent of an instance by a nonce for a tenant.
async fn register(
    zone: &Zone,
    bound: &Bound,
    (tenant, id): (&str, &str),
    public_key_pem: String,
) -> Result<wire::RegisterClientResponse, CallError> {
    let day = std::time::Duration::from_hours(24);
    let claims = Claims { shard: "a".to_owned(), ..Claims::agent("dev", tenant, id, zone.clock.now(), day) };
    let request = wire::RegisterClientRequest {
        registration_nonce_jwt: zone.nonces.issue(&claims).expect("a nonce"),
        public_key_pem: public_key_pem.into_bytes(),
        ..wire::RegisterClientRequest::default()
    };
    let registration = bound.registration.to_string().parse().expect("an address");
    shard::client::register(registration, zone.tls(None), Registrant::Agent, request).await
}

/// The static group's instance, and a channel of its agent, which registered.
async fn agent(zone: &Zone, bound: &Bound) -> (String, Channel) {
    let id = eventually("the static group's instance", || async {
        zone.cloud.machines().first().map(|machine| machine.instance_id.clone())
    })
    .await;
    let channel = agent_of(zone, bound, &id).await;
    (id, channel)
}

/// A channel of an instance's agent, which registered.
pub async fn agent_of(zone: &Zone, bound: &Bound, id: &str) -> Channel {
    let key = key_pair();
    let answer = register(zone, bound, ("default", id), key.public_key_pem()).await;
    let certificate = String::from_utf8(answer.expect("registered").client_certificate_pem).expect("PEM");
    let pair = Some((&*certificate, &*key.serialize_pem()));
    let tls = client_tls(zone.authority.certificate_pem(), pair, std::sync::Arc::new(zone.clock.clone())).expect("TLS");
    Client::new(bound.agent.to_string().parse().expect("an address"), tls).channel()
}

#[tokio::test]
async fn an_agent_registers_and_reports_for_its_own_instance_only() {
    let zone = Zone::new().await;
    let mut server = zone.start("s1");
    let bound = server.leads().await;
    let (id, channel) = agent(&zone, &bound).await;
    let mut agent = AgentServiceClient::new(channel);
    let report = |id: &str| wire::HealthReportRequest { instance_id: id.to_owned(), ..Default::default() };
    let operator = zone.client(&bound.operator.to_string(), ("dev", "default", Role::Operator));
    let reports = {
        let (mut agent, report) = (agent.clone(), report(&id));
        let stream = futures::stream::unfold(report, |report| async move {
            tokio::time::sleep(PACE).await;
            Some((report.clone(), report))
        });
        tokio::spawn(async move { agent.submit_health_report(stream).await })
    };
    reported(&operator, &id).await;
    reports.abort();
    let foreign = agent.submit_health_report(tokio_stream::iter([report("web02")])).await.unwrap_err();
    assert_eq!(foreign.code(), Code::PermissionDenied);
    server.stop().await;
}

#[tokio::test]
async fn the_agent_of_an_instance_that_is_gone_or_anothers_gets_no_certificate_and_leaves_no_key() {
    let zone = Zone::new().await;
    let mut server = zone.start("s1");
    let bound = server.leads().await;
    let (id, _) = agent(&zone, &bound).await;
    let before = zone.store.snapshot();
    let never = "web00000000000000000000000000";
    for (tenant, id, code) in [("default", never, Code::NotFound), ("acme", &*id, Code::PermissionDenied)] {
        let answer = register(&zone, &bound, (tenant, id), key_pair().public_key_pem()).await;
        assert_eq!(answer.unwrap_err().code(), code, "{id} of {tenant}");
    }
    let written: Vec<_> = zone.store.snapshot().into_keys().filter(|key| !before.contains_key(key)).collect();
    assert!(written.iter().all(|key| key.ends_with("leader.json")), "{written:?}");
    server.stop().await;
}

/// Between two reports.
const PACE: std::time::Duration = std::time::Duration::from_millis(20);

/// A report as agents of the first published version number it.
#[derive(Clone, PartialEq, prost::Message)]
struct FirstReport {
    #[prost(string, tag = "1")]
    version: String,
    #[prost(string, tag = "2")]
    instance_id: String,
    #[prost(message, optional, tag = "5")]
    started: Option<prost_types::Timestamp>,
    #[prost(string, tag = "14")]
    config_hash: String,
}

#[tokio::test]
async fn an_agent_of_the_first_version_is_refused_by_its_version() {
    let zone = Zone::new().await;
    let mut server = zone.start("s1");
    let bound = server.leads().await;
    let (id, channel) = agent(&zone, &bound).await;
    let operator = zone.client(&bound.operator.to_string(), ("dev", "default", Role::Operator));
    let before = operator.instance_status(&id).await.unwrap();
    let report = FirstReport {
        version: "v0.1.0".to_owned(),
        instance_id: id.clone(),
        started: Some(prost_types::Timestamp { seconds: 1_700_000_000, nanos: 0 }),
        config_hash: "h".to_owned(),
    };
    let mut grpc = tonic::client::Grpc::new(channel);
    grpc.ready().await.unwrap();
    let path = http::uri::PathAndQuery::from_static("/nstance.v1.AgentService/SubmitHealthReport");
    let request = tonic::Request::new(tokio_stream::iter([report]));
    let codec = tonic_prost::ProstCodec::<FirstReport, ()>::default();
    let error = grpc.client_streaming(request, path, codec).await.unwrap_err();
    assert_eq!(error.code(), Code::FailedPrecondition);
    assert!(error.message().contains("v0.1.0"), "{error}");
    assert_eq!(operator.instance_status(&id).await.unwrap(), before, "it was not taken for a report");
    server.stop().await;
}

#[tokio::test]
async fn a86_bad_requests_have_their_code_and_change_nothing() {
    let zone = Zone::new().await;
    let mut server = zone.start("s1");
    let client = zone.client(&server.leads().await.operator.to_string(), ("dev", "default", Role::Operator));
    let fence = Fence::default();
    eventually("the static group's instance", || async {
        client.list_groups().await.unwrap().first().filter(|group| group.actual_size == 1).cloned()
    })
    .await;
    let before = client.list_groups().await.unwrap();
    let config = |change: fn(&mut wire::GroupConfig)| {
        let mut request = upsert("web", 1);
        change(request.config.as_mut().unwrap());
        request
    };
    let cases = [
        (wire::UpsertGroupRequest::default(), Code::InvalidArgument, "key"),
        (wire::UpsertGroupRequest { config: None, ..upsert("web", 1) }, Code::InvalidArgument, "config"),
        (upsert("web", -1), Code::InvalidArgument, "config.size"),
        (upsert("UPPER", 1), Code::InvalidArgument, "key"),
        (config(|config| config.template = "none".into()), Code::NotFound, "config.template"),
        (config(|config| config.subnet_pool = "none".into()), Code::InvalidArgument, "config.subnet_pool"),
        (
            wire::UpsertGroupRequest { key: "fixed".into(), ..config(|config| config.subnet_pool = "one".into()) },
            Code::FailedPrecondition,
            "config.subnet_pool",
        ),
    ];
    for (request, code, field) in cases {
        let error = client.upsert_group(request, &fence).await.unwrap_err();
        assert_eq!(error.code(), code, "{error}");
        assert!(error.to_string().contains(field), "{error}");
    }
    for id in ["", "x", "web00000000000000000000000000"] {
        let missing = if id.len() > 1 { Code::NotFound } else { Code::InvalidArgument };
        assert_eq!(client.instance_status(id).await.unwrap_err().code(), missing, "{id:?}");
        assert_eq!(client.acknowledge_drained(id, &fence).await.unwrap_err().code(), missing, "{id:?}");
    }
    assert_eq!(client.delete_instance("web00000000000000000000000000", &fence).await.unwrap().status, "unknown");
    assert_eq!(client.delete_instance("", &fence).await.unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(client.delete_group("", &fence).await.unwrap_err().code(), Code::InvalidArgument);
    client.delete_group("never-was", &fence).await.unwrap();
    let empty = wire::CreateInstanceRequest::default();
    assert_eq!(client.create_instance(empty, &fence).await.unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(client.list_groups().await.unwrap(), before);
    server.stop().await;
}
