//! `dev up --detach`: the same, in a background process that reports through a pipe until it is up.
//!
//! Its standard input says whether the starting command still wants it: a line means that it is to go on alone, the end
//! of the pipe before that means that the command which started it is gone.

use std::{fs::OpenOptions, os::unix::fs::OpenOptionsExt, process::Stdio};

use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStdout, Command},
};
use tokio_util::sync::CancellationToken;

use super::{
    UpFlags,
    event::{Event, Report},
    place::{Place, SUPERVISOR_LOG},
    status,
    up::{serve, stop_on_signal},
};
use crate::Failure;

/// Starts the background process and waits until all is up; `false` if another process was quicker.
pub async fn start(place: &Place, flags: &UpFlags, report: &Report) -> Result<bool, Failure> {
    // Makes the directory, and finds out what is wrong with it where that can still be reported plainly.
    if place.hold()?.is_none() {
        return Ok(false);
    }
    let mut supervisor = spawn(place, flags)?;
    let mut events = BufReader::new(supervisor.stdout.take().expect("stdout is piped")).lines();
    let decisive = tokio::select! {
        decisive = outcome(&mut events, report) => decisive,
        _ = tokio::signal::ctrl_c() => Some(Event::from(Failure::new("interrupted; everything was ended"))),
    };
    match decisive {
        Some(Event::Up(session)) => {
            let mut consent = supervisor.stdin.take().expect("stdin is piped");
            let sent = consent.write_all(b"go on\n").await;
            sent.map_err(|error| Failure::new(format!("the background process is gone: {error}")))?;
            status::print_next_steps(&session);
            Ok(true)
        }
        decisive => {
            // Closes its standard input; it ends everything and then itself.
            drop(supervisor.stdin.take());
            let _ = supervisor.wait().await;
            match decisive {
                Some(Event::Busy) => Ok(false),
                Some(Event::Failed { message, hint }) => Err(Failure { message, hint }),
                _ => Err(Failure::new("the background process ended without a message")
                    .hint(format!("its log is {}", place.file(SUPERVISOR_LOG).display()))),
            }
        }
    }
}

/// The event that decides; `None` if the pipe ends before.
async fn outcome(events: &mut Lines<BufReader<ChildStdout>>, report: &Report) -> Option<Event> {
    while let Ok(Some(line)) = events.next_line().await {
        let event: Event = serde_json::from_str(&line).ok()?;
        report.send(event.clone());
        if matches!(event, Event::Up(_) | Event::Busy | Event::Failed { .. }) {
            return Some(event);
        }
    }
    None
}

#[expect(
    clippy::disallowed_methods,
    reason = "the background process must outlive us, which testbed's children never do"
)]
fn spawn(place: &Place, flags: &UpFlags) -> Result<Child, Failure> {
    let fail = |error| Failure::new(format!("cannot start the background process: {error}"));
    let binary = std::env::current_exe().map_err(fail)?;
    let log =
        OpenOptions::new().create(true).append(true).mode(0o600).open(place.file(SUPERVISOR_LOG)).map_err(fail)?;
    let mut command = Command::new(binary);
    command.args(["dev", "supervise", "--dir"]).arg(place.directory());
    command.args(flags.fresh.then_some("--fresh")).args(flags.real_node.then_some("--real-node"));
    if let Some(mode) = flags.cluster {
        command.args(["--cluster", mode.name()]).args(flags.cloud_controller.then_some("--cloud-controller"));
    }
    if let Some(kubeconfig) = &flags.kubeconfig {
        command.arg("--kubeconfig").arg(kubeconfig);
    }
    if let Some(wait) = flags.wait {
        command.arg("--wait").arg(format!("{}s", wait.as_secs().max(1)));
    }
    // Where the user stands may be unmounted or removed while we run on.
    command.current_dir("/").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log).spawn().map_err(fail)
}

/// The background process.
pub async fn supervise(place: &Place, flags: UpFlags) -> Result<(), Failure> {
    // Out of the terminal's reach. Refused only to the leader of a process group, which is out of its reach already.
    let _ = rustix::process::setsid();
    let report = Report::new(|event| {
        if let Event::Note(text) = &event {
            log(text);
        }
        let line = serde_json::to_string(&event).expect("events have a JSON form");
        // The pipe has no reader any more once the command that started us has returned.
        let _ = std::io::Write::write_all(&mut std::io::stdout(), format!("{line}\n").as_bytes());
    });
    let Some(hold) = place.hold()? else {
        report.send(Event::Busy);
        return Ok(());
    };
    hold.until_the_end();
    let stop = CancellationToken::new();
    tokio::spawn(stop_on_signal(stop.clone()));
    stop_when_abandoned(stop.clone());
    let served = serve(place, &flags, &report, &stop).await;
    if let Err(failure) = served {
        log(&failure);
        report.send(failure.into());
    }
    Ok(())
}

/// A line of the log, which is standard error. One that cannot be written, because the disk is full, is lost: the macro
/// would panic, and the command that waits for the pipe would never learn why.
fn log(text: &impl std::fmt::Display) {
    let _ = std::io::Write::write_all(&mut std::io::stderr(), format!("{text}\n").as_bytes());
}

/// On a thread of its own, which the runtime does not wait for: a panic elsewhere must end this process, and with it the pipe, although the
/// command at its other end says nothing before it has read an outcome.
fn stop_when_abandoned(stop: CancellationToken) {
    std::thread::spawn(move || {
        if !matches!(std::io::stdin().read_line(&mut String::new()), Ok(1..)) {
            stop.cancel();
        }
    });
}
