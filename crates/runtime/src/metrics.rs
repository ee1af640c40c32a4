//! Prometheus metrics: controller-runtime's names, so that existing dashboards work, and our own beside them.

use std::{
    fmt::{self, Debug},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use process::Registry;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric},
    metrics::{
        MetricType,
        counter::{ConstCounter, Counter},
        family::Family,
        gauge::{ConstGauge, Gauge},
        histogram::Histogram,
    },
    registry,
};

use crate::{
    error::Class,
    key::Key,
    queue::{Depth, Queue},
};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Controller {
    controller: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reconcile {
    controller: &'static str,
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct NamespacedReconcile {
    controller: &'static str,
    namespace: String,
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct NamespacedError {
    controller: &'static str,
    namespace: String,
    class: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Resource {
    resource: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Named {
    name: &'static str,
    controller: &'static str,
}

type Seconds = Family<Controller, Histogram, fn() -> Histogram>;

/// From a no-op round (tens of microseconds) to a request timeout.
fn round_seconds() -> Histogram {
    Histogram::new([0.0001, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0])
}

/// How a round ended, for the `result` label that controller-runtime uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoundResult {
    Success,
    RequeueAfter,
    Error(Class),
}

impl RoundResult {
    fn label(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::RequeueAfter => "requeue_after",
            Self::Error(_) => "error",
        }
    }
}

pub struct Metrics {
    registry: Arc<Registry>,
    reconciles: Family<Reconcile, Counter>,
    errors: Family<Controller, Counter>,
    terminal: Family<Controller, Counter>,
    panics: Family<Controller, Counter>,
    round_time: Seconds,
    active: Family<Controller, Gauge>,
    concurrency: Family<Controller, Gauge>,
    waited: Seconds,
    namespaced: Family<NamespacedReconcile, Counter>,
    namespaced_errors: Family<NamespacedError, Counter>,
    watch_errors: Family<Resource, Counter>,
    fetch_loops: Family<Controller, Counter>,
    events_dropped: Counter,
    pub(crate) leading: Gauge,
    queues: Queues,
}

impl Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}

impl Default for Metrics {
    fn default() -> Self {
        let seconds = || Seconds::new_with_constructor(round_seconds as fn() -> Histogram);
        let metrics = Self {
            registry: Arc::default(),
            reconciles: Family::default(),
            errors: Family::default(),
            terminal: Family::default(),
            panics: Family::default(),
            round_time: seconds(),
            active: Family::default(),
            concurrency: Family::default(),
            waited: seconds(),
            namespaced: Family::default(),
            namespaced_errors: Family::default(),
            watch_errors: Family::default(),
            fetch_loops: Family::default(),
            events_dropped: Counter::default(),
            leading: Gauge::default(),
            queues: Queues::default(),
        };
        metrics.registry.register(|r| metrics.register(r));
        metrics
    }
}

impl Metrics {
    fn register(&self, r: &mut registry::Registry) {
        r.register("controller_runtime_reconcile", "Rounds by controller and result", self.reconciles.clone());
        r.register("controller_runtime_reconcile_errors", "Rounds that failed", self.errors.clone());
        r.register(
            "controller_runtime_terminal_reconcile_errors",
            "Rounds that failed with a terminal error",
            self.terminal.clone(),
        );
        r.register("controller_runtime_reconcile_panics", "Rounds that panicked", self.panics.clone());
        r.register("controller_runtime_reconcile_time_seconds", "Length of a round", self.round_time.clone());
        r.register("controller_runtime_active_workers", "Rounds running now", self.active.clone());
        r.register(
            "controller_runtime_max_concurrent_reconciles",
            "Rounds that may run at once",
            self.concurrency.clone(),
        );
        r.register("workqueue_queue_duration_seconds", "Time a key waited for its round", self.waited.clone());
        r.register("workqueue_work_duration_seconds", "Length of a round", self.round_time.clone());
        r.register("strata_reconcile", "Rounds by controller, namespace and result", self.namespaced.clone());
        r.register(
            "strata_reconcile_errors",
            "Failed rounds by controller, namespace and class",
            self.namespaced_errors.clone(),
        );
        r.register("strata_watch_errors", "Interrupted watches by resource", self.watch_errors.clone());
        r.register(
            "strata_fetch_loops",
            "Plans that asked for facts and never acted on them",
            self.fetch_loops.clone(),
        );
        r.register("strata_events_dropped", "Events that were not stored", self.events_dropped.clone());
        r.register("strata_leader", "1 while this replica leads", self.leading.clone());
        r.register_collector(Box::new(self.queues.clone()));
    }

    /// Adds metrics that are computed when they are asked for.
    pub fn collect(&self, collector: Box<dyn Collector>) {
        self.registry.collect(collector);
    }

    /// What `/metrics` answers from.
    pub(crate) fn registry(&self) -> Arc<Registry> {
        self.registry.clone()
    }

    pub(crate) fn queue(&self, controller: &'static str, queue: Arc<Queue>) {
        self.queues.lock().push((Named { name: controller, controller }, queue));
    }

    pub(crate) fn concurrency(&self, controller: &'static str, limit: usize) {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        self.concurrency.get_or_create(&Controller { controller }).set(limit);
        // Present from the start, so that a rate over it is never "no data".
        self.active.get_or_create(&Controller { controller }).set(0);
        drop(self.errors.get_or_create(&Controller { controller }));
        drop(self.panics.get_or_create(&Controller { controller }));
    }

    pub(crate) fn round_started(&self, controller: &'static str, waited: Duration) {
        self.active.get_or_create(&Controller { controller }).inc();
        self.waited.get_or_create(&Controller { controller }).observe(waited.as_secs_f64());
    }

    pub(crate) fn round_ended(&self, controller: &'static str, key: &Key, took: Duration, result: RoundResult) {
        let labels = Controller { controller };
        self.active.get_or_create(&labels).dec();
        self.round_time.get_or_create(&labels).observe(took.as_secs_f64());
        self.reconciles.get_or_create(&Reconcile { controller, result: result.label() }).inc();
        let namespace = key.namespace.to_string();
        self.namespaced
            .get_or_create(&NamespacedReconcile { controller, namespace: namespace.clone(), result: result.label() })
            .inc();
        if let RoundResult::Error(class) = result {
            self.errors.get_or_create(&labels).inc();
            if class == Class::Terminal {
                self.terminal.get_or_create(&labels).inc();
            }
            self.namespaced_errors
                .get_or_create(&NamespacedError { controller, namespace, class: class.label() })
                .inc();
        }
    }

    /// Drops the series of a namespace that has no object left.
    pub(crate) fn forget_namespace(&self, controller: &'static str, namespace: &str) {
        let namespace = namespace.to_owned();
        for result in ["success", "requeue_after", "error"] {
            self.namespaced.remove(&NamespacedReconcile { controller, namespace: namespace.clone(), result });
        }
        for class in [Class::Transient, Class::Conflict, Class::Invalid, Class::Terminal] {
            let class = class.label();
            self.namespaced_errors.remove(&NamespacedError { controller, namespace: namespace.clone(), class });
        }
    }

    pub(crate) fn panicked(&self, controller: &'static str) {
        self.panics.get_or_create(&Controller { controller }).inc();
    }

    pub(crate) fn watch_failed(&self, resource: &'static str) {
        self.watch_errors.get_or_create(&Resource { resource }).inc();
    }

    pub(crate) fn asked_in_vain(&self, controller: &'static str) {
        self.fetch_loops.get_or_create(&Controller { controller }).inc();
    }

    pub(crate) fn event_dropped(&self) {
        self.events_dropped.inc();
    }

    /// The text that `/metrics` answers.
    pub fn encode(&self) -> Result<String, fmt::Error> {
        self.registry.encode()
    }
}

/// The queues of all controllers. One collector for all: a metric has one HELP and one TYPE, whatever its labels.
#[derive(Clone, Debug, Default)]
struct Queues(Arc<Mutex<Vec<NamedQueue>>>);

type NamedQueue = (Named, Arc<Queue>);

impl Queues {
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<(Named, Arc<Queue>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One value of a queue.
type Read<T> = fn(&Depth) -> T;

#[allow(clippy::cast_precision_loss, reason = "a metric of seconds needs no 53rd bit")]
const QUEUE_GAUGES: [(&str, &str, Read<f64>); 4] = [
    ("workqueue_depth", "Keys waiting for a round", |depth| depth.queued as f64),
    ("workqueue_unfinished_work_seconds", "Sum of the lengths of rounds running now", |depth| {
        depth.unfinished.as_secs_f64()
    }),
    ("workqueue_longest_running_processor_seconds", "Longest round running now", |depth| depth.longest.as_secs_f64()),
    ("strata_queue_keys", "Keys the controller knows", |depth| depth.known as f64),
];

const QUEUE_COUNTERS: [(&str, &str, Read<u64>); 2] = [
    ("workqueue_adds", "Keys added to the queue", |depth| depth.adds),
    ("workqueue_retries", "Rounds queued again after a failure", |depth| depth.retries),
];

impl Collector for Queues {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let depths: Vec<(Named, Depth)> =
            self.lock().iter().map(|(name, queue)| (name.clone(), queue.depth())).collect();
        if depths.is_empty() {
            return Ok(());
        }
        for (name, help, read) in QUEUE_GAUGES {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (labels, depth) in &depths {
                ConstGauge::new(read(depth)).encode(metric.encode_family(labels)?)?;
            }
        }
        for (name, help, read) in QUEUE_COUNTERS {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (labels, depth) in &depths {
                ConstCounter::new(read(depth)).encode(metric.encode_family(labels)?)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use process::Clock;

    use super::*;

    #[test]
    fn a_failed_round_counts_under_every_name() {
        let metrics = Metrics::default();
        metrics.concurrency("performer", 10);
        let queue = Arc::new(Queue::new(Clock::default(), Duration::from_secs(1)));
        queue.changed(&Key::new("n", "a"));
        metrics.queue("performer", queue);
        metrics.round_started("performer", Duration::ZERO);
        let failed = RoundResult::Error(Class::Invalid);
        metrics.round_ended("performer", &Key::new("n", "a"), Duration::from_millis(3), failed);
        let text = metrics.encode().unwrap();
        for line in [
            r#"controller_runtime_reconcile_total{controller="performer",result="error"} 1"#,
            r#"controller_runtime_reconcile_errors_total{controller="performer"} 1"#,
            r#"controller_runtime_reconcile_time_seconds_count{controller="performer"} 1"#,
            r#"controller_runtime_active_workers{controller="performer"} 0"#,
            r#"controller_runtime_max_concurrent_reconciles{controller="performer"} 10"#,
            r#"workqueue_depth{name="performer",controller="performer"} 1"#,
            r#"workqueue_adds_total{name="performer",controller="performer"} 1"#,
            r#"strata_reconcile_errors_total{controller="performer",namespace="n",class="invalid"} 1"#,
        ] {
            assert!(text.lines().any(|l| l.starts_with(line)), "{line} is missing in\n{text}");
        }
        metrics.forget_namespace("performer", "n");
        assert!(!metrics.encode().unwrap().contains("namespace=\"n\""));
    }

    #[test]
    fn each_metric_is_described_once_however_many_queues_there_are() {
        let metrics = Metrics::default();
        for controller in ["performer", "workspace", "user"] {
            metrics.concurrency(controller, 10);
            metrics.queue(controller, Arc::new(Queue::new(Clock::default(), Duration::from_secs(1))));
        }
        let text = metrics.encode().unwrap();
        let mut described: Vec<&str> = text.lines().filter(|line| line.starts_with('#')).collect();
        let all = described.len();
        described.sort_unstable();
        described.dedup();
        assert_eq!(described.len(), all, "{text}");
        assert_eq!(text.matches("\nworkqueue_depth{").count(), 3, "{text}");
    }
}
