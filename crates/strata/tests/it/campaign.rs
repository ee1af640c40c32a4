//! The operator, helm, their guards, or all of them are killed at seeded moments of installs, upgrades, rollbacks and
//! uninstalls. Nobody helps: the next operator must bring every release to its wanted end and leave nothing behind.
//!
//! A short part runs with the tests; `cargo xtask campaign releases` runs as much as it is asked for.

mod release;
mod victim;

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Result, ensure};
use futures::{StreamExt, future::join_all};
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use tempfile::TempDir;
use testbed::{
    Lent, Random,
    charts::{Access, ChartRepository, samples},
    process::{Child, Program},
};
use tokio::{
    sync::broadcast,
    time::{Instant, timeout},
};
use tokio_util::task::AbortOnDropHandle;

use self::{
    release::{Flow, Namespace, Release},
    victim::{Victim, processes},
};
use crate::{
    scene::changes,
    space::{self, HelmRole, lent, operator_user},
};

/// Twice what the runner carries out at once, so that some are hit while they wait.
const RELEASES: usize = 8;
/// How often one wave is hit: the later ones fall into what the next operator does about the former.
const STRIKES: u32 = 2;
/// An orphaned helm has five seconds to end; a loaded machine is slower.
const ORPHAN_PATIENCE: Duration = Duration::from_mins(2);
/// Processes give no event to wait for.
const LOOK: Duration = Duration::from_millis(10);

#[tokio::test]
async fn w27_whoever_is_killed_at_whatever_moment_every_release_reaches_its_end() -> Result<()> {
    // About a minute; the whole campaign asks for more.
    let points = setting("STRATA_CAMPAIGN_POINTS").unwrap_or(16);
    let seed = setting("STRATA_CAMPAIGN_SEED").unwrap_or(1);
    let mut campaign = Campaign::start(seed).await?;
    let failures = campaign.run(usize::try_from(points)?).await?;
    println!("{}", campaign.summary(seed));
    ensure!(failures.is_empty(), "{} of seed {seed} failed:\n{}", failures.len(), failures.join("\n"));
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "how `cargo xtask campaign` speaks to this test")]
pub fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// When a strike falls.
#[derive(Clone, Copy, Debug)]
enum Moment {
    /// This long after the wave, or the former strike, began.
    After(Duration),
    /// As soon as any release's storage reaches this status.
    Stored(&'static str),
}

struct Campaign {
    operator: Child,
    _charts: ChartRepository,
    /// Of the operator's log and helm's files.
    _directory: TempDir,
    /// The private files of helm operations.
    private: PathBuf,
    place: Namespace,
    releases: Vec<Release>,
    /// Every change of a storage Secret: its status.
    stored: broadcast::Sender<String>,
    _watch: AbortOnDropHandle<()>,
    random: Random,
    named: usize,
    flows: BTreeMap<Flow, usize>,
    points: BTreeMap<Victim, usize>,
    /// What the killed processes, or those of a killed operator, were doing.
    hit: BTreeMap<(Victim, String), usize>,
    /// Left to the next test when the operator has ended.
    _control_plane: Lent,
}

impl Campaign {
    async fn start(seed: u64) -> Result<Self> {
        let (control_plane, directory) = (lent(space::OWN, HelmRole::Bound).await?, tempfile::tempdir()?);
        let charts = ChartRepository::start(Access::Anyone).await?;
        for archive in samples().await? {
            charts.publish(archive)?;
        }
        let namespace = control_plane.namespace("campaign").await?;
        let place = Namespace::new(control_plane.client().await?, &namespace, charts.url());
        let (stored, watch) = follow_storage(place.secrets.clone());
        let helm = directory.path().join("helm");
        let program =
            Program::new("strata operator", env!("CARGO_BIN_EXE_strata"), directory.path().join("operator.log"))
                .args(["operator", "--metrics-bind-address=0", "--health-probe-bind-address=0", "--leader-elect=false"])
                .args(["--layers=workspaces", "--kubeconfig"])
                .args([control_plane.kubeconfig_as(&operator_user()).await?])
                .args(["--helm".into(), testbed::tools::path("helm").await?, "--helm-directory".into(), helm.clone()]);
        Ok(Self {
            operator: Child::start(program)?,
            _charts: charts,
            _directory: directory,
            private: helm.join("private"),
            place,
            releases: Vec::new(),
            stored,
            _watch: watch,
            random: Random(seed),
            named: 0,
            flows: BTreeMap::new(),
            points: BTreeMap::new(),
            hit: BTreeMap::new(),
            _control_plane: control_plane,
        })
    }

