//! Any bytes may answer: errors, never panics, and texts that say what to do.

use anyhow::Result;
use hetzner::{
    Action, Cause, Class, Clients, LoadBalancer, Server, Since, Token, decode_error, decode_one, decode_page,
};
use proptest::prelude::*;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    time::Instant,
};

use crate::settings;

fn page() -> Value {
    let server = json!({
        "id": 1, "name": "a", "status": "running", "created": "2026-01-02T03:04:05+00:00", "labels": { "a": "b" },
        "public_net": { "ipv4": { "ip": "192.0.2.1" }, "ipv6": { "ip": "2001:db8::/64" } },
        "private_net": [{ "network": 2, "ip": "10.0.0.2" }], "server_type": { "id": 1, "name": "cx23" },
        "location": null, "image": { "id": 3, "name": null }, "placement_group": null,
    });
    json!({ "servers": [server], "meta": { "pagination": { "next_page": null, "total_entries": 1 } } })
}

/// Everything that reads an answer.
fn decode(bytes: &[u8]) -> [bool; 3] {
    let (code, message) = decode_error(500, bytes);
    assert!(code.len() <= bytes.len() && message.chars().count() <= 500);
    [
        decode_page::<Server>(bytes).is_ok(),
        decode_one::<LoadBalancer>(bytes).is_ok(),
        decode_one::<Server>(bytes).is_ok(),
    ]
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".*".prop_map(Value::from),
    ];
    let keys = prop_oneof![Just("servers".to_owned()), Just("id".to_owned()), Just("meta".to_owned()), ".*"];
    leaf.prop_recursive(6, 64, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::hash_map(keys.clone(), inner, 0..6).prop_map(|map| map.into_iter().collect()),
        ]
    })
}

proptest! {
    #[test]
    fn no_bytes_make_a_decoder_panic(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
        decode(&bytes);
    }

    #[test]
    fn no_json_makes_a_decoder_panic(value in any_json()) {
        decode(value.to_string().as_bytes());
    }

    #[test]
    fn an_answer_that_is_cut_short_is_known_as_such(at in 0_usize..400) {
        let whole = page().to_string();
        let part = &whole.as_bytes()[..at.min(whole.len() - 1)];
        let cause = decode_page::<Server>(part).unwrap_err();
        let is_cut_short = matches!(cause, Cause::Undecodable { is_cut_short: true, .. });
        prop_assert!(is_cut_short, "{cause}");
    }

    #[test]
    fn a_field_of_another_type_is_an_error_that_says_where(value in any_json()) {
        let mut page = page();
        page["servers"][0]["server_type"] = value;
        if let Err(cause) = decode_page::<Server>(page.to_string().as_bytes()) {
            prop_assert!(cause.to_string().contains("servers has another type"), "{cause}");
        }
    }
}

#[test]
fn later_versions_of_the_api_do_not_break_it() {
    let mut page = page();
    page["servers"][0]["status"] = json!("hibernating");
    page["servers"][0]["quantum_net"] = json!([{}]);
    page["later"] = json!({ "x": [1] });
    let read = decode_page::<Server>(page.to_string().as_bytes()).unwrap();
    assert_eq!(read.items[0].status, hetzner::ServerStatus::Unknown);
    let action: Action = serde_json::from_value(json!({ "id": 1, "status": "paused" })).unwrap();
    assert_eq!(action.status, hetzner::ActionStatus::Unknown);
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    assert_eq!(decode(deep.as_bytes()), [false; 3]);
}

/// Answers every request with these bytes and closes.
async fn answering(bytes: Vec<u8>) -> Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let endpoint = format!("http://{}/v1", listener.local_addr()?);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = [0; 4096];
            let _ = stream.read(&mut request).await;
            // The client stops reading when it has had enough.
            let _ = stream.write_all(&bytes).await;
        }
    });
    Ok(endpoint)
}

async fn check(answer: Vec<u8>, class: Class, says: &str) -> Result<()> {
    let endpoint = answering(answer).await?;
    let client = Clients::new(settings()).get(&endpoint, &Token::new("secret"))?;
    let error = client.look::<Server>(Since::At(Instant::now())).await.unwrap_err();
    assert_eq!(error.class(), class, "{error}");
    assert!(error.to_string().contains(says), "{error}");
    assert!(!format!("{error} {error:?}").contains("secret"));
    Ok(())
}

fn http(status: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len()).into_bytes()
}

