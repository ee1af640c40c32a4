//! `strata shard` as users run it: the server as a process, and the commands around it.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;
use testbed::process::{Child, Program};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::Instant,
};

use crate::cli::place::{Said, run, strata};

/// A busy machine is slow; nothing here takes a tenth of it otherwise.
const PATIENCE: Duration = Duration::from_mins(3);

/// Between two looks.
const LOOK: Duration = Duration::from_millis(50);

/// A storage of its own, and the commands run on it.
pub struct Zone {
    directory: TempDir,
    /// Of every program.
    pub environment: Vec<(&'static str, String)>,
}

pub struct Server {
    pub child: Child,
}

pub fn config() -> Value {
    json!({
        "cluster": { "id": "test" },
        "shard": {
            "id": "a",
            "provider": { "kind": "process", "in_process": true },
            "subnet_pools": { "one": ["s1"] },
            // No other server replaces it, and a busy machine must not cost it its lead, and with that its ports.
            "election": { "frequent": "5s", "leader_timeout": "10m" },
        },
        "templates": { "web": { "kind": "web", "arch": "amd64", "subnet_pool": "one" } },
    })
}

/// For a shard whose server is killed and started again: that one waits until the lock of the killed one has lapsed.
pub fn quick_election() -> Value {
    json!({ "frequent": "300ms", "leader_timeout": "3s" })
}

impl Zone {
    pub fn new() -> Result<Self> {
        Ok(Self { directory: tempfile::tempdir()?, environment: Vec::new() })
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub async fn shard(&self, args: &[&str]) -> Result<Said> {
        let mut command = strata(&["shard"]);
        command.args(args).env("STRATA_SHARD_STORAGE", self.file("storage"));
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        run(command).await
    }

    async fn init(&self) -> Result<Said> {
        self.init_with(&config()).await
    }

    pub async fn init_with(&self, config: &Value) -> Result<Said> {
        let file = self.file("first.jsonc");
        std::fs::write(&file, config.to_string())?;
        self.shard(&["init", "a", "--cluster=test", "--config", file.to_str().context("a path")?]).await
    }

    pub async fn json(&self, args: &[&str]) -> Result<Value> {
        Ok(serde_json::from_str(&self.shard(args).await?.data()?)?)
    }

    /// The server with any free ports.
    pub fn start(&self) -> Result<Server> {
        self.start_with(&[])
    }

    fn start_with(&self, args: &[&str]) -> Result<Server> {
        let any = |name: &str| format!("--{name}-bind-address=127.0.0.1:0");
        let ports = ["health", "metrics", "election", "registration", "operator", "agent"].map(any);
        let mut program = Program::new("strata shard", env!("CARGO_BIN_EXE_strata"), self.file("server.log"))
            .args(["shard", "run", "a", "--advertise-host=127.0.0.1", "--log-format=json"])
            .args(ports)
            .args(args.iter().copied())
            .env("STRATA_SHARD_STORAGE", self.file("storage"));
        for (name, value) in &self.environment {
            program = program.env(name, value);
        }
        Ok(Server { child: Child::start(program)? })
    }
}

impl Server {
    /// An address that the server logged.
    pub async fn address(&self, field: &str) -> Result<SocketAddr> {
        eventually(field, async || {
            let log = std::fs::read_to_string(&self.child.program().log).ok()?;
            let mut lines = log.lines().rev().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            lines.find_map(|line| line[field].as_str()?.parse().ok())
        })
        .await
        .with_context(|| self.child.log_tail())
    }

    /// Waits for a line with both: a thread of its own writes them.
    async fn logged(&self, what: &str, of: &str) -> Result<()> {
        eventually(what, async || {
            let log = std::fs::read_to_string(&self.child.program().log).ok()?;
            log.lines().any(|line| line.contains(what) && line.contains(of)).then_some(())
        })
        .await
        .with_context(|| self.child.log_tail())
    }

    /// Status line and body of an admin port's answer.
    async fn get(&self, port: &str, path: &str) -> Result<(String, String)> {
        let mut stream = TcpStream::connect(self.address(port).await?).await?;
        stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        let (head, body) = answer.split_once("\r\n\r\n").context("an answer")?;
        Ok((head.lines().next().unwrap_or_default().to_owned(), body.to_owned()))
    }

