//! Servers of a shard that die, with machines at Hetzner.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use anyhow::{Context as _, Result, ensure};
use plan::shard::{election::Timing, instance::Record};
use serde_json::json;
use shard::{
    clock::Clock,
    provider::FaultyProvider,
    server::{Context, Term, TermError},
    store::{Election, Expect, Faults, FaultyStore, MemoryStore, Role, Side, Store, layout::ShardLayout},
    wire::{self, Fence},
};

use super::Cloud;

/// What outlives servers.
struct World {
    cloud: Cloud,
    store: MemoryStore,
    clock: Clock,
    ids: Arc<AtomicU64>,
    servers: AtomicU64,
}

impl World {
    async fn new() -> Result<Self> {
        let config = json!({
            "cluster": { "id": "dev" },
            "shard": {
                "id": "a", "provider": { "kind": "hcloud" }, "subnet_pools": { "one": ["fsn1"] },
                "default_drain_timeout": "0",
            },
            "templates": {
                "web": {
                    "kind": "web", "arch": "amd64", "subnet_pool": "one", "instance_type": "cx23",
                    "args": { "image": "debian-13", "location": "fsn1" },
                },
            },
        });
        let store = MemoryStore::default();
        store.put(&ShardLayout::new("a").config(), config.to_string().into_bytes(), Expect::Absent).await?;
        let (ids, servers) = (Arc::new(AtomicU64::new(1)), AtomicU64::new(0));
        Ok(Self { cloud: Cloud::start().await?, store, clock: Clock::default(), ids, servers })
    }

    /// A server that leads; `None` if it died before.
    async fn lead(&self, faults: &Faults) -> Option<Result<Term>> {
        alive(faults, self.open(faults)).await
    }

    async fn open(&self, faults: &Faults) -> Result<Term> {
        let (layout, ids) = (ShardLayout::new("a"), Arc::clone(&self.ids));
        // The server before is dead, and its time is over.
        self.store.delete(&layout.lock()).await?;
        let store: Arc<dyn Store> = Arc::new(FaultyStore::new(Arc::new(self.store.clone()), faults.clone()));
        let context = Context {
            cluster: "dev".to_owned(),
            shard: "a".to_owned(),
            layout: layout.clone(),
            store: Arc::clone(&store),
            provider: Arc::new(FaultyProvider::new(Arc::new(self.cloud.provider()), faults.clone())),
            clock: self.clock.clone(),
            ids: Box::new(move || u128::from(ids.fetch_add(1, Ordering::Relaxed))),
        };
        let number = self.servers.fetch_add(1, Ordering::Relaxed);
        let mut election =
            Election::new(store, &layout.lock(), &format!("s{number}"), "127.0.0.1:1", Timing::default());
        let Role::Leader(lead) = election.look().await? else { anyhow::bail!("it does not lead") };
        Ok(Term::open(Arc::new(context), lead).await?)
    }

    fn records(&self) -> Result<Vec<Record>> {
        let folder = ShardLayout::new("a").instances();
        let objects = self.store.snapshot();
        let ours = objects.iter().filter(|(key, _)| key.starts_with(&folder));
        ours.map(|(_, body)| Ok(serde_json::from_slice(body)?)).collect()
    }

    /// Name and number of every server, and of every instance that is not deleted.
    fn both(&self) -> Result<(BTreeMap<String, String>, BTreeMap<String, String>)> {
        let servers = self.cloud.servers().into_iter().map(|server| (server.name, server.id.to_string()));
        let living = self.records()?.into_iter().filter(|record| record.deleted_at.is_none());
        let living = living.map(|record| (record.id.to_string(), record.provider_id().to_owned()));
        Ok((servers.collect(), living.collect()))
    }
}

/// What a process does until it dies.
async fn alive<T>(faults: &Faults, work: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        () = faults.death() => None,
        done = work => Some(done),
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Scale(i32),
    /// Hetzner loses one of the servers.
    Lose,
    Sweep,
}

const SCRIPT: [Step; 4] = [Step::Scale(2), Step::Lose, Step::Scale(0), Step::Sweep];

impl Step {
    async fn run(self, world: &World, term: &Term, lost: &mut Option<String>) -> Result<(), TermError> {
        match self {
            Self::Scale(size) => scale(term, size).await?,
            Self::Lose => {
                if lost.is_none() {
                    *lost = world.cloud.names().into_iter().min();
                    world.cloud.simulator.lose(lost.as_deref().unwrap_or_default()).await;
                }
                term.observe().await?;
            }
            Self::Sweep => drop(term.sweep().await?),
        }
        term.settle("default", "web").await.map(drop)
    }
}

async fn scale(term: &Term, size: i32) -> Result<(), TermError> {
    let config = wire::GroupConfig { template: "web".to_owned(), size, ..wire::GroupConfig::default() };
    let request = wire::UpsertGroupRequest { key: "web".to_owned(), config: Some(config), remove_first: vec![] };
    term.upsert_group("default", request, &Fence::default()).await.map(drop)
}

/// Runs the script; the first server dies there. Returns how many effects it had.
async fn run(world: &World, death: Option<(usize, Side)>) -> Result<usize> {
    let first = death.map_or_else(Faults::default, |(point, side)| Faults::dying(point, side));
    let (mut faults, mut term, mut lost) = (first.clone(), None, None);
    for step in SCRIPT {
        loop {
            if term.is_none() {
                if faults.is_dead() {
                    faults = Faults::default();
                }
                term = world.lead(&faults).await.transpose()?;
            }
            let Some(living) = &term else { continue };
            match alive(&faults, step.run(world, living, &mut lost)).await {
                Some(done) => break done.with_context(|| format!("{step:?}"))?,
                None => term = None,
            }
        }
        let (servers, living) = world.both()?;
        ensure!(servers == living, "{step:?}: {servers:?} {living:?}");
    }
    Ok(first.effects())
}

