//! The operator is killed at writes and calls of pools that are made, grow, shrink, lose an instance and go, and of
//! machines for Pods; some announcements of shards come twice, again or not at all, and Cluster API is killed as well. No
//! instance may be lost or doubled, none may go before its Node is drained, and the end is that without a kill.
//!
//! A short part runs with the tests; `cargo xtask campaign machines` runs as much as it is asked for.

mod place;
mod world;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{DeleteParams, ListParams},
    config::Kubeconfig,
};
use serde_json::{Value, json};
use shard::{client::Client, provider::InProcess};
use testbed::{
    ControlPlane, Options, Random,
    capi::{self, ClusterApi},
    fault::FaultProxy,
};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use self::{
    place::{Place, SHARDS, Stage},
    world::World,
};
use crate::{
    scene::Scene,
    strike::{Armed, CALL, Point, Side, Strike, Strikes},
    wire::{Announcements, Wire},
};

/// Pools that are struck at once, each at an effect of its own. A shard takes eight calls at once, and a held one is
/// among them.
const PLACES: usize = 5;

/// More held calls than the default has slots.
const CONCURRENCY: usize = 64;

/// Shorter than the operator waits for an answer, so that what is held is still wanted when the operator is killed.
const STRIKE_WITHIN: Duration = Duration::from_secs(8);

/// Between two looks at everything.
const LOOK: Duration = Duration::from_millis(200);

/// A stage takes seconds; on a machine that is loaded twenty times over it was seen to take two minutes.
const PATIENCE: Duration = Duration::from_mins(6);

/// An instance that goes undrained leaves its pods for seconds.
const WATCH: Duration = Duration::from_millis(20);

/// A number that a campaign gives.
#[expect(clippy::disallowed_methods, reason = "how `cargo xtask campaign` speaks to this test")]
fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

#[tokio::test]
async fn killed_at_any_write_or_call_no_instance_is_lost_or_doubled() -> Result<()> {
    let seed = setting("STRATA_CAMPAIGN_SEED").unwrap_or(1);
    let points = setting("STRATA_CAMPAIGN_POINTS").unwrap_or(1);
    let mut campaign = Campaign::start(seed).await?;
    let mut cycles = 0;
    while campaign.points() < usize::try_from(points)? {
        cycles += 1;
        campaign.cycle(cycles).await.with_context(|| format!("cycle {cycles} of seed {seed}"))?;
        println!("cycle {cycles}: {} points so far", campaign.points());
    }
    println!("{}", campaign.summary(seed));
    Ok(())
}

struct Campaign {
    proxy: FaultProxy,
    wires: Vec<Wire>,
    strikes: Strikes,
    random: Random,
    /// The points that are left of each stage, in the order in which they are tried.
    decks: BTreeMap<Stage, Vec<Point>>,
    /// What was held when the operator was killed, and how often.
    hit: BTreeMap<(Stage, Side, String), usize>,
    /// Points that were not met: the number of the effect, and how many effects there were before the kill.
    missed: BTreeMap<Stage, Vec<(u64, u64)>>,
    kills: usize,
    /// As many machines as there should have been, ever.
    made: usize,
    /// Instances that went before their pods.
    undrained: Arc<Mutex<Vec<String>>>,
    _watch: AbortOnDropHandle<()>,
    /// Clients of the servers beside the operator's.
    shards: Vec<Client>,
    scene: Scene,
    cluster_api: ClusterApi,
    // The last to be dropped: everything else uses it.
    control_plane: ControlPlane,
}

