//! `strata shard` with machines at Hetzner: the server as a process, and the simulator of Hetzner's API.

use std::{
    collections::{BTreeSet, HashMap},
    fs, io,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use futures::{FutureExt, future::BoxFuture};
use serde_json::{Value, json};
use testbed::{
    hetzner::{Access, Failed, Machine, Machines, Options, Simulator, log},
    process::{Child, Program},
};

use crate::shard::{Server, Zone, config, eventually, quick_election};

const TOKEN: &str = "token-of-the-project";

/// A zone whose machines are servers of a simulated project.
struct Place {
    zone: Zone,
    simulator: Simulator,
}

impl Place {
    /// A static group of two.
    async fn new(change: impl FnOnce(&mut Options)) -> Result<Self> {
        let mut zone = Zone::new()?;
        let mut options = Options::new(vec![Access::new(TOKEN, "tests")]);
        options.log = Some(zone.file("hcloud.log"));
        options.action_time = Duration::from_millis(5);
        change(&mut options);
        let simulator = Simulator::start(options).await?;
        zone.environment = vec![("HCLOUD_ENDPOINT", simulator.endpoint()), ("HCLOUD_TOKEN", TOKEN.to_owned())];
        Ok(Self { zone, simulator })
    }

    fn names(&self) -> BTreeSet<String> {
        self.simulator.machines().into_iter().map(|machine| machine.name).collect()
    }

    /// Waits until the project has servers like that.
    async fn servers(
        &self,
        server: &Server,
        what: &str,
        is_so: impl Fn(&BTreeSet<String>) -> bool,
    ) -> Result<BTreeSet<String>> {
        let ask = async || Some(self.names()).filter(&is_so);
        eventually(what, ask).await.with_context(|| format!("{:?}\n{}", self.names(), server.child.log_tail()))
    }

    fn requests(&self, is_such: impl Fn(&log::Line) -> bool) -> Result<usize> {
        Ok(log::read(&self.zone.file("hcloud.log"))?.iter().filter(|line| is_such(line)).count())
    }

    fn server_log(&self) -> Result<String> {
        Ok(fs::read_to_string(self.zone.file("server.log"))?)
    }
}

fn hcloud(settings: Value) -> Value {
    let mut config = config();
    config["shard"]["provider"] = settings;
    config["shard"]["garbage_collection"] = json!({ "interval": "300ms", "registration_timeout": "10m" });
    config["shard"]["default_drain_timeout"] = json!("0");
    config["templates"]["web"]["instance_type"] = json!("cx23");
    config["templates"]["web"]["args"] = json!({ "image": "debian-13", "location": "fsn1" });
    config["groups"] = json!({ "default": { "web": { "template": "web", "size": 2 } } });
    config
}

/// What a machine runs: our agent, as an image with it would.
fn userdata() -> String {
    let script = r"#!/bin/sh
set -eu
mkdir -p identity
cat >identity/ca.crt <<'PEM'
{{ .Cluster.CACert }}
PEM
printf '%s' {{ quote .Nonce }} >identity/nonce.jwt
exec PROGRAM agent --instance-id {{ quote .Instance.ID }} --identity-dir identity --report-interval 1s \
  --registration-addr {{ quote .Server.RegistrationAddr }} --agent-addr {{ quote .Server.AgentAddr }}
";
    script.replace("PROGRAM", env!("CARGO_BIN_EXE_strata"))
}

/// Machines that run their user data, as cloud-init does, and end with their servers.
struct Running {
    folder: PathBuf,
    children: Mutex<HashMap<String, Child>>,
}

impl Running {
    fn start(&self, machine: &Machine) -> io::Result<()> {
        let folder = self.folder.join(&machine.name);
        fs::create_dir_all(&folder)?;
        fs::write(folder.join("userdata"), &machine.user_data)?;
        let program = Program::new(&machine.name, "/bin/sh", folder.join("log")).args(["userdata"]).within(&folder);
        let child = Child::start(program).map_err(io::Error::other)?;
        self.children.lock().unwrap_or_else(PoisonError::into_inner).insert(machine.name.clone(), child);
        Ok(())
    }
}

impl Machines for Running {
    fn power_on<'a>(&'a self, machine: &'a Machine) -> BoxFuture<'a, Result<(), Failed>> {
        async move { self.start(machine).map_err(|error| error.to_string()) }.boxed()
    }

    fn deleted<'a>(&'a self, machine: &'a Machine) -> BoxFuture<'a, Result<(), Failed>> {
        async move {
            let child = self.children.lock().unwrap_or_else(PoisonError::into_inner).remove(&machine.name);
            match child {
                Some(child) => child.kill().await.map_err(|error| error.to_string()),
                None => Ok(()),
            }
        }
        .boxed()
    }
}

#[tokio::test]
async fn a78_a_static_group_at_hetzner_keeps_its_size_whatever_becomes_of_its_servers() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let machines = Running { folder: folder.path().to_owned(), children: Mutex::default() };
    let place = Place::new(|options| options.machines = Arc::new(machines)).await?;
    // The answers to the first creations are lost.
    place.simulator.faults().add("POST /servers", "lost-response".parse()?, Some(2))?;
    let mut config = hcloud(json!({ "kind": "hcloud" }));
    config["templates"]["web"]["userdata"] = json!(userdata());
    place.zone.init_with(&config).await?.data()?;
    let server = place.zone.start()?;
    let before = place.servers(&server, "two servers", |names| names.len() == 2).await?;
    let instances = async || {
        let all = place.zone.json(&["instances", "a", "-o", "json"]).await.ok()?;
        let is_whole = all.as_array()?.len() == 2 && all.as_array()?.iter().all(|one| one["status"] == "running");
        is_whole.then_some(all)
    };
    let all = eventually("two instances", instances).await.with_context(|| server.child.log_tail())?;
    for machine in place.simulator.machines() {
        let of = all.as_array().and_then(|all| all.iter().find(|one| one["instanceID"] == *machine.name));
        let of = of.with_context(|| format!("{all}"))?;
        ensure!(of["providerID"] == format!("hcloud://{}", machine.id) && of["pid"].is_null(), "{of}");
        let registered = place.zone.file(&format!("storage/shard/a/agent-nonce/{}.pem", machine.name));
        let log = || fs::read_to_string(folder.path().join(&machine.name).join("log")).unwrap_or_default();
        eventually("its agent's registration", async || registered.is_file().then_some(())).await.with_context(log)?;
    }

    // Hetzner loses one, and the answer to the creation of its replacement is lost as well.
    let lost = before.first().context("a server")?.clone();
    place.simulator.faults().add("POST /servers", "lost-response".parse()?, Some(1))?;
    ensure!(place.simulator.lose(&lost).await);
    let is_replaced = |names: &BTreeSet<String>| names.len() == 2 && !names.contains(&lost);
    let after = place.servers(&server, "a replacement", is_replaced).await?;
    ensure!(before.intersection(&after).count() == 1, "the other one stayed: {before:?} {after:?}");
    ensure!(place.simulator.faults().list().is_empty(), "every fault was met");
    // One that is turned off is replaced too, and removed.
    let off = after.first().context("a server")?.clone();
    let id = place.simulator.machines().into_iter().find(|machine| machine.name == off).context("it")?.id;
    place.simulator.power_changed(id, false);
    let is_replaced = |names: &BTreeSet<String>| names.len() == 2 && !names.contains(&off);
    place.servers(&server, "another replacement", is_replaced).await?;
    let made = place.requests(|line| line.method == "POST" && line.path == "/servers" && line.status == 201)?;
    ensure!(made == 4, "{made} servers were made: none twice");

    place.zone.shard(&["scale", "a", "web", "0"]).await?.data()?;
    place.servers(&server, "no server", BTreeSet::is_empty).await?;
    ensure!(!place.server_log()?.contains(TOKEN), "the token is in no log");
    Ok(())
}

