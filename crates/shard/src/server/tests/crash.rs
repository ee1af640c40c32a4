//! A server dies at every effect, before and after it; the next one goes on. No instance is lost or doubled.

use std::{collections::BTreeSet, sync::atomic::Ordering, time::Duration};

use plan::shard::{id::InstanceId, instance::MachineStatus};

use super::world::{Server, World, alive};
use crate::{
    clock::Clock,
    server::TermError,
    store::{Fault, Faults, Side},
    wire::{self, Fence},
};

/// What happens to the zone, in order. Each step may be repeated by the operator after a fail-over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Scale(i32),
    /// The operator drains and acknowledges what is to be drained.
    Drain,
    /// An agent falls silent until its instance was replaced.
    Replace,
    /// A machine stops.
    Stop,
    CreateOnDemand,
    DeleteOnDemand,
    DeleteGroup,
    /// Long enough for drains to end by themselves and orphans to be swept.
    Rest,
}

const SCRIPT: [Step; 12] = [
    Step::Scale(3),
    Step::Scale(1),
    Step::Drain,
    Step::Scale(2),
    Step::Replace,
    Step::Drain,
    Step::Stop,
    Step::CreateOnDemand,
    Step::DeleteOnDemand,
    Step::DeleteGroup,
    Step::Drain,
    Step::Rest,
];

fn on_demand() -> String {
    InstanceId::new("web", 1 << 90).to_string()
}

/// What the zone does to its machines happens once, however often the operator repeats a step.
#[derive(Default)]
struct Fate {
    silent: Option<String>,
    stopped: Option<String>,
}

impl Step {
    async fn run(self, world: &World, server: &mut Server) -> Result<(), TermError> {
        self.run_once(world, server, &mut Fate::default()).await
    }

    async fn run_once(self, world: &World, server: &mut Server, fate: &mut Fate) -> Result<(), TermError> {
        let fence = Fence::default();
        match self {
            Self::Scale(size) => {
                server.term.upsert_group("default", scaled(size), &fence).await?;
            }
            Self::Drain => drain(world, server),
            Self::Replace => replace(world, server, fate).await?,
            Self::Stop if fate.stopped.is_none() => {
                fate.stopped = web(world).into_iter().next();
                let id = fate.stopped.as_ref().expect("an instance");
                world.cloud.set_status(id, Some(MachineStatus::Stopped));
            }
            Self::Stop => {}
            Self::CreateOnDemand => {
                let config = wire::InstanceConfig { group: "web".to_owned(), ..wire::InstanceConfig::default() };
                let request = wire::CreateInstanceRequest { instance_id: on_demand(), config: Some(config) };
                match server.term.create_instance("default", request, &fence).await {
                    // The operator asks again after a fail-over.
                    Err(TermError::Refused(refusal)) if refusal.message.contains("exists") => {}
                    other => drop(other?),
                }
            }
            Self::DeleteOnDemand => {
                drop(server.term.delete_instance("default", &on_demand(), &Fence::default()).await?);
            }
            Self::DeleteGroup => server.term.delete_group("default", "web", &fence).await?,
            Self::Rest => {
                for _ in 0..4 {
                    server.pass(world, Duration::from_mins(2), &BTreeSet::new()).await?;
                    server.term.sweep().await?;
                    server.settle(world).await?;
                }
            }
        }
        server.settle(world).await
    }
}

fn scaled(size: i32) -> wire::UpsertGroupRequest {
    let config = wire::GroupConfig { template: "web".to_owned(), size, ..wire::GroupConfig::default() };
    wire::UpsertGroupRequest { key: "web".to_owned(), config: Some(config), remove_first: vec![] }
}

fn web(world: &World) -> Vec<String> {
    let records = world.records();
    let staying = records.values().filter(|record| {
        record.group == "web" && !record.on_demand && record.deleted_at.is_none() && record.leaving.is_none()
    });
    staying.map(|record| record.id.to_string()).collect()
}

fn drain(world: &World, server: &Server) {
    for record in world.records().values().filter(|record| record.leaving.is_some() && record.deleted_at.is_none()) {
        // What a server that died did not load is reported by its successor.
        let _ = server.term.acknowledge_drained("default", record.id.as_str(), &Fence::default());
    }
}

/// The oldest instance's agent is silent until it leaves.
async fn replace(world: &World, server: &mut Server, fate: &mut Fate) -> Result<(), TermError> {
    let oldest = || web(world).into_iter().min().expect("an instance");
    let silent = fate.silent.get_or_insert_with(oldest).clone();
    let one = BTreeSet::from([silent.clone()]);
    for _ in 0..6 {
        server.pass(world, Duration::from_mins(1), &one).await?;
        server.term.observe().await?;
        server.term.settle_due().await?;
        server.report(world, &one);
        server.term.settle_due().await?;
        if !web(world).contains(&silent) {
            break;
        }
    }
    Ok(())
}

/// Runs the script with servers that die where their faults say; the last one lives. Returns the effects of the first.
async fn run(world: World, deaths: &[(usize, Side)]) -> (World, usize) {
    run_repeating(world, deaths, 0).await
}

