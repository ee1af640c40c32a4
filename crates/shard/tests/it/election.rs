//! The election port, and what a server proves before it stands.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use plan::shard::election::Timing;
use shard::{
    identity::{Role, web_client_tls},
    server::RunError,
    store::Careless,
    wire::Fence,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_rustls::TlsConnector;

use super::zone::{Zone, any, eventually, upsert};

/// A standby that noticed nothing would look at the lock after a minute.
const PATIENT: Timing = Timing { renew: Duration::from_mins(1), timeout: Duration::from_mins(3) };

/// Far below that minute, and far above what a busy machine takes.
const AT_ONCE: Duration = Duration::from_secs(30);

const OPERATOR: (&str, &str, Role) = ("dev", "default", Role::Operator);

/// The status of one page.
async fn page(zone: &Zone, address: SocketAddr, path: &str) -> u16 {
    let tls = web_client_tls(zone.authority.certificate_pem(), Arc::new(zone.clock.clone())).expect("the CA is one");
    let name = rustls::pki_types::ServerName::try_from("127.0.0.1").expect("an address");
    let tcp = TcpStream::connect(address).await.expect("it listens");
    let mut stream =
        TlsConnector::from(tls).connect(name, tcp).await.expect("the server shows a certificate of the CA");
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("the server reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("the server answers");
    answer.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("an HTTP answer")
}

#[tokio::test]
async fn a84_the_election_port_follows_leadership() {
    let zone = Zone::new().await;
    let mut leader = zone.start_with("s1", any(), PATIENT);
    leader.leads().await;
    let mut standby = zone.start_with("s2", any(), PATIENT);
    let (here, there) = (leader.election().await, standby.election().await);
    assert!(leader.standing.is_loaded() && standby.standing.is_loaded());
    eventually("the cluster's leader", || async { leader.standing.leads_cluster().then_some(()) }).await;
    let pages = ["/leader/health", "/health/leadership/shard", "/health/leadership/cluster"];
    for path in pages {
        assert_eq!((page(&zone, here, path).await, page(&zone, there, path).await), (200, 503), "{path}");
    }
    assert_eq!(page(&zone, here, "/else").await, 404);
    leader.stop().await;
    standby.leads().await;
    eventually("the cluster's leader", || async { standby.standing.leads_cluster().then_some(()) }).await;
    for path in pages {
        assert_eq!(page(&zone, there, path).await, 200, "{path}");
    }
    standby.stop().await;
}

#[tokio::test]
async fn a80_a_standby_takes_over_at_once_and_serves_when_it_knows_everything() {
    let zone = Zone::new().await;
    let mut first = zone.start_with("s1", any(), PATIENT);
    let client = zone.client(&first.leads().await.operator.to_string(), OPERATOR);
    client.upsert_group(upsert("web", 3), &Fence::default()).await.unwrap();
    let before = eventually("three instances", || async {
        let groups = client.list_groups().await.ok()?;
        groups.into_iter().find(|group| group.key == "web" && group.actual_size == 3)
    })
    .await;
    let mut second = zone.start_with("s2", any(), PATIENT);
    second.election().await;
    assert!(second.bound.borrow().is_none(), "a standby listens for no client");
    // The standby is connected once it has looked at the lock; a release that is first is found by that look.
    let stopped = tokio::time::Instant::now();
    first.stop().await;
    let bound = tokio::time::timeout(AT_ONCE, second.leads()).await.expect("the standby noticed");
    println!("fail-over after {:?}", stopped.elapsed());
    let client = zone.client(&bound.operator.to_string(), OPERATOR);
    let groups = client.list_groups().await.unwrap();
    let after = groups.into_iter().find(|group| group.key == "web").unwrap();
    assert_eq!(after.provider_ids, before.provider_ids, "the first answer has every instance");
    second.stop().await;
}

#[tokio::test]
async fn a_server_refuses_storage_that_takes_stale_writes_before_it_stands() {
    let zone = Zone::new().await;
    let before = zone.store.snapshot();
    let careless = Arc::new(Careless(zone.store.clone()));
    let error = zone.start_on(careless, "s1", any(), Timing::default()).ended().await;
    let RunError::Unfit(reason) = &error else { panic!("{error}") };
    assert!(reason.to_string().contains("accepted a stale write"), "{reason}");
    assert_eq!(zone.store.snapshot(), before, "no lock, and no probe left");
}
