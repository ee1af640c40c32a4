//! Control plane, charts, operator and examples, from start to end.

use std::{path::Path, time::Duration};

use futures::future::select_all;
use testbed::tools;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::{
    UpFlags,
    charts::{self, Charts},
    cluster::Cluster,
    credentials::{self, Credentials},
    event::Report,
    example,
    operator::{self, Operator},
    own::{self, Own},
    place::Place,
    session::{Guest, Session, Status},
};
use crate::Failure;

/// On simulated nodes pods run within a second or two; a busy machine was seen to need twenty times that.
const SETTLE_PATIENCE: Duration = Duration::from_mins(2);
/// On a cluster of the user's own it is not certain that examples can run at all.
const GUEST_SETTLE_PATIENCE: Duration = Duration::from_secs(30);
/// A program that ends is started again after the first, doubled each time up to the second; after a quiet time of
/// that length the count begins anew.
const RESTART_DELAYS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(1));

/// Everything that runs.
pub struct Running {
    // Dropped in this order: everything else needs the control plane.
    operator: Operator,
    _renewal: AbortOnDropHandle<()>,
    credentials: Credentials,
    charts: Charts,
    own: Option<Own>,
    session: Session,
}

impl Running {
    /// Starts everything and waits until the examples are ready.
    pub async fn start(place: &Place, flags: &UpFlags, report: &Report) -> Result<Self, Failure> {
        let (mut own, charts, kubeconfig, began) = if let Some(file) = &flags.kubeconfig {
            tools::ensure(&charts::TOOLS, report).await?;
            (None, Charts::start(place, report).await?, file.clone(), Instant::now())
        } else {
            not_a_guest_elsewhere(place, None)?;
            if flags.fresh {
                place.wipe()?;
            }
            let kubectl = own::build(flags, report).await?;
            let began = Instant::now();
            let (own, charts) = tokio::try_join!(Own::start(place, kubectl, report), Charts::start(place, report))?;
            let kubeconfig = own.kubeconfig();
            (Some(own), charts, kubeconfig, began)
        };
        let cluster = Cluster::connect(&kubeconfig).await?;
        if own.is_none() {
            register_guest(place, &kubeconfig, &cluster).await?;
        }
        let real_node = async {
            match own.as_mut().filter(|_| flags.real_node) {
                Some(own) => own.add_real_node(report).await,
                None => Ok(()),
            }
        };
        let operator = start_operator(place, &cluster, began, report);
        let ((), (operator, credentials, ready_after)) = tokio::try_join!(real_node, operator)?;
        let renewal = AbortOnDropHandle::new(tokio::spawn(credentials.keep(&cluster, place)));
        let session = Session {
            status: Status {
                kubeconfig,
                audit_log: own.as_ref().map(|own| own.audit_log().to_owned()),
                charts: charts.addresses(),
                programs: Vec::new(),
            },
            metrics: String::new(),
            kubectl: own.as_ref().map(|own| own.kubectl.clone()),
            ready_after_millis: u64::try_from(ready_after.as_millis()).unwrap_or(u64::MAX),
        };
        let running = Self { operator, _renewal: renewal, credentials, charts, own, session };
        running.apply_examples(&cluster, flags, report).await?;
        Ok(running)
    }

    async fn apply_examples(&self, cluster: &Cluster, flags: &UpFlags, report: &Report) -> Result<(), Failure> {
        let real = flags.real_node.then(example::real);
        let addresses = self.charts.addresses();
        let objects = example::objects().into_iter().chain(real).map(|object| addresses.fill(&object));
        let performers = example::apply(cluster, objects, report).await?;
        let default = if self.own.is_some() { SETTLE_PATIENCE } else { GUEST_SETTLE_PATIENCE };
        let patience = flags.wait.unwrap_or(default);
        let unsettled = tokio::select! {
            unsettled = example::settle(cluster, performers, patience, report) => unsettled?,
            failure = operator::ended(&self.operator.child) => return Err(failure),
        };
        let text: Vec<_> = unsettled.iter().map(|one| format!("  {}: {}", one.what, one.why)).collect();
        let text = text.join("\n");
        let is_failure = self.own.is_some() && unsettled.iter().any(|one| one.is_new);
        match (unsettled.is_empty(), is_failure) {
            (true, _) => Ok(()),
            (false, true) => {
                let text = format!("examples not ready after {} s:\n{text}", patience.as_secs());
                Err(Failure::new(text)
                    .hint(format!("the operator's log is {}", self.operator.child.program().log.display())))
            }
            (false, false) => {
                report.note(format!("not ready after {} s, continuing without:\n{text}", patience.as_secs()));
                Ok(())
            }
        }
    }

