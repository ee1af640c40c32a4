//! Workspaces: per-team environments. Helm releases, which also stand alone, and Workspaces, which are
//! made of releases and Users.

pub mod helm;
mod release;
pub mod rights;
pub mod workspace;
mod yaml;

use std::{ffi::OsString, io, path::PathBuf, sync::Arc, time::Duration};

use api::workspace::{HelmRelease, ValuesKind};
use kube::Config as ClientConfig;
use plan::releases::{Policy, may_claim};
use runtime::{Change, Key, LayerSpec, Operator, Queue, child::Silence};

use helm::{Charts, ChartsConfig, Guard, Runner};
pub use release::values;
use release::{Indexes, Preparation, ReleaseController, ReleaseMetrics, SecretFacts};

pub const LAYER: LayerSpec = LayerSpec {
    name: "workspaces",
    is_default: true,
    demands_definitions: false,
    rights: rights::CLUSTER,
    own_namespace: &[],
    roles: || vec![rights::helm_role()],
    accounts: &[],
    crds: || api::workspace::crds().into(),
    foreign: &[],
};

/// Field manager of everything this layer writes.
pub const MANAGER: &str = "strata-workspaces";

/// How the layer works; every interval is here, so that tests shorten it instead of waiting.
#[derive(Clone, Debug)]
pub struct Config {
    /// How the operator reaches the API server; helm gets the same address.
    pub client: ClientConfig,
    /// The helm program.
    pub helm: PathBuf,
    /// How to run the process that ends helm when we end.
    pub guard: Guard,
    /// For values and credentials while an operation runs.
    pub private: PathBuf,
    /// For charts and indexes.
    pub cache: PathBuf,
    /// Rounds that run at once.
    pub concurrency: usize,
    /// Period of the check that costs nothing.
    pub resync: Duration,
    pub policy: Policy,
    /// Bytes for one helm process, unless its release says otherwise.
    pub operation_memory: u64,
    /// From SIGTERM to SIGKILL, for one operation and for all at the end.
    pub grace: Duration,
    pub charts: ChartsConfig,
    /// Passed on to helm: proxies.
    pub environment: Vec<(OsString, OsString)>,
}

impl Config {
    pub fn new(client: ClientConfig, helm: PathBuf, guard: Guard, private: PathBuf, cache: PathBuf) -> Self {
        Self {
            client,
            helm,
            guard,
            private,
            cache,
            concurrency: 8,
            resync: Duration::from_mins(2),
            policy: Policy::default(),
            // Five fit into the default total: four of one namespace, and one that it leaves to others.
            operation_memory: 256 << 20,
            grace: Duration::from_secs(30),
            charts: ChartsConfig::default(),
            environment: Vec::new(),
        }
    }
}

/// Children must be gone before another replica may act.
pub(crate) const LOSS_MARGIN: Duration = Duration::from_millis(500);

/// Adds the layer to an operator.
pub fn install(operator: &mut Operator, mut config: Config) -> io::Result<()> {
    // What the runner would refuse is refused by a condition before.
    let most = helm::largest_memory(config.policy.total_memory, config.operation_memory);
    config.policy.largest_memory = config.policy.largest_memory.min(most);
    let writer = operator.writer(MANAGER);
    let shared = workspace::Shared::new(&writer);
    let queue = operator.queue(config.resync);
    let indexes = Arc::<Indexes>::default();
    let changes = Arc::new(release::Changes::new(operator.clock.clone()));
    let runner = start_runner(operator, &config, &queue, &indexes)?;

    let settings = workspace::Config { concurrency: config.concurrency, resync: config.resync };
    let notify = workspace::install(operator, &shared, &settings);
    let (at, target, notify_workspaces, results) = (indexes.clone(), queue.clone(), notify.release, runner.clone());
    let policy = config.policy.clone();
    operator.watch(&shared.releases, move |change| {
        release_changed(&at, &target, &policy, change);
        notify_workspaces(change);
        // What waits for it is not to begin any more, and no round will ask how its last operation ended.
        if let Some(former) = change.before.filter(|_| change.after.is_none()).and_then(|o| claimed(o, &policy))
            && at.releases.keys(&former).is_empty()
        {
            results.forget(&former);
        }
    });
    let (at, target, notify_workspaces) = (indexes.clone(), queue.clone(), notify.secret);
    operator.watch(&shared.secrets, move |change| {
        secret_changed(&at, &target, change);
        notify_workspaces(change);
    });
    let (at, target, notify_workspaces) = (indexes.clone(), queue.clone(), notify.config_map);
    operator.watch(&shared.config_maps, move |change| {
        look(&target, at.config_maps.keys(change.key));
        notify_workspaces(change);
    });
    let (at, target, counted) = (indexes.clone(), queue.clone(), changes.clone());
    let watches = operator.dynamic_watches(move |kind, change| {
        for key in at.objects.keys(&(kind.clone(), change.key.clone())) {
            counted.add(&key);
            target.changed(&key);
        }
    });
    operator.metrics.collect(Box::new(ReleaseMetrics(shared.releases.clone())));
    operator.metrics.collect(Box::new(runner.clone()));
    let charts = Charts::open(config.charts, runner.clone())?;
    let (clock, server_clock) = (operator.clock.clone(), operator.server_clock.clone());
    let identities = release::Identities::new(operator.client.clone(), config.client, clock, server_clock);
    let identities = Arc::new(identities);
    let preparation = Preparation {
        releases: shared.releases.clone(),
        writer: writer.clone(),
        charts: charts.clone(),
        identities: identities.clone(),
        policy: config.policy.clone(),
        leadership: operator.leadership(),
    };
    let controller = ReleaseController {
        releases: shared.releases,
        secrets: shared.secrets,
        config_maps: shared.config_maps,
        charts,
        identities,
        preparation: Arc::new(preparation),
        writer,
        runner,
        indexes,
        watches,
        policy: config.policy,
        changes,
        discovered: release::Discovered::default(),
        server_clock: operator.server_clock.clone(),
    };
    operator.control(controller, queue, config.concurrency);
    Ok(())
}

