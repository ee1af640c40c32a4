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

use super::{
    frames::{DATA, END_HEADERS, END_STREAM, Frame, GOAWAY, HEADERS, RST_STREAM, Raw, SETTINGS, call, frame},
    zone::{Zone, eventually, upsert},
};

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
    let read = tokio::time::timeout(Duration::from_mins(1), http1.read_to_end(&mut answer)).await;
    assert!(read.is_ok() && answer.is_empty(), "closed without a word");
    // HTTP/2 that begins well and goes on with a frame larger than any.
    let name = rustls::pki_types::ServerName::try_from("127.0.0.1").unwrap();
    let tcp = TcpStream::connect(address).await.unwrap();
    let mut frames = tls.connect(name, tcp).await.unwrap();
    frames.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    frames.write_all(&[0xff; 64]).await.unwrap();
    let read = tokio::time::timeout(Duration::from_mins(1), frames.read_to_end(&mut answer)).await;
    assert!(read.is_ok(), "closed, and not read any further");
    let client = zone.client(&address.to_string(), OPERATOR);
    assert_eq!(client.list_groups().await.unwrap().len(), 1);
    server.stop().await;
}

/// A client that keeps to no limit: streams of a connection beyond the limit are refused one by one or end it, and those
/// within it are answered.
#[tokio::test]
async fn ten_thousand_streams_of_one_connection_are_bounded_and_leave_room_for_others() {
    const WATCH: &str = "/nstance.v1.OperatorService/WatchErrors";
    let zone = Zone::new().await;
    let mut server = zone.start("s1");
    let address = server.leads().await.operator;
    let (reader, mut writer) = Raw::begin(&zone, address, OPERATOR).await.split();
    let flood = tokio::spawn(async move {
        for number in 0..10_000 {
            let stream = 2 * number + 1;
            let headers = frame(HEADERS, END_HEADERS, stream, &call(WATCH));
            // One empty message.
            let message = frame(DATA, END_STREAM, stream, &[0; 5]);
            if writer.write_all(&[headers, message].concat()).await.is_err() {
                break;
            }
        }
        writer
    });
    let seen = tokio::spawn(outcomes(reader));
    let other = zone.client(&address.to_string(), ("dev", "acme", Role::Operator));
    for size in 0..5 {
        assert_eq!(other.upsert_group(upsert("web", size), &Fence::default()).await.unwrap().size, size);
    }
    // Dropped when all was sent, or the server hung up.
    drop(flood.await.unwrap());
    let (answered, refused) = seen.await.unwrap();
    assert!(answered <= 64, "{answered} streams were served at once");
    assert!(refused > 0, "the others were refused");
    // The library of an honest client keeps to the limit, and waits.
    let patient = zone.client(&address.to_string(), OPERATOR);
    let mut waiting = tokio::task::JoinSet::new();
    for _ in 0..1000 {
        let mut client = OperatorServiceClient::new(patient.channel());
        waiting.spawn(async move { client.watch_errors(()).await?.into_inner().message().await });
    }
    assert_eq!(other.list_groups().await.unwrap().len(), 1);
    waiting.shutdown().await;
    server.stop().await;
}

/// How many streams were answered, and how many refused, until the connection ends.
async fn outcomes(mut reader: tokio::io::ReadHalf<tokio_rustls::client::TlsStream<TcpStream>>) -> (usize, usize) {
    let (mut answered, mut refused) = (0, 0);
    let mut head = [0; 9];
    while reader.read_exact(&mut head).await.is_ok() {
        match head[3] {
            HEADERS => answered += 1,
            RST_STREAM | GOAWAY => refused += 1,
            _ => {}
        }
        let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
        if reader.read_exact(&mut vec![0; length]).await.is_err() {
            break;
        }
    }
    (answered, refused)
}

/// Lets time pass without waiting for it. Sockets are of this process: what was sent has arrived.
async fn pass(seconds: u64) {
    for _ in 0..seconds {
        tokio::time::advance(Duration::from_secs(1)).await;
        for _ in 0..8 {
            tokio::task::yield_now().await;
        }
    }
}

/// The kinds of the frames until the connection ends, which it must without more time.
async fn rest(raw: &mut Raw) -> Vec<Frame> {
    let mut frames = Vec::new();
    while let Some(frame) = raw.next().await {
        frames.push(frame);
    }
    frames
}

