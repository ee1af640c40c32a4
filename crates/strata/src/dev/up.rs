//! `strata dev up`: starting everything, and keeping it up.

use std::time::Duration;

use futures::future::select_all;
use tokio::{
    signal::unix::{SignalKind, signal},
    time::Instant,
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use super::{
    UpFlags,
    cluster::{Cluster, POLL},
    credentials::{self, Credentials},
    detach,
    display::display,
    down,
    event::{Event, Report},
    example, leave,
    operator::Operator,
    own::{self, Own},
    place::Place,
    session::{Guest, Session, Status},
    status,
};
use crate::Failure;

/// The first start of another process may build Kubernetes, which takes a quarter of an hour on two cores.
const OTHERS_PATIENCE: Duration = Duration::from_mins(40);
/// On simulated nodes pods run within a second or two; a busy machine was seen to need twenty times that.
const SETTLE_PATIENCE: Duration = Duration::from_mins(2);
/// On a cluster of the user's own nobody promises that examples can run at all.
const GUEST_SETTLE_PATIENCE: Duration = Duration::from_secs(30);
/// A program that ends is started again after this, doubled each time up to the second value.
const RESTART_DELAYS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

pub async fn run(place: &Place, mut flags: UpFlags) -> Result<(), Failure> {
    let report = display();
    if let Some(file) = &mut flags.kubeconfig {
        *file =
            file.canonicalize().map_err(|error| Failure::new(format!("cannot read {}: {error}", file.display())))?;
    }
    if flags.fresh {
        others_start(place, &report).await?;
        down::end(place, &report).await?;
    }
    loop {
        if let Some(session) = others_start(place, &report).await? {
            anstream::eprintln!("already up; `strata dev down` ends it");
            status::print_next_steps(&session);
            return Ok(());
        }
        let is_started = match flags.detach {
            true => detach::start(place, &flags, &report).await?,
            false => foreground(place, &flags, &report).await?,
        };
        if is_started {
            return Ok(());
        }
    }
}

/// The session of another process, once it is up; `None` if there is none.
async fn others_start(place: &Place, report: &Report) -> Result<Option<Session>, Failure> {
    let deadline = Instant::now() + OTHERS_PATIENCE;
    while let Some(holder) = place.holder() {
        if let Some(session) = place.session() {
            return Ok(Some(session));
        }
        if Instant::now() > deadline {
            return Err(Failure::new(format!("another start (process {holder}) does not come to an end"))
                .hint("end it with `strata dev down`"));
        }
        report.step("waiting", format!("process {holder} is starting or ending the environment"));
        tokio::time::sleep(POLL).await;
    }
    Ok(None)
}

/// Runs until a signal; `false` if another process was quicker.
async fn foreground(place: &Place, flags: &UpFlags, report: &Report) -> Result<bool, Failure> {
    let Some(_hold) = place.hold()? else { return Ok(false) };
    let stop = CancellationToken::new();
    tokio::spawn(stop_on_signal(stop.clone()));
    let shown = report.clone();
    let told = Report::new(move |event| {
        shown.send(event.clone());
        if let Event::Up(session) = event {
            status::print_next_steps(&session);
            anstream::eprintln!("\nCtrl-C ends everything.");
        }
    });
    let served = serve(place, flags, &told, &stop).await;
    if let (Ok(()), Some(guest)) = (&served, place.guest()) {
        leave::run(place, &guest, report).await?;
    }
    served.map(|()| true)
}

/// The first signal asks for an orderly end, the second does not wait for it: the programs end with us anyway.
pub async fn stop_on_signal(stop: CancellationToken) {
    let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
    let signals: Result<Vec<_>, _> = kinds.into_iter().map(signal).collect();
    let mut signals = signals.expect("these signals can be listened for");
    let mut next = async || select_all(signals.iter_mut().map(|signal| Box::pin(signal.recv()))).await.1;
    next().await;
    stop.cancel();
    next().await;
    std::process::exit(130);
}

/// Starts everything, keeps it up until `stop`, and ends it. The place must be held.
pub async fn serve(place: &Place, flags: &UpFlags, report: &Report, stop: &CancellationToken) -> Result<(), Failure> {
    place.forget_session();
    let mut running = tokio::select! {
        running = Running::start(place, flags, report) => running?,
        () = stop.cancelled() => return Err(Failure::new("interrupted; everything was ended")),
    };
    place.write_session(&running.session())?;
    report.send(Event::Up(Box::new(running.session())));
    let kept = tokio::select! {
        kept = running.keep(place, report) => kept,
        () = stop.cancelled() => Ok(()),
    };
    place.forget_session();
    report.step("stopping", "the operator gives up its lease, etcd closes its files");
    running.stop().await?;
    report.done("stopping", "nothing is left running");
    kept
}

struct Running {
    // Dropped in this order: everything else needs the control plane.
    operator: Operator,
    _renewal: AbortOnDropHandle<()>,
    credentials: Credentials,
    own: Option<Own>,
    session: Session,
}

impl Running {
    async fn start(place: &Place, flags: &UpFlags, report: &Report) -> Result<Self, Failure> {
        let (own, kubeconfig, began) = match &flags.kubeconfig {
            Some(file) => (None, file.clone(), Instant::now()),
            None => {
                not_a_guest_elsewhere(place, None)?;
                if flags.fresh {
                    place.wipe()?;
                }
                let kubectl = own::build(flags, report).await?;
                let began = Instant::now();
                let own = Own::start(flags, place, kubectl, report).await?;
                let kubeconfig = own.kubeconfig();
                (Some(own), kubeconfig, began)
            }
        };
        let cluster = Cluster::connect(&kubeconfig).await?;
        if own.is_none() {
            register_guest(place, &kubeconfig, &cluster).await?;
        }
        report.step("operator", "installing CRDs and rights");
        cluster.install(report).await?;
        let credentials = credentials::issue(&cluster, place).await?;
        let renewal = AbortOnDropHandle::new(tokio::spawn(credentials.keep(&cluster, place)));
        report.step("operator", "starting");
        let operator = Operator::start(place, &credentials.kubeconfig).await?;
        let ready_after = began.elapsed();
        report.done("operator", format!("ready {:.1} s after the start", ready_after.as_secs_f64()));
        let session = Session {
            status: Status {
                kubeconfig,
                audit_log: own.as_ref().map(|own| own.audit_log().to_owned()),
                programs: Vec::new(),
            },
            metrics: String::new(),
            kubectl: own.as_ref().map(|own| own.kubectl.clone()),
            ready_after_millis: u64::try_from(ready_after.as_millis()).unwrap_or(u64::MAX),
        };
        let running = Self { operator, _renewal: renewal, credentials, own, session };
        running.apply_examples(&cluster, flags, report).await?;
        Ok(running)
    }

    async fn apply_examples(&self, cluster: &Cluster, flags: &UpFlags, report: &Report) -> Result<(), Failure> {
        let real = flags.real_node.then(example::real);
        let performers = example::apply(cluster, example::objects().into_iter().chain(real), report).await?;
        let patience = if self.own.is_some() { SETTLE_PATIENCE } else { GUEST_SETTLE_PATIENCE };
        let operator = &self.operator.child;
        let unsettled = tokio::select! {
            unsettled = example::settle(cluster, performers, patience, report) => unsettled?,
            status = operator.exited() => {
                let (log, tail) = (operator.program().log.display(), operator.log_tail());
                return Err(Failure::new(format!("strata-operator ended with status {status}; the end of {log}:\n{tail}")));
            }
        };
        let text: String = unsettled.iter().map(|one| format!("\n  {}: {}", one.what, one.why)).collect();
        let is_failure = self.own.is_some() && unsettled.iter().any(|one| one.is_new);
        match (unsettled.is_empty(), is_failure) {
            (true, _) => Ok(()),
            (false, true) => {
                let text = format!("examples not ready after {} s:{text}", patience.as_secs());
                Err(Failure::new(text).hint(format!("the operator's log is {}", operator.program().log.display())))
            }
            (false, false) => {
                report.note(format!("not ready after {} s, going on without:{text}", patience.as_secs()));
                Ok(())
            }
        }
    }

    fn session(&self) -> Session {
        let mut session = self.session.clone();
        session.metrics.clone_from(&self.operator.metrics);
        session.status.programs = self.own.iter().flat_map(Own::programs).collect();
        session.status.programs.push(own::program(&self.operator.child));
        session
    }

    /// Starts again what ends. Comes back only with an error.
    async fn keep(&mut self, place: &Place, report: &Report) -> Result<(), Failure> {
        let mut delay = RESTART_DELAYS.0;
        loop {
            let children = self.own.iter().flat_map(Own::children).chain([&self.operator.child]);
            let ends = children.map(|child| Box::pin(async move { (child, child.exited().await) }));
            let ((child, status), ..) = select_all(ends).await;
            let name = child.program().name.clone();
            report.note(format!("{name} ended with status {status}; starting it again"));
            tokio::time::sleep(delay).await;
            delay = (delay * 2).min(RESTART_DELAYS.1);
            if name == super::operator::NAME {
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

    async fn stop(self) -> Result<(), Failure> {
        self.operator.stop().await?;
        match self.own {
            Some(own) => own.stop().await,
            None => Ok(()),
        }
    }
}

/// Remembers a foreign cluster before anything is put into it, so that `down` can leave it whatever happens to us.
async fn register_guest(place: &Place, kubeconfig: &std::path::Path, cluster: &Cluster) -> Result<(), Failure> {
    not_a_guest_elsewhere(place, Some(kubeconfig))?;
    if place.guest().is_none() {
        let had_lease = cluster.has_lease().await?;
        place.write_guest(&Guest { kubeconfig: kubeconfig.to_owned(), had_lease })?;
    }
    Ok(())
}

fn not_a_guest_elsewhere(place: &Place, kubeconfig: Option<&std::path::Path>) -> Result<(), Failure> {
    match place.guest() {
        Some(guest) if Some(guest.kubeconfig.as_path()) != kubeconfig => {
            let text = format!("the cluster of {} still holds what was installed there", guest.kubeconfig.display());
            Err(Failure::new(text).hint("leave it first with `strata dev down`, or use another --dir"))
        }
        _ => Ok(()),
    }
}
