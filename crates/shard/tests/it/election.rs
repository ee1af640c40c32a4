//! The election port, and what a server proves before it stands.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use plan::shard::election::Timing;
use shard::{
    identity::{Role, web_client_tls},
    server::RunError,
    store::{Careless, Fault, Faults, FaultyStore},
    wire::Fence,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::zone::{Server, Zone, any, eventually, upsert};

/// A standby that noticed nothing would look at the lock after a minute.
const PATIENT: Timing = Timing { renew: Duration::from_mins(1), timeout: Duration::from_mins(3) };

/// Far below that minute, and far above what a busy machine takes.
const AT_ONCE: Duration = Duration::from_secs(30);

const OPERATOR: (&str, &str, Role) = ("dev", "default", Role::Operator);

/// A request that is not read the answer of.
async fn ask(zone: &Zone, address: SocketAddr, path: &str) -> TlsStream<TcpStream> {
    let tls = web_client_tls(zone.authority.certificate_pem(), Arc::new(zone.clock.clone())).expect("the CA is one");
    let name = rustls::pki_types::ServerName::try_from("127.0.0.1").expect("an address");
    let tcp = TcpStream::connect(address).await.expect("it listens");
    let mut stream =
        TlsConnector::from(tls).connect(name, tcp).await.expect("the server shows a certificate of the CA");
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("the server reads");
    stream
}

/// The status of one page.
async fn page(zone: &Zone, address: SocketAddr, path: &str) -> u16 {
    let (mut stream, mut answer) = (ask(zone, address, path).await, String::new());
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
async fn a84_clients_that_hold_the_election_port_for_nothing_keep_no_probe_out() {
    let zone = Zone::new().await;
    let mut leader = zone.start("s1");
    leader.leads().await;
    let address = leader.election().await;
    let mut silent = Vec::new();
    for _ in 0..200 {
        silent.push(TcpStream::connect(address).await.unwrap());
    }
    let mut watchers = Vec::new();
    for _ in 0..16 {
        let mut watcher = ask(&zone, address, "/leader/watch").await;
        let mut head = [0; 12];
        watcher.read_exact(&mut head).await.unwrap();
        assert_eq!(&head, b"HTTP/1.1 200");
        watchers.push(watcher);
    }
    assert_eq!(page(&zone, address, "/leader/watch").await, 429);
    assert_eq!(page(&zone, address, "/leader/health").await, 200);
    assert_eq!(silent[0].read(&mut [0]).await.unwrap_or(0), 0, "the oldest was closed for others");
    drop(watchers);
    leader.stop().await;
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

/// Whether the server stops to lead within that time.
async fn loses_lead(server: &mut Server, time: Duration) -> bool {
    tokio::time::timeout(time, server.bound.wait_for(Option::is_none)).await.is_ok()
}

#[tokio::test(start_paused = true)]
async fn storage_that_takes_seconds_costs_no_lead() {
    let (zone, faults) = (Zone::new().await, Faults::default());
    let store = FaultyStore::new(Arc::new(zone.store.clone()), faults.clone());
    let mut server = zone.start_on(Arc::new(store), "s1", any(), Timing::default());
    server.leads().await;
    faults.set(Fault::Slow(Duration::from_secs(4)));
    assert!(!loses_lead(&mut server, Duration::from_mins(2)).await);
    faults.set(Fault::None);
    server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_shard_that_takes_longer_to_open_than_a_lead_lasts_is_led() {
    let (zone, faults) = (Zone::new().await, Faults::default());
    let store = FaultyStore::new(Arc::new(zone.store.clone()), faults.clone());
    // Six reads, one after another.
    faults.set(Fault::Slow(Duration::from_secs(4)));
    let mut server = zone.start_on(Arc::new(store), "s1", any(), Timing::default());
    tokio::time::timeout(Duration::from_mins(5), server.leads()).await.expect("it is renewed meanwhile");
    faults.set(Fault::None);
    server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn storage_that_refuses_for_a_moment_costs_no_lead() {
    let (zone, faults) = (Zone::new().await, Faults::default());
    let store = FaultyStore::new(Arc::new(zone.store.clone()), faults.clone());
    let mut server = zone.start_on(Arc::new(store), "s1", any(), Timing::default());
    server.leads().await;
    let machine = || async { zone.cloud.machines().first().map(|machine| machine.instance_id.clone()) };
    let id = eventually("the static group's instance", machine).await;
    // The look at all machines comes after two minutes, and finds work that must be stored.
    tokio::time::sleep(Duration::from_secs(117)).await;
    zone.cloud.set_status(&id, Some(plan::shard::instance::MachineStatus::Stopped));
    faults.set(Fault::Refusing);
    assert!(!loses_lead(&mut server, Duration::from_secs(6)).await, "it leads for as long as its last renewal lasts");
    faults.set(Fault::None);
    eventually("a replacement", || async { machine().await.filter(|other| *other != id) }).await;
    server.stop().await;
}

#[tokio::test]
async fn a_clock_that_is_set_leaves_the_server_a_certificate_that_is_valid() {
    let zone = Zone::new().await;
    let mut server = zone.start("s1");
    let address = server.leads().await.operator.to_string();
    for hours in [25, -24] {
        zone.clock.step(jiff::SignedDuration::from_hours(hours));
        tokio::time::pause();
        for _ in 0..31 {
            tokio::time::advance(Duration::from_secs(1)).await;
            // Renewals go on meanwhile.
            for _ in 0..8 {
                tokio::task::yield_now().await;
            }
        }
        tokio::time::resume();
        let client = zone.client(&address, OPERATOR);
        let listed = eventually("an answer", || async { client.list_groups().await.ok() }).await;
        assert_eq!(listed.len(), 1, "{hours}");
    }
    server.stop().await;
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
