//! Puts the parts together: one process, its tasks, and their common end.

use std::{
    collections::BTreeMap,
    future::Future,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError, atomic::Ordering},
    time::Duration,
};

use futures::{FutureExt, future::BoxFuture};
use kube::{Client, api::GroupVersionKind};
use process::{Clock, Health, ListenError, Part, Parts, Pulse, Tasks, admin};
use tokio::{
    sync::watch as signal,
    task::{JoinHandle, JoinSet},
};
use tokio_util::sync::CancellationToken;

use crate::{
    cluster::{Cluster, Common},
    clusters::Clusters,
    controller::Controller,
    driver::Driver,
    dynamic::{DynamicWatches, Trace},
    event::{Publisher, Recorder},
    followers::WatchMetrics,
    hub::Context,
    kind::{Cache, Change, Kind},
    layer::{Begun, Foreign, Layer, Layers, Missing},
    lease::{Elector, Leadership, LeaseConfig},
    metrics::Metrics,
    queue::Queue,
    selection::Selection,
    server_clock::ServerClock,
    slow::SlowRounds,
    source::{AllSources, Peer, SourceConfig, Sources, Tallied},
    view::View,
    watch::ListMode,
    writer::Writer,
};

/// Everything about a process that is not about one layer.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `None`: no leader election, this process is alone.
    pub lease: Option<LeaseConfig>,
    pub health_address: Option<SocketAddr>,
    pub metrics_address: Option<SocketAddr>,
    /// How long running rounds may take to finish after a stop.
    pub grace: Duration,
    pub request_timeout: Duration,
    /// `None`: streaming where the server can.
    pub list_mode: Option<ListMode>,
    /// Who reports events: the pod's name.
    pub instance: String,
}

/// Why the operator ended other than by being asked to.
#[derive(Debug, thiserror::Error)]
pub enum Fatal {
    #[error(transparent)]
    Listen(#[from] ListenError),
    #[error("task {0} ended")]
    TaskEnded(String),
    #[error(
        "the API server does not have the definition of {resource}, without which the layer {layer} cannot run; install it: {remedy}"
    )]
    DefinitionMissing { layer: &'static str, resource: &'static str, remedy: &'static str },
}

/// What the last events may take after a stop: a handful in the ordinary case, and a standby is waiting.
const LAST_EVENTS: Duration = Duration::from_millis(100);

type Job = Box<dyn FnOnce(Pulse) -> BoxFuture<'static, ()> + Send>;

/// The caches of one resource: several projections may be kept of it.
type Caches = Arc<Mutex<Vec<Arc<dyn Cache>>>>;

pub struct Operator {
    pub client: Client,
    pub clock: Clock,
    pub server_clock: ServerClock,
    pub health: Health,
    pub metrics: Arc<Metrics>,
    pub events: Recorder,
    settings: Settings,
    leadership: Leadership,
    elector: Option<Elector>,
    publisher: Publisher,
    /// The cluster that the operator runs for.
    cluster: Cluster,
    /// What all clusters have in common.
    common: Common,
    clusters: Option<Clusters>,
    all_sources: AllSources,
    caches: BTreeMap<&'static str, Caches>,
    jobs: Vec<(String, Job)>,
    drivers: Vec<(Driver, Layer)>,
    slow_rounds: SlowRounds,
    parts: Vec<Part>,
    layers: Vec<Layer>,
    has_begun: Begun,
    stop: CancellationToken,
}

/// Where the operator listens, known once it runs; ports may have been chosen by the system.
#[derive(Clone, Copy, Debug, Default)]
pub struct Addresses {
    pub health: Option<SocketAddr>,
    pub metrics: Option<SocketAddr>,
}

impl Operator {
    pub fn new(client: Client, settings: Settings, clock: Clock, stop: CancellationToken) -> Self {
        let (elector, leadership) = match &settings.lease {
            Some(config) => {
                let (elector, leadership) = Elector::new(client.clone(), config.clone(), clock.clone());
                (Some(elector), leadership)
            }
            None => (None, Leadership::always(clock.clone())),
        };
        let metrics = Arc::<Metrics>::default();
        let (events, publisher) = Recorder::new(
            client.clone(),
            clock.clone(),
            leadership.clone(),
            settings.instance.clone(),
            metrics.clone(),
        );
        let slow_rounds = SlowRounds::new(settings.request_timeout);
        let watches = WatchMetrics::default();
        metrics.collect(Box::new(watches.clone()));
        let all_sources = AllSources::default();
        metrics.collect(Box::new(all_sources.clone()));
        let common = Common {
            clock: clock.clone(),
            leadership: leadership.clone(),
            timeout: settings.request_timeout,
            list_mode: settings.list_mode,
            watches,
        };
        let cluster = Cluster::new("", client.clone(), &common);
        Self {
            health: Health::new(clock.clone()),
            server_clock: cluster.server_clock().clone(),
            cluster,
            common,
            clusters: None,
            all_sources,
            caches: BTreeMap::new(),
            client,
            clock,
            metrics,
            events,
            settings,
            leadership,
            elector,
            publisher,
            jobs: Vec::new(),
            drivers: Vec::new(),
            slow_rounds,
            parts: Vec::new(),
            layers: vec![Layer::new("", false)],
            has_begun: Begun::default(),
            stop,
        }
    }

