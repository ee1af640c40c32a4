//! Child processes that end with us, even when we are killed with SIGKILL.
//!
//! A parent-death signal would need unsafe code and follows the spawning thread, so each child gets a
//! guard instead: a POSIX shell in a process group of its own that holds a pipe from us. When the pipe
//! closes, for whatever reason, the guard ends its whole group. Programs that leave the group on purpose
//! (daemons) are out of its reach.

use std::{
    ffi::{OsStr, OsString},
    fs::{self, OpenOptions},
    io::{self, BufRead, BufReader, Read},
    os::unix::{fs::fchown, process::CommandExt},
    path::{Path, PathBuf},
    process::{ChildStdin, Command, Stdio},
    sync::{Arc, Mutex, PoisonError, Weak},
    thread::JoinHandle,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process, test_kill_process_group};
use tokio::sync::watch;

/// Before a program that ended is started again; a kubelet waits longer.
pub(crate) const RESTART_PAUSE: Duration = Duration::from_secs(1);

/// How often a program that is to stand still is looked at.
const STOP_POLL: Duration = Duration::from_millis(1);
/// Ten seconds: threads that run get the signal within their time slice.
const STOP_LOOKS: u32 = 10_000;

/// `$@` is the program. It writes to the guard's stderr, which is the log file. When the pipe closes the
/// program is killed first, so that its end is seen and reported, and then with `kill 0` the whole group:
/// its children, the reader of the pipe, and the guard itself.
const GUARD: &str = r#"
exec 3<&0 4>&1 </dev/null >&2
"$@" 3<&- 4>&- &
child=$!
echo "$child" >&4
{ read -r _ <&3; kill -s KILL "$child"; sleep 1; kill -s KILL 0; } 4>&- &
wait "$child"
echo "$?" >&4
kill -s KILL 0
"#;

/// Removes a directory once its users are gone. They are being killed at the same moment and may still
/// create files, hence the repetition.
const REMOVER: &str = r#"for pause in 0.2 0.5 1 2 5; do sleep "$pause"; rm -rf "$1" && exit; done"#;

/// What a shell reports for a process that SIGKILL ended.
const KILLED: i32 = 137;

/// What went wrong with a child process.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot start {name} ({program})")]
    Start {
        name: String,
        program: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot send {signal:?} to {name} (pid {pid})")]
    Signal {
        name: String,
        pid: u32,
        signal: Signal,
        #[source]
        source: rustix::io::Errno,
    },
    #[error("{name} (pid {pid}) goes on although SIGSTOP was sent to it")]
    Moving { name: String, pid: u32 },
}

/// What to run; kept by the child so that it can be started again in the same way.
#[derive(Clone, Debug)]
pub struct Program {
    /// Short name for people: `etcd`.
    pub name: String,
    pub path: PathBuf,
    pub args: Vec<OsString>,
    pub environment: Vec<(OsString, OsString)>,
    pub directory: Option<PathBuf>,
    /// Both output streams are appended to this file.
    pub log: PathBuf,
    /// As whom it runs, user and group; as we do where `None`. Its log belongs to it. It gets no further than its
    /// directory, whatever is above that, so that its own path and those in its arguments are relative.
    pub uid: Option<u32>,
}

impl Program {
    pub fn new(name: impl Into<String>, path: impl Into<PathBuf>, log: impl Into<PathBuf>) -> Self {
        Self {
            name: name.into(),
            path: path.into(),
            args: Vec::new(),
            environment: Vec::new(),
            directory: None,
            log: log.into(),
            uid: None,
        }
    }

    #[must_use]
    pub fn args(mut self, args: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    #[must_use]
    pub fn within(mut self, directory: impl Into<PathBuf>) -> Self {
        self.directory = Some(directory.into());
        self
    }

    #[must_use]
    pub fn run_as(mut self, uid: Option<u32>) -> Self {
        self.uid = uid;
        self
    }

    #[must_use]
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }
}

/// A running program. Dropping it kills it and waits for its end.
#[derive(Debug)]
pub struct Child {
    program: Program,
    running: Mutex<Running>,
}

