//! A child process with limits: under a guard that ends it when we end, with a memory limit of its own, in a private
//! directory, and with only the ends of its output kept.

mod files;
pub mod guard;

use std::{
    ffi::OsString,
    io,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    process::{ChildStdin, ChildStdout, Command},
    time::{sleep_until, timeout},
};

pub use files::{OperationDirectory, Private, PrivateDirectory, private_directories};
pub use guard::Report;

use crate::jobs::{Stopped, Stops};
use guard::Started;

/// The two kept ends of a child's streams, should every byte of them need an escape of six.
const REPORT_BYTES: u64 = 1024 * 1024;
/// SIGKILL cannot be refused, but a process in the middle of a disk operation ends only after it.
pub(crate) const KILL_PATIENCE: Duration = Duration::from_secs(5);

/// How to run [`guard::main`]: our own binary with the arguments that lead there.
#[derive(Clone, Debug)]
pub struct Guard {
    pub program: PathBuf,
    pub arguments: Vec<OsString>,
}

/// What to run, and how it ends.
#[derive(Debug)]
pub struct Task<'a> {
    pub guard: &'a Guard,
    pub program: &'a Path,
    pub arguments: Vec<OsString>,
    pub environment: Vec<(OsString, OsString)>,
    pub directory: &'a Path,
    /// Bytes; the kernel refuses it more.
    pub memory: u64,
    /// Bytes of the largest file that it may write.
    pub file_bytes: u64,
    /// Whether SIGTERM lets it end in order.
    pub ends_gently: bool,
}

/// Runs a child to its end: its own, or the one that `stops` asks for. Dropped, it leaves the end to the guard.
pub async fn run(task: Task<'_>, mut stops: Stops) -> io::Result<(Report, Option<Stopped>)> {
    let mut guard = spawn(&task)?;
    let mut control = guard.stdin.take().expect("stdin is piped");
    let stdout = guard.stdout.take().expect("stdout is piped");
    let mut ending = Box::pin(read_report(stdout));
    let first = tokio::select! {
        report = &mut ending => return Ok((report, None)),
        stop = stops.asked() => stop,
    };
    if task.ends_gently {
        say(&mut control, b't').await;
    }
    let mut kill_at = first.kill_at;
    let report = loop {
        tokio::select! {
            report = &mut ending => break report,
            () = sleep_until(kill_at) => {
                say(&mut control, b'k').await;
                break timeout(KILL_PATIENCE, ending).await.unwrap_or_default();
            }
            // A shutdown may leave less time than there was.
            stop = stops.asked() => kill_at = stop.kill_at,
        }
    };
    Ok((report, Some(first.why)))
}

#[expect(clippy::disallowed_methods, reason = "this is the place that starts children")]
fn spawn(task: &Task<'_>) -> io::Result<tokio::process::Child> {
    Command::new(&task.guard.program)
        .args(&task.guard.arguments)
        .arg(task.memory.to_string())
        .arg(task.file_bytes.to_string())
        .arg(task.program)
        .args(&task.arguments)
        .env_clear()
        .envs(task.environment.iter().map(|(name, value)| (name, value)))
        .current_dir(task.directory)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        // Ctrl-C at a terminal is for us: it must not end the guard before its child.
        .process_group(0)
        .spawn()
}

/// The guard may be gone already, and its child with it.
async fn say(control: &mut ChildStdin, byte: u8) {
    let _ = control.write_all(&[byte]).await;
}

/// A guard that ended without a report was killed; what it guarded must not live on.
async fn read_report(stdout: ChildStdout) -> Report {
    let mut lines = BufReader::new(stdout.take(REPORT_BYTES)).lines();
    let mut started = None;
    while let Ok(Some(line)) = lines.next_line().await {
        if let Ok(Started { pid }) = serde_json::from_str(&line) {
            started = Pid::from_raw(pid);
        } else if let Ok(report) = serde_json::from_str(&line) {
            return report;
        }
    }
    if let Some(pid) = started {
        let _ = kill_process_group(pid, Signal::KILL);
    }
    Report::default()
}