#[tokio::test]
async fn a78_a_server_may_die_at_every_effect_with_machines_at_hetzner() -> Result<()> {
    let world = World::new().await?;
    let effects = run(&world, None).await?;
    let made = |world: &World| anyhow::Ok(world.cloud.requests("POST", "/servers")?.len());
    ensure!(made(&world)? == 3, "two, and one for the one that was lost");
    let mut points = 0;
    for point in 0..effects {
        for side in [Side::Before, Side::After] {
            let world = World::new().await?;
            run(&world, Some((point, side))).await.with_context(|| format!("{point} {side:?}"))?;
            ensure!(made(&world)? == 3, "{point} {side:?}: no server was made twice or in vain");
            ensure!(world.cloud.servers().is_empty(), "{point} {side:?}: {:?}", world.cloud.servers());
            points += 1;
        }
    }
    println!("{points} points: {effects} effects, the server killed before and after each");
    ensure!(effects > 15, "{effects} effects");
    Ok(())
}

/// A list of two pages, between which a server goes and another comes: the instance is on neither.
#[tokio::test]
async fn a_machine_that_a_list_misses_is_not_gone() -> Result<()> {
    let world = World::new().await?;
    let cloud = &world.cloud.simulator;
    ensure!(cloud.add_servers(super::TOKEN, "foreign", 50));
    let term = world.open(&Faults::default()).await?;
    scale(&term, 1).await?;
    term.settle("default", "web").await?;
    let before = world.both()?.1;
    ensure!(before.len() == 1, "{before:?}");
    for seconds in ["slow=0", "slow=0.5"] {
        cloud.faults().add("GET /servers", seconds.parse()?, Some(1))?;
    }
    let pages = world.cloud.requests("GET", "/servers")?.len();
    let change = async {
        while world.cloud.requests("GET", "/servers")?.len() == pages {
            tokio::task::yield_now().await;
        }
        ensure!(cloud.lose("foreign-0").await && cloud.add_servers(super::TOKEN, "later", 1));
        Ok(())
    };
    let (observed, changed) = tokio::join!(term.observe(), change);
    changed?;
    let observed = observed?;
    ensure!(cloud.faults().list().is_empty(), "both pages were read");
    ensure!(observed.len() == 1, "asked about by itself it is there: {observed:?}");
    term.settle("default", "web").await?;
    ensure!(world.both()?.1 == before, "{before:?}");
    Ok(())
}

/// A person copies a server with its labels: which of the two is the instance's the record says.
#[tokio::test]
async fn a_server_with_an_instances_labels_is_neither_taken_for_its_own_nor_deleted() -> Result<()> {
    let world = World::new().await?;
    let term = world.open(&Faults::default()).await?;
    scale(&term, 1).await?;
    term.settle("default", "web").await?;
    let before = world.both()?.1;
    let own = world.cloud.servers().pop().context("a server")?;
    let copy = json!({
        "name": "copy", "server_type": "cx23", "image": "debian-13", "location": "fsn1", "labels": own.labels,
        "start_after_create": false,
    });
    super::send(&world.cloud, "POST", "/servers", &copy).await?;
    term.sweep().await?;
    term.settle("default", "web").await?;
    let (servers, living) = world.both()?;
    ensure!(servers.len() == 2 && living == before, "{servers:?} {living:?}");
    // While only the other one is found, the instance's is unknown, also to the next leader.
    ensure!(world.cloud.simulator.lose(&own.name).await);
    let next = world.open(&Faults::default()).await?;
    next.sweep().await?;
    next.settle("default", "web").await?;
    let (servers, living) = world.both()?;
    ensure!(servers.keys().eq(["copy"]) && living == before, "{servers:?} {living:?}");
    super::send(&world.cloud, "PUT", &format!("/servers/{}", servers["copy"]), &json!({ "labels": {} })).await?;
    next.observe().await?;
    next.settle("default", "web").await?;
    let (servers, living) = world.both()?;
    ensure!(servers.contains_key("copy") && servers.len() == 2, "{servers:?}");
    ensure!(living.len() == 1 && living != before, "{living:?}");
    Ok(())
}

/// The list can be read and the machine cannot be asked about: it is unknown.
#[tokio::test]
async fn a_machine_of_which_nothing_is_known_is_not_gone() -> Result<()> {
    let world = World::new().await?;
    let term = world.open(&Faults::default()).await?;
    scale(&term, 1).await?;
    term.settle("default", "web").await?;
    let before = world.both()?.1;
    let [(name, number)] = &Vec::from_iter(before.clone())[..] else { anyhow::bail!("{before:?}") };
    // A person takes the labels away: no list has it any more, and whose it is cannot be said.
    super::send(&world.cloud, "PUT", &format!("/servers/{number}"), &json!({ "labels": {} })).await?;
    term.sweep().await?;
    term.settle("default", "web").await?;
    ensure!(world.both()? == (before.clone(), before.clone()), "neither replaced nor removed: {:?}", world.both()?);
    // The next leader knows no more.
    let next = world.open(&Faults::default()).await?;
    next.settle("default", "web").await?;
    ensure!(world.both()? == (before.clone(), before.clone()), "{:?}", world.both()?);
    ensure!(world.cloud.simulator.lose(name).await);
    next.observe().await?;
    next.settle("default", "web").await?;
    let (servers, living) = world.both()?;
    ensure!(servers == living && servers.len() == 1 && servers != before, "{servers:?} {living:?}");
    Ok(())
}
