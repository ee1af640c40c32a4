//! Requests that no client of ours sends: the simulator refuses them in the vendor's shape and goes on.

use anyhow::{Context, Result};
use hetzner::Server;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{TOKEN, World, network, server, ssh_key, wanted};

/// Status and body of the answer.
async fn ask(world: &World, method: &str, path: &str, body: &str) -> Result<(u16, Value)> {
    let mut stream = TcpStream::connect(world.simulator.address()).await?;
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\nconnection: close\r\n\
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
