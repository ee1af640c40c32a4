//! The process between us and a child: the child dies when we do, whatever ends us.
//!
//! A parent-death signal needs unsafe code and follows the spawning thread, so our own binary is run again as a guard.
//! It takes the limits of memory and of files upon itself, which the child inherits, starts the child in a process group
//! of its own, keeps the ends of what the child writes, and listens on its standard input:
//!
//! | input | the guard |
//! | --- | --- |
//! | `t` | asks the child to end (SIGTERM) |
//! | `k` | ends the whole group (SIGKILL) |
//! | `.` | knows that we live |
//! | none for as long as it was given: we are stopped, and may have lost the lead | asks, and after the grace it was given ends the whole group |
//! | end of file: we are gone | asks, and after [`ORPHAN_GRACE`] ends the whole group |
//!
//! For as long as the guard or its child lives, the directory that both run in is locked: the next operator knows by it
//! that the work is still under way.
//!
//! On standard output it writes one line with the child's process id and, when the child has ended, one with a
//! report. Nothing else runs here, no runtime and no TLS: it has to start in milliseconds.

use std::{
    ffi::OsString,
    fs::File,
    io::{self, Read, Write},
    os::unix::process::{CommandExt, ExitStatusExt},
    path::Path,
    process::{Child, Command, ExitCode, Stdio},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::Duration,
};

use rustix::fs::{FlockOperation, flock};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{
    Pid, Resource, Rlimit, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, setrlimit, waitid,
};
use serde::{Deserialize, Serialize};

use super::Silence;

/// What an orphaned child has to leave its work in order: helm stores that its release failed, by two requests. It must
/// be well below the time after which the next operator takes a `pending-*` release for abandoned (30 s).
pub const ORPHAN_GRACE: Duration = Duration::from_secs(5);
/// How much of the end of each stream is kept: many times what a condition shows, little beside a child's memory.
const TAIL_BYTES: usize = 64 * 1024;
/// After the child's group is gone only a process that left the group can still hold a stream open.
const STREAM_PATIENCE: Duration = Duration::from_secs(1);

/// The first line: the child runs.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Started {
    pub pid: i32,
}

/// The last line: how the child ended.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Report {
    pub exit: Option<i32>,
    pub signal: Option<i32>,
    /// The last part of each stream.
    pub stdout: String,
    pub stderr: String,
    pub peak_bytes: u64,
    /// The guard ended it, because we were silent.
    #[serde(default)]
    pub is_abandoned: bool,
}

/// Runs a guard: `arguments` are the limits in bytes of memory and of each file, how many milliseconds of silence it bears
/// with (0: any) and gives the child then, the program, and its arguments.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<_> = arguments.into_iter().collect();
    let program = arguments.get(4).map(Path::new).and_then(Path::file_name).unwrap_or_default();
    let program = program.to_string_lossy().into_owned();
    match run(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let report = Report { stderr: format!("Error: cannot start {program}: {error}"), ..Report::default() };
            let _ = print(&report);
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: impl IntoIterator<Item = OsString>) -> io::Result<()> {
    let mut arguments = arguments.into_iter();
    let usage = || io::Error::other("usage: guard MEMORY FILE SILENCE GRACE PROGRAM [ARGUMENTS]");
    let mut number = || arguments.next().and_then(|number| number.to_str()?.parse::<u64>().ok()).ok_or_else(usage);
    for resource in [Resource::Data, Resource::Fsize] {
        let bytes = number()?;
        setrlimit(resource, Rlimit { current: Some(bytes), maximum: Some(bytes) })?;
    }
    let [limit, grace] = [Duration::from_millis(number()?), Duration::from_millis(number()?)];
    let silence = (!limit.is_zero()).then_some(Silence { limit, grace });
    let program = arguments.next().ok_or_else(usage)?;
    let at_work = File::open(".")?;
    flock(&at_work, FlockOperation::NonBlockingLockShared)?;
    // The child inherits it, and with it the lock.
    fcntl_setfd(&at_work, FdFlags::empty())?;
    #[expect(clippy::disallowed_methods, reason = "this starts the child")]
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()?;
    let stdout = keep_tail(child.stdout.take());
    let stderr = keep_tail(child.stderr.take());
    let pid = Pid::from_child(&child);
    print(&Started { pid: pid.as_raw_nonzero().get() })?;
    let target = Arc::new(Mutex::new(Some(pid)));
    let is_abandoned = Arc::<AtomicBool>::default();
    let (listener, abandons) = (target.clone(), is_abandoned.clone());
    thread::spawn(move || listen(&listener, silence, &abandons));
    let report = await_end(&mut child, pid, &target)?;
    let tail = |from: mpsc::Receiver<String>| from.recv_timeout(STREAM_PATIENCE).unwrap_or_default();
    let is_abandoned = is_abandoned.load(Ordering::Relaxed);
    print(&Report { stdout: tail(stdout), stderr: tail(stderr), is_abandoned, ..report })
}