#[tokio::test]
async fn a_shard_at_hetzner_waits_for_a_spent_rate_limit() -> Result<()> {
    // Ten a second, so that the test need not wait for an hour.
    let place = Place::new(|options| options.requests_per_hour = 36_000).await?;
    place.zone.init_with(&hcloud(json!({ "kind": "hcloud" }))).await?.data()?;
    place.simulator.spend_all_but(TOKEN, 0);
    place.simulator.faults().add("POST /servers", "rate-limit".parse()?, Some(1))?;
    let server = place.zone.start()?;
    place.servers(&server, "two servers", |names| names.len() == 2).await?;
    let refused = place.requests(|line| line.status == 429)?;
    ensure!(refused <= 2, "{refused}: the first request met the one, a creation the other");
    Ok(())
}

/// A shard with two servers gets another token, while it leads and at its start: the log says this of it, and nothing is
/// made or deleted; then it gets its own back. The server that runs, and the two.
async fn with_another_token(place: &mut Place, token: &str, says: &str) -> Result<(Server, BTreeSet<String>)> {
    place.zone.environment.retain(|(name, _)| *name != "HCLOUD_TOKEN");
    let file = place.zone.file("token");
    fs::write(&file, TOKEN)?;
    let mut config = hcloud(json!({ "kind": "hcloud", "token_file": file }));
    config["shard"]["election"] = quick_election();
    place.zone.init_with(&config).await?.data()?;
    let server = place.zone.start()?;
    let before = place.servers(&server, "two servers", |names| names.len() == 2).await?;
    let named = async |server: &Server, what: &str| {
        let log = async || {
            let log = fs::read_to_string(&server.child.program().log).ok()?;
            let mut lines = log.lines().filter(|line| line.contains(what));
            lines.any(|line| line.contains(says)).then_some(())
        };
        eventually(what, log).await.with_context(|| server.child.log_tail())
    };
    // While it leads.
    fs::write(&file, token)?;
    named(&server, "the machines were not looked at").await?;
    server.child.kill().await?;
    // And at its start.
    fs::remove_file(place.zone.file("server.log"))?;
    let server = place.zone.start()?;
    named(&server, "the lead ended").await?;
    ensure!(place.names() == before, "the machines of all projects: {before:?}");
    let all = place.zone.json(&["instances", "a", "-o", "json"]).await?;
    ensure!(all.as_array().is_some_and(|all| all.len() == 2), "{all}");
    fs::write(&file, TOKEN)?;
    server.metric("strata_shard_leader", 1).await?;
    server.address("operator").await?;
    ensure!(place.names() == before, "{before:?}");
    ensure!(!place.server_log()?.contains(token), "no token is in a log");
    Ok((server, before))
}

