//! The control plane, the operator and the examples that need nothing else: what a first start has to show before every
//! program is built.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use kube::api::DynamicObject;
use testbed::tools;
use tokio::time::Instant;

use super::{
    UpFlags,
    cluster::Cluster,
    credentials::{self, Credentials},
    event::Report,
    example, machines,
    operator::{self, Operator},
    order,
    own::Own,
    place::Place,
    session::Guest,
    shards::{self, Shards},
};
use crate::Failure;

/// On simulated nodes pods run within a second or two; a busy machine was seen to need twenty times that.
const SETTLE_PATIENCE: Duration = Duration::from_mins(2);
/// On a cluster of the user's own it is not certain that examples can run at all.
const GUEST_SETTLE_PATIENCE: Duration = Duration::from_secs(30);

/// A cluster with the operator in it.
pub struct Serving {
    /// `None` on a cluster of the user's.
    pub own: Option<Own>,
    pub cluster: Cluster,
    pub kubeconfig: PathBuf,
    pub operator: Operator,
    /// `None` on a cluster of the user's.
    pub shards: Option<Shards>,
    pub credentials: Credentials,
    /// From the start of the first program to the operator's readiness.
    pub ready_after: Duration,
}

impl Serving {
    /// Starts it and waits for the examples that can run; `later` is being built meanwhile.
    pub async fn start(place: &Place, flags: &UpFlags, later: &[&str], report: &Report) -> Result<Self, Failure> {
        let began = Instant::now();
        let own = match &flags.kubeconfig {
            Some(_) => None,
            None => Some(Own::start(place, report).await?),
        };
        let kubeconfig = flags.kubeconfig.clone().or_else(|| own.as_ref().map(Own::kubeconfig));
        let kubeconfig = kubeconfig.expect("a cluster is the user's or our own");
        let cluster = Cluster::connect(&kubeconfig, None).await?;
        if own.is_none() {
            place.forget_machines_config();
            register_guest(place, &kubeconfig, &cluster).await?;
        } else {
            shards::announce(place)?;
        }
        let performers = async {
            let started = start_operator(place, &cluster, began, report).await?;
            settle(&cluster, &started.0, example::without_charts(), flags, report).await?;
            Ok(started)
        };
        let zones = start_zones(place, own.as_ref(), &cluster, report);
        let ((operator, credentials, ready_after), shards) = tokio::try_join!(performers, zones)?;
        if shards.is_some() {
            machines::introduce(place, &cluster).await?;
        }
        if let Some(text) = order::usable_now(&kubeconfig, &tools::missing(later)?) {
            report.note(text);
        }
        Ok(Self { own, cluster, kubeconfig, operator, shards, credentials, ready_after })
    }
}

/// Only beside a control plane of our own: instances register Nodes that run no pods unless they are played.
async fn start_zones(
    place: &Place,
    own: Option<&Own>,
    cluster: &Cluster,
    report: &Report,
) -> Result<Option<Shards>, Failure> {
    let Some(own) = own else {
        let zones = shards::NAMES.join(" and ");
        report.note(format!(
            "the zones {zones} are left out: their Nodes would attract pods of your cluster that never run"
        ));
        return Ok(None);
    };
    let kubeconfig = own.agent_kubeconfig().await?;
    Ok(Some(Shards::start(place, cluster, &kubeconfig, report).await?))
}

/// Applies examples and waits until they are ready. That they are not is a failure only on our own control plane.
pub async fn settle(
    cluster: &Cluster,
    operator: &Operator,
    objects: Vec<DynamicObject>,
    flags: &UpFlags,
    report: &Report,
) -> Result<(), Failure> {
    let applied = example::apply(cluster, objects, report).await?;
    let is_own = flags.kubeconfig.is_none();
    let patience = flags.wait.unwrap_or(if is_own { SETTLE_PATIENCE } else { GUEST_SETTLE_PATIENCE });
    let unsettled = tokio::select! {
        unsettled = example::settle(cluster, applied, patience, report) => unsettled?,
        failure = operator::ended(&operator.child) => return Err(failure),
    };
    let text: Vec<_> = unsettled.iter().map(|one| format!("  {}: {}", one.what, one.why)).collect();
    let text = text.join("\n");
    let is_failure = is_own && unsettled.iter().any(|one| one.is_new);
    match (unsettled.is_empty(), is_failure) {
        (true, _) => Ok(()),
        (false, true) => {
            let text = format!("examples not ready after {} s:\n{text}", patience.as_secs());
            Err(Failure::new(text).hint(format!("the operator's log is {}", operator.child.program().log.display())))
        }
        (false, false) => {
            report.note(format!("not ready after {} s, continuing without:\n{text}", patience.as_secs()));
            Ok(())
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
    let context = cluster.kubeconfig.current_context.clone();
    match place.guest() {
        Some(guest) if guest.is_at(kubeconfig, context.as_deref()) => Ok(()),
        Some(guest) => Err(guest_elsewhere(&guest)),
        None => {
            let had_lease = cluster.has_lease().await?;
            place.write_guest(&Guest { kubeconfig: kubeconfig.to_owned(), context, had_lease })
        }
    }
}

pub fn guest_elsewhere(guest: &Guest) -> Failure {
    let context = guest.context.as_ref().map(|context| format!(", context {context},")).unwrap_or_default();
    let file = guest.kubeconfig.display();
    Failure::new(format!("the cluster of {file}{context} still has the objects that `dev up` installed"))
        .hint("remove them first with `strata dev down`, or use another --dir")
}
