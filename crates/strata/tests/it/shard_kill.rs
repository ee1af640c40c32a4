//! Servers of a shard are killed at seeded moments while a group changes its size. Servers and machines are processes;
//! storage is files. No instance may be lost or doubled, whoever is killed.
//!
//! A short part runs with the tests; `cargo xtask campaign shard` runs as much as it is asked for.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use plan::shard::{
    election::Lock,
    instance::{MachineStatus, Reason, Record},
};
use serde_json::json;
use shard::{
    client::Client,
    clock::Clock,
    identity::{ClusterKeys, Role, client_tls, key_pair},
    provider::{Process, Provider},
    store::{Expect, FileStore, Store, layout::ShardLayout},
    wire::Fence,
};
use tempfile::TempDir;
use testbed::process::{Child, Program};
use tokio::time::Instant;

use crate::zone::{eventually, free, upsert};

const CLUSTER: &str = "test";
const SHARD: &str = "a";
const GROUP: &str = "web";

/// As many instances as are worth waiting for.
const LARGEST: u64 = 5;

/// A kill hits anything between the request and the last instance.
const MOMENTS: Duration = Duration::from_millis(400);

/// Between two looks at everything: most kills hit what the one before left.
const LOOK_EVERY: u64 = 5;

/// The machines do nothing, and end with this test.
fn config(machines: &std::path::Path) -> String {
    let userdata = format!("while kill -0 {} 2>/dev/null; do sleep 1; done\n", std::process::id());
    json!({
        "cluster": { "id": CLUSTER },
        "shard": {
            "id": SHARD,
            "provider": { "kind": "process", "directory": machines },
            "subnet_pools": { "one": ["s1"] },
            "default_drain_timeout": "200ms",
            "election": { "frequent": "200ms", "leader_timeout": "1s" },
            "garbage_collection": { "interval": "1s", "registration_timeout": "10h" },
        },
        "templates": { GROUP: { "kind": "web", "arch": "amd64", "subnet_pool": "one", "userdata": userdata } },
    })
    .to_string()
}

struct Zone {
    directory: TempDir,
    store: FileStore,
    machines: Process,
    client: Client,
    /// Two servers, each with its own operator port.
    ports: [SocketAddr; 2],
    servers: [Option<Child>; 2],
    started: usize,
}

/// Who is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Victim {
    Leader,
    Standby,
    Both,
}

/// Chance that repeats.
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

impl Zone {
    async fn new() -> Result<Self> {
        // Another test of this process may have been first.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let (directory, clock) = (tempfile::tempdir()?, Clock::default());
        let store = FileStore::open(directory.path().join("storage"))?;
        let keys = ClusterKeys::init(&store, CLUSTER, None, clock.now()).await?;
        let machines = directory.path().join("machines");
        store.put(&ShardLayout::new(SHARD).config(), config(&machines).into_bytes(), Expect::Absent).await?;
        let ports = free(Ipv4Addr::LOCALHOST);
        let key = key_pair();
        let (subject, day) = ((CLUSTER, "default", Role::Operator), Duration::from_hours(24));
        let (certificate, _) =
            keys.authority.issue_client(subject, key.public_key_pem().as_bytes(), clock.now(), day)?;
        let pair = Some((&*certificate, &*key.serialize_pem()));
        let tls = client_tls(keys.authority.certificate_pem(), pair, Arc::new(clock.clone()))?;
        let client = Client::new(format!("{},{}", ports[0], ports[1]).parse()?, tls);
        let machines = Process::open(&machines, clock)?;
        let mut zone = Self { directory, store, machines, client, ports, servers: [None, None], started: 0 };
        zone.start_missing()?;
        Ok(zone)
    }

    /// Starts the servers that do not run.
    fn start_missing(&mut self) -> Result<()> {
        for (server, port) in self.servers.iter_mut().zip(self.ports) {
            if server.is_some() {
                continue;
            }
            self.started += 1;
            let log: PathBuf = self.directory.path().join(format!("server-{}.log", self.started));
            let any = |name: &str| format!("--{name}-bind-address=127.0.0.1:0");
            let program = Program::new("strata shard", env!("CARGO_BIN_EXE_strata"), log)
                .args(["shard", "run", SHARD, "--advertise-host=127.0.0.1", "--log-format=json"])
                .args(["health", "metrics", "election", "registration", "agent"].map(any))
                .args([format!("--operator-bind-address={port}")])
                .env("STRATA_SHARD_STORAGE", self.directory.path().join("storage"));
            *server = Some(Child::start(program)?);
        }
        Ok(())
    }

    /// Asks until a leader accepts, as an operator does.
    async fn scale(&self, size: i32) {
        let ask = || async { self.client.upsert_group(upsert(GROUP, size), &Fence::default()).await.ok() };
        eventually("an answer of a leader", ask).await;
    }