    /// Waves until enough was killed; what went wrong.
    async fn run(&mut self, points: usize) -> Result<Vec<String>> {
        let started = Instant::now();
        let mut failures = self.wave(None, Duration::ZERO).await?;
        ensure!(failures.is_empty(), "without any kill: {}", failures.join("\n"));
        let usual = started.elapsed();
        let mut waves = 0;
        while self.points.values().sum::<usize>() < points {
            let victim = Victim::ALL[waves % Victim::ALL.len()];
            waves += 1;
            let failed = self.wave(Some(victim), usual).await?;
            println!(
                "wave {waves}: {victim:?}, {} points so far, {} s, {} failed",
                self.points.values().sum::<usize>(),
                started.elapsed().as_secs(),
                failed.len()
            );
            failures.extend(failed);
        }
        Ok(failures)
    }

    /// One operation of every release, disturbed or not, to its end.
    async fn wave(&mut self, victim: Option<Victim>, usual: Duration) -> Result<Vec<String>> {
        self.draw_flows();
        let moments: Vec<Moment> = (0..STRIKES).map(|_| self.draw_moment(usual)).collect();
        let mut stored = self.stored.subscribe();
        for release in &mut self.releases {
            release.trigger(&self.place).await?;
        }
        if let Some(victim) = victim {
            for moment in &moments {
                self.strike(victim, *moment, usual, stored).await?;
                stored = self.stored.subscribe();
            }
        }
        let mut doubled = BTreeSet::new();
        let ends = join_all(self.releases.iter_mut().map(|release| release.finished(&self.place)));
        let ends = tokio::select! {
            ends = ends => ends,
            never = watch_for_doubles(&self.private, &mut doubled) => match never {},
        };
        let mut failures: Vec<_> =
            doubled.iter().map(|release| format!("two helms at once on {release}, killed: {victim:?}")).collect();
        for (release, end) in self.releases.iter_mut().zip(ends) {
            if let Err(error) = end {
                let what = format!("{} of {}, killed: {victim:?} at {moments:?}", release.flow, release.name);
                failures.push(format!("{what}: {error:?}\noperator: {}\n", self.operator.log_tail()));
                release.is_lost = true;
            }
        }
        self.releases.retain(|release| !release.is_lost);
        if let Err(error) = self.nothing_is_left().await {
            failures.push(format!("after {victim:?} at {moments:?}: {error:?}"));
        }
        Ok(failures)
    }

    /// Each release goes the way that was gone least so far.
    fn draw_flows(&mut self) {
        while self.releases.len() < RELEASES {
            self.named += 1;
            // The web chart is waited for, and takes its time.
            let chart = if self.named.is_multiple_of(4) { "web" } else { "four" };
            self.releases.push(Release::new(format!("{chart}-{}", self.named), chart));
        }
        for release in &mut self.releases {
            let ways = release.ways();
            let least = |flow: &&Flow| self.flows.get(flow).copied().unwrap_or(0);
            release.flow = *ways.iter().min_by_key(least).expect("there is always a way");
            *self.flows.entry(release.flow).or_default() += 1;
        }
    }

    fn draw_moment(&mut self, usual: Duration) -> Moment {
        let flows: BTreeSet<Flow> = self.releases.iter().map(|release| release.flow).collect();
        let statuses: Vec<&str> = flows.iter().flat_map(|flow| flow.statuses()).copied().collect();
        if self.random.below(2) == 0 {
            let share = u32::try_from(self.random.below(1000)).unwrap_or(0);
            Moment::After(usual / STRIKES * share / 1000)
        } else {
            Moment::Stored(statuses[self.random.below(statuses.len())])
        }
    }

