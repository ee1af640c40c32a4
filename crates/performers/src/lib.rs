//! Performers: pods with stable gRPC endpoints, in every namespace.

mod controller;
mod metrics;
pub mod rights;
mod view;

use std::time::Duration;

use plan::performers::Policy;
use runtime::{Kind, LayerSpec, Operator, enqueue_on_watch};

pub const LAYER: LayerSpec = LayerSpec {
    name: "performers",
    is_default: true,
    demands_definitions: false,
    rights: rights::CLUSTER,
    own_namespace: &[],
    roles: Vec::new,
    accounts: &[],
    crds: || vec![api::performer::crd()],
    foreign: &[],
};

/// Field manager of everything this layer writes.
const MANAGER: &str = "strata-performers";

/// How the layer works; every interval is here, so that tests shorten it instead of waiting.
#[derive(Clone, Debug)]
pub struct Config {
    /// Rounds that run at once.
    pub concurrency: usize,
    /// Period of the drift check.
    pub resync: Duration,
    pub policy: Policy,
}

impl Default for Config {
    fn default() -> Self {
        Self { concurrency: 10, resync: Duration::from_mins(2), policy: Policy::default() }
    }
}

/// Adds the layer to an operator.
pub fn install(operator: &mut Operator, config: Config) {
    let writer = operator.writer(MANAGER);
    let performers = Kind::new("performers", writer.clone(), view::PerformerView::project);
    let pods = Kind::new("pods", writer.clone(), view::PodView::project);
    let services = Kind::new("services", writer, view::ServiceView::project);
    let queue = operator.queue(config.resync);
    operator.watch(&performers, enqueue_on_watch(&queue, |key| Some(key.clone())));
    operator.watch(&pods, enqueue_on_watch(&queue, view::performer_of));
    operator.watch(&services, enqueue_on_watch(&queue, view::performer_of));
    operator.metrics.collect(Box::new(metrics::PerformerMetrics::new(performers.clone())));
    let controller = controller::PerformerController {
        performers,
        pods,
        services,
        policy: config.policy,
        server_clock: operator.server_clock.clone(),
    };
    operator.control(controller, queue, config.concurrency);
}
