//! `strata dev up`: who starts, in front of whom, and until when.

use std::time::Duration;

use futures::future::select_all;
use kube::config::Kubeconfig;
use tokio::{
    signal::unix::{SignalKind, signal},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::{
    UpFlags,
    cluster::POLL,
    detach,
    display::display,
    down,
    event::{Event, Report},
    leave,
    place::Place,
    running::Running,
    session::Session,
    shards, status,
};
use crate::Failure;

/// The first start of another process may build Kubernetes: twice as long as that takes on two cores, and more.
const OTHERS_PATIENCE: Duration = Duration::from_mins(40);

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
            return already_up(place, &session, &flags);
        }
        let is_started = if flags.detach {
            detach::start(place, &flags, &report).await?
        } else {
            foreground(place, &flags, &report).await?
        };
        if is_started {
            return Ok(());
        }
        place.not_held_from_afar()?;
    }
}

fn already_up(place: &Place, session: &Session, flags: &UpFlags) -> Result<(), Failure> {
    let is_here = match (&flags.kubeconfig, place.guest()) {
        (None, guest) => guest.is_none(),
        (Some(file), None) => *file == session.status.kubeconfig,
        (Some(file), Some(guest)) => {
            let context = Kubeconfig::read_from(file).ok().and_then(|config| config.current_context);
            guest.is_at(file, context.as_deref())
        }
    };
    if !is_here {
        let up = session.status.kubeconfig.display();
        return Err(Failure::new(format!("already up, but on the cluster of {up}"))
            .hint("end that with `strata dev down`, or choose another directory with --dir DIR"));
    }
    if flags.cluster.is_some_and(|mode| session.status.clusters.iter().all(|cluster| cluster.name != mode.name())) {
        return Err(Failure::new("already up, but without this cluster")
            .hint("end it with `strata dev down`, or choose another directory with --dir DIR"));
    }
    if flags.real_node && session.status.programs.iter().all(|program| program.name != "kubelet") {
        return Err(Failure::new("already up, but without a real node")
            .hint("end it with `strata dev down`, or choose another directory with --dir DIR"));
    }
    anstream::eprintln!("already up; `strata dev down` ends it");
    status::print_next_steps(session);
    Ok(())
}

/// The session of another process, once it is up; `None` if there is none.
async fn others_start(place: &Place, report: &Report) -> Result<Option<Session>, Failure> {
    let deadline = Instant::now() + OTHERS_PATIENCE;
    let mut waits = false;
    let session = loop {
        let Some(holder) = place.holder() else { break None };
        if let Some(session) = place.session() {
            break Some(session);
        }
        if Instant::now() > deadline {
            return Err(Failure::new(format!("another start (process {holder}) does not finish"))
                .hint("end it with `strata dev down`"));
        }
        waits = true;
        report.step("waiting", format!("process {holder} is starting or ending the environment"));
        tokio::time::sleep(POLL).await;
    };
    if waits {
        report.done("waiting", if session.is_some() { "it is up" } else { "the other process has ended" });
    }
    Ok(session)
}

/// Runs until a signal; `false` if another process was quicker.
async fn foreground(place: &Place, flags: &UpFlags, report: &Report) -> Result<bool, Failure> {
    let Some(hold) = place.hold()? else { return Ok(false) };
    hold.until_the_end();
    let stop = CancellationToken::new();
    tokio::spawn(stop_on_signal(stop.clone()));
    let shown = report.clone();
    let both = Report::new(move |event| {
        shown.send(event.clone());
        if let Event::Up(session) = event {
            status::print_next_steps(&session);
            anstream::eprintln!("\nCtrl-C ends everything.");
        }
    });
    let served = serve(place, flags, &both, &stop).await;
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
    place.empty_logs();
    let started = tokio::select! {
        running = Box::pin(Running::start(place, flags, report)) => running,
        () = stop.cancelled() => Err(Failure::new("interrupted; everything was ended")),
    };
    if started.is_err() {
        // They would end with this process, a moment after it; what failed is worth more than that this did.
        let _ = shards::end_machines(place).await;
    }
    let mut running = started.map_err(|failure| match place.guest() {
        Some(_) => failure.hint("`strata dev down` removes what was put into the cluster so far"),
        None => failure,
    })?;
    place.write_session(&running.session())?;
    report.send(Event::Up(Box::new(running.session())));
    let kept = tokio::select! {
        kept = running.keep(place, report) => kept,
        () = stop.cancelled() => Ok(()),
    };
    place.forget_session();
    report.step("stopping", "the operator gives up its lease, instances end, etcd closes its files");
    Box::pin(running.stop(place)).await?;
    report.done("stopping", "nothing is left running");
    kept
}