/// The same with the steps whose bits are set carried out twice.
async fn run_repeating(world: World, deaths: &[(usize, Side)], twice: u64) -> (World, usize) {
    let mut faults: Vec<Faults> = deaths.iter().map(|(point, side)| Faults::dying(*point, *side)).collect();
    faults.push(Faults::default());
    let mut faults = faults.into_iter();
    let mut first = None;
    let mut fate = Fate::default();
    let mut server: Option<Server> = None;
    let steps = SCRIPT.iter().enumerate();
    for step in
        steps.flat_map(|(number, step)| std::iter::repeat_n(*step, if twice >> number & 1 == 1 { 2 } else { 1 }))
    {
        loop {
            if server.is_none() {
                let faults = faults.next().expect("the last server lives");
                first.get_or_insert_with(|| faults.clone());
                server = world.start_with(faults).await;
            }
            let Some(mut living) = server.take() else { continue };
            let faults = living.faults.clone();
            match alive(&faults, step.run_once(&world, &mut living, &mut fate)).await {
                Some(done) => {
                    done.unwrap_or_else(|error| panic!("{step:?}: {error}"));
                    server = Some(living);
                    break;
                }
                None => drop(living),
            }
        }
    }
    (world, first.map_or(0, |faults| faults.effects()))
}

#[track_caller]
fn check(world: &World, made: usize, deaths: &str) {
    world.consistent();
    let records = world.records();
    let living: Vec<_> = records.values().filter(|record| record.deleted_at.is_none()).collect();
    assert_eq!(living.len(), 1, "{deaths}: the static group has its one instance, all else is gone");
    assert_eq!(living[0].group, "fixed");
    assert_eq!(world.cloud.made(), made, "{deaths}: no machine was made twice or in vain");
}

/// Every death is tried where registrations are lost with the server, and where the next leader reads them.
async fn world(registers: bool) -> World {
    let world = World::new().await;
    world.registers.store(registers, Ordering::Relaxed);
    world
}

#[tokio::test(start_paused = true)]
async fn a78_a_server_may_die_at_every_effect() {
    for registers in [false, true] {
        let (first, effects) = run(world(registers).await, &[]).await;
        let made = first.cloud.made();
        check(&first, made, "no death");
        let mut points = 0;
        for point in 0..effects {
            for side in [Side::Before, Side::After] {
                let deaths = [(point, side)];
                let (world, _) = run(world(registers).await, &deaths).await;
                check(&world, made, &format!("{deaths:?}"));
                assert!(world.records().len() >= made, "{deaths:?}: every machine that was made has its record");
                points += 1;
            }
        }
        println!("{points} points: {effects} effects, the server killed before and after each");
        assert!(effects > 100, "{effects} effects");
    }
}

#[tokio::test(start_paused = true)]
async fn a78_its_successor_may_die_as_well() {
    for registers in [false, true] {
        let (first, effects) = run(world(registers).await, &[]).await;
        let made = first.cloud.made();
        let mut points = 0;
        for point in (0..effects).step_by(3) {
            for second in 0..8 {
                let side = |number: usize| if number.is_multiple_of(2) { Side::Before } else { Side::After };
                let deaths = [(point, side(second)), (second, side(point))];
                check(&run(world(registers).await, &deaths).await.0, made, &format!("{deaths:?}"));
                points += 1;
            }
        }
        println!("{points} pairs of deaths");
    }
}

