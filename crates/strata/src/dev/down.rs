//! `strata dev down`.

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::time::Instant;

use super::{cluster::POLL, display::display, event::Report, leave, place::Place, shards};
use crate::Failure;

/// An orderly end takes two seconds; ten times each grace period inside it is enough for a busy machine.
const STOP_PATIENCE: Duration = Duration::from_mins(2);
/// A killed process is gone at once, unless the kernel waits for a disk.
const KILL_PATIENCE: Duration = Duration::from_secs(10);

pub async fn run(place: &Place) -> Result<(), Failure> {
    if end(place, &display()).await? {
        anstream::eprintln!("down; `strata dev up` starts it again with the same data");
    } else {
        anstream::eprintln!("nothing was up");
    }
    Ok(())
}

/// Ends what runs, and leaves a foreign cluster; `false` if there was nothing to end.
pub async fn end(place: &Place, report: &Report) -> Result<bool, Failure> {
    let holder = place.holder();
    if let Some(holder) = holder {
        report.step("stopping", format!("process {holder}"));
        if !is_gone_after(place, holder, Signal::TERM, STOP_PATIENCE).await
            && !is_gone_after(place, holder, Signal::KILL, KILL_PATIENCE).await
        {
            return Err(Failure::new(format!("process {holder} does not end"))
                .hint("it may belong to another user; end it by hand"));
        }
        report.done("stopping", "nothing is left running");
    }
    if !place.directory().exists() {
        return Ok(false);
    }
    place.not_held_from_afar()?;
    let Some(_hold) = place.hold()? else {
        return Err(Failure::new("another process is starting the environment").hint("run `strata dev down` again"));
    };
    // From a session whose process was killed; its programs died with it.
    let was_left = place.session().is_some();
    place.forget_session();
    if let Err(failure) = shards::end_machines(place).await {
        // They end by themselves; what holds up the wait for it must not hold up the rest.
        report.note(failure.to_string());
    }
    let guest = place.guest();
    if let Some(guest) = &guest {
        leave::run(place, guest, report).await?;
    }
    Ok(holder.is_some() || was_left || guest.is_some())
}

/// Sends the signal and waits. The kernel itself names the holder, so this never hits a stranger.
async fn is_gone_after(place: &Place, holder: Pid, signal: Signal, patience: Duration) -> bool {
    // Fails when it is gone already, which the loop sees, or belongs to another user, which it reports.
    let _ = kill_process(holder, signal);
    let deadline = Instant::now() + patience;
    while place.holder() == Some(holder) {
        if Instant::now() > deadline {
            return false;
        }
        tokio::time::sleep(POLL).await;
    }
    true
}