    async fn strike(
        &mut self,
        victim: Victim,
        moment: Moment,
        usual: Duration,
        mut stored: broadcast::Receiver<String>,
    ) -> Result<()> {
        match moment {
            Moment::After(time) => tokio::time::sleep(time).await,
            // It may have been there before; then the time it usually takes is over and any moment is as good.
            Moment::Stored(wanted) => {
                let reached = async { while stored.recv().await.is_ok_and(|status| status != wanted) {} };
                let _ = timeout(usual, reached).await;
            }
        }
        let mut running = processes(&self.private);
        // A helm that is not there cannot be killed; the last operation of the wave may have ended.
        let deadline = Instant::now() + usual;
        while !victim.ends_operator() && running.is_empty() && Instant::now() < deadline {
            tokio::time::sleep(LOOK).await;
            running = processes(&self.private);
        }
        let killed = victim.kill(&running, &self.operator).await?;
        let points = if victim.ends_operator() { 1 } else { killed };
        *self.points.entry(victim).or_default() += points;
        for process in running.iter().filter(|process| !process.is_guard) {
            *self.hit.entry((victim, process.operation.clone())).or_default() += 1;
        }
        if victim.ends_operator() {
            self.operator.restart().await?;
        }
        Ok(())
    }

    /// No process, and no file but the lock of the operator that runs.
    async fn nothing_is_left(&self) -> Result<()> {
        let deadline = Instant::now() + ORPHAN_PATIENCE;
        loop {
            let (left, files) = (processes(&self.private), files_below(&self.private)?);
            if left.is_empty() && files.len() == 1 {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "left behind: {left:?} {files:?}");
            tokio::time::sleep(LOOK).await;
        }
    }

    fn summary(&self, seed: u64) -> String {
        let mut lines =
            vec![format!("seed {seed}: {} points; operations {:?}", self.points.values().sum::<usize>(), self.flows)];
        for (victim, points) in &self.points {
            let hit: Vec<_> = self
                .hit
                .iter()
                .filter(|((of, _), _)| of == victim)
                .map(|((_, what), n)| format!("{n} {what}"))
                .collect();
            lines.push(format!("  {victim:?}: {points} points, in the middle of {}", hit.join(", ")));
        }
        lines.join("\n")
    }
}

/// An orphan of the killed operator and a helm of the next one must not meet.
async fn watch_for_doubles(private: &Path, doubled: &mut BTreeSet<String>) -> Infallible {
    loop {
        let mut seen = BTreeSet::new();
        for process in processes(private).into_iter().filter(|process| !process.is_guard) {
            if !seen.insert(process.release.clone()) {
                doubled.insert(process.release);
            }
        }
        tokio::time::sleep(LOOK).await;
    }
}

fn follow_storage(secrets: Api<Secret>) -> (broadcast::Sender<String>, AbortOnDropHandle<()>) {
    // More than a wave writes.
    let (sender, _) = broadcast::channel(1024);
    let statuses = sender.clone();
    let watch = tokio::spawn(async move {
        let mut seen = changes(secrets);
        while let Some(secret) = seen.next().await {
            let status = secret.metadata.labels.and_then(|mut labels| labels.remove("status"));
            // Nobody may be waiting.
            let _ = status.map(|status| statuses.send(status));
        }
    });
    (sender, AbortOnDropHandle::new(watch))
}

fn files_below(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut directories = vec![directory.to_owned()];
    while let Some(directory) = directories.pop() {
        // It may just be removed.
        let Ok(entries) = std::fs::read_dir(&directory) else { continue };
        for entry in entries {
            let path = entry?.path();
            if path.is_dir() { directories.push(path) } else { files.push(path) }
        }
    }
    Ok(files)
}
