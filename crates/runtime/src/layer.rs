//! What holds up one layer holds up no other: each begins when its own caches are full.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use k8s_openapi::{
    api::rbac::v1::ClusterRole, apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use process::Health;
use tokio::{sync::watch as signal, time::Instant};

use crate::{
    kind::Cache,
    rights::{Account, Right},
};

/// What a layer is to the outside: a constant of its crate, from which `--layers`, roles, definitions and the chart are
/// made.
#[derive(Clone, Copy, Debug)]
pub struct LayerSpec {
    /// As users write it, in `--layers` and in the chart; also the name of its folder in `examples`.
    pub name: &'static str,
    /// Whether it runs where no layer is named. One that can do nothing without settings of its own does not.
    pub is_default: bool,
    /// Without its definitions the process ends with the remedy, instead of serving the other layers meanwhile.
    pub demands_definitions: bool,
    /// Needed in every namespace that may hold its objects.
    pub rights: &'static [Right],
    /// Needed in the operator's own namespace only.
    pub own_namespace: &'static [Right],
    /// Roles beyond those rights, which an administrator binds or not. Their names begin with `strata-`.
    pub roles: fn() -> Vec<ClusterRole>,
    /// Accounts beside the operator's own, each bound to one of those roles.
    pub accounts: &'static [Account],
    /// The kinds that users write.
    pub crds: fn() -> Vec<CustomResourceDefinition>,
    /// Resources that it follows and whose definitions another product brings, each with how to install them.
    pub foreign: Foreign,
}

/// Resources, each with how its definition is installed.
pub type Foreign = &'static [(&'static str, &'static str)];

/// How our own definitions are installed.
const INSTALL: &str = "strata crd | kubectl apply --server-side -f -";

/// Short beside the seconds that filling takes, long beside the cost of asking.
const LOOK: Duration = Duration::from_millis(20);
/// While a definition is missing: it comes with an installation that a person starts.
const PATIENT_LOOK: Duration = Duration::from_secs(1);

/// How long the layers that are ready wait for one that is not: longer than caches take to fill, short beside an outage.
const PATIENCE: Duration = Duration::from_secs(30);

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
    pub foreign: Foreign,
}

/// A definition that the API server does not have, and without which a layer cannot run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Missing {
    pub layer: &'static str,
    pub resource: &'static str,
    pub remedy: &'static str,
}

impl Layer {
    pub fn new(name: &'static str, demands_definitions: bool) -> Self {
        let filled = signal::Sender::new(false);
        Self { name, caches: Arc::default(), filled, demands_definitions, foreign: &[] }
    }