fn print(line: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(line)?;
    line.push(b'\n');
    io::stdout().lock().write_all(&line)
}

/// Does what the pipe says for as long as the child is there.
fn listen(target: &Mutex<Option<Pid>>, silence: Option<Silence>, is_abandoned: &AtomicBool) {
    let said = read_input();
    let grace = loop {
        let byte = match silence {
            Some(Silence { limit, .. }) => said.recv_timeout(limit),
            None => said.recv().map_err(RecvTimeoutError::from),
        };
        match (byte, silence) {
            (Ok(b't'), _) => signal(target, kill_process, Signal::TERM),
            (Ok(b'k'), _) => signal(target, kill_process_group, Signal::KILL),
            (Ok(_), _) => {}
            (Err(RecvTimeoutError::Timeout), Some(Silence { grace, .. })) => {
                is_abandoned.store(true, Ordering::Relaxed);
                break grace;
            }
            (Err(_), _) => break ORPHAN_GRACE,
        }
    };
    signal(target, kill_process, Signal::TERM);
    thread::sleep(grace);
    signal(target, kill_process_group, Signal::KILL);
}

/// What comes over the pipe, byte by byte, so that it can be waited for with a limit.
fn read_input() -> mpsc::Receiver<u8> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut byte = [0];
        while let Ok(1) = io::stdin().lock().read(&mut byte) {
            if sender.send(byte[0]).is_err() {
                return;
            }
        }
    });
    receiver
}

fn signal(target: &Mutex<Option<Pid>>, send: fn(Pid, Signal) -> rustix::io::Result<()>, signal: Signal) {
    let target = target.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(pid) = *target {
        // It may just have ended.
        let _ = send(pid, signal);
    }
}

/// Waits for the child, ends what it leaves in its group, and only then collects it: until then no other process can
/// get its number.
fn await_end(child: &mut Child, pid: Pid, target: &Mutex<Option<Pid>>) -> io::Result<Report> {
    while let Err(rustix::io::Errno::INTR) = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT) {}
    signal(target, kill_process_group, Signal::KILL);
    *target.lock().unwrap_or_else(PoisonError::into_inner) = None;
    let status = child.wait()?;
    Ok(Report { exit: status.code(), signal: status.signal(), peak_bytes: peak_bytes(), ..Report::default() })
}

/// The most any child of ours had resident; there was one.
fn peak_bytes() -> u64 {
    use nix::sys::resource::{UsageWho, getrusage};
    let kibibytes = getrusage(UsageWho::RUSAGE_CHILDREN).map_or(0, |usage| usage.max_rss());
    u64::try_from(kibibytes).unwrap_or(0) * 1024
}

/// Reads a stream to its end, so that the child never waits for a reader, and keeps the last part.
fn keep_tail(stream: Option<impl Read + Send + 'static>) -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    let mut stream = stream.expect("both streams are piped");
    thread::spawn(move || {
        let mut tail = Vec::new();
        let mut buffer = [0; 8192];
        while let Ok(read @ 1..) = stream.read(&mut buffer) {
            tail.extend_from_slice(&buffer[..read]);
            // Twice the size, so that what is kept moves once per tail and not once per read.
            if tail.len() > 2 * TAIL_BYTES {
                tail.drain(..tail.len() - TAIL_BYTES);
            }
        }
        let start = tail.len().saturating_sub(TAIL_BYTES);
        let _ = sender.send(String::from_utf8_lossy(&tail[start..]).into_owned());
    });
    receiver
}
