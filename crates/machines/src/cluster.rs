//! The operator's Cluster: made where it is missing, and what its NstanceCluster says.

mod bootstrap;
mod view;

use std::sync::Arc;

use api::machine::{
    ControlPlaneEndpoint, NstanceCluster, NstanceClusterStatus, NstanceControlPlane, WORKLOAD_CLUSTER_ANNOTATION,
};
use jiff::Timestamp;
use plan::{
    fact::Never,
    machines::{
        cluster::{self as decide, Action, Observed, Own},
        identity::Standing,
    },
    round::{Plan, Report},
};
use runtime::{Controller, Error, InputsOf, Key, Kind, Operator, Parts, Queue, RoundOf, Selection, Turn};
use serde_json::json;
use tokio::sync::watch;

pub(crate) use view::{Clusters, is_paused, owner};
use view::{facts, project};

use crate::{
    MANAGER,
    config::{Settings, Shards, Workload},
    control_plane::{self, ApiServer, External},
    identity::Known,
    secrets::Secrets,
};

/// Rounds at once: there is one object of a kind, and rarely a second.
const CONCURRENCY: usize = 2;

/// What the controllers of this module need of the rest.
pub(crate) struct Inputs<'a> {
    pub settings: &'a Settings,
    pub api_server: &'a ApiServer,
    pub secrets: &'a Arc<Secrets>,
    pub shards: watch::Receiver<Arc<Shards>>,
    pub identity: &'a Known,
    pub resync: std::time::Duration,
}

/// Adds the Cluster, the NstanceCluster and the NstanceControlPlane to an operator.
/// Returns the Clusters, which the rest of the layer looks at.
pub(crate) fn install(operator: &mut Operator, inputs: &Inputs<'_>) -> (Arc<Clusters>, Option<External>) {
    let namespace = inputs.settings.namespace.as_str();
    let writer = operator.writer(MANAGER);
    let clusters = Kind::new("clusters", writer.clone(), facts);
    let infrastructures = Kind::new("nstanceclusters", writer.clone(), project::<NstanceCluster>);
    let control_planes = Kind::new("nstancecontrolplanes", writer, project::<NstanceControlPlane>);
    let queue = operator.queue(inputs.resync);
    let of_control_planes = operator.queue(inputs.resync);
    let selection = || Selection::in_namespace(namespace);
    // There is one of each, and rarely a second: whose it is, the round finds out.
    let concerned = (infrastructures.clone(), queue.clone(), control_planes.clone(), of_control_planes.clone());
    operator.watch_selected(&clusters, selection(), move |_| {
        concerned.0.store().keys().iter().for_each(|key| concerned.1.changed(key));
        concerned.2.store().keys().iter().for_each(|key| concerned.3.changed(key));
    });
    let listening = queue.clone();
    operator.watch_selected(&infrastructures, selection(), move |change| {
        if change.from_watch {
            listening.changed(change.key);
        }
    });
    let name = inputs.settings.cluster_name();
    let key = Key::new(namespace, name.as_str());
    let endpoint = endpoint(&inputs.settings.workload, inputs.api_server);
    bootstrap::install(
        operator,
        bootstrap::Objects {
            key: key.clone(),
            endpoint: endpoint.clone(),
            clusters: clusters.clone(),
            infrastructures: infrastructures.clone(),
            control_planes: control_planes.clone(),
        },
    );
    let objects = control_plane::Objects {
        clusters: &clusters,
        infrastructures: &infrastructures,
        control_planes: &control_planes,
    };
    let external = control_plane::install(operator, inputs, &objects, of_control_planes);
    let workload = external.as_ref().map(|external| external.identity.clone());
    follow(operator, inputs, workload.clone(), &queue, &key);
    let controller = ClusterController {
        infrastructures,
        clusters: clusters.clone(),
        own: key,
        endpoint,
        shards: inputs.shards.clone(),
        standing: inputs.identity.standing.clone(),
        workload,
    };
    operator.control(controller, queue, CONCURRENCY);
    (clusters, external)
}