    /// What is added from now on belongs to this layer: it begins when the layer's caches are full, and what holds them up
    /// holds up no other layer.
    pub fn layer(&mut self, name: &'static str) {
        self.layers.push(Layer::new(name, false));
    }

    /// As `layer`, for one without whose definitions the process should end rather than wait.
    pub fn demanding_layer(&mut self, name: &'static str) {
        self.layers.push(Layer::new(name, true));
    }

    /// Definitions that another product brings to the layer that was named last, and how.
    pub fn foreign_definitions(&mut self, foreign: Foreign) {
        self.layers.last_mut().expect("there is one from the start").foreign = foreign;
    }

    pub(crate) fn current_layer(&self) -> &Layer {
        self.layers.last().expect("there is one from the start")
    }

    /// How long the lease lasts without a renewal; none without leader election.
    pub fn lease_duration(&self) -> Option<Duration> {
        self.settings.lease.as_ref().map(|lease| lease.duration)
    }

    /// The cluster that the operator runs for.
    pub fn cluster(&self) -> Cluster {
        self.cluster.clone()
    }

    /// Writes of one layer carry its field manager.
    pub fn writer(&self, manager: &'static str) -> Writer {
        self.cluster.writer(manager)
    }

    pub fn queue(&self, resync: Duration) -> Arc<Queue> {
        Arc::new(Queue::new(self.clock.clone(), resync))
    }

    /// Keeps `kind` filled and notifies of its changes: `notify` enqueues the keys to look at. Called again for the same
    /// kind, it adds a listener behind the others.
    pub fn watch<W: View, T: Send + Sync + 'static>(
        &mut self,
        kind: &Arc<Kind<W, T>>,
        notify: impl Fn(&Change<'_, T>) + Send + Sync + 'static,
    ) {
        self.watch_selected(kind, Selection::default(), notify);
    }

    /// As `watch`, for a part of the kind's objects.
    pub fn watch_selected<W: View, T: Send + Sync + 'static>(
        &mut self,
        kind: &Arc<Kind<W, T>>,
        selection: Selection,
        notify: impl Fn(&Change<'_, T>) + Send + Sync + 'static,
    ) {
        self.cluster.watch(kind, selection, notify);
        let lock = |caches: &Caches| caches.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let caches = self.caches.entry(kind.resource).or_default().clone();
        caches.lock().unwrap_or_else(PoisonError::into_inner).push(kind.clone());
        let (name, checked) = (format!("cache {}", kind.resource), caches.clone());
        // A missing definition holds up its layer, which says so; the process serves the others, once there is one.
        let has_begun = self.has_begun.clone();
        let is_ready = move |cache: &Arc<dyn Cache>| {
            let is_others = cache.is_undefined() && has_begun.load(Ordering::Relaxed);
            if is_others { Ok(()) } else { cache.readiness() }
        };
        self.health.require(name.as_str(), move || lock(&checked).iter().try_for_each(&is_ready));
        self.health.inform(name, move || lock(&caches).iter().find_map(|cache| cache.mention()));
        self.current_layer().add(kind.resource, kind.clone());
    }

