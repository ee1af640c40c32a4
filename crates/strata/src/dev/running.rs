//! Control plane, charts, operator and examples, from start to end.

use std::path::PathBuf;

use futures::future::select_all;
use shard::store::layout::CA_CERTIFICATE;
use testbed::{node::RealNode, process::Child, tools};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::{
    UpFlags,
    charts::Charts,
    clusters::{self, Clusters},
    credentials::Credentials,
    event::Report,
    example,
    operator::{self, Operator},
    order::Builds,
    own::{self, Own},
    place::Place,
    restart::Restarts,
    serving::{self, Serving},
    session::{Session, Status},
    shards::Shards,
};
use crate::Failure;

/// Everything that runs.
pub struct Running {
    // Dropped in this order: everything else needs the control plane.
    clusters: Option<Clusters>,
    operator: Operator,
    shards: Option<Shards>,
    _renewal: AbortOnDropHandle<()>,
    credentials: Credentials,
    charts: Charts,
    own: Option<Own>,
    session: Session,
}

impl Running {
    /// Starts everything and waits until the examples are ready.
    pub async fn start(place: &Place, flags: &UpFlags, report: &Report) -> Result<Self, Failure> {
        if flags.kubeconfig.is_none() {
            serving::not_a_guest_elsewhere(place, None)?;
        }
        if flags.real_node {
            RealNode::prerequisites().map_err(|missing| Failure::new(missing.to_string()))?;
        }
        if flags.fresh {
            place.wipe()?;
        }
        if let Some(mode) = flags.cluster {
            clusters::check(place, mode)?;
        }
        let builds = Builds::of(flags);
        tools::ensure(&builds.first, report).await?;
        let after_first = builds.after_first();
        let serving = Box::pin(Serving::start(place, flags, &after_first, report));
        let charts = start_charts(place, flags, &builds.later, report);
        let (serving, (kubectl, charts)) = if tools::missing(&builds.later)?.is_empty() {
            // Releases of an earlier start must not meet a registry that is not there yet.
            let charts = charts.await?;
            (serving.await?, charts)
        } else {
            tokio::try_join!(serving, charts)?
        };
        let Serving { mut own, cluster, kubeconfig, operator, shards, credentials, ready_after } = serving;
        if let Some(own) = own.as_mut().filter(|_| flags.real_node) {
            own.add_real_node(report).await?;
        }
        let addresses = charts.addresses();
        let real = flags.real_node.then(example::real);
        let objects = example::with_charts().into_iter().chain(real).map(|object| addresses.fill(&object));
        let examples = serving::settle(&cluster, &operator, objects.collect(), flags, report);
        let machines = async {
            if !start_cluster_api(own.as_mut(), &builds.last, report).await? {
                return Ok(());
            }
            serving::settle(&cluster, &operator, example::with_cluster_api(), flags, report).await
        };
        tokio::try_join!(examples, machines)?;
        let clusters = match flags.cluster {
            Some(mode) => {
                tools::ensure(&clusters::TOOLS, report).await?;
                Some(Box::pin(Clusters::start(place, mode, flags.cloud_controller, report)).await?)
            }
            None => None,
        };
        let renewal = AbortOnDropHandle::new(tokio::spawn(credentials.keep(&cluster, place)));
        let session = Session {
            status: Status {
                kubeconfig,
                audit_log: own.as_ref().map(|own| own.audit_log().to_owned()),
                charts: addresses,
                storage: shards.as_ref().map(|_| place.storage()),
                ca: shards.as_ref().map(|_| place.storage().join(CA_CERTIFICATE)),
                endpoints: shards.as_ref().map(|shards| shards.endpoints.clone()).unwrap_or_default(),
                hcloud: clusters.as_ref().map(Clusters::hcloud),
                clusters: clusters.as_ref().map(|clusters| clusters.clusters.clone()).unwrap_or_default(),
                programs: Vec::new(),
            },
            control: clusters.as_ref().map(Clusters::control),
            metrics: String::new(),
            kubectl,
            ready_after_millis: u64::try_from(ready_after.as_millis()).unwrap_or(u64::MAX),
        };
        Ok(Self { clusters, operator, shards, _renewal: renewal, credentials, charts, own, session })
    }

    pub fn session(&self) -> Session {
        let mut session = self.session.clone();
        session.metrics.clone_from(&self.operator.metrics);
        session.status.programs = self.own.iter().flat_map(Own::programs).collect();
        session.status.programs.extend(self.ours().map(own::program));
        session
    }

    /// What runs beside the control plane.
    fn ours(&self) -> impl Iterator<Item = &Child> {
        let shards = self.shards.iter().flat_map(Shards::children);
        [self.charts.child(), &self.operator.child].into_iter().chain(shards)
    }

    /// Starts again what ends. Comes back only with an error.
    pub async fn keep(&mut self, place: &Place, report: &Report) -> Result<(), Failure> {
        let mut restarts = Restarts::default();
        loop {
            let children = self.own.iter().flat_map(Own::children).chain(self.ours());
            let ends = children.map(|child| Box::pin(async move { (child, child.exited().await) }));
            let ((child, status), ..) = select_all(ends).await;
            let name = child.program().name.clone();
            report.note(format!("{name} ended with status {status}; starting it again"));
            let delay = restarts.delay(&name, Instant::now());
            tokio::time::sleep(delay).await;
            let mut had_become_ready = false;
            if name == operator::NAME {
                match Operator::start(place, &self.credentials.kubeconfig).await {
                    Ok(operator) => (self.operator, had_become_ready) = (operator, true),
                    Err(error) => report.note(error.to_string()),
                }
            } else {
                child.restart().await?;
            }
            restarts.began(name, Instant::now(), delay, had_become_ready);
            place.write_session(&self.session())?;
        }
    }

    pub async fn stop(self, place: &Place) -> Result<(), Failure> {
        let zones = async {
            match self.shards {
                Some(shards) => shards.stop(place).await,
                None => Ok(()),
            }
        };
        let servers = async {
            if let Some(clusters) = self.clusters {
                clusters.stop().await;
            }
            Ok(())
        };
        tokio::try_join!(self.operator.stop(), zones, servers)?;
        match self.own {
            Some(own) => own.stop().await,
            None => Ok(()),
        }
    }
}

/// Beside a control plane of our own: a cluster of the user's has Cluster API already, or is not to have it. False where
/// it is left out.
async fn start_cluster_api(own: Option<&mut Own>, programs: &[&str], report: &Report) -> Result<bool, Failure> {
    let Some(own) = own else {
        report.note(
            "Cluster API and the machines layer are left out: your cluster keeps the controllers that it has, or none",
        );
        return Ok(false);
    };
    tools::ensure(programs, report).await?;
    own.add_cluster_api(report).await?;
    Ok(true)
}

/// Builds what is left, then starts what charts come from; also says where kubectl is, unless the cluster is the user's.
async fn start_charts(
    place: &Place,
    flags: &UpFlags,
    later: &[&str],
    report: &Report,
) -> Result<(Option<PathBuf>, Charts), Failure> {
    tools::ensure(later, report).await?;
    let kubectl = if flags.kubeconfig.is_none() { Some(tools::place("kubectl")?) } else { None };
    Ok((kubectl, Charts::start(place, report).await?))
}
