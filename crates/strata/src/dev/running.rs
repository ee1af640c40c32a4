//! Control plane, charts, operator and examples, from start to end.

use futures::{StreamExt, future::OptionFuture, stream::FuturesUnordered};
use shard::store::layout::CA_CERTIFICATE;
use testbed::{node::RealNode, process::Child, tools};
use tokio::time::{Instant, sleep_until};
use tokio_util::task::AbortOnDropHandle;

use super::{
    UpFlags,
    charts::Charts,
    clusters::{self, Clusters},
    credentials::Credentials,
    event::Report,
    example,
    operator::{self, Operator},
    order::{self, Builds},
    own::{self, Own},
    place::Place,
    restart::Restarts,
    serving::{self, Serving},
    session::{Session, Status},
    shards::Shards,
};
use crate::Failure;

/// What happens to programs.
enum News {
    /// With this status.
    Ended(String, i32),
    /// It has waited long enough.
    Due(String),
    Started(Box<Result<Operator, Failure>>),
}

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
        if let (None, Some(guest)) = (&flags.kubeconfig, place.guest()) {
            return Err(serving::guest_elsewhere(&guest));
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
        let charts = start_charts(place, &builds.later, report);
        let (serving, charts) = if tools::missing(&builds.later)?.is_empty() {
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
        let objects: Vec<_> = objects.collect();
        let examples = async {
            serving::settle(&cluster, &operator, objects, flags, report).await?;
            if let Some(text) = order::usable_with_charts(&tools::missing(&builds.last)?) {
                report.note(text);
            }
            Ok::<_, Failure>(())
        };
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
            // A user with a cluster has a kubectl.
            kubectl: flags.kubeconfig.is_none().then(|| tools::place("kubectl")).transpose()?,
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
        let kubeconfig = self.credentials.kubeconfig.clone();
        // Ready only when the API server is, which may have ended too.
        let mut operator = OptionFuture::default();
        loop {
            match self.news(&restarts, &mut operator).await {
                News::Ended(name, status) => {
                    report.note(format!("{name} ended with status {status}; starting it again"));
                    restarts.ended(&name, Instant::now());
                    continue;
                }
                News::Due(name) if name == operator::NAME => {
                    operator = Some(Box::pin(Operator::start(place, &kubeconfig))).into();
                    restarts.begins(&name);
                    continue;
                }
                News::Due(name) => {
                    let child = self.children().find(|child| child.program().name == name);
                    let restart = child.map(Child::restart).expect("it is one of them");
                    if let Err(error) = restart.await {
                        report.note(error.to_string());
                    }
                    restarts.began(&name, Instant::now(), false);
                }
                News::Started(started) => {
                    operator = OptionFuture::default();
                    restarts.began(operator::NAME, Instant::now(), started.is_ok());
                    match *started {
                        Ok(started) => self.operator = started,
                        Err(error) => report.note(error.to_string()),
                    }
                }
            }
            place.write_session(&self.session())?;
        }
    }

    fn children(&self) -> impl Iterator<Item = &Child> {
        self.own.iter().flat_map(Own::children).chain(self.ours())
    }

    async fn news(
        &self,
        restarts: &Restarts,
        operator: &mut OptionFuture<impl Future<Output = Result<Operator, Failure>> + Unpin>,
    ) -> News {
        let up = self.children().filter(|child| !restarts.is_down(&child.program().name));
        let ends = up.map(|child| async { (child.program().name.clone(), child.exited().await) });
        let mut ends: FuturesUnordered<_> = ends.collect();
        let next = restarts.next();
        let due = OptionFuture::from(next.map(|(name, at)| async move {
            sleep_until(at).await;
            name.to_owned()
        }));
        tokio::select! {
            Some((name, status)) = ends.next() => News::Ended(name, status),
            Some(name) = due => News::Due(name),
            Some(started) = operator => News::Started(Box::new(started)),
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

/// Builds what releases and workspaces need, then starts what charts come from.
async fn start_charts(place: &Place, later: &[&str], report: &Report) -> Result<Charts, Failure> {
    tools::ensure(later, report).await?;
    Charts::start(place, report).await
}