/// The runner, and the part that ends its children: at the end of the process, and before another replica may act.
fn start_runner(
    operator: &mut Operator,
    config: &Config,
    queue: &Arc<Queue>,
    indexes: &Arc<Indexes>,
) -> io::Result<Runner> {
    let (at, target) = (indexes.clone(), queue.clone());
    let mut settings =
        helm::Config::new(config.helm.clone(), config.guard.clone(), config.private.clone(), config.cache.clone());
    settings.total_memory = config.policy.total_memory;
    settings.operation_memory = config.operation_memory;
    settings.grace = config.grace;
    settings.silence = operator.lease_duration().map(Silence::within);
    settings.environment.clone_from(&config.environment);
    settings.clock = operator.clock.clone();
    settings.on_change = Box::new(move |release| {
        let keys = at.releases.keys(release);
        let is_kept = !keys.is_empty();
        look(&target, keys);
        is_kept
    });
    let runner = Runner::start(settings)?;
    let (ending, leadership, grace) = (runner.clone(), operator.leadership(), config.grace);
    // The last moments are for the guard and its SIGKILL.
    operator.part("helm", grace + Duration::from_secs(5), move |stop, pulse| async move {
        pulse.while_waiting(ending.end_with(&leadership, LOSS_MARGIN, &stop, grace)).await;
    });
    Ok(runner)
}

fn look(queue: &Queue, keys: impl IntoIterator<Item = Key>) {
    for key in keys {
        queue.changed(&key);
    }
}

/// The Helm release that an object stands for, if it may.
fn claimed(object: &HelmRelease, policy: &Policy) -> Option<Key> {
    may_claim(object, policy).then(|| release::release_key(object))
}

/// Keeps the ways back to this object, and enqueues it and the releases that wait for it.
fn release_changed(indexes: &Indexes, queue: &Queue, policy: &Policy, change: &Change<'_, HelmRelease>) {
    let key = change.key;
    let sibling = |name: &String| Key::new(key.namespace.clone(), name.as_str());
    let spec = change.after.and_then(|object| object.spec.as_ref());
    let of_kind = |kind| {
        let sources = spec.map(|spec| spec.values_from.as_slice()).unwrap_or_default();
        sources.iter().filter(move |source| source.kind == kind).map(|source| sibling(&source.name))
    };
    let former = change.before.and_then(|object| claimed(object, policy));
    indexes.releases.set(key, change.after.and_then(|object| claimed(object, policy)));
    let credentials = spec.and_then(|spec| spec.chart.secret_ref.as_ref()).map(|reference| sibling(&reference.name));
    indexes.secrets.set(key, of_kind(ValuesKind::Secret).chain(credentials).collect::<Vec<_>>());
    indexes.config_maps.set(key, of_kind(ValuesKind::ConfigMap).collect::<Vec<_>>());
    let needs = spec.map(|spec| spec.depends_on.as_slice()).unwrap_or_default();
    indexes.dependents.set(key, needs.iter().map(sibling).collect::<Vec<_>>());
    // Workspaces write releases too: what is new or asks for something else concerns this queue, from the watch or not.
    let generation = |object: Option<&HelmRelease>| object.map(|object| object.metadata.generation);
    if change.from_watch || generation(change.before) != generation(change.after) {
        queue.changed(key);
    }
    look(queue, indexes.dependents.keys(key));
    // Who claimed the same release may go ahead.
    if change.after.is_none() {
        look(queue, former.map(|release| indexes.releases.keys(&release)).unwrap_or_default());
    }
}

fn secret_changed(indexes: &Indexes, queue: &Queue, change: &Change<'_, SecretFacts>) {
    let release = |facts: Option<&SecretFacts>| {
        facts?.revision.as_ref().map(|found| Key::new(change.key.namespace.clone(), found.0.as_str()))
    };
    let (before, after) = (release(change.before), release(change.after));
    indexes.revisions.set(change.key, after.clone());
    for release in before.into_iter().chain(after) {
        look(queue, indexes.releases.keys(&release));
    }
    look(queue, indexes.secrets.keys(change.key));
}
