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
    time::{Instant, Interval, interval, sleep_until, timeout},
};

pub use files::{OperationDirectory, Private, PrivateDirectory, private_directories};
pub use guard::Report;

use crate::jobs::{Stop, Stopped, Stops};
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
    /// None: our silence means nothing, since no other process may do the same work.
    pub silence: Option<Silence>,
}

/// How long a guard lets its child go on while we are silent. A process that is stopped holds its pipe open and does not
/// know that its lease lapses; its guard does by this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Silence {
    /// Until the child is asked to end.
    pub limit: Duration,
    /// From then until it is killed.
    pub grace: Duration,
}

impl Silence {
    /// The child is gone when a leader that cannot renew a lease of this length would stop writing, which is before
    /// another may take it over.
    pub fn within(lease: Duration) -> Self {
        // Most of it is for us: what a busy machine delays must not end a child. Helm stores in tenths of a second that
        // its release failed.
        Self { limit: lease * 5 / 9, grace: lease / 9 }
    }
}

/// Signs of life within [`Silence::limit`]: one may be late without harm.
const SIGNS: u32 = 4;

/// Runs a child to its end: its own, or the one that `stops` asks for. Dropped, it leaves the end to the guard.
pub async fn run(task: Task<'_>, mut stops: Stops) -> io::Result<(Report, Option<Stopped>)> {
    let mut guard = spawn(&task)?;
    let mut control = guard.stdin.take().expect("stdin is piped");
    let stdout = guard.stdout.take().expect("stdout is piped");
    let mut ending = Box::pin(read_report(stdout));
    let mut signs = task.silence.map(|silence| interval(silence.limit / SIGNS));
    let mut stop: Option<Stop> = None;
    let report = loop {
        let kill_at = stop.map(|stop| stop.kill_at);
        tokio::select! {
            report = &mut ending => break report,
            () = next(&mut signs) => say(&mut control, b'.').await,
            () = at(kill_at) => {
                say(&mut control, b'k').await;
                break timeout(KILL_PATIENCE, ending).await.unwrap_or_default();
            }
            asked = stops.asked() => {
                if stop.is_none() && task.ends_gently {
                    say(&mut control, b't').await;
                }
                // A shutdown may leave less time than there was; the first reason stays.
                stop = Some(Stop { why: stop.map_or(asked.why, |first| first.why), ..asked });
            }
        }
    };
    Ok((report, stop.map(|stop| stop.why)))
}

/// The next sign of life, where there are any.
async fn next(signs: &mut Option<Interval>) {
    match signs {
        Some(signs) => drop(signs.tick().await),
        None => std::future::pending().await,
    }
}

async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}

#[expect(clippy::disallowed_methods, reason = "this is the place that starts children")]
fn spawn(task: &Task<'_>) -> io::Result<tokio::process::Child> {
    Command::new(&task.guard.program)
        .args(&task.guard.arguments)
        .arg(task.memory.to_string())
        .arg(task.file_bytes.to_string())
        .args(
            task.silence
                .map_or([0, 0], |silence| [silence.limit, silence.grace].map(|time| time.as_millis()))
                .map(|time| time.to_string()),
        )
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