#[derive(Debug)]
struct Running {
    pid: u32,
    /// Our end of the pipe; closing it makes the guard end everything.
    pipe: Option<ChildStdin>,
    /// The shell's `$?` of the program, once it has ended.
    exit: watch::Receiver<Option<i32>>,
    reaper: Option<JoinHandle<()>>,
}

/// Whether all threads of a process are stopped, or the system does not say.
fn is_still(pid: u32) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return true };
    let stats = threads.flatten().filter_map(|thread| fs::read_to_string(thread.path().join("stat")).ok());
    // `1 (name) T …`: the name may hold anything.
    let mut states = stats.filter_map(|stat| stat.rsplit_once(") ")?.1.chars().next());
    states.all(|state| "TtZX".contains(state))
}

impl Child {
    pub fn start(program: Program) -> Result<Self, Error> {
        let running = Mutex::new(Running::start(&program)?);
        Ok(Self { program, running })
    }

    pub fn program(&self) -> &Program {
        &self.program
    }

    /// The program's own process id, not the guard's.
    pub fn pid(&self) -> u32 {
        self.running().pid
    }

    pub fn is_running(&self) -> bool {
        self.running().exit.borrow().is_none()
    }

    /// Waits for the end and returns the exit status as a shell sees it (128 + signal when killed).
    pub async fn exited(&self) -> i32 {
        self.end().await
    }

    /// As [`Self::exited`], without a hold on it.
    fn end(&self) -> impl Future<Output = i32> + use<> {
        let mut exit = self.running().exit.clone();
        async move {
            let status = exit.wait_for(Option::is_some).await.ok().and_then(|status| *status);
            status.unwrap_or(KILLED)
        }
    }

    /// Starts it again whenever it ends, as a kubelet does with what it is given, until it is dropped.
    pub(crate) fn keep(self: &Arc<Self>) {
        tokio::spawn(keep(Arc::downgrade(self)));
    }

    pub fn signal(&self, signal: Signal) -> Result<(), Error> {
        let pid = self.pid();
        if !self.is_running() {
            return Ok(());
        }
        let target = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("the kernel gave this process id");
        match kill_process(target, signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(source) => Err(Error::Signal { name: self.program.name.clone(), pid, signal, source }),
        }
    }

    /// SIGKILL, and waits until it is gone.
    pub async fn kill(&self) -> Result<(), Error> {
        self.signal(Signal::KILL)?;
        self.exited().await;
        Ok(())
    }

    /// SIGSTOP: the program keeps its sockets and answers nobody.
    pub fn pause(&self) -> Result<(), Error> {
        let pid = self.pid();
        self.signal(Signal::STOP)?;
        // A thread goes on, and may answer, until the signal reaches it.
        for _ in 0..STOP_LOOKS {
            // A restart meanwhile has made another process, which got no signal.
            if !self.is_running() || self.pid() != pid || is_still(pid) {
                return Ok(());
            }
            std::thread::sleep(STOP_POLL);
        }
        Err(Error::Moving { name: self.program.name.clone(), pid })
    }

    pub fn resume(&self) -> Result<(), Error> {
        self.signal(Signal::CONT)
    }

    /// SIGTERM, then SIGKILL after `grace`.
    pub async fn terminate(&self, grace: Duration) -> Result<(), Error> {
        self.signal(Signal::TERM)?;
        if tokio::time::timeout(grace, self.exited()).await.is_err() {
            self.kill().await?;
        }
        Ok(())
    }

    /// Starts the same program with the same arguments; kills it first where it still runs.
    pub async fn restart(&self) -> Result<(), Error> {
        self.kill().await?;
        let next = Running::start(&self.program)?;
        *self.running() = next;
        Ok(())
    }

    /// The last lines of the log, for error messages.
    pub fn log_tail(&self) -> String {
        tail(&self.program.log)
    }