#[tokio::test]
async fn strange_answers_become_errors_that_say_what_to_do() -> Result<()> {
    let text = page().to_string();
    check(http("200 OK", &text[..60]), Class::Transient, "ends too early").await?;
    check(http("200 OK", "<html>hello</html>"), Class::Terminal, "check that HCLOUD_ENDPOINT").await?;
    check(http("200 OK", "{}"), Class::Terminal, "no field servers").await?;
    check(http("502 Bad Gateway", "<html>"), Class::Transient, "without the API's explanation").await?;
    check(http("418 Teapot", r#"{"error":{"code":"tea","message":"no\ncoffee"}}"#), Class::Invalid, "no coffee (tea")
        .await?;
    check(b"SSH-2.0-OpenSSH\r\n".to_vec(), Class::Transient, "no answer").await?;
    check(Vec::new(), Class::Transient, "no answer").await?;
    let short = b"HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n{".to_vec();
    check(short, Class::Transient, "no answer").await?;
    let huge = format!(r#"{{"servers":[],"x":"{}"}}"#, "x".repeat(17 << 20));
    check(http("200 OK", &huge), Class::Terminal, "longer than").await
}

#[tokio::test]
async fn a_404_that_is_not_the_apis_is_no_absence() -> Result<()> {
    let client = |endpoint: &str| Clients::new(settings()).get(endpoint, &Token::new("secret"));
    let proxy = client(&answering(http("404 Not Found", "<html>")).await?)?;
    let error = proxy.get::<Server>(1).await.unwrap_err();
    assert_eq!(error.class(), Class::Transient, "{error}");
    assert!(error.to_string().contains("check that HCLOUD_ENDPOINT"), "{error}");
    proxy.delete::<Server>(1).await.unwrap_err();
    let absent = r#"{"error":{"code":"not_found","message":"server not found"}}"#;
    let api = client(&answering(http("404 Not Found", absent)).await?)?;
    assert_eq!(api.get::<Server>(1).await?, None);
    api.delete::<Server>(1).await?;
    Ok(())
}

/// Answers one request after another with these pages of servers.
async fn paging(pages: Vec<Value>) -> Result<hetzner::Client> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let endpoint = format!("http://{}/v1", listener.local_addr()?);
    tokio::spawn(async move {
        let mut pages = pages.into_iter();
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = [0; 4096];
            let _ = stream.read(&mut request).await;
            let page = pages.next().unwrap_or_default();
            let _ = stream.write_all(&http("200 OK", &page.to_string())).await;
        }
    });
    Ok(Clients::new(settings()).get(&endpoint, &Token::new("secret"))?)
}

/// A page of a list whose length the API does not know.
fn uncounted(ids: &[i64], next: Option<u32>) -> Value {
    let mut list = page();
    let one = list["servers"][0].take();
    let server = |id: &i64| {
        let mut server = one.clone();
        (server["id"], server["name"]) = (json!(id), json!(format!("s-{id}")));
        server
    };
    list["servers"] = ids.iter().map(server).collect();
    list["meta"] = json!({ "pagination": { "next_page": next, "total_entries": null } });
    list
}

#[tokio::test]
async fn a_list_without_a_total_is_read_until_it_stays_as_it_is() -> Result<()> {
    // Between the pages of the first read the first server went, and the third moved to the page before.
    let pages =
        [(&[1, 2][..], Some(2)), (&[4], None), (&[2, 3], Some(2)), (&[4], None), (&[2, 3], Some(2)), (&[4], None)];
    let client = paging(pages.iter().map(|(ids, next)| uncounted(ids, *next)).collect()).await?;
    let look = client.look::<Server>(Since::At(Instant::now())).await?;
    assert_eq!(look.items.iter().map(|server| server.id).collect::<Vec<_>>(), [2, 3, 4]);
    // One page is one moment.
    let client = paging(vec![uncounted(&[1], None)]).await?;
    assert_eq!(client.look::<Server>(Since::At(Instant::now())).await?.items.len(), 1);
    for next in [1, 3] {
        let client = paging(vec![uncounted(&[1], Some(next))]).await?;
        let error = client.look::<Server>(Since::At(Instant::now())).await.unwrap_err();
        assert!(error.to_string().contains(&format!("names page {next}")), "{error}");
    }
    Ok(())
}

#[tokio::test]
async fn a_token_that_is_none_is_refused_before_anything_is_sent() -> Result<()> {
    let client = Clients::new(settings()).get("http://127.0.0.1:1/v1", &Token::new("a\nb"))?;
    let error = client.look::<Server>(Since::At(Instant::now())).await.unwrap_err();
    assert_eq!((error.class(), error.cause), (Class::Unauthorised, Cause::BadToken));
    Ok(())
}
