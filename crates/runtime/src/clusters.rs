//! Clusters beside the operator's own, which come, change and go while it runs.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use process::Pulse;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric},
    metrics::{counter::ConstCounter, gauge::ConstGauge},
};
use sha2::{Digest, Sha256};
use tokio::{sync::Notify, task::JoinSet};
use tokio_util::sync::CancellationToken;

use crate::{
    cluster::{Cluster, Common},
    hub::Context,
    kubeconfig::{self, KubeconfigError},
};

/// Which clusters are known; clones share it. One that is silent is unknown, and costs neither the process nor its
/// readiness nor its lead.
#[derive(Clone)]
pub struct Clusters {
    known: Arc<Known>,
}

struct Known {
    common: Common,
    clusters: Mutex<BTreeMap<Arc<str>, Entry>>,
    /// New ones are waiting to be started.
    added: Notify,
}

struct Entry {
    cluster: Cluster,
    /// Of the kubeconfig, so that its content need not be kept.
    digest: [u8; 32],
    stop: CancellationToken,
    is_started: bool,
}

impl Clusters {
    pub(crate) fn new(common: Common) -> Self {
        Self { known: Arc::new(Known { common, clusters: Mutex::default(), added: Notify::new() }) }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, Entry>> {
        self.known.clusters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The cluster of this name, reached by this kubeconfig from now on. One that is known already keeps its kinds: what
    /// they hold is unknown until it is checked against what the server now says. The same kubeconfig again changes nothing; one that is
    /// refused does not either. No cluster is asked here, so this does not wait for any.
    pub async fn set(&self, name: &str, kubeconfig: &[u8]) -> Result<Cluster, KubeconfigError> {
        assert!(!name.is_empty(), "the operator's own cluster is not set");
        let digest: [u8; 32] = Sha256::digest(kubeconfig).into();
        if let Some(entry) = self.lock().get(name).filter(|entry| entry.digest == digest) {
            return Ok(entry.cluster.clone());
        }
        let client = kubeconfig::client(kubeconfig).await?;
        let mut clusters = self.lock();
        if let Some(entry) = clusters.get_mut(name) {
            entry.digest = digest;
            entry.cluster.exchange(client);
            return Ok(entry.cluster.clone());
        }
        let name = Arc::<str>::from(name);
        let cluster = Cluster::new(name.clone(), client, &self.known.common);
        let stop = CancellationToken::new();
        clusters.insert(name, Entry { cluster: cluster.clone(), digest, stop, is_started: false });
        self.known.added.notify_one();
        Ok(cluster)
    }

    pub fn get(&self, name: &str) -> Option<Cluster> {
        self.lock().get(name).map(|entry| entry.cluster.clone())
    }

    /// From now on nothing is watched there, and what was known of it is dropped: a kind of it is empty and
    /// unknown.
    pub fn remove(&self, name: &str) {
        // Listeners are notified below, and may ask for clusters.
        let removed = self.lock().remove(name);
        if let Some(entry) = removed {
            entry.stop.cancel();
            entry.cluster.close();
        }
    }

    /// What is wrong, by cluster; for readiness, which it does not decide.
    pub(crate) fn mention(&self) -> Option<String> {
        let clusters = self.lock();
        let interruptions = clusters.iter().filter_map(|(name, entry)| {
            let freshness = entry.cluster.freshness();
            let interruption = freshness.interruption?;
            let contact = freshness
                .age
                .map_or("never connected".to_owned(), |age| format!("last contact {} s ago", age.as_secs()));
            Some(format!("{name}: {interruption} ({contact})"))
        });
        let interruptions: Vec<_> = interruptions.collect();
        (!interruptions.is_empty()).then(|| interruptions.join("; "))
    }

    /// Runs the watches of all of them, for ever.
    pub(crate) async fn run(self, context: Context, pulse: Pulse) {
        let mut running = JoinSet::new();
        loop {
            for (name, entry) in self.lock().iter_mut().filter(|(_, entry)| !entry.is_started) {
                entry.is_started = true;
                running.spawn(run_one(name.clone(), entry.cluster.clone(), entry.stop.clone(), context.clone()));
            }
            tokio::select! {
                () = self.known.added.notified() => {}
                Some(_) = running.join_next() => {}
                () = pulse.tick() => {}
            }
        }
    }
}

async fn run_one(name: Arc<str>, cluster: Cluster, stop: CancellationToken, context: Context) {
    let passing = context.health.passing_pulse(format!("watches of {name}"));
    stop.run_until_cancelled(cluster.run(context, passing.pulse.clone())).await;
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Label {
    cluster: String,
}

impl fmt::Debug for Clusters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.lock().keys()).finish()
    }
}

impl Collector for Clusters {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let clusters: Vec<_> = self.lock().values().map(|entry| entry.cluster.clone()).collect();
        let label = |cluster: &Cluster| Label { cluster: cluster.name().to_owned() };
        let age = |cluster: &Cluster| Some(ConstGauge::new(cluster.freshness().age?.as_secs_f64()));
        if clusters.iter().any(|cluster| age(cluster).is_some()) {
            let (name, help) = ("strata_cluster_silence_seconds", "Time since the last contact with another cluster");
            let kind = ConstGauge::new(0.0).metric_type();
            let mut metric = encoder.encode_descriptor(name, help, None, kind)?;
            for cluster in &clusters {
                if let Some(gauge) = age(cluster) {
                    gauge.encode(metric.encode_family(&label(cluster))?)?;
                }
            }
        }
        if !clusters.is_empty() {
            let (name, help) = ("strata_cluster_watch_errors", "Interrupted watches of another cluster");
            let kind = ConstCounter::new(0_u64).metric_type();
            let mut metric = encoder.encode_descriptor(name, help, None, kind)?;
            for cluster in &clusters {
                let counter = ConstCounter::new(cluster.interruptions());
                counter.encode(metric.encode_family(&label(cluster))?)?;
            }
        }
        Ok(())
    }
}