/// What the shards, the identity and the workload cluster say is news for the operator's own NstanceCluster.
fn follow(
    operator: &mut Operator,
    inputs: &Inputs<'_>,
    workload: Option<watch::Receiver<Option<String>>>,
    queue: &Arc<Queue>,
    key: &Key,
) {
    let mut workload = workload.unwrap_or_else(|| watch::Sender::new(None).subscribe());
    let (mut shards, mut standing) = (inputs.shards.clone(), inputs.identity.standing.clone());
    let (queue, key) = (queue.clone(), key.clone());
    // It only waits.
    let limit = std::time::Duration::from_secs(1);
    operator.part("machines news", limit, move |stop, pulse| async move {
        let news = async {
            loop {
                let is_open = tokio::select! {
                    changed = shards.changed() => changed.is_ok(),
                    changed = standing.changed() => changed.is_ok(),
                    Ok(()) = workload.changed() => true,
                };
                if !is_open {
                    // A sender ends with the process.
                    return std::future::pending::<()>().await;
                }
                queue.changed(&key);
            }
        };
        stop.run_until_cancelled(pulse.while_waiting(news)).await;
    });
}

/// Where the workload cluster's API server is.
fn endpoint(workload: &Workload, api_server: &ApiServer) -> ControlPlaneEndpoint {
    let (host, port) = match workload {
        Workload::Own { .. } => (api_server.host.clone(), api_server.port),
        Workload::External { host, port } => (host.clone(), *port),
    };
    ControlPlaneEndpoint { host, port: Some(i32::from(port)) }
}

struct ClusterController {
    infrastructures: Arc<Kind<Parts<NstanceCluster>, NstanceCluster>>,
    clusters: Arc<Clusters>,
    /// The operator's own.
    own: Key,
    endpoint: ControlPlaneEndpoint,
    shards: watch::Receiver<Arc<Shards>>,
    standing: watch::Receiver<Standing>,
    /// The uid of the workload cluster, where that is another one.
    workload: Option<watch::Receiver<Option<String>>>,
}

impl Controller for ClusterController {
    const NAME: &'static str = "nstancecluster";
    type View = Parts<NstanceCluster>;
    type Object = NstanceCluster;
    type Kept = NstanceCluster;
    type Status = NstanceClusterStatus;
    type Observed = Observed;
    type Action = Action;
    type Done = ();
    type Note = ();
    type Ask = Never;
    type Answer = Never;

    fn kind(&self) -> &Arc<Kind<Self::View, NstanceCluster>> {
        &self.infrastructures
    }

    fn span(key: &Key) -> tracing::Span {
        tracing::info_span!("round", nstancecluster = %key, namespace = %key.namespace)
    }

    async fn gather(&self, key: &Key, object: &NstanceCluster, (): &()) -> Result<Observed, Error> {
        let own = (*key == self.own).then(|| Own {
            endpoint: self.endpoint.clone(),
            standing: self.standing.borrow().clone(),
            workload: self.workload.as_ref().and_then(|workload| workload.borrow().clone()),
        });
        let shards = self.shards.borrow().keys().cloned().collect();
        let owner = owner(&self.clusters, &object.metadata);
        Ok(Observed { owner, is_paused: is_paused(&object.metadata), own, shards })
    }

    fn plan(&self, object: &NstanceCluster, observed: &Observed, _: &InputsOf<Self>) -> Plan<Action> {
        decide::plan(object, observed)
    }

    async fn execute(&self, turn: &Turn<'_, Self>, action: &Action) -> Result<(), Error> {
        let patch = match action {
            Action::SetEndpoint(endpoint) => json!({ "spec": { "controlPlaneEndpoint": endpoint } }),
            Action::NoteWorkload { uid } => {
                json!({ "metadata": { "annotations": { WORKLOAD_CLUSTER_ANNOTATION: uid } } })
            }
        };
        turn.subject.patch(&self.infrastructures, turn.key, None, patch).await
    }

    fn report(&self, round: &RoundOf<'_, Self>, now: Timestamp) -> Report<NstanceClusterStatus> {
        decide::report(round, now)
    }
}