    /// Watches of kinds that turn out to be needed while the operator runs; `notify` is called for all of them.
    pub fn dynamic_watches(
        &mut self,
        notify: impl Fn(&GroupVersionKind, &Change<'_, Trace>) + Send + Sync + 'static,
    ) -> DynamicWatches {
        let watches = DynamicWatches::default();
        // Nothing is written by it.
        let (run, writer) = (watches.clone(), self.writer("strata"));
        let job = move |pulse| run.run(writer, Arc::new(notify), pulse).boxed();
        self.jobs.push((format!("dynamic watches {}", self.jobs.len()), Box::new(job)));
        watches
    }

    /// Clusters beside the own one, for all layers.
    pub fn clusters(&mut self) -> Clusters {
        if let Some(clusters) = &self.clusters {
            return clusters.clone();
        }
        let clusters = Clusters::new(self.common.clone());
        let (run, mentioned) = (clusters.clone(), clusters.clone());
        self.health.inform("clusters", move || mentioned.mention());
        self.metrics.collect(Box::new(clusters.clone()));
        let context = Context { health: self.health.clone(), metrics: self.metrics.clone() };
        self.jobs.push(("clusters".to_owned(), Box::new(move |pulse| run.run(context, pulse).boxed())));
        self.clusters = Some(clusters.clone());
        clusters
    }

    /// Streams and pollers of peers outside Kubernetes, by peer. `notify` puts what has to look into queues; it is
    /// called for every peer of which something is new, and must be quick.
    pub fn sources<P: Peer, V: Send + Sync + 'static>(
        &mut self,
        name: &'static str,
        config: SourceConfig,
        notify: impl Fn(&P) + Send + Sync + 'static,
    ) -> Sources<P, V> {
        let sources = Sources::new(name, config, self.clock.clone(), notify);
        let (run, tallied) = (sources.clone(), Arc::new(sources.clone()));
        self.all_sources.add(tallied.clone());
        self.health.inform(format!("source {name}"), move || {
            let tally = tallied.tally();
            (tally.unknown > 0).then(|| tally.to_string())
        });
        self.jobs.push((format!("source {name}"), Box::new(move |pulse| run.run(pulse).boxed())));
        sources
    }

    /// Adds a part of a layer that lives as long as the process, leading or not. It is asked to stop when all rounds have
    /// ended, and the lease is released when it has; `limit` is how long it may take. It must show its pulse.
    pub fn part<F: Future<Output = ()> + Send + 'static>(
        &mut self,
        name: impl Into<String>,
        limit: Duration,
        part: impl FnOnce(CancellationToken, Pulse) -> F + Send + 'static,
    ) {
        self.parts.push(Part { name: name.into(), limit, start: Box::new(|stop, pulse| part(stop, pulse).boxed()) });
    }

    /// As [`Self::part`], and it begins when every cache of the current layer is full: half a view looks like an outage.
    pub fn filled_part<F: Future<Output = ()> + Send + 'static>(
        &mut self,
        name: impl Into<String>,
        limit: Duration,
        part: impl FnOnce(CancellationToken, Pulse) -> F + Send + 'static,
    ) {
        let mut caches = self.current_layer().filled();
        self.part(name, limit, move |stop, pulse| async move {
            let filled = async { caches.wait_for(|filled| *filled).await.is_ok() };
            if pulse.while_waiting(stop.run_until_cancelled(filled)).await == Some(true) {
                part(stop, pulse).await;
            } else {
                stop.cancelled().await;
            }
        });
    }

    /// The right to write, for parts that act in other ways than by requests of a [`Writer`].
    pub fn leadership(&self) -> Leadership {
        self.leadership.clone()
    }

    pub fn control<C: Controller>(&mut self, controller: C, queue: Arc<Queue>, concurrency: usize) {
        self.slow_rounds.of(C::NAME, &queue, &self.health);
        let driver = Driver::new(
            controller,
            queue,
            self.clock.clone(),
            self.leadership.clone(),
            self.events.clone(),
            self.metrics.clone(),
            concurrency,
        );
        self.drivers.push((driver, self.current_layer().clone()));
    }

    /// Runs until the stop token is cancelled or a part fails. `on_bound` learns the addresses.
    pub async fn run(self, on_bound: impl FnOnce(Addresses) + Send) -> Result<(), Fatal> {
        let mut tasks = Tasks::default();
        on_bound(serve(self.settings.clone(), self.health.clone(), self.metrics.clone(), &mut tasks).await?);
        let (may_lead, filled) = signal::channel(false);
        let drained = CancellationToken::new();
        let Self {
            health,
            settings,
            leadership,
            elector,
            publisher,
            cluster,
            jobs,
            drivers,
            slow_rounds,
            parts,
            layers,
            has_begun,
            stop,
            metrics,
            events,
            ..
        } = self;
        // Layers hold their own recorders; the publisher ends with the last of them.
        drop(events);

        let mut publishing = tokio::spawn(publisher.run(health.pulse("events")));
        if let Some(elector) = &elector {
            let interruption = elector.interruption();
            health.require("lease", move || interruption.get().map_or(Ok(()), Err));
        }
        let elector_done =
            elector.map(|elector| tokio::spawn(elector.run(filled, drained.clone(), health.pulse("leader election"))));
        let context = Context { health: health.clone(), metrics: metrics.clone() };
        tasks.spawn("watches", cluster.run(context, health.pulse("watches")));
        for (name, job) in jobs {
            let pulse = health.pulse(name.as_str());
            tasks.spawn(name, job(pulse));
        }
        tasks.spawn("slow rounds", slow_rounds.watch());
        tasks.spawn("leadership", announce(leadership, metrics));
        let layers = Layers::new(layers, has_begun, &health);
        let beginning = layers.begin(may_lead);
        let mut parts = Parts::start(parts, &health);
        let mut draining = JoinSet::new();
        for (index, (driver, layer)) in drivers.into_iter().enumerate() {
            let pulse = health.pulse(format!("driver {index}"));
            let retired = pulse.clone();
            let (stop, grace, mut caches) = (stop.clone(), settings.grace, layer.filled());
            draining.spawn(async move {
                let filled = async { caches.wait_for(|filled| *filled).await.is_ok() };
                // Half a view looks like an outage: no round before every cache of the layer is full.
                if pulse.while_waiting(stop.run_until_cancelled(filled)).await == Some(true) {
                    driver.run(stop, grace, pulse).await;
                } else {
                    stop.cancelled().await;
                }
                retired.retire();
            });
        }
        let ended = tokio::select! {
            () = stop.cancelled() => Ok(()),
            name = tasks.any_ended() => Err(Fatal::TaskEnded(name)),
            name = parts.any_ended() => Err(Fatal::TaskEnded(name)),
            Missing { layer, resource, remedy } = beginning => {
                Err(Fatal::DefinitionMissing { layer, resource, remedy })
            }
            _ = &mut publishing => Err(Fatal::TaskEnded("events".into())),
            Some(_) = draining.join_next() => Err(Fatal::TaskEnded("driver".into())),
        };
        // Drivers end by a stop as well, perhaps before this task has seen it: that is no failure.
        let result = if stop.is_cancelled() { Ok(()) } else { ended };
        stop.cancel();
        while draining.join_next().await.is_some() {}
        parts.drain().await;
        last_events(publishing).await;
        // Only now may another replica take over: nothing of ours writes any more.
        drained.cancel();
        if let Some(elector) = elector_done {
            let _ = elector.await;
        }
        result
    }
}