impl Campaign {
    async fn start(seed: u64) -> Result<Self> {
        let control_plane = ControlPlane::start(Options { fsync: false, ..Options::default() }).await?;
        let crds: Vec<Value> = api::machine::crds().iter().map(|crd| json!(crd)).collect();
        control_plane.install(&crds).await?;
        // Started in the middle of a pool's deletion, Cluster API does not watch the NstanceMachinePool that it waits for,
        // and looks again after this period, by default ten minutes.
        let options = capi::Options { flags: vec!["--sync-period=20s".to_owned()] };
        let cluster_api = ClusterApi::start(&control_plane, &options).await?;
        let mut scene = Scene::on(&control_plane, "kill", &SHARDS, json!({})).await?;
        let proxy = FaultProxy::start(Kubeconfig::read_from(control_plane.kubeconfig())?, seed).await?;
        let (strikes, mut wires, mut addresses) = (Strikes::default(), Vec::new(), scene.zones.addresses());
        for shard in SHARDS {
            let (zones, port) = (&scene.zones, scene.zones.ports[shard].operator);
            let wire = Wire::start(port, &zones.authority, &zones.clock, &strikes).await?;
            addresses.get_mut(shard).context("it is configured")?["operator_addr"] = json!(wire.address.to_string());
            wires.push(wire);
        }
        scene.write_addresses("config.yaml", &addresses)?;
        scene.kubeconfig = Some(proxy.kubeconfig_path());
        scene.concurrency = Some(CONCURRENCY);
        scene.start().await?;
        let undrained = Arc::<Mutex<Vec<String>>>::default();
        let watch = tokio::spawn(watch_instances(scene.zones.cloud.clone(), scene.api(), undrained.clone()));
        Ok(Self {
            proxy,
            wires,
            strikes,
            random: Random(seed),
            decks: BTreeMap::new(),
            hit: BTreeMap::new(),
            missed: BTreeMap::new(),
            kills: 0,
            made: 0,
            undrained,
            _watch: AbortOnDropHandle::new(watch),
            shards: SHARDS.iter().map(|shard| scene.zones.client(shard)).collect::<Result<_>>()?,
            scene,
            cluster_api,
            control_plane,
        })
    }

    fn points(&self) -> usize {
        self.hit.values().sum()
    }

    /// Pools from nothing to nothing.
    async fn cycle(&mut self, number: usize) -> Result<()> {
        let mut places: Vec<Place> = (0..PLACES).map(|place| Place::new(number, place)).collect();
        let interrupted = self.random.below(Stage::ALL.len());
        for (index, stage) in Stage::ALL.into_iter().enumerate() {
            let modes = [Announcements::Twice, Announcements::Replayed, Announcements::Lost];
            let announcements = modes[self.random.below(modes.len())];
            self.wires.iter().for_each(|wire| wire.announce(announcements));
            let is_interrupted = index == interrupted;
            let armed = self.strike(stage, &mut places, is_interrupted);
            let struck = Box::pin(armed).await;
            struck.with_context(|| {
                format!("{stage:?}, announcements {announcements:?}, Cluster API killed: {is_interrupted}")
            })?;
        }
        Ok(())
    }

    /// One stage of all places, with a kill in it.
    async fn strike(&mut self, stage: Stage, places: &mut [Place], is_interrupted: bool) -> Result<()> {
        for place in &mut *places {
            place.prepare(stage, &self.scene, &mut self.random).await?;
        }
        let mut armed = Vec::new();
        for (index, place) in places.iter().enumerate() {
            let point = self.deal(stage);
            // Only one of them meets events: a held one holds those of all.
            let strike = Strike::new(&place.group, point, index == 0, &self.scene.zones.cloud);
            armed.push(Armed::new(strike, &self.proxy, &self.strikes));
        }
        for place in &*places {
            place.trigger(stage, &self.scene).await?;
        }
        self.until_struck(stage, places, &armed).await?;
        if is_interrupted {
            self.cluster_api.child().kill().await?;
        }
        self.scene.kill().await?;
        self.kills += 1;
        let mut held = String::new();
        for one in &armed {
            let (point, what) = (one.strike.point, one.reached().await);
            let _ = write!(held, "; {:?} effect {}: {what:?}", point.side, point.nth);
            match what {
                Some(what) => *self.hit.entry((stage, point.side, what)).or_default() += 1,
                None => self.missed.entry(stage).or_default().push((point.nth, one.strike.seen())),
            }
            one.cut();
        }
        self.strikes.clear();
        self.scene.start().await?;
        if is_interrupted {
            self.cluster_api.restart(&self.control_plane).await?;
        }
        let ended = self.until_finished(stage, places).await;
        self.proxy.clear();
        ended.with_context(|| format!("killed{held}"))?;
        self.check(stage, places).await.with_context(|| format!("killed{held}"))
    }

