//! What the client sends on an idle connection.

use std::{sync::Arc, time::Duration};

use shard::{
    client::Watched,
    identity::{Role, ServerTls},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

use super::zone::Zone;

const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PING: u8 = 6;

/// The type of the next frame; `None` at the end of the connection.
async fn frame(stream: &mut TlsStream<TcpStream>) -> Option<u8> {
    let mut head = [0; 9];
    stream.read_exact(&mut head).await.ok()?;
    let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
    stream.read_exact(&mut vec![0; length]).await.ok()?;
    Some(head[3])
}

/// A stock server closes a connection that is pinged more often than every five minutes.
#[tokio::test]
async fn a11_an_idle_client_sends_no_ping() {
    let zone = Zone::new().await;
    let now = zone.clock.now();
    let identity = zone.authority.issue_server(&["127.0.0.1".to_owned()], now, Duration::from_hours(24)).unwrap();
    let tls = ServerTls::new(zone.authority.certificate_pem(), &identity, Arc::new(zone.clock.clone())).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = zone.client(&listener.local_addr().unwrap().to_string(), ("dev", "default", Role::Operator));
    let watcher = client.clone();
    let watching = tokio::spawn(async move {
        let mut groups = watcher.watch_groups(1);
        while !matches!(groups.next().await, Watched::Lost(_)) {}
    });
    let (tcp, _) = listener.accept().await.unwrap();
    let mut stream = TlsAcceptor::from(tls.mutual().unwrap()).accept(tcp).await.unwrap();
    stream.read_exact(&mut [0; 24]).await.unwrap();
    stream.write_all(&[0, 0, 0, SETTINGS, 0, 0, 0, 0, 0]).await.unwrap();
    while frame(&mut stream).await.expect("the client is there") != HEADERS {}
    tokio::time::pause();
    for _ in 0..60 {
        tokio::time::advance(Duration::from_secs(30)).await;
        for _ in 0..8 {
            tokio::task::yield_now().await;
        }
    }
    assert!(!watching.is_finished(), "the stream is open for half an hour");
    watching.abort();
    drop(client);
    while let Some(kind) = frame(&mut stream).await {
        assert_ne!(kind, PING);
    }
}
