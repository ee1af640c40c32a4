//! Clients that mean harm: clear codes, and others are not disturbed.

use std::time::Duration;

use shard::{
    identity::Role,
    wire::{self, Fence, operator_service_client::OperatorServiceClient},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_rustls::TlsConnector;
use tonic::Code;

use super::zone::{Zone, upsert};

const OPERATOR: (&str, &str, Role) = ("dev", "default", Role::Operator);

#[tokio::test]
async fn junk_and_silence_on_a_port_disturb_no_other_client() {
    let zone = Zone::new().await;
    let mut server = zone.start("s1");
    let address = server.leads().await.operator;
    let mut silent = Vec::new();
    for _ in 0..100 {
        silent.push(TcpStream::connect(address).await.unwrap());
    }
    let mut junk = TcpStream::connect(address).await.unwrap();
    junk.write_all(&[0x16; 4096]).await.unwrap();
    let tls = TlsConnector::from(zone.tls(Some(OPERATOR)));
    let name = rustls::pki_types::ServerName::try_from("127.0.0.1").unwrap();
    let tcp = TcpStream::connect(address).await.unwrap();
    let mut http1 = tls.connect(name, tcp).await.unwrap();
    http1.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    let read = tokio::time::timeout(Duration::from_secs(10), http1.read_to_end(&mut answer)).await;
    assert!(read.is_ok() && answer.is_empty(), "closed without a word");
    // HTTP/2 that begins well and goes on with a frame larger than any.
    let name = rustls::pki_types::ServerName::try_from("127.0.0.1").unwrap();
    let tcp = TcpStream::connect(address).await.unwrap();
    let mut frames = tls.connect(name, tcp).await.unwrap();
    frames.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    frames.write_all(&[0xff; 64]).await.unwrap();
    let read = tokio::time::timeout(Duration::from_secs(10), frames.read_to_end(&mut answer)).await;
    assert!(read.is_ok(), "closed, and not read any further");
    let client = zone.client(&address.to_string(), OPERATOR);
    assert_eq!(client.list_groups().await.unwrap().len(), 1);
    server.stop().await;
}

#[tokio::test]
async fn ten_thousand_streams_of_one_client_leave_room_for_others() {
    let zone = Zone::new().await;
    let mut server = zone.start("s1");
    let address = server.leads().await.operator.to_string();
    let greedy = zone.client(&address, OPERATOR);
    let channel = greedy.channel();
    let mut waiting = tokio::task::JoinSet::new();
    for _ in 0..10_000 {
        let mut client = OperatorServiceClient::new(channel.clone());
        waiting.spawn(async move {
            let mut stream = client.watch_errors(()).await?.into_inner();
            stream.message().await
        });
    }
    let other = zone.client(&address, ("dev", "acme", Role::Operator));
    for size in 0..5 {
        assert_eq!(other.upsert_group(upsert("web", size), &Fence::default()).await.unwrap().size, size);
    }
    waiting.shutdown().await;
    server.stop().await;
}

#[tokio::test]
async fn large_requests_of_one_client_are_bounded_together() {
    let zone = Zone::new().await;
    let mut server = zone.start("s1");
    let address = server.leads().await.operator.to_string();
    let greedy = zone.client(&address, OPERATOR);
    let mut waiting = tokio::task::JoinSet::new();
    for _ in 0..48 {
        let mut client = OperatorServiceClient::new(greedy.channel());
        let long = wire::DeleteGroupRequest { key: "x".repeat(3 * 1024 * 1024) };
        waiting.spawn(async move { client.delete_group(long).await.unwrap_err().code() });
    }
    let other = zone.client(&address, ("dev", "acme", Role::Operator));
    assert_eq!(other.upsert_group(upsert("web", 1), &Fence::default()).await.unwrap().size, 1);
    for code in waiting.join_all().await {
        assert!(matches!(code, Code::InvalidArgument | Code::ResourceExhausted), "{code:?}");
    }
    assert_eq!(greedy.list_groups().await.unwrap().len(), 1, "what it held is free again");
    server.stop().await;
}

#[tokio::test]
async fn one_client_holds_a_limited_number_of_connections() {
    let zone = Zone::new().await;
    let mut server = zone.start("s1");
    let address = server.leads().await.operator.to_string();
    let mut refused = 0;
    let mut held = Vec::new();
    for _ in 0..24 {
        let client = zone.client(&address, OPERATOR);
        match client.list_groups().await {
            Ok(_) => held.push(client),
            Err(error) => {
                assert_eq!(error.code(), Code::Unavailable, "{error}");
                refused += 1;
            }
        }
    }
    assert_eq!((held.len(), refused), (16, 8));
    let other = zone.client(&address, ("dev", "acme", Role::Operator));
    other.list_groups().await.unwrap();
    server.stop().await;
}

#[tokio::test]
async fn oversized_and_unknown_calls_are_refused_by_code() {
    let zone = Zone::new().await;
    let mut server = zone.start("s1");
    let client = zone.client(&server.leads().await.operator.to_string(), OPERATOR);
    let mut raw = OperatorServiceClient::new(client.channel());
    let huge = wire::DeleteGroupRequest { key: "x".repeat(5 * 1024 * 1024) };
    assert_eq!(raw.delete_group(huge).await.unwrap_err().code(), Code::OutOfRange);
    let long = wire::DeleteGroupRequest { key: "x".repeat(1024 * 1024) };
    let error = raw.delete_group(long).await.unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);
    assert!(error.message().len() < 1024, "the answer does not repeat the question");
    let mut agents = shard::wire::agent_service_client::AgentServiceClient::new(client.channel());
    let wrong = wire::PublicKeysRequest::default();
    assert_eq!(agents.submit_public_keys(wrong).await.unwrap_err().code(), Code::Unimplemented);
    assert_eq!(client.list_groups().await.unwrap().len(), 1);
    server.stop().await;
}