#[tokio::test]
async fn a_wrong_token_is_named_in_the_log_deletes_nothing_and_is_replaced_without_a_restart() -> Result<()> {
    let mut place = Place::new(|_| {}).await?;
    with_another_token(&mut place, "wrong-token", "use a token of this project that may read and write").await?;
    Ok(())
}

#[tokio::test]
async fn a_token_of_another_project_makes_and_deletes_nothing_there_or_here() -> Result<()> {
    let mut place = Place::new(|options| options.access.push(Access::new("other-token", "other"))).await?;
    let says = "neither a server of this shard nor its mark";
    let (server, before) = with_another_token(&mut place, "other-token", says).await?;
    // One that is really gone is replaced: the mark says that this is the project.
    for name in &before {
        ensure!(place.simulator.lose(name).await);
    }
    let are_replaced = |names: &BTreeSet<String>| names.len() == 2 && names.is_disjoint(&before);
    place.servers(&server, "two others", are_replaced).await?;
    Ok(())
}

#[tokio::test]
async fn without_a_token_the_server_says_what_to_do_and_ends_with_1() -> Result<()> {
    let mut place = Place::new(|_| {}).await?;
    place.zone.environment.retain(|(name, _)| *name != "HCLOUD_TOKEN");
    place.zone.init_with(&hcloud(json!({ "kind": "hcloud" }))).await?.data()?;
    let server = place.zone.start()?;
    let code = server.child.exited().await;
    let log = server.child.log_tail();
    ensure!(code == 1 && log.contains("shard.provider: no token") && log.contains("HCLOUD_TOKEN"), "{code}: {log}");
    Ok(())
}