/// A number that a campaign gives.
fn setting(name: &str) -> Option<u64> {
    #[expect(clippy::disallowed_methods, reason = "a campaign is asked for by its environment")]
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// Up to four servers in a row die at points drawn from a seed, and requests are repeated. More points, and others, by
/// `cargo xtask campaign shard`.
#[tokio::test(start_paused = true)]
async fn a78_servers_die_at_seeded_points() {
    let points = setting("STRATA_CAMPAIGN_POINTS").unwrap_or(200);
    let seed = setting("STRATA_CAMPAIGN_SEED").unwrap_or(1);
    let mut state = seed;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let (first, effects) = run(world(true).await, &[]).await;
    let made = first.cloud.made();
    let effects = u64::try_from(effects).unwrap();
    let mut died = 0;
    let (clock, minutes) = (Clock::default(), setting("STRATA_CAMPAIGN_MINUTES"));
    let end = minutes.map(|minutes| clock.now() + Duration::from_secs(60 * minutes));
    while died < points && end.is_none_or(|end| clock.now() < end) {
        let deaths: Vec<_> = (0..=random(4))
            .map(|number| {
                // Those after the first have less left to do.
                let point = usize::try_from(random(effects / (number + 1))).unwrap();
                (point, if random(2) == 0 { Side::Before } else { Side::After })
            })
            .collect();
        let twice = random(1 << SCRIPT.len());
        let (world, _) = run_repeating(world(true).await, &deaths, twice).await;
        check(&world, made, &format!("{deaths:?}, twice {twice:b}"));
        died += u64::try_from(deaths.len()).unwrap();
    }
    println!("{died} points of seed {seed}");
}

#[tokio::test(start_paused = true)]
async fn storage_that_fails_delays_and_loses_nothing() {
    let world = World::new().await;
    let mut server = world.start().await;
    Step::Scale(3).run(&world, &mut server).await.unwrap();
    for fault in [Fault::Refusing, Fault::Partitioned] {
        server.faults.set(fault);
        assert!(Step::Scale(1).run(&world, &mut server).await.is_err(), "{fault:?}");
        server.faults.set(Fault::None);
        server.pass(&world, Duration::from_secs(20), &BTreeSet::new()).await.unwrap();
        assert_eq!(web(&world).len(), 3, "{fault:?}: nothing was decided");
    }
    server.faults.set(Fault::Slow(Duration::from_millis(500)));
    Step::Scale(1).run(&world, &mut server).await.unwrap();
    server.faults.set(Fault::None);
    server.pass(&world, Duration::from_secs(5), &BTreeSet::new()).await.unwrap();
    Step::Drain.run(&world, &mut server).await.unwrap();
    assert_eq!(web(&world).len(), 1);
    world.consistent();
}

#[tokio::test(start_paused = true)]
async fn a_stale_leader_has_no_effect() {
    let world = World::new().await;
    let mut old = world.start().await;
    Step::Scale(2).run(&world, &mut old).await.unwrap();
    // The old leader stops, a new one takes over, and the old one goes on where it was.
    let mut new = world.start().await;
    assert!(new.term.lead().epoch() > old.term.lead().epoch());
    for step in [Step::Scale(5), Step::CreateOnDemand, Step::DeleteGroup] {
        assert!(matches!(step.run(&world, &mut old).await, Err(TermError::Lost(_))), "{step:?}");
    }
    assert!(old.term.sweep().await.is_ok_and(|swept| swept == 0) || !old.term.lead().is_valid());
    Step::Scale(2).run(&world, &mut new).await.unwrap();
    assert_eq!(web(&world).len(), 2);
    assert_eq!(world.cloud.made(), 3, "two, and the static group's");
    world.consistent();
}

#[tokio::test(start_paused = true)]
async fn clock_steps_of_an_hour_replace_nothing_that_reports() {
    let world = World::new().await;
    let mut server = world.start().await;
    Step::Scale(2).run(&world, &mut server).await.unwrap();
    let before = world.cloud.machines();
    for hours in [1, -2, 1] {
        world.clock.step(jiff::SignedDuration::from_hours(hours));
        // Before any agent has reported by the new time.
        server.settle(&world).await.unwrap();
        server.pass(&world, Duration::from_secs(30), &BTreeSet::new()).await.unwrap();
        server.settle(&world).await.unwrap();
    }
    assert_eq!(world.cloud.machines(), before);
}

#[tokio::test(start_paused = true)]
async fn clock_steps_of_an_hour_neither_cut_short_what_begins_or_drains_nor_hold_up_a_retry() {
    let world = World::new().await;
    let mut server = world.start().await;
    let second = Duration::from_secs(1);
    for hours in [1, -1] {
        // One drains, one has not registered yet, and one could not be made.
        Step::Scale(2).run(&world, &mut server).await.unwrap();
        Step::Drain.run(&world, &mut server).await.unwrap();
        server.term.upsert_group("default", scaled(1), &Fence::default()).await.unwrap();
        server.term.settle_due().await.unwrap();
        let drains = |world: &World| {
            let drains =
                |record: &&plan::shard::instance::Record| record.leaving.is_some() && record.deleted_at.is_none();
            world.records().values().filter(drains).map(|record| record.id.to_string()).collect::<Vec<_>>()
        };
        let before = drains(&world);
        assert_eq!(before.len(), 1);
        server.term.upsert_group("default", scaled(2), &Fence::default()).await.unwrap();
        server.term.settle_due().await.unwrap();
        let (made, refused) = (world.cloud.made(), "quota exceeded");
        world.cloud.refuse(Some(refused));
        server.term.upsert_group("default", scaled(3), &Fence::default()).await.unwrap();
        server.term.settle_due().await.unwrap();
        world.clock.step(jiff::SignedDuration::from_hours(hours));
        server
            .pass(&world, second, &world.cloud.machines().into_iter().map(|one| one.instance_id).collect())
            .await
            .unwrap();
        server.term.observe().await.unwrap();
        server.term.settle_due().await.unwrap();
        assert_eq!(drains(&world), before, "{hours}: it still drains");
        assert_eq!(world.cloud.made(), made, "{hours}: nothing was given up and made again");
        world.cloud.refuse(None);
        server.pass(&world, 10 * second, &BTreeSet::new()).await.unwrap();
        server.settle(&world).await.unwrap();
        assert_eq!(world.cloud.made(), made + 1, "{hours}: the retry was due");
        Step::Drain.run(&world, &mut server).await.unwrap();
        world.consistent();
    }
}
