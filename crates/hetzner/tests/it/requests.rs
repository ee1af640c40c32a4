//! Requests that no client of ours sends: the simulator refuses them in the vendor's shape and goes on.

use anyhow::{Context, Result};
use hetzner::Server;
use serde_json::{Value, json};
use testbed::hetzner::Access;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{TOKEN, World, network, server, ssh_key, wanted};

/// Status and body of the answer.
async fn ask(world: &World, method: &str, path: &str, body: &str) -> Result<(u16, Value)> {
    ask_as(TOKEN, world, method, path, body).await
}

async fn ask_as(token: &str, world: &World, method: &str, path: &str, body: &str) -> Result<(u16, Value)> {
    let mut stream = TcpStream::connect(world.simulator.address()).await?;
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\nconnection: close\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let (head, body) = answer.split_once("\r\n\r\n").with_context(|| format!("{method} {path} {body}: no answer"))?;
    let status = head.split(' ').nth(1).context("a status")?.parse()?;
    Ok((status, serde_json::from_str(body).unwrap_or_default()))
}

/// A resource of each kind that has actions, and its actions.
async fn targets(world: &World) -> Result<Vec<String>> {
    let client = world.client.urgent();
    let server = client.ensure::<Server>(&server("s")).await?.resource.id;
    let network = client.ensure::<hetzner::Network>(&network("n")).await?.resource.id;
    let balancer = wanted("l", json!({ "load_balancer_type": "lb11", "location": "fsn1" }));
    let balancer = client.ensure::<hetzner::LoadBalancer>(&balancer).await?.resource.id;
    let volume = wanted("v", json!({ "size": 10, "location": "fsn1" }));
    let volume = client.ensure::<hetzner::Volume>(&volume).await?.resource.id;
    let wall = client.ensure::<hetzner::Firewall>(&wanted("f", json!({}))).await?.resource.id;
    client.ensure::<hetzner::SshKey>(&ssh_key("k")).await?;
    let of = |kind: &str, id: i64, commands: &[&str]| -> Vec<String> {
        commands.iter().map(|command| format!("/v1/{kind}/{id}/actions/{command}")).collect()
    };
    let on_server = ["attach_to_network", "detach_from_network", "rebuild", "change_type", "add_to_placement_group"];
    let on_balancer = ["add_service", "update_service", "delete_service", "add_target", "attach_to_network"];
    let mut paths = of("servers", server, &on_server);
    paths.extend(of("networks", network, &["add_subnet", "delete_subnet", "add_route", "change_ip_range"]));
    paths.extend(of("load_balancers", balancer, &on_balancer));
    paths.extend(of("volumes", volume, &["attach", "resize"]));
    paths.extend(of("firewalls", wall, &["nothing"]));
    let kinds = ["servers", "networks", "load_balancers", "placement_groups", "ssh_keys", "certificates", "volumes"];
    paths.extend(kinds.iter().chain(&["firewalls"]).map(|kind| format!("/v1/{kind}")));
    Ok(paths)
}

#[tokio::test]
async fn bodies_that_make_no_sense_are_refused_and_change_nothing() -> Result<()> {
    let world = World::with(|options| options.requests_per_hour = 3_600_000).await?;
    let paths = targets(&world).await?;
    let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
    let bodies = [
        "",
        "null",
        "{}",
        "[]",
        "7",
        "\"x\"",
        "{",
        "\u{0}",
        deep.as_str(),
        r#"{"name":7,"type":[],"network":"x","ip_range":{},"size":-1,"listen_port":99999,"server":1.5}"#,
        r#"{"name":"","type":"","network":9223372036854775807,"ip_range":"300.0.0.0/99","size":4294967296}"#,
        r#"{"name":"x","type":"ip","ip":{"ip":"::1"},"network":-1,"server_type":null,"image":"","labels":{"":""}}"#,
    ];
    for path in &paths {
        for body in bodies {
            let (status, answer) = ask(&world, "POST", path, body).await?;
            let code = answer["error"]["code"].as_str().unwrap_or_default();
            assert!((400..500).contains(&status) && !code.is_empty(), "{path} {body:.60}: {status} {answer}");
        }
    }
    assert_eq!(world.names::<Server>().await?, ["s"]);
    Ok(())
}

