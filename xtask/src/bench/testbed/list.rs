//! Lists of Hetzner's API with a thousand servers in a project.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use hetzner::{Clients, Server, Settings, Since, Token};
use serde::Serialize;
use serde_json::{Value, json};
use testbed::hetzner::{Access, Options, Simulator, log};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::bench::times::Times;

const SERVERS: usize = 1000;
/// The most that the vendor gives at once.
const PER_PAGE: usize = 50;
/// A p99 of all calls needs at least five.
const LISTS: usize = 25;
const TOKEN: &str = "bench";
/// Far above what is needed: what the rate limit does is not measured here.
const REQUESTS_PER_HOUR: u32 = 3_600_000;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Listed {
    pub servers: usize,
    /// As the simulator counted them while strata's own client listed all servers.
    pub calls_per_list: usize,
    /// One list by strata's own client, decoding included.
    pub client_list: Times,
    /// One page: from connecting to the last byte.
    pub call: Times,
}

pub async fn measure() -> Result<Listed> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("log");
    let options = Options {
        requests_per_hour: REQUESTS_PER_HOUR,
        action_time: Duration::ZERO,
        log: Some(file.clone()),
        ..Options::new(vec![Access::new(TOKEN, "bench")])
    };
    let simulator = Simulator::start(options).await?;
    let address = simulator.address();
    for number in 0..SERVERS {
        let body = json!({ "name": format!("bench-{number}"), "server_type": "cx23", "image": "debian-13" });
        request(address, "POST", "/v1/servers", &body.to_string()).await?;
    }
    let client = Clients::new(Settings::default()).get(&simulator.endpoint(), &Token::new(TOKEN))?;
    let before = log::read(&file)?.len();
    let mut lists = Vec::new();
    for _ in 0..LISTS {
        let started = Instant::now();
        let look = client.look::<Server>(Since::At(tokio::time::Instant::now())).await?;
        lists.push(milliseconds(started));
        ensure!(look.items.len() == SERVERS, "{} of {SERVERS} servers", look.items.len());
    }
    let calls_per_list = (log::read(&file)?.len() - before) / LISTS;
    let mut calls = Vec::new();
    for _ in 0..LISTS {
        for page in 1..=SERVERS / PER_PAGE {
            let path = format!("/v1/servers?per_page={PER_PAGE}&page={page}");
            let started = Instant::now();
            let answer = request(address, "GET", &path, "").await?;
            calls.push(milliseconds(started));
            let answer: Value = serde_json::from_str(&answer)?;
            let count = answer["servers"].as_array().map_or(0, Vec::len);
            ensure!(count == PER_PAGE, "{count} servers on page {page}");
        }
    }
    Ok(Listed { servers: SERVERS, calls_per_list, client_list: Times::of(lists), call: Times::of(calls) })
}

fn milliseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1000.0
}

/// On a connection of its own, so that a call holds all that a stock program's does.
async fn request(address: SocketAddr, method: &str, path: &str, body: &str) -> Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {TOKEN}\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(format!("{head}{body}").as_bytes()).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    let answer = String::from_utf8(answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("an answer without a body")?;
    ensure!(head.starts_with("HTTP/1.1 20"), "{method} {path}: {answer}");
    Ok(body.to_owned())
}