    fn running(&self) -> std::sync::MutexGuard<'_, Running> {
        // Every update of the value is one assignment, so a poisoned lock still guards a whole value.
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn keep(child: Weak<Child>) {
    while let Some(end) = child.upgrade().map(|child| child.end()) {
        let status = end.await;
        tokio::time::sleep(RESTART_PAUSE).await;
        let Some(child) = child.upgrade() else { break };
        if child.is_running() {
            continue;
        }
        tracing::warn!(program = child.program.name, status, "a program has ended and is started again");
        if let Err(error) = child.restart().await {
            tracing::warn!(program = child.program.name, %error, "a program cannot be started again");
        }
    }
}

impl Running {
    fn start(program: &Program) -> Result<Self, Error> {
        let fail = |source| Error::Start { name: program.name.clone(), program: program.path.clone(), source };
        let log = OpenOptions::new().create(true).append(true).open(&program.log).map_err(fail)?;
        let mut command = Command::new("/bin/sh");
        command.args(["-c", GUARD, "strata-guard"]);
        if let Some(uid) = program.uid {
            fchown(&log, Some(uid), Some(uid)).map_err(fail)?;
            // The guard stays what we are. It enters the directory before the program becomes another user.
            command.args(["setpriv", &format!("--reuid={uid}"), &format!("--regid={uid}"), "--clear-groups", "--"]);
        }
        command.arg(&program.path).args(&program.args);
        command.envs(program.environment.iter().map(|(name, value)| (name, value)));
        if let Some(directory) = &program.directory {
            command.current_dir(directory);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log).process_group(0);
        let mut guard = command.spawn().map_err(fail)?;
        let pipe = guard.stdin.take();
        let mut reports = BufReader::new(guard.stdout.take().expect("stdout is piped"));
        let mut line = String::new();
        reports.read_line(&mut line).map_err(fail)?;
        let pid = line.trim().parse().map_err(|_| fail(io::Error::other("the guard reported no process id")))?;
        let (sender, exit) = watch::channel(None);
        let reaper = std::thread::spawn(move || {
            let mut status = String::new();
            let _ = reports.read_to_string(&mut status);
            let _ = guard.wait();
            wait_for_group(guard.id());
            // No report: the guard was killed together with its group.
            sender.send_replace(Some(status.trim().parse().unwrap_or(KILLED)));
        });
        Ok(Self { pid, pipe, exit, reaper: Some(reaper) })
    }
}

/// The guard ends its group and itself in one stroke, and its children may be seen a little longer than it. Bounded,
/// since what is dead may stay in the process table where nobody collects it.
fn wait_for_group(guard: u32) {
    const LOOKS: u32 = 500;
    const PAUSE: Duration = Duration::from_millis(1);
    let group = i32::try_from(guard).ok().and_then(Pid::from_raw).expect("the kernel gave this process id");
    for _ in 0..LOOKS {
        if test_kill_process_group(group).is_err() {
            break;
        }
        std::thread::sleep(PAUSE);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.pipe.take());
        if let Some(reaper) = self.reaper.take() {
            let _ = reaper.join();
        }
    }
}

/// Removes `directory` when this process ends, however it ends.
#[derive(Debug)]
pub(crate) struct RemovedAtEnd {
    _remover: AtEnd,
}

impl RemovedAtEnd {
    pub(crate) fn new(directory: &Path) -> io::Result<Self> {
        Ok(Self { _remover: AtEnd::run(REMOVER, directory)? })
    }
}

/// A shell that does its work when this is dropped or this process ends, however it ends.
#[derive(Debug)]
pub(crate) struct AtEnd {
    _pipe: ChildStdin,
}

impl AtEnd {
    /// `script` finds its argument in `$1`.
    pub(crate) fn run(script: &str, argument: impl AsRef<OsStr>) -> io::Result<Self> {
        let mut shell = Command::new("/bin/sh")
            .args(["-c", &format!("read -r _\n{script}"), "strata-remover"])
            .arg(argument)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()?;
        let pipe = shell.stdin.take().expect("stdin is piped");
        // Reaped by a thread, since the owner may live on for hours after this is dropped.
        std::thread::spawn(move || shell.wait());
        Ok(Self { _pipe: pipe })
    }
}

/// At most the last 20 lines: enough for a Go panic's head or a flag error, little enough to print.
pub(crate) fn tail(path: &Path) -> String {
    let text = fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}