    /// The next point of a stage: each is tried once before any is tried again.
    fn deal(&mut self, stage: Stage) -> Point {
        let deck = self.decks.entry(stage).or_default();
        if deck.is_empty() {
            let sides = [Side::Before, Side::After].into_iter();
            deck.extend(sides.flat_map(|side| (1..=stage.effects()).map(move |nth| Point { nth, side })));
            for last in (1..deck.len()).rev() {
                deck.swap(last, self.random.below(last + 1));
            }
        }
        deck.pop().expect("it was filled")
    }

    /// Until each has met its point or has come to its end without.
    async fn until_struck(&self, stage: Stage, places: &[Place], armed: &[Armed]) -> Result<()> {
        let deadline = Instant::now() + STRIKE_WITHIN;
        while Instant::now() < deadline {
            let world = World::read(&self.scene, &self.shards).await?;
            let mut is_over = true;
            for (place, armed) in places.iter().zip(armed) {
                is_over &= armed.reached().await.is_some() || world.lacks(stage, place).is_none();
            }
            if is_over {
                break;
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }

    async fn until_finished(&self, stage: Stage, places: &[Place]) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let world = World::read(&self.scene, &self.shards).await?;
            let lacks: Vec<_> = places.iter().filter_map(|place| world.lacks(stage, place)).collect();
            if lacks.is_empty() {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!("not within {} s: {}", PATIENCE.as_secs(), lacks.join("; "));
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    async fn check(&mut self, stage: Stage, places: &mut [Place]) -> Result<()> {
        let world = World::read(&self.scene, &self.shards).await?;
        for place in &mut *places {
            place.check(stage, &world)?;
        }
        self.made += places.len() * stage.makes();
        let made = self.scene.zones.cloud.made();
        ensure!(made == self.made, "{made} machines were made instead of {}", self.made);
        let undrained = self.undrained.lock().unwrap().clone();
        ensure!(undrained.is_empty(), "gone before their Nodes were drained: {undrained:?}");
        let left = world.strangers(places);
        ensure!(left.is_empty(), "left over: {left:?}");
        Ok(())
    }

    fn summary(&self, seed: u64) -> String {
        let kinds = self.hit.len();
        let calls: usize =
            self.hit.iter().filter(|((.., what), _)| what.starts_with(CALL)).map(|(_, times)| times).sum();
        let mut text = format!(
            "killed at {} points ({kinds} kinds, {calls} at calls to shards) in {} kills of seed {seed}; {} more points were \
             not met: they were for an effect with a higher number than any that came before the kill",
            self.points(),
            self.kills,
            self.missed.values().map(Vec::len).sum::<usize>(),
        );
        for stage in Stage::ALL {
            let of_stage = self.hit.iter().filter(|((of, ..), _)| *of == stage);
            let words = of_stage.map(|((_, side, what), times)| format!("{times} {side:?} {what}"));
            let _ = write!(text, "\n  {stage:?}: {}", words.collect::<Vec<_>>().join(", "));
            if let Some(missed) = self.missed.get(&stage) {
                let words = missed.iter().map(|(nth, seen)| format!("effect {nth} ({seen} came)"));
                let _ = write!(text, "\n    not met: {}", words.collect::<Vec<_>>().join(", "));
            }
        }
        text
    }
}

/// Notes every instance that goes while pods are on its Node.
async fn watch_instances(cloud: InProcess, pods: Api<Pod>, undrained: Arc<Mutex<Vec<String>>>) {
    let mut known = BTreeSet::new();
    loop {
        let now: BTreeSet<String> = cloud.machines().into_iter().map(|machine| machine.instance_id).collect();
        for gone in known.difference(&now) {
            let there = pods.list(&ListParams::default().fields(&format!("spec.nodeName={gone}"))).await;
            let names = there.into_iter().flat_map(|there| there.items).filter_map(|pod| pod.metadata.name);
            undrained.lock().unwrap().extend(names.map(|pod| format!("{gone} (pod {pod})")));
        }
        known = now;
        tokio::time::sleep(WATCH).await;
    }
}

async fn delete_pod(scene: &Scene, name: &str) -> Result<()> {
    scene.api::<Pod>().delete(name, &DeleteParams::default()).await?;
    Ok(())
}
