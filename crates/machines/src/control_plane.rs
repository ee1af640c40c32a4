//! The NstanceControlPlane, and the kubeconfig by which Cluster API reaches the workload cluster.

mod external;
mod kubeconfig;

use std::sync::Arc;

use api::machine::{NstanceCluster, NstanceControlPlane, NstanceControlPlaneStatus};
use jiff::Timestamp;
use plan::{
    fact::Never,
    machines::control_plane::{self as decide, Found, Kubeconfig, Observed, StoreKubeconfig},
    round::{Plan, Report},
};
use process::Clock;
use runtime::{
    Controller, Error, InputsOf, Key, Kind, Operator, Parts, Queue, RoundOf, Selection, ServerClock, Turn, Writer,
};

pub(crate) use external::External;
pub use kubeconfig::ApiServer;

use crate::{
    MANAGER,
    cluster::{Clusters, Inputs, is_paused, owner},
    config::Workload,
    secrets::{SecretFacts, Secrets},
};

/// Rounds at once: there is one object, and rarely a second.
const CONCURRENCY: usize = 2;

type Infrastructures = Kind<Parts<NstanceCluster>, NstanceCluster>;
type ControlPlanes = Kind<Parts<NstanceControlPlane>, NstanceControlPlane>;

/// The operator's Cluster and what belongs to it.
pub(crate) struct Objects<'a> {
    pub clusters: &'a Arc<Clusters>,
    pub infrastructures: &'a Arc<Infrastructures>,
    pub control_planes: &'a Arc<ControlPlanes>,
}

pub(crate) fn install(
    operator: &mut Operator,
    inputs: &Inputs<'_>,
    objects: &Objects<'_>,
    queue: Arc<Queue>,
) -> Option<External> {
    let Objects { clusters, infrastructures, control_planes } = *objects;
    let settings = inputs.settings;
    let namespace = settings.namespace.as_str();
    let (listening, of_secrets) = (queue.clone(), queue.clone());
    operator.watch_selected(control_planes, Selection::in_namespace(namespace), move |change| {
        if change.from_watch {
            listening.changed(change.key);
        }
    });
    let own = Key::new(namespace, settings.cluster_name());
    let secret = Key::new(namespace, settings.kubeconfig_secret());
    let (of_secret, concerned) = (secret.clone(), own.clone());
    operator.watch_selected(inputs.secrets, Selection::in_namespace(namespace), move |change| {
        if change.from_watch && *change.key == of_secret {
            of_secrets.changed(&concerned);
        }
    });
    let external = matches!(settings.workload, Workload::External { .. })
        .then(|| external::install(operator, (inputs.secrets, infrastructures), &own, &secret, &queue));
    let controller = ControlPlaneController {
        external: external.clone(),
        control_planes: control_planes.clone(),
        clusters: clusters.clone(),
        secrets: inputs.secrets.clone(),
        own,
        secret,
        account: match &settings.workload {
            Workload::Own { service_account } => Some(service_account.clone()),
            Workload::External { .. } => None,
        },
        api_server: inputs.api_server.clone(),
        writer: operator.writer(MANAGER),
        server_clock: operator.server_clock.clone(),
        clock: operator.clock.clone(),
    };
    operator.control(controller, queue, CONCURRENCY);
    external
}

pub(crate) struct ControlPlaneController {
    control_planes: Arc<ControlPlanes>,
    clusters: Arc<Clusters>,
    secrets: Arc<Secrets>,
    /// The operator's own, and the Secret of its kubeconfig.
    own: Key,
    secret: Key,
    /// Whose tokens the kubeconfig has; `None` where the administrator keeps it.
    account: Option<String>,
    external: Option<External>,
    api_server: ApiServer,
    writer: Writer,
    server_clock: ServerClock,
    clock: Clock,
}

impl ControlPlaneController {
    fn found(&self, secret: Option<&SecretFacts>) -> Found {
        let Some(secret) = secret else { return Found::Absent };
        if secret.cluster.as_deref() != Some(&*self.own.name) {
            return Found::Foreign;
        }
        if let Some(why) = self.external.as_ref().and_then(External::problem) {
            return Found::Unusable(why);
        }
        if let Some(why) = self.external.as_ref().and_then(External::silence) {
            return Found::Silent(why);
        }
        // The original's does not say how it reaches the API server.
        if self.account.is_some()
            && secret.api_server.as_ref().is_some_and(|digest| *digest != self.api_server.digest())
        {
            return Found::Outdated;
        }
        // A token expires by the API server's clock.
        let now = self.server_clock.now().unwrap_or_else(|| self.clock.now());
        let expiry = secret.token_expiry.as_deref().and_then(|expiry| expiry.parse::<Timestamp>().ok());
        Found::Present { left: expiry.map(|expiry| expiry.duration_since(now).try_into().unwrap_or_default()) }
    }
}

impl Controller for ControlPlaneController {
    const NAME: &'static str = "nstancecontrolplane";
    type View = Parts<NstanceControlPlane>;
    type Object = NstanceControlPlane;
    type Kept = NstanceControlPlane;
    type Status = NstanceControlPlaneStatus;
    type Observed = Observed;
    type Action = StoreKubeconfig;
    type Done = ();
    type Note = ();
    type Ask = Never;
    type Answer = Never;

    fn kind(&self) -> &Arc<ControlPlanes> {
        &self.control_planes
    }

    fn span(key: &Key) -> tracing::Span {
        tracing::info_span!("round", nstancecontrolplane = %key, namespace = %key.namespace)
    }

    async fn gather(&self, key: &Key, object: &NstanceControlPlane, (): &()) -> Result<Observed, Error> {
        let kubeconfig = if *key == self.own {
            self.secrets.settle(&self.secret).await?;
            let secret = self.secrets.get(&self.secret);
            let found = self.found(secret.as_ref().map(|found| &found.value));
            Some(Kubeconfig { secret: self.secret.to_string(), found, account: self.account.clone() })
        } else {
            None
        };
        let owner = owner(&self.clusters, &object.metadata);
        Ok(Observed { owner, is_paused: is_paused(&object.metadata), kubeconfig })
    }

    fn plan(&self, object: &NstanceControlPlane, observed: &Observed, _: &InputsOf<Self>) -> Plan<StoreKubeconfig> {
        decide::plan(object, observed)
    }

    async fn execute(&self, turn: &Turn<'_, Self>, StoreKubeconfig: &StoreKubeconfig) -> Result<(), Error> {
        self.store_kubeconfig(turn.subject.uid()).await
    }

    fn report(&self, round: &RoundOf<'_, Self>, now: Timestamp) -> Report<NstanceControlPlaneStatus> {
        decide::report(round, now)
    }
}