    /// The process that holds the lock.
    async fn leader(&self) -> Result<u32> {
        let held = || async {
            let object = self.store.get(&ShardLayout::new(SHARD).lock()).await.ok()??;
            let lock: Lock = serde_json::from_slice(&object.body).ok()?;
            let pid = lock.holder.split('_').nth(1)?.parse().ok()?;
            let runs = self.servers.iter().flatten().any(|server| server.pid() == pid);
            runs.then_some(pid)
        };
        Ok(eventually("a leader", held).await)
    }

    async fn kill(&mut self, victim: Victim) -> Result<()> {
        let leader = self.leader().await?;
        for server in &mut self.servers {
            let Some(child) = server else { continue };
            let leads = child.pid() == leader;
            let hit = match victim {
                Victim::Leader => leads,
                Victim::Standby => !leads,
                Victim::Both => true,
            };
            if hit {
                child.kill().await?;
                *server = None;
            }
        }
        Ok(())
    }

    async fn records(&self) -> Result<BTreeMap<String, Record>> {
        let mut records = BTreeMap::new();
        for key in self.store.list(&ShardLayout::new(SHARD).instances()).await? {
            let object = self.store.get(&key).await?.context("it is there")?;
            let record: Record = serde_json::from_slice(&object.body)?;
            records.insert(record.id.to_string(), record);
        }
        Ok(records)
    }

    /// The instances once there are so many, with a running machine each, and no other machine. By id, with their pids.
    async fn settled(&self, size: usize) -> Result<BTreeMap<String, Option<u32>>> {
        let look = || async {
            let living = self.records().await.ok()?.into_values().filter(|record| record.deleted_at.is_none());
            let living: Vec<Record> = living.collect();
            let machines = self.machines.list(CLUSTER, SHARD).await.ok()?;
            let ids: BTreeSet<_> = living.iter().map(|record| record.id.to_string()).collect();
            let settled = living.len() == size
                && living.iter().all(|record| record.machine.is_some() && record.leaving.is_none())
                && machines.len() == size
                && machines
                    .iter()
                    .all(|machine| machine.status == MachineStatus::Running && ids.contains(&machine.instance_id));
            settled.then(|| ids.into_iter().map(|id| (id.clone(), self.machines.pid(&id))).collect())
        };
        Ok(eventually("as many instances as the group should have", look).await)
    }

    /// Whatever was killed, instances went because the group shrank.
    async fn check(&self, size: usize) -> Result<BTreeMap<String, Option<u32>>> {
        let instances = self.settled(size).await?;
        for record in self.records().await?.values().filter(|record| record.deleted_at.is_some()) {
            let reason = record.leaving.as_ref().map(|leaving| leaving.reason);
            ensure!(reason == Some(Reason::ScaleDown), "an instance was lost: {record:?}");
        }
        Ok(instances)
    }
}

/// A number that a campaign gives.
#[expect(clippy::disallowed_methods, reason = "how `cargo xtask campaign` speaks to this test")]
fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

#[tokio::test]
async fn a78_servers_are_killed_as_processes_at_seeded_moments() -> Result<()> {
    let kills = setting("STRATA_CAMPAIGN_KILLS").unwrap_or(20);
    let seed = setting("STRATA_CAMPAIGN_SEED").unwrap_or(1);
    let mut chance = Chance(seed);
    let mut zone = Zone::new().await?;
    let mut victims: BTreeMap<Victim, u64> = BTreeMap::new();
    let (mut size, mut killed) = (0, 0);
    let minutes = setting("STRATA_CAMPAIGN_MINUTES");
    let end = minutes.map(|minutes| Instant::now() + Duration::from_secs(60 * minutes));
    for kill in 1..=kills {
        if end.is_some_and(|end| Instant::now() >= end) {
            break;
        }
        killed = kill;
        size = i32::try_from(chance.below(LARGEST + 1))?;
        // Those who lead are hit most often.
        let victim = [Victim::Leader, Victim::Leader, Victim::Leader, Victim::Standby, Victim::Both];
        let victim = victim[usize::try_from(chance.below(5))?];
        let moment = MOMENTS * u32::try_from(chance.below(1000))? / 1000;
        let client = zone.client.clone();
        let request = tokio::spawn(async move { client.upsert_group(upsert(GROUP, size), &Fence::default()).await });
        tokio::time::sleep(moment).await;
        zone.kill(victim).await?;
        *victims.entry(victim).or_default() += 1;
        // Answered or not, the operator asks again.
        let _ = request.await?;
        zone.start_missing()?;
        zone.scale(size).await;
        if kill % LOOK_EVERY == 0 {
            let instances = zone.check(usize::try_from(size)?).await?;
            // At rest a kill costs no instance, and no machine notices.
            zone.kill(Victim::Both).await?;
            zone.start_missing()?;
            zone.scale(size).await;
            ensure!(zone.check(usize::try_from(size)?).await? == instances, "a kill at rest cost an instance");
        }
    }
    zone.check(usize::try_from(size)?).await?;
    zone.scale(0).await;
    zone.check(0).await?;
    println!("{killed} kills of seed {seed}: {victims:?}, and {} at rest", killed / LOOK_EVERY);
    Ok(())
}