#[tokio::test]
async fn a_slow_client_holds_its_connection_and_its_call_no_longer_than_their_deadlines() {
    const LIST: &str = "/nstance.v1.OperatorService/ListGroups";
    let zone = Zone::new().await;
    let mut server = zone.start("s1");
    let address = server.leads().await.operator;
    // TLS, and then not a byte of HTTP/2; half a frame of headers; a call whose message never comes whole.
    let mut mute = Raw::connect(&zone, address, OPERATOR).await;
    let mut half = Raw::begin(&zone, address, OPERATOR).await;
    half.send(HEADERS, 0, 1, &call(LIST)[..10]).await.unwrap();
    let mut slow = Raw::begin(&zone, address, OPERATOR).await;
    slow.send(HEADERS, END_HEADERS, 1, &call(LIST)).await.unwrap();
    slow.send(DATA, 0, 1, &[0, 0]).await.unwrap();
    let other = zone.client(&address.to_string(), ("dev", "acme", Role::Operator));
    assert_eq!(other.list_groups().await.unwrap().len(), 0);
    tokio::time::pause();
    pass(11).await;
    assert_eq!(rest(&mut mute).await.len(), 0, "closed ten seconds after it began");
    pass(50).await;
    let late = loop {
        let frame = slow.next().await.expect("an answer");
        if frame.kind == HEADERS {
            break frame;
        }
    };
    assert!(late.stream == 1 && late.flags & END_STREAM != 0, "the call ended");
    // Neither answers the server's pings.
    pass(30).await;
    rest(&mut half).await;
    rest(&mut slow).await;
    tokio::time::resume();
    assert_eq!(other.list_groups().await.unwrap().len(), 0);
    server.stop().await;
}

#[tokio::test]
async fn a_client_without_a_certificate_holds_its_connection_for_a_minute_at_most() {
    let zone = Zone::new().await;
    let mut server = zone.start("s1");
    let mut anonymous = Raw::begin(&zone, server.leads().await.registration, None).await;
    assert_eq!(anonymous.next().await.expect("it is served").kind, SETTINGS);
    tokio::time::pause();
    let began = tokio::time::Instant::now();
    pass(62).await;
    rest(&mut anonymous).await;
    // The first ping comes after a minute, and has 20 s for its answer.
    assert!(began.elapsed() < Duration::from_secs(75), "{:?}", began.elapsed());
    tokio::time::resume();
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

/// A client that asks and never reads holds what it asked for: so much, and no more.
#[tokio::test]
async fn answers_that_are_not_read_are_bounded_together() {
    const LIST: &str = "/nstance.v1.OperatorService/ListGroups";
    /// `SETTINGS_INITIAL_WINDOW_SIZE`, 0.
    const NO_WINDOW: [u8; 6] = [0, 4, 0, 0, 0, 0];
    let zone = Zone::new().await;
    let mut server = zone.start("s1");
    let address = server.leads().await.operator;
    let client = zone.client(&address.to_string(), OPERATOR);
    // An answer of about 200 KB.
    let long = "x".repeat(4000);
    for number in 0..50 {
        let mut request = upsert(&format!("g{number}"), 0);
        request.config.as_mut().unwrap().vars = [("long".to_owned(), long.clone())].into();
        client.upsert_group(request, &Fence::default()).await.unwrap();
    }
    let (mut answered, mut refused) = (0, 0);
    let mut held = Vec::new();
    for _ in 0..4 {
        let mut raw = Raw::begin(&zone, address, OPERATOR).await;
        raw.send(SETTINGS, 0, 0, &NO_WINDOW).await.unwrap();
        for number in 0..60 {
            raw.send(HEADERS, END_HEADERS, 2 * number + 1, &call(LIST)).await.unwrap();
            raw.send(DATA, END_STREAM, 2 * number + 1, &[0; 5]).await.unwrap();
        }
        let mut seen = 0;
        while seen < 60 {
            let frame = raw.next().await.expect("the connection lives");
            if frame.kind == HEADERS {
                seen += 1;
                // One that is refused is over with its headers; an answer waits for the window.
                if frame.flags & END_STREAM == 0 { answered += 1 } else { refused += 1 }
            }
        }
        held.push(raw);
    }
    assert!(answered > 0 && answered * 200_000 <= 16 * 1024 * 1024, "{answered} answers of 200 KB are held");
    assert_eq!(answered + refused, 240);
    let other = zone.client(&address.to_string(), ("dev", "acme", Role::Operator));
    assert_eq!(other.list_groups().await.unwrap().len(), 0, "others have their own");
    drop(held);
    eventually("room for answers", || async { client.list_groups().await.ok() }).await;
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