    pub fn session(&self) -> Session {
        let mut session = self.session.clone();
        session.metrics.clone_from(&self.operator.metrics);
        session.status.programs = self.own.iter().flat_map(Own::programs).collect();
        session.status.programs.extend([self.charts.child(), &self.operator.child].map(own::program));
        session
    }

    /// Starts again what ends. Comes back only with an error.
    pub async fn keep(&mut self, place: &Place, report: &Report) -> Result<(), Failure> {
        let mut delay = RESTART_DELAYS.0;
        loop {
            let children = self.own.iter().flat_map(Own::children).chain([self.charts.child(), &self.operator.child]);
            let ends = children.map(|child| Box::pin(async move { (child, child.exited().await) }));
            let waiting_since = Instant::now();
            let ((child, status), ..) = select_all(ends).await;
            if waiting_since.elapsed() > RESTART_DELAYS.1 {
                delay = RESTART_DELAYS.0;
            }
            let name = child.program().name.clone();
            report.note(format!("{name} ended with status {status}; starting it again"));
            tokio::time::sleep(delay).await;
            delay = (delay * 2).min(RESTART_DELAYS.1);
            if name == operator::NAME {
                match Operator::start(place, &self.credentials.kubeconfig).await {
                    Ok(operator) => self.operator = operator,
                    Err(error) => report.note(error.to_string()),
                }
            } else {
                child.restart().await?;
            }
            place.write_session(&self.session())?;
        }
    }

    pub async fn stop(self) -> Result<(), Failure> {
        self.operator.stop().await?;
        match self.own {
            Some(own) => own.stop().await,
            None => Ok(()),
        }
    }
}

/// Gives the cluster what the operator needs, then starts it; also says how long after `began` it was ready.
async fn start_operator(
    place: &Place,
    cluster: &Cluster,
    began: Instant,
    report: &Report,
) -> Result<(Operator, Credentials, Duration), Failure> {
    report.step("operator", "installing CRDs and rights");
    cluster.install(report).await?;
    let credentials = credentials::issue(cluster, place).await?;
    report.step("operator", "starting");
    let operator = Operator::start(place, &credentials.kubeconfig).await?;
    let ready_after = began.elapsed();
    report.done("operator", format!("ready {:.1} s after the start", ready_after.as_secs_f64()));
    Ok((operator, credentials, ready_after))
}

/// Remembers a foreign cluster before anything is put into it, so that `down` can leave it whatever happens to us.
async fn register_guest(place: &Place, kubeconfig: &Path, cluster: &Cluster) -> Result<(), Failure> {
    not_a_guest_elsewhere(place, Some(kubeconfig))?;
    if place.guest().is_none() {
        let had_lease = cluster.has_lease().await?;
        place.write_guest(&Guest { kubeconfig: kubeconfig.to_owned(), had_lease })?;
    }
    Ok(())
}

fn not_a_guest_elsewhere(place: &Place, kubeconfig: Option<&Path>) -> Result<(), Failure> {
    match place.guest() {
        Some(guest) if Some(guest.kubeconfig.as_path()) != kubeconfig => {
            let text =
                format!("the cluster of {} still has the objects that `dev up` installed", guest.kubeconfig.display());
            Err(Failure::new(text).hint("remove them first with `strata dev down`, or use another --dir"))
        }
        _ => Ok(()),
    }
}