#[tokio::test]
async fn paths_and_queries_that_make_no_sense_are_refused() -> Result<()> {
    let world = World::start().await?;
    let cases = [
        ("GET", "/", 404),
        ("GET", "/servers", 404),
        ("GET", "/v1", 404),
        ("GET", "/v1/", 404),
        ("GET", "/v2/servers", 404),
        ("GET", "/v1servers", 404),
        ("GET", "/v1/servers/x", 404),
        ("GET", "/v1/servers/99999999999999999999", 404),
        ("GET", "/v1/servers/1/actions/2/3", 404),
        ("PUT", "/v1/servers", 404),
        ("DELETE", "/v1/locations/1", 404),
        ("POST", "/v1/servers/1/actions/poweron", 404),
        ("GET", "/v1/servers?page=0", 422),
        ("GET", "/v1/servers?page=x", 422),
        ("GET", "/v1/servers?per_page=-1", 422),
        ("GET", "/v1/servers?sort=price", 422),
        ("GET", "/v1/servers?label_selector=%28", 422),
        ("GET", "/v1/servers?page=18446744073709551615", 200),
        ("GET", "/v1/servers?%zz&&=", 200),
    ];
    for (method, path, expected) in cases {
        let (status, answer) = ask(&world, method, path, "").await?;
        assert_eq!(status, expected, "{method} {path}: {answer}");
        assert_eq!(answer["error"].is_null(), expected == 200, "{method} {path}: {answer}");
    }
    Ok(())
}

/// A refusal in the vendor's shape: its status, its code, and the field that is wrong.
fn check(case: &str, (status, answer): &(u16, Value), expected: (u16, &str, &str)) {
    let error = &answer["error"];
    let field = error["details"]["fields"][0]["name"].as_str().unwrap_or_default();
    assert_eq!((*status, error["code"].as_str().unwrap_or_default(), field), expected, "{case}: {answer}");
    assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{case}: {answer}");
}