#[tokio::test]
async fn validate_asks_hetzner_about_every_name() -> Result<()> {
    let mut place = Place::new(|options| {
        options.access.push(Access { is_read_only: true, ..Access::new("reader", "tests") });
    })
    .await?;
    let file = place.zone.file("case.jsonc");
    let path = file.to_str().context("a path")?.to_owned();
    let args = |key: &str| format!("/templates/web/args/{key}");
    let group = json!({ "default": { "big": { "template": "web", "instance_type": "cax11" } } });
    let cases = [
        ("/templates/web/size".to_owned(), json!(0), None),
        (args("location"), json!("mars1"), Some(("args.location", "known: ash, fsn1"))),
        (args("image"), json!("debian-0"), Some(("args.image", "debian-13"))),
        (args("image"), json!(1), Some(("args.image", "the project has no image 1"))),
        (args("networks"), json!(["none"]), Some(("args.networks", "known: none"))),
        (args("firewalls"), json!([7]), Some(("args.firewalls", "the project has no firewall 7"))),
        (args("placement_group"), json!("none"), Some(("args.placement_group", "no placement group"))),
        (args("ssh_keys"), json!(["me"]), Some(("args.ssh_keys", "the project has no ssh key \"me\""))),
        ("/templates/web/instance_type".to_owned(), json!("cx0"), Some(("instance_type", "cpx22"))),
        (
            "/templates/web/arch".to_owned(),
            json!("arm64"),
            Some(("instance_type", "is amd64, the template needs arm64")),
        ),
        ("/groups".to_owned(), group, Some(("groups.default.big.instance_type", "is arm64"))),
        (args("image"), json!(null), Some(("args.image", "is required"))),
        ("/shard/provider/token".to_owned(), json!("x"), Some(("shard.provider", "expected one of `token_file`"))),
    ];
    for (at, value, named) in cases {
        let mut config = hcloud(json!({ "kind": "hcloud" }));
        let (parent, key) = at.rsplit_once('/').context("a pointer")?;
        config.pointer_mut(parent).context("a place")?[key] = value;
        fs::write(&file, config.to_string())?;
        let said = place.zone.shard(&["validate", &path]).await?;
        let is_named = match named {
            None => said.out.ends_with(": valid\n"),
            Some((field, remedy)) => said.out.lines().any(|line| {
                line.contains(": error: ") && line.contains(&format!("{field}: ")) && line.contains(remedy)
            }),
        };
        ensure!(said.code == i32::from(named.is_some()) && is_named, "{at}: {said:?}");
    }
    fs::write(&file, hcloud(json!({ "kind": "hcloud" })).to_string())?;
    let endpoint = place.zone.environment[0].clone();
    for (token, says) in [
        (Some("wrong-token"), ": error: shard.provider.token_file: "),
        (None, ": error: shard.provider.token_file: no token"),
        (Some("reader"), ": valid"),
    ] {
        place.zone.environment = vec![endpoint.clone()];
        place.zone.environment.extend(token.map(|token| ("HCLOUD_TOKEN", token.to_owned())));
        let said = place.zone.shard(&["validate", &path]).await?;
        ensure!(said.out.contains(says) && !said.out.contains("wrong-token"), "{token:?}: {said:?}");
    }
    // An API that does not answer says nothing about the file.
    place.simulator.stop().await;
    place.zone.environment.push(("HCLOUD_TOKEN", TOKEN.to_owned()));
    let said = place.zone.shard(&["validate", &path]).await?;
    ensure!(said.code == 0 && said.out.contains("warning: shard.provider: its names were not looked up"), "{said:?}");
    Ok(())
}