    fn remedy(&self, resource: &str) -> &'static str {
        self.foreign.iter().find(|(foreign, _)| *foreign == resource).map_or(INSTALL, |(_, remedy)| remedy)
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
        Some(format!("waits for the definition of {resource}; install it: {}", self.remedy(resource)))
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
    /// a definition: that holds up the layer only. Returns what a layer cannot be without.
    pub async fn begin(&self, may_lead: signal::Sender<bool>) -> Missing {
        let mut first_at = None;
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
                    Some(resource) if layer.demands_definitions => {
                        return Missing { layer: layer.name, resource, remedy: layer.remedy(resource) };
                    }
                    Some(_) => waiting += 1,
                    None => {}
                }
            }
            let begun = self.layers.iter().filter(|layer| *layer.filled.borrow()).count();
            // Whatever else keeps a layer from its objects (a right, a webhook, an API that is down) holds up the others
            // for a moment only.
            let is_patient = first_at.is_none_or(|at: Instant| at.elapsed() < PATIENCE);
            if begun > 0 {
                first_at.get_or_insert_with(Instant::now);
            }
            if begun > 0 && (begun + waiting == self.layers.len() || !is_patient) {
                may_lead.send_replace(true);
            }
            if begun == self.layers.len() {
                return std::future::pending().await;
            }
            tokio::time::sleep(if waiting == 0 { LOOK } else { PATIENT_LOOK }).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use tokio_util::sync::CancellationToken;

    use process::Clock;

    use super::*;
    use crate::{
        Fatal, Kind, ListMode, Operator, Settings,
        scripted::{Answer, Script, page, quiet},
    };

    /// An operator that follows one kind, which the server of the script does not have at first.
    fn operator(script: &Script, add_layer: fn(&mut Operator), stop: &CancellationToken) -> Operator {
        let settings = Settings {
            lease: None,
            health_address: None,
            metrics_address: None,
            grace: Duration::from_secs(1),
            request_timeout: Duration::from_secs(10),
            list_mode: Some(ListMode::Paged),
            instance: "test".into(),
        };
        let mut operator = Operator::new(script.client(), settings, Clock::default(), stop.clone());
        add_layer(&mut operator);
        let kind = Kind::new("configmaps", operator.writer("test"), |_: ConfigMap| Some(()));
        operator.watch(&kind, |_| {});
        operator
    }

    #[tokio::test(start_paused = true)]
    async fn a_demanding_layer_ends_the_process_with_the_remedy() {
        let script = Script::new([Answer::Refusal(404, None)]);
        let operator = operator(&script, |operator| operator.demanding_layer("maps"), &CancellationToken::new());
        // As a layer does.
        let _events = operator.events.clone();
        let ended = operator.run(|_| {}).await.unwrap_err();
        assert!(matches!(ended, Fatal::DefinitionMissing { layer: "maps", resource: "configmaps", .. }), "{ended}");
        let text = ended.to_string();
        for part in ["definition of configmaps", "the layer maps", "strata crd | kubectl apply --server-side -f -"] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a15_a_definition_of_another_product_is_named_with_that_products_remedy() {
        let script = Script::new([Answer::Refusal(404, None)]);
        let add = |operator: &mut Operator| {
            operator.demanding_layer("maps");
            operator.foreign_definitions(&[("configmaps", "clusterctl init")]);
        };
        let operator = operator(&script, add, &CancellationToken::new());
        // As a layer does.
        let _events = operator.events.clone();
        let text = operator.run(|_| {}).await.unwrap_err().to_string();
        assert!(text.contains("definition of configmaps") && text.ends_with("install it: clusterctl init"), "{text}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_layer_waits_for_its_definition_and_begins_when_it_comes() {
        let stop = CancellationToken::new();
        let script = Script::new([Answer::Refusal(404, None)]);
        let operator = operator(&script, |operator| operator.layer("maps"), &stop);
        let (health, _events) = (operator.health.clone(), operator.events.clone());
        let layer = operator.current_layer().clone();
        let running = tokio::spawn(operator.run(|_| {}));
        // The second request waits for the script.
        tokio::time::sleep(Duration::from_secs(5)).await;
        // No other layer has begun, so there is nothing to be ready for.
        assert!(health.readiness()["cache configmaps"].is_err(), "{:?}", health.readiness());
        assert_eq!(
            health.notes()["layer maps"],
            "waits for the definition of configmaps; install it: strata crd | kubectl apply --server-side -f -"
        );
        assert!(!*layer.filled().borrow());
        stop.cancel();
        running.await.unwrap().unwrap();

        let stop = CancellationToken::new();
        let script = Script::new([Answer::Refusal(404, None), page(5, "", []), quiet()]);
        let operator = self::operator(&script, |operator| operator.layer("maps"), &stop);
        let (health, _events) = (operator.health.clone(), operator.events.clone());
        let layer = operator.current_layer().clone();
        let running = tokio::spawn(operator.run(|_| {}));
        assert!(layer.filled().wait_for(|filled| *filled).await.is_ok());
        assert_eq!(health.notes().get("layer maps"), None);
        stop.cancel();
        running.await.unwrap().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_part_of_a_layer_begins_when_its_caches_are_full() {
        let begun = |script: &Script| {
            let (stop, begins) = (CancellationToken::new(), signal::Sender::new(false));
            let mut operator = operator(script, |operator| operator.layer("maps"), &stop);
            let begun = begins.subscribe();
            operator.filled_part("part", Duration::from_secs(1), move |stop, pulse| async move {
                begins.send_replace(true);
                pulse.while_waiting(stop.cancelled()).await;
            });
            (operator, begun, stop)
        };
        let (operator, waits, stop) = begun(&Script::new([Answer::Refusal(404, None)]));
        let _events = operator.events.clone();
        let running = tokio::spawn(operator.run(|_| {}));
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert!(!*waits.borrow(), "the definition is missing");
        stop.cancel();
        running.await.unwrap().unwrap();

        let (operator, mut begins, stop) = begun(&Script::new([Answer::Refusal(404, None), page(5, "", []), quiet()]));
        let _events = operator.events.clone();
        let running = tokio::spawn(operator.run(|_| {}));
        assert!(begins.wait_for(|begun| *begun).await.is_ok());
        stop.cancel();
        running.await.unwrap().unwrap();
    }
}
