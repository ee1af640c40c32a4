//! Two servers of one shard, and clients that find the one that leads.

use std::{
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use shard::{client::Watched, identity::Role, server::Ports, wire::Fence};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
};
use tonic::Code;

use super::zone::{QUICK, STEADY, Zone, eventually, free, upsert};

const OPERATOR: (&str, &str, Role) = ("dev", "default", Role::Operator);

fn ports(operator: SocketAddr) -> Ports {
    let any = SocketAddr::new(operator.ip(), 0);
    Ports { election: any, registration: any, operator, agent: any }
}

#[tokio::test]
async fn a88_a_client_with_several_addresses_finds_the_next_leader() {
    let zone = Zone::new().await;
    let ([here], [there]) = (free(Ipv4Addr::LOCALHOST), free(Ipv6Addr::LOCALHOST));
    let mut first = zone.start_with("s1", ports(here), STEADY);
    first.leads().await;
    let mut second = zone.start_with("s2", ports(there), STEADY);
    let client = zone.client(&format!("{there},{here}"), OPERATOR);
    let fence = Fence::default();
    client.upsert_group(upsert("web", 2), &fence).await.unwrap();
    let full = || async {
        let groups = client.list_groups().await.ok()?;
        groups.into_iter().find(|group| group.key == "web" && group.actual_size == 2)
    };
    let before = eventually("two instances", full).await;
    let mut groups = client.watch_groups(1);
    assert!(matches!(groups.next().await, Watched::Connected));
    assert!(TcpStream::connect(there).await.is_err(), "a standby refuses connections");
    first.stop().await;
    second.leads().await;
    let after = eventually("the next leader's answer", full).await;
    assert_eq!(after.provider_ids, before.provider_ids, "the same machines");
    loop {
        match groups.next().await {
            Watched::Event(_) => {}
            Watched::Lost(_) => break,
            Watched::Connected => panic!("the stream never ended"),
        }
    }
    assert!(matches!(groups.next().await, Watched::Connected), "the watch came back");
    second.kill();
    let mut third = zone.start_with("s3", ports(here), QUICK);
    third.leads().await;
    let after = eventually("an answer after a kill", full).await;
    assert_eq!(after.provider_ids, before.provider_ids);
    third.stop().await;
}

#[tokio::test]
async fn a88_a_peer_that_hangs_is_left_for_the_next_address() {
    let zone = Zone::new().await;
    let mut server = zone.start("s1");
    let good = server.leads().await.operator;
    // Accepts, and never says a word: not even TLS ends.
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let client = zone.client(&format!("{},{good}", silent.local_addr().unwrap()), OPERATOR);
    let answer = eventually("an answer of the good one", || async {
        match client.list_groups().await {
            Ok(groups) => Some(groups),
            Err(error) => {
                assert_eq!(error.code(), Code::DeadlineExceeded, "{error}");
                None
            }
        }
    })
    .await;
    assert_eq!(answer.len(), 1);
    server.stop().await;
}

/// Passes bytes on until it hangs: then connections stay open, new ones are accepted, and nothing moves, as with a process
/// that was stopped.
async fn stoppable(to: SocketAddr) -> (SocketAddr, watch::Sender<bool>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("loopback");
    let (address, hung) = (listener.local_addr().expect("bound"), watch::Sender::new(false));
    let stopped = hung.clone();
    tokio::spawn(async move {
        while let Ok((mut here, _)) = listener.accept().await {
            let mut stopped = stopped.subscribe();
            tokio::spawn(async move {
                if !*stopped.borrow() {
                    let mut there = TcpStream::connect(to).await?;
                    tokio::select! {
                        done = tokio::io::copy_bidirectional(&mut here, &mut there) => return done.map(drop),
                        _ = stopped.wait_for(|hangs| *hangs) => {}
                    }
                    std::future::pending::<()>().await;
                }
                std::future::pending::<std::io::Result<()>>().await
            });
        }
    });
    (address, hung)
}

/// The longest that an operator may take to notice, and how often it polls.
const NOTICED: Duration = Duration::from_secs(45);
const POLL: Duration = Duration::from_secs(30);

#[tokio::test]
async fn a88_a_peer_that_hangs_is_noticed_within_45_seconds_by_the_poll() {
    let zone = Zone::new().await;
    let mut server = zone.start("s1");
    let good = server.leads().await.operator;
    let (hanging, hung) = stoppable(good).await;
    let client = zone.client(&format!("{hanging},{good}"), OPERATOR);
    let mut groups = client.watch_groups(1);
    assert!(matches!(groups.next().await, Watched::Connected));
    assert!(matches!(groups.next().await, Watched::Event(_)), "the snapshot");
    tokio::time::pause();
    hung.send_replace(true);
    // The worst moment: right after a poll that was answered.
    let began = tokio::time::Instant::now();
    let poll = async {
        loop {
            tokio::time::sleep(POLL).await;
            let answer = client.list_groups().await;
            assert_eq!(answer.unwrap_err().code(), Code::DeadlineExceeded);
        }
    };
    tokio::select! {
        () = poll => unreachable!("it polls for ever"),
        lost = groups.next() => assert!(matches!(lost, Watched::Lost(_)), "{lost:?}"),
    }
    assert!(began.elapsed() <= NOTICED, "{:?}", began.elapsed());
    tokio::time::resume();
    assert!(matches!(groups.next().await, Watched::Connected), "at the next address");
    assert_eq!(client.list_groups().await.unwrap().len(), 1);
    server.stop().await;
}