/// With the drivers and parts all recorders are gone, and the publisher ends when it has written the rest.
async fn last_events(mut publishing: JoinHandle<()>) {
    if !publishing.is_finished() && tokio::time::timeout(LAST_EVENTS, &mut publishing).await.is_err() {
        publishing.abort();
        tracing::warn!(limit = ?LAST_EVENTS, "the last events were not all stored before the end");
    }
}

/// Opens the admin ports.
async fn serve(
    settings: Settings,
    health: Health,
    metrics: Arc<Metrics>,
    tasks: &mut Tasks,
) -> Result<Addresses, Fatal> {
    let mut addresses = Addresses::default();
    if let Some(address) = settings.health_address {
        addresses.health = Some(tasks.listen("health", address, admin::health_routes(health)).await?);
    }
    if let Some(address) = settings.metrics_address {
        addresses.metrics = Some(tasks.listen("metrics", address, admin::metrics_routes(metrics.registry())).await?);
    }
    Ok(addresses)
}

/// Keeps the leader gauge.
async fn announce(leadership: Leadership, metrics: Arc<Metrics>) {
    loop {
        metrics.leading.set(i64::from(leadership.is_leading()));
        // The gauge is read every few seconds at most.
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_server_that_is_not_there_yet_is_waited_for() {
        // Nothing listens on port 1.
        let config = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
        let settings = Settings {
            lease: None,
            health_address: None,
            metrics_address: None,
            grace: Duration::from_secs(1),
            request_timeout: Duration::from_secs(1),
            list_mode: None,
            instance: "test".into(),
        };
        let stop = CancellationToken::new();
        let mut operator = Operator::new(crate::connect(config).unwrap(), settings, Clock::default(), stop.clone());
        let kind = Kind::new("configmaps", operator.writer("test"), |_: ConfigMap| Some(()));
        let queue = operator.queue(Duration::from_mins(2));
        operator.watch(&kind, crate::enqueue_on_watch(&queue, |key| Some(key.clone())));
        // As a layer does.
        let (health, _events) = (operator.health.clone(), operator.events.clone());
        let running = tokio::spawn(operator.run(|_| {}));
        tokio::time::sleep(Duration::from_mins(1)).await;
        assert_eq!(health.stalled(), [""; 0]);
        assert!(health.readiness()["cache configmaps"].is_err());
        stop.cancel();
        assert!(running.await.unwrap().is_ok());
    }
}