/// A request that creates one of each kind, all of whose fields are required.
fn creations() -> [(&'static str, Value); 7] {
    [
        ("servers", json!({ "name": "s", "server_type": "cx23", "image": "debian-13" })),
        ("networks", json!({ "name": "n", "ip_range": "10.0.0.0/16" })),
        ("load_balancers", json!({ "name": "l", "load_balancer_type": "lb11", "location": "fsn1" })),
        ("firewalls", json!({ "name": "f" })),
        ("placement_groups", json!({ "name": "g", "type": "spread" })),
        ("ssh_keys", json!({ "name": "k", "public_key": hetzner::throwaway_key() })),
        ("volumes", json!({ "name": "v", "size": 10, "location": "fsn1" })),
    ]
}

#[tokio::test]
async fn what_is_missing_or_taken_is_named_by_its_field() -> Result<()> {
    let world = World::start().await?;
    for (kind, whole) in creations() {
        let path = format!("/v1/{kind}");
        for field in whole.as_object().context("an object")?.keys() {
            let mut part = whole.clone();
            part.as_object_mut().context("an object")?.remove(field);
            let answer = ask(&world, "POST", &path, &part.to_string()).await?;
            check(&format!("{kind} without {field}"), &answer, (422, "invalid_input", field));
        }
        let (status, made) = ask(&world, "POST", &path, &whole.to_string()).await?;
        assert_eq!(status, 201, "{kind}: {made}");
        let mut twice = whole.clone();
        if kind == "ssh_keys" {
            twice["public_key"] = json!(hetzner::throwaway_key());
        }
        let answer = ask(&world, "POST", &path, &twice.to_string()).await?;
        check(&format!("{kind} twice"), &answer, (409, "uniqueness_error", "name"));
        // Neither may a second one be renamed to it.
        twice["name"] = json!("other");
        if kind == "ssh_keys" {
            twice["public_key"] = json!(hetzner::throwaway_key());
        }
        let (_, other) = ask(&world, "POST", &path, &twice.to_string()).await?;
        let one = kind.strip_suffix('s').context("a plural")?;
        let path = format!("{path}/{}", other[one]["id"]);
        let answer = ask(&world, "PUT", &path, &json!({ "name": whole["name"] }).to_string()).await?;
        check(&format!("{kind} renamed"), &answer, (409, "uniqueness_error", "name"));
        let (_, seen) = ask(&world, "GET", &format!("/v1/{kind}"), "").await?;
        assert_eq!(seen[kind].as_array().map(Vec::len), Some(2), "{kind}: {seen}");
    }
    Ok(())
}

#[tokio::test]
async fn bad_selectors_are_refused_wherever_one_is_given() -> Result<()> {
    let world = World::start().await?;
    let client = world.client.urgent();
    let balancer = wanted("l", json!({ "load_balancer_type": "lb11", "location": "fsn1" }));
    let balancer = client.ensure::<hetzner::LoadBalancer>(&balancer).await?.resource.id;
    let wall = client.ensure::<hetzner::Firewall>(&wanted("f", json!({}))).await?.resource.id;
    let kinds = creations().map(|(kind, _)| kind).into_iter().chain(["images", "certificates"]);
    for kind in kinds {
        // a=( and "a in 1"
        for selector in ["a%3D%28", "a+in+1"] {
            let path = format!("/v1/{kind}?label_selector={selector}");
            let answer = ask(&world, "GET", &path, "").await?;
            check(&path, &answer, (422, "invalid_input", "label_selector"));
        }
    }
    let by_label = json!({ "type": "label_selector", "label_selector": { "selector": "a=(" } });
    let cases = [
        (format!("/v1/load_balancers/{balancer}/actions/add_target"), by_label.clone()),
        (format!("/v1/firewalls/{wall}/actions/apply_to_resources"), json!({ "apply_to": [by_label] })),
        ("/v1/firewalls".to_owned(), json!({ "name": "g", "apply_to": [by_label] })),
    ];
    for (path, body) in cases {
        let answer = ask(&world, "POST", &path, &body.to_string()).await?;
        check(&path, &answer, (422, "invalid_input", "label_selector"));
    }
    Ok(())
}

#[tokio::test]
async fn a_token_that_may_only_read_changes_nothing() -> Result<()> {
    let reader = Access { is_read_only: true, ..Access::new("reader", "tests") };
    let world = World::with(|options| options.access.push(reader)).await?;
    let made = world.client.ensure::<Server>(&server("s")).await?.resource;
    let path = format!("/v1/servers/{}", made.id);
    let power_off = format!("{path}/actions/poweroff");
    for (method, path, body) in [
        ("POST", "/v1/servers", r#"{"name":"t","server_type":"cx23","image":"debian-13"}"#),
        ("PUT", path.as_str(), r#"{"name":"t"}"#),
        ("DELETE", path.as_str(), ""),
        ("POST", power_off.as_str(), ""),
    ] {
        let answer = ask_as("reader", &world, method, path, body).await?;
        check(&format!("{method} {path}"), &answer, (403, "token_readonly", ""));
    }
    let (status, seen) = ask_as("reader", &world, "GET", &path, "").await?;
    assert_eq!(
        (status, seen["server"]["name"].as_str(), seen["server"]["status"].as_str()),
        (200, Some("s"), Some("running"))
    );
    let answer = ask_as("wrong", &world, "GET", &path, "").await?;
    check("a wrong token", &answer, (401, "unauthorized", ""));
    Ok(())
}
