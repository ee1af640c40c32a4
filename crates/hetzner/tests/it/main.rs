//! The client against the simulator, and against whatever else may answer.
#![expect(clippy::unwrap_used, reason = "all of this is tests; clippy takes only the marked functions for such")]

mod bytes;
mod faults;
mod lists;
mod requests;
mod resources;
mod vendor;

use std::{path::PathBuf, time::Duration};

use anyhow::Result;
use hetzner::{Client, Clients, Labels, Settings, Since, Token, Wanted};
use serde_json::{Value, json};
use testbed::hetzner::{Access, Options, Simulator, log};
use tokio::time::Instant;

const TOKEN: &str = "token-of-the-tests";

/// A simulator and a client of it.
struct World {
    simulator: Simulator,
    client: Client,
    folder: tempfile::TempDir,
}

impl World {
    async fn start() -> Result<Self> {
        Self::with(|_| {}).await
    }

    async fn with(change: impl FnOnce(&mut Options)) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let mut options = Options::new(vec![Access::new(TOKEN, "tests")]);
        options.log = Some(folder.path().join("log"));
        options.action_time = Duration::from_millis(5);
        change(&mut options);
        let simulator = Simulator::start(options).await?;
        let client = Clients::new(settings()).get(&simulator.endpoint(), &Token::new(TOKEN))?;
        Ok(Self { simulator, client, folder })
    }

    fn log_path(&self) -> PathBuf {
        self.folder.path().join("log")
    }

    fn log(&self) -> Result<Vec<log::Line>> {
        Ok(log::read(&self.log_path())?)
    }

    /// Names of all resources of a kind.
    async fn names<R: hetzner::Listed>(&self) -> Result<Vec<String>> {
        let look = self.client.urgent().look::<R>(Since::At(Instant::now())).await?;
        Ok(look.items.iter().map(|item| item.name().to_owned()).collect())
    }
}

/// Short times: what is tested is what happens, not how long it takes.
fn settings() -> Settings {
    Settings {
        request_limit: Duration::from_secs(20),
        poll_interval: Duration::from_millis(5),
        first_retry: Duration::from_millis(5),
        action_limit: Duration::from_secs(20),
        ..Settings::default()
    }
}

fn wanted(name: &str, body: Value) -> Wanted {
    let owner = ("k8zner.io/cluster".to_owned(), "c".to_owned());
    Wanted { name: name.to_owned(), labels: Labels::new(), owner, body }
}

fn server(name: &str) -> Wanted {
    wanted(name, json!({ "server_type": "cx23", "image": "debian-13", "location": "fsn1" }))
}

fn ssh_key(name: &str) -> Wanted {
    wanted(name, json!({ "public_key": hetzner::throwaway_key() }))
}

fn network(name: &str) -> Wanted {
    wanted(name, json!({ "ip_range": "10.0.0.0/16" }))
}

#[tokio::test]
async fn the_clients_futures_move_between_threads() -> Result<()> {
    fn check(_: impl Send) {}
    let client = Clients::new(settings()).get("http://127.0.0.1:1/v1", &Token::new(TOKEN))?;
    let (server, key) = (server("a"), ssh_key("k"));
    check(client.ensure::<hetzner::Server>(&server));
    check(client.ensure_server_with_key(&server, &key));
    check(client.look::<hetzner::Server>(Since::Within(Duration::ZERO)));
    check(client.delete::<hetzner::Server>(1));
    check(client.command(1, hetzner::Command::PowerOn));
    Ok(())
}
