//! What holds up one layer holds up no other: each begins when its own caches are full.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::sync::watch as signal;

use crate::{health::Health, kind::Cache};

/// Short beside the seconds that filling takes, long beside the cost of asking.
const LOOK: Duration = Duration::from_millis(20);
/// While a definition is missing: it comes with an installation that a person starts.
const PATIENT_LOOK: Duration = Duration::from_secs(1);

/// Each with the name of its resource.
type Caches = Vec<(&'static str, Arc<dyn Cache>)>;

/// One layer while the operator is put together and runs.
#[derive(Clone)]
pub(crate) struct Layer {
    pub name: &'static str,
    caches: Arc<Mutex<Caches>>,
    filled: signal::Sender<bool>,
    /// Without its definitions the process ends instead of waiting.
    pub demands_definitions: bool,
}

impl Layer {
    pub fn new(name: &'static str, demands_definitions: bool) -> Self {
        Self { name, caches: Arc::default(), filled: signal::Sender::new(false), demands_definitions }
    }

    pub fn add(&self, resource: &'static str, cache: Arc<dyn Cache>) {
        self.lock().push((resource, cache));
    }

    /// Becomes true when all caches of the layer are full, and stays so.
    pub fn filled(&self) -> signal::Receiver<bool> {
        self.filled.subscribe()
    }

    fn is_full(&self) -> bool {
        self.lock().iter().all(|(_, cache)| cache.readiness().is_ok())
    }

    /// The first resource whose definition the API server does not have.
    pub fn undefined(&self) -> Option<&'static str> {
        self.lock().iter().find(|(_, cache)| cache.is_undefined()).map(|(resource, _)| *resource)
    }

    /// What the layer waits for, for people.
    fn waits_for(&self) -> Option<String> {
        let resource = self.undefined()?;
        Some(format!(
            "waits for the definition of {resource}; install it: strata crd | kubectl apply --server-side -f -"
        ))
    }

    fn lock(&self) -> MutexGuard<'_, Caches> {
        self.caches.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether any layer has begun: then a definition that another one lacks is no reason to be not ready.
pub(crate) type Begun = Arc<AtomicBool>;

/// All layers of a process.
pub(crate) struct Layers {
    layers: Vec<Layer>,
    has_begun: Begun,
}

impl Layers {
    pub fn new(mut layers: Vec<Layer>, has_begun: Begun, health: &Health) -> Self {
        // The one that is there from the start, where others were named.
        if layers.len() > 1 {
            layers.retain(|layer| !layer.lock().is_empty());
        }
        for layer in &layers {
            let shown = layer.clone();
            if !layer.name.is_empty() {
                health.inform(format!("layer {}", layer.name), move || shown.waits_for());
            }
        }
        Self { layers, has_begun }
    }

    /// Lets each layer begin when its caches are full, and the elector campaign when every layer has begun or waits for
    /// a definition: that holds up the layer only. Returns the name of a layer, and of its resource, that cannot be
    /// without.
    pub async fn begin(&self, may_lead: signal::Sender<bool>) -> (&'static str, &'static str) {
        loop {
            let mut waiting = 0;
            for layer in &self.layers {
                if !*layer.filled.borrow() && layer.is_full() {
                    layer.filled.send_replace(true);
                    self.has_begun.store(true, Ordering::Relaxed);
                    tracing::info!(layer = layer.name, "caches filled");
                }
                let undefined = layer.undefined().filter(|_| !*layer.filled.borrow());
                match undefined {
                    Some(resource) if layer.demands_definitions => return (layer.name, resource),
                    Some(_) => waiting += 1,
                    None => {}
                }
            }
            let begun = self.layers.iter().filter(|layer| *layer.filled.borrow()).count();
            if begun > 0 && begun + waiting == self.layers.len() {
                may_lead.send_replace(true);
            }
            if begun == self.layers.len() {
                return std::future::pending().await;
            }
            tokio::time::sleep(if waiting == 0 { LOOK } else { PATIENT_LOOK }).await;
        }
    }
}