    /// Waits until a metric of the shard has this value.
    pub async fn metric(&self, name: &str, value: u32) -> Result<()> {
        let line = format!("{name}{{shard=\"a\"}} {value}");
        let ask = async || {
            let (_, body) = self.get("metrics", "/metrics").await.ok()?;
            body.lines().any(|one| one == line).then_some(())
        };
        eventually(&line, ask).await.with_context(|| self.child.log_tail())
    }
}

pub async fn eventually<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> Result<T> {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(answer) = ask().await {
            return Ok(answer);
        }
        ensure!(Instant::now() < until, "{what} did not happen");
        tokio::time::sleep(LOOK).await;
    }
}

#[tokio::test]
async fn a84_health_is_503_until_the_configuration_is_loaded_and_a_stop_releases_the_lead() -> Result<()> {
    let zone = Zone::new()?;
    let server = zone.start()?;
    for path in ["/", "/health", "/readyz"] {
        let (status, body) = server.get("health", path).await?;
        ensure!(status.contains("503") && body.contains("configuration"), "{path}: {status} {body}");
    }
    ensure!(server.get("health", "/livez").await?.0.contains("200"), "a server that waits is alive");
    server.metric("strata_shard_config_loaded", 0).await?;
    zone.init().await?.data()?;
    let healthy = async || {
        let (status, body) = server.get("health", "/health").await.ok()?;
        (status.contains("200") && body == "ok").then_some(())
    };
    eventually("/health", healthy).await.with_context(|| server.child.log_tail())?;
    server.metric("strata_shard_leader", 1).await?;
    server.metric("strata_shard_cluster_leader", 1).await?;
    let leads = async || {
        let status = zone.json(&["status", "-o", "json"]).await.ok()?;
        (status[0]["shard"] == "a" && status[0]["leader"].is_string()).then_some(())
    };
    eventually("the status names a leader", leads).await?;
    server.child.signal(Signal::TERM)?;
    ensure!(tokio::time::timeout(PATIENCE, server.child.exited()).await? == 0, "{}", server.child.log_tail());
    ensure!(server.child.log_tail().contains("strata shard ends"), "{}", server.child.log_tail());
    let status = zone.json(&["status", "a", "-o", "json"]).await?;
    ensure!(status[0]["leader"].is_null() && status[0]["epoch"] == 1, "{status}");
    Ok(())
}

#[tokio::test]
async fn commands_steer_a_server_and_the_storage_answers_without_it() -> Result<()> {
    let zone = Zone::new()?;
    zone.init().await?.data()?;
    let server = zone.start()?;
    let endpoint = server.address("operator").await?.to_string();
    let at = format!("--endpoint={endpoint}");
    let conformance = zone.shard(&["conformance", &endpoint]).await?;
    ensure!(conformance.code == 0 && !conformance.out.contains("FAILED"), "{conformance:?}");
    zone.shard(&["scale", "a", "web", "2", &at]).await?.data()?;
    let running = async || {
        let instances = zone.json(&["instances", "a", "-o", "json"]).await.ok()?;
        let all = instances.as_array()?;
        (all.len() == 2 && all.iter().all(|one| one["status"] == "running")).then_some(instances)
    };
    let instances = eventually("two instances", running).await.with_context(|| server.child.log_tail())?;
    let id = instances[0]["instanceID"].as_str().context("an id")?;
    let expected = json!({
        "instanceID": id, "providerID": format!("process:///a/{id}"), "group": "web", "shard": "a",
        "status": "running", "onDemand": false, "pid": null,
    });
    ensure!(instances[0] == expected, "{instances}");
    let negative = zone.shard(&["scale", "a", "web", "-1", &at]).await?.refusal(1)?;
    ensure!(negative.contains("config.size"), "{negative}");
    // A configuration that cannot be used is refused by name, and the server goes on with its last good one.
    let file = zone.file("storage/shard/a/config.jsonc");
    std::fs::write(&file, config().to_string().replace("amd64", "vax"))?;
    let refused = zone.shard(&["refresh", "a", &at]).await?.refusal(1)?;
    ensure!(refused.contains("templates.web.arch"), "{refused}");
    let (status, _) = server.get("health", "/health").await?;
    ensure!(status.contains("200"), "{status}");
    std::fs::write(&file, config().to_string())?;
    let same = zone.shard(&["refresh", "a", &at]).await?;
    ensure!(same.code == 0 && same.err.contains("already"), "{same:?}");
    server.child.kill().await?;
    ensure!(zone.json(&["instances", "-o", "json"]).await? == instances, "storage answers without a server");
    Ok(())
}

/// Two instances, one of which loses its record to a bad disk.
#[tokio::test]
async fn damaged_objects_are_named_and_hide_nothing_else() -> Result<()> {
    let zone = Zone::new()?;
    let alive = Alive::new(zone.file("alive"))?;
    let mut config = config();
    config["shard"]["provider"] =
        json!({ "kind": "process", "directory": zone.file("machines"), "lock": alive.path.clone() });
    config["shard"]["election"] = quick_election();
    config["groups"] = json!({ "default": { "web": { "template": "web", "size": 2 } } });
    zone.init_with(&config).await?.data()?;
    let server = zone.start()?;
    let running = async || {
        let instances = zone.json(&["instances", "-o", "json"]).await.ok()?;
        let is_full = instances.as_array()?.iter().filter(|one| one["status"] == "running").count() == 2;
        is_full.then_some(instances)
    };
    let before = eventually("two instances", running).await.with_context(|| server.child.log_tail())?;
    server.child.kill().await?;
    let folder = zone.file("storage/shard/a/instance");
    let record = std::fs::read_dir(&folder)?.next().context("a record")??.path();
    let (name, whole) = (record.file_name().context("a name")?.to_string_lossy().into_owned(), std::fs::read(&record)?);
    std::fs::write(&record, &whole[..whole.len() / 2])?;

    let said = zone.shard(&["instances", "-o", "json"]).await?;
    ensure!(said.err.contains(&name) && said.err.contains("restore it from a backup"), "{said:?}");
    let listed: Value = serde_json::from_str(&said.data()?)?;
    let ids =
        |all: &Value| all.as_array().map(|all| all.iter().map(|one| one["instanceID"].clone()).collect::<Vec<_>>());
    ensure!(ids(&listed) == ids(&before), "none is left out: {listed}");
    let count = |status: &str| listed.as_array().map(|all| all.iter().filter(|one| one["status"] == status).count());
    ensure!(count("unknown") == Some(1) && count("running") == Some(1), "{listed}");
    let server = zone.start()?;
    server.metric("strata_shard_leader", 1).await?;
    server.metric("strata_shard_damaged_records", 1).await?;
    server.logged("quarantined", &name).await?;
    let status = zone.json(&["status", "-o", "json"]).await?;
    ensure!(status[0]["damaged"][0].as_str().is_some_and(|one| one.contains(&name)), "{status}");
    std::fs::write(&record, &whole)?;
    zone.shard(&["refresh", "a"]).await?.data()?;
    server.metric("strata_shard_damaged_records", 0).await?;
    server.child.kill().await?;

    lost_groups_are_named(&zone).await?;
    // Each of the shard's other objects is named with its remedy, and the rest is shown.
    for (file, remedy) in [("groups.jsonc", "correct it"), ("leader.json", "stop every server")] {
        let path = zone.file(&format!("storage/shard/a/{file}"));
        let whole = std::fs::read(&path).ok();
        std::fs::write(&path, "{")?;
        let status = zone.json(&["status", "-o", "json"]).await?;
        let damaged = status[0]["damaged"][0].as_str().unwrap_or_default();
        ensure!(damaged.contains(file) && damaged.contains(remedy), "{status}");
        ensure!(status[0]["groups"][0]["instances"] == 2, "{status}");
        match whole {
            Some(whole) => std::fs::write(&path, whole)?,
            None => std::fs::remove_file(&path)?,
        }
    }
    std::fs::write(zone.file("storage/shard/a/config.jsonc"), b"\xff\xfe")?;
    ensure!(ids(&zone.json(&["instances", "-o", "json"]).await?) == ids(&before), "no configuration hides them");
    let status = zone.json(&["status", "-o", "json"]).await?;
    ensure!(status[0]["problem"].as_str().is_some_and(|why| why.contains("is not text")), "{status}");
    let found = zone.shard(&["validate"]).await?;
    ensure!(found.code == 1 && found.out.contains("error: config: is not text"), "{found:?}");
    Ok(())
}

/// By the commands, the log and a metric; and they are not made anew.
async fn lost_groups_are_named(zone: &Zone) -> Result<()> {
    let path = zone.file("storage/shard/a/groups.jsonc");
    let whole = std::fs::read(&path)?;
    std::fs::remove_file(&path)?;
    let found = zone.shard(&["validate"]).await?;
    ensure!(found.code == 1 && found.out.contains("error: groups.jsonc:"), "{found:?}");
    let status = zone.json(&["status", "-o", "json"]).await?;
    let damaged = status[0]["damaged"][0].as_str().unwrap_or_default();
    ensure!(damaged.contains("groups.jsonc") && damaged.contains("restore it"), "{status}");
    ensure!(status[0]["groups"][0]["size"].is_null() && status[0]["groups"][0]["instances"] == 2, "{status}");
    let server = zone.start()?;
    server.metric("strata_shard_groups_damaged", 1).await?;
    server.logged("the lead ended", "groups.jsonc").await?;
    ensure!(!path.exists(), "it is not made anew");
    std::fs::write(&path, whole)?;
    server.metric("strata_shard_groups_damaged", 0).await?;
    server.metric("strata_shard_leader", 1).await?;
    server.child.kill().await?;
    ensure!(zone.shard(&["validate"]).await?.code == 0, "it is whole");
    Ok(())
}

#[tokio::test]
async fn init_keeps_what_is_there_and_nonce_prints_only_the_token() -> Result<()> {
    let zone = Zone::new()?;
    let missing = zone.shard(&["nonce"]).await?.refusal(1)?;
    ensure!(missing.contains("strata shard init"), "{missing}");
    for command in ["status", "instances", "validate"] {
        let mistyped = zone.shard(&[command]).await?.refusal(1)?;
        ensure!(mistyped.contains("there is no such folder"), "{command}: {mistyped}");
    }
    ensure!(!zone.file("storage").exists(), "a command that reads makes no storage");
    zone.init().await?.data()?;
    let keys = || std::fs::read(zone.file("storage/cluster/ca.crt"));
    let before = keys()?;
    let again = zone.init().await?;
    ensure!(again.code == 0 && again.err.contains("stays") && keys()? == before, "{again:?}");
    for tenant in ["default", "acme"] {
        let token = zone.shard(&["nonce", "--tenant", tenant]).await?.data()?;
        ensure!(token.trim_end().split('.').count() == 3 && token.lines().count() == 1, "{token:?}");
    }
    let bad = zone.shard(&["nonce", "--tenant", "No Tenant"]).await?.refusal(1)?;
    ensure!(bad.contains("tenant"), "{bad}");
    let agent = zone.shard(&["nonce", "--kind", "agent"]).await?.refusal(2)?;
    ensure!(agent.contains("--instance"), "{agent}");
    let instance = "--instance=web01jc0000000000000000000000";
    let agent_of = async |shard| zone.shard(&["nonce", "--kind=agent", instance, "--shard", shard]).await;
    let mistyped = agent_of("zone-a").await?.refusal(1)?;
    ensure!(mistyped.contains("no shard \"zone-a\"") && mistyped.contains("that is there (a)"), "{mistyped}");
    ensure!(agent_of("a").await?.data()?.trim_end().split('.').count() == 3, "a shard that is there");
    // No environment of `strata dev` is up there.
    let mut nowhere = strata(&["shard", "status", "--storage="]);
    nowhere.env("STRATA_DEV_DIR", zone.file("no-environment"));
    let nowhere = run(nowhere).await?.refusal(1)?;
    ensure!(nowhere.contains("--storage") && nowhere.contains("strata dev up"), "{nowhere}");
    Ok(())
}

/// Where, what it becomes, and the field that is named with the remedy; `None` for a configuration that can be used.
type Case = (&'static str, Value, Option<(&'static str, &'static str)>);

fn cases() -> Vec<Case> {
    let group = |name: &str, group: Value| json!({ "default": { name: group } });
    let drained = group("web", json!({ "template": "web", "size": 1, "drain_timeout": "0s" }));
    let pooled = group("x", json!({ "template": "web", "subnet_pool": "none" }));
    let old = json!({ "eligible_age": "2h", "forced_age": "1h" });
    let twice = json!({ "one": ["s1"], "two": ["s1"] });
    let url = json!({ "source": "url", "content": "https://example.com" });
    let letters = "lower-case letters";
    vec![
        ("/groups", drained, None),
        ("/cluster/id", json!("Not An Id"), Some(("cluster.id", letters))),
        ("/shard/id", json!(""), Some(("shard.id", letters))),
        ("/groups", json!({ "No": {} }), Some(("groups.No", letters))),
        ("/groups", group("a--b", json!({ "template": "web" })), Some(("groups.default.a--b", letters))),
        ("/templates/Web", json!({ "kind": "web", "arch": "amd64" }), Some(("templates.Web", letters))),
        ("/shard/provider/kind", json!("aws"), Some(("shard.provider.kind", "supported: process"))),
        ("/shard/provider/folder", json!("/x"), Some(("shard.provider", "expected one of `directory`"))),
        ("/shard/subnet_pools", json!({}), Some(("shard.subnet_pools", "at least one pool"))),
        ("/shard/subnet_pools", twice, Some(("shard.subnet_pools.two", "a subnet has one pool"))),
        ("/shard/dynamic_subnet_pools", json!(["none"]), Some(("shard.dynamic_subnet_pools", "known: one"))),
        ("/templates/web/subnet_pool", json!("none"), Some(("templates.web.subnet_pool", "known: one"))),
        ("/groups", pooled, Some(("groups.default.x.subnet_pool", "known: one"))),
        ("/templates/web/kind", json!("wide"), Some(("templates.web.kind", "exactly three lower-case letters"))),
        ("/templates/web/size", json!(-1), Some(("templates.web.size", "at least 0"))),
        (
            "/groups",
            group("x", json!({ "template": "web", "size": -1 })),
            Some(("groups.default.x.size", "at least 0")),
        ),
        ("/groups", group("x", json!({ "template": "none" })), Some(("groups.default.x.template", "known: web"))),
        ("/shard/expiry", old, Some(("shard.expiry.forced_age", "must exceed expiry.eligible_age (2h)"))),
        ("/shard/election", json!({ "frequent": 5 }), Some(("shard.election.frequent", "correct or remove it"))),
        ("/shard/infra", json!({ "provider": "tmux" }), Some(("shard.infra", "write shard.provider instead"))),
        ("/templates/web/userdata", json!("{{ .Vars.X }}"), None),
        (
            "/templates/web/userdata",
            json!("{{ .Server.Adress }}"),
            Some(("templates.web.userdata", "known are .Cluster")),
        ),
        ("/templates/web/userdata", json!("{{ if }}"), Some(("templates.web.userdata", "correct the template"))),
        ("/templates/web/userdata", json!({ "content": "#!/bin/sh\n" }), None),
        ("/templates/web/userdata", url, Some(("templates.web.userdata", "put the text itself here"))),
    ]
}

#[tokio::test]
async fn validate_names_each_bad_field_with_its_remedy() -> Result<()> {
    let zone = Zone::new()?;
    let file = zone.file("case.jsonc");
    let path = file.to_str().context("a path")?;
    for (at, value, named) in cases() {
        let mut config = config();
        let (parent, key) = at.rsplit_once('/').context("a pointer")?;
        let parent = config.pointer_mut(parent).context("a place")?;
        parent[key] = value;
        std::fs::write(&file, config.to_string())?;
        let said = zone.shard(&["validate", path]).await?;
        let is_named = match named {
            None => said.out.ends_with(": valid\n"),
            Some((field, remedy)) => {
                let start = format!(": error: {field}: ");
                said.out.lines().any(|line| line.contains(&start) && line.contains(remedy))
            }
        };
        ensure!(said.code == i32::from(named.is_some()) && is_named, "{at}: {said:?}");
    }
    let mut cut = config();
    cut["load_balancers"] = json!({});
    cut["images"] = json!({});
    cut["templates"]["web"]["files"] = json!({});
    std::fs::write(&file, cut.to_string())?;
    let said = zone.shard(&["validate", path]).await?.data()?;
    for key in ["load_balancers", "images", "templates.web.files"] {
        ensure!(said.contains(&format!(": warning: {key}: ")), "{said}");
    }
    std::fs::write(&file, "{")?;
    ensure!(zone.shard(&["validate", path]).await?.code == 1, "no JSON");
    Ok(())
}

/// An environment that machines end with: a file that this process has locked.
struct Alive {
    _lock: std::fs::File,
    path: PathBuf,
}

impl Alive {
    fn new(path: PathBuf) -> Result<Self> {
        let lock = std::fs::File::create(&path)?;
        rustix::fs::fcntl_lock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive)?;
        Ok(Self { _lock: lock, path })
    }
}

#[tokio::test]
async fn machines_are_given_the_ports_that_are_open_and_commands_find_the_leader_by_its_lock() -> Result<()> {
    let zone = Zone::new()?;
    let alive = Alive::new(zone.file("alive"))?;
    let mut config = config();
    config["shard"]["provider"] =
        json!({ "kind": "process", "directory": zone.file("machines"), "lock": alive.path.clone() });
    zone.init_with(&config).await?.data()?;
    let server = zone.start()?;
    // No port is where the original has it, and none is named: the command waits for the lead.
    zone.shard(&["scale", "a", "web", "1"]).await?.data()?;
    let listed = async || {
        let instances = zone.json(&["instances", "a", "-o", "json"]).await.ok()?;
        Some((instances[0]["instanceID"].as_str()?.to_owned(), instances[0]["pid"].as_u64()?))
    };
    let (id, pid) = eventually("a process", listed).await.with_context(|| server.child.log_tail())?;
    let registered = zone.file(&format!("storage/shard/a/agent-nonce/{id}.pem"));
    let log = || std::fs::read_to_string(zone.file(&format!("machines/{id}/log"))).unwrap_or_default();
    eventually("its registration", async || registered.is_file().then_some(())).await.with_context(log)?;
    let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline"))?.replace('\0', " ");
    for (flag, port) in [("registration-addr", "registration"), ("agent-addr", "agent")] {
        let address = server.address(port).await?;
        ensure!(line.contains(&format!("--{flag} {address} ")), "{line}");
    }
    ensure!(line.contains(&format!(" agent --instance-id {id} ")), "{line}");
    // Listed also while no server runs, with its own process.
    server.child.kill().await?;
    ensure!(listed().await == Some((id, pid)), "the storage answers without a server");
    // Its environment ends, and it with it: then there is no process to name.
    drop(alive);
    let gone = async || {
        let instances = zone.json(&["instances", "-o", "json"]).await.ok()?;
        instances[0]["pid"].is_null().then_some(())
    };
    eventually("its end", gone).await
}

#[tokio::test]
async fn a_server_without_the_clusters_keys_says_what_to_do_and_ends_with_1() -> Result<()> {
    let zone = Zone::new()?;
    std::fs::create_dir_all(zone.file("storage/shard/a"))?;
    std::fs::write(zone.file("storage/shard/a/config.jsonc"), config().to_string())?;
    let server = zone.start()?;
    let code = tokio::time::timeout(PATIENCE, server.child.exited()).await?;
    let log = server.child.log_tail();
    ensure!(code == 1 && log.contains("cluster/ca.crt is missing; `strata shard init` makes"), "{code}: {log}");
    Ok(())
}

#[tokio::test]
async fn new_machines_get_the_addresses_of_every_server_of_the_shard() -> Result<()> {
    let (zone, mut config) = (Zone::new()?, config());
    let machines = zone.file("machines");
    // It ends with this test.
    let wait = format!("while kill -0 {} 2>/dev/null; do sleep 1; done", std::process::id());
    config["shard"]["provider"] = json!({ "kind": "process", "directory": machines });
    config["templates"]["web"]["userdata"] = json!(format!(
        "echo {{{{ .Server.RegistrationAddr }}}} {{{{ .Server.AgentAddr }}}} >new\nmv new addresses\n{wait}\n"
    ));
    config["shard"]["default_drain_timeout"] = json!("0");
    config["groups"] = json!({ "default": { "web": { "template": "web", "size": 1 } } });
    zone.init_with(&config).await?.data()?;
    let (registration, agent) = ("10.0.0.1:8992,10.0.0.2:8992", "10.0.0.1:8994,10.0.0.2:8994");
    let server = zone.start_with(&["--advertise-registration", registration, "--advertise-agent", agent])?;
    let seen = eventually("a machine", async || {
        let mut folders = std::fs::read_dir(&machines).ok()?;
        folders.find_map(|folder| std::fs::read_to_string(folder.ok()?.path().join("addresses")).ok())
    })
    .await
    .with_context(|| server.child.log_tail())?;
    ensure!(seen.trim() == format!("{registration} {agent}"), "{seen}");
    zone.shard(&["scale", "a", "web", "0"]).await?.data()?;
    let ended = async || (std::fs::read_dir(&machines).ok()?.count() == 0).then_some(());
    eventually("the machine's end", ended).await
}
