//! The one owner of all helm processes.
//!
//! [`Runner::submit`] puts a request in line and returns. Whatever fits the budget runs, each in a task of its own
//! with a child under its [`guard`](super::guard); what waits costs a map entry. A layer looks at [`Runner::state`] in
//! its rounds and is told by `on_change` when a look is worth it.

use std::{
    collections::{BTreeMap, HashMap},
    ffi::OsString,
    fmt, io,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use plan::releases::LEAST_MEMORY;
use runtime::{Clock, Key};
use tokio::{
    sync::{Notify, oneshot, watch},
    time::Instant,
};

use super::{
    child::{self, Guard, Stop, Task},
    command::{self, Operation, OperationKind},
    files::{OperationDirectory, Private, PrivateDirectory, private_directories},
    guard::Report,
    output::{self, Class, Ending, Failure, Stopped},
    queue::Queue,
};

/// How a runner works.
pub struct Config {
    /// The helm program.
    pub helm: PathBuf,
    pub guard: Guard,
    /// Where values and credentials are written, for as long as an operation runs; best a file system in memory.
    pub private: PathBuf,
    /// What is worth keeping between operations and starts: indexes, charts, discovery.
    pub cache: PathBuf,
    /// Bytes for all helm processes together.
    pub total_memory: u64,
    /// Bytes for one, unless its request says otherwise.
    pub operation_memory: u64,
    /// How much longer than its own timeout helm may take: it then ends by itself, with the better message.
    pub overtime: Duration,
    /// From SIGTERM to SIGKILL.
    pub grace: Duration,
    /// Passed on to helm: proxies.
    pub environment: Vec<(OsString, OsString)>,
    pub clock: Clock,
    /// Told whenever an operation of this key has ended; must not block. False: nobody wants to know, and
    /// nobody will take the result.
    pub on_change: Box<dyn Fn(&Key) -> bool + Send + Sync>,
}

impl Config {
    /// With the defaults of the specification: 1 GiB for all, 256 MiB for each, so that four run at once, three of them
    /// of one namespace.
    pub fn new(helm: PathBuf, guard: Guard, private: PathBuf, cache: PathBuf) -> Self {
        Self {
            helm,
            guard,
            private,
            cache,
            total_memory: 1 << 30,
            operation_memory: 256 << 20,
            // helm needs two requests to store that a wait was in vain.
            overtime: Duration::from_secs(10),
            // As long as the default grace of a pod.
            grace: Duration::from_secs(30),
            environment: Vec::new(),
            clock: Clock::default(),
            on_change: Box::new(|_| true),
        }
    }
}

/// One operation on one release.
#[derive(Clone, Debug)]
pub struct Request {
    /// Namespace and name of the release.
    pub key: Key,
    pub operation: Operation,
    /// What the caller knows this request by; comes back in [`Finished`].
    pub label: Arc<str>,
    /// In order: later files win.
    pub values: Vec<Private>,
    pub kubeconfig: Option<Private>,
    /// Whose turn comes later is not begun, because its credentials would not last: it is handed back as
    /// [`Class::NotBegun`], to be submitted anew.
    pub start_by: Option<Instant>,
    /// Further files by name, in helm's working directory: repositories, registry credentials, authorities.
    pub files: Vec<(&'static str, Private)>,
    /// helm's own limit for each wait.
    pub timeout: Duration,
    /// Bytes, instead of the configured.
    pub memory: Option<u64>,
    /// Cut out of every message.
    pub secrets: Vec<Private>,
    /// YAML documents; whatever they hold is cut out as well.
    pub secret_values: Vec<Private>,
}

/// Why a request is not even put in line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error(
        "the operation may use {asked} bytes, which is more than the {total} bytes for all helm operations together"
    )]
    TooLarge { asked: u64, total: u64 },
    #[error("the operation may use {asked} bytes, and helm needs at least {least}")]
    TooSmall { asked: u64, least: u64 },
    #[error("the operator stops")]
    Draining,
}

/// Where the operations of one key are.
#[derive(Clone, Debug)]
pub enum State {
    Idle,
    Waiting,
    /// Recorded before the process exists.
    Running {
        operation: OperationKind,
        label: Arc<str>,
        since: Timestamp,
        /// It was asked to end.
        is_ending: bool,
    },
    /// Until it is taken, or the key's next request: take it, also of an object that is gone.
    Finished(Arc<Finished>),
}

/// An operation that has ended.
#[derive(Clone, Debug)]
pub struct Finished {
    pub operation: OperationKind,
    pub label: Arc<str>,
    pub result: Result<(), Failure>,
    /// helm's exit code; none where a signal ended it.
    pub exit: Option<i32>,
    /// The last part of what it printed, without the request's secrets.
    pub stdout: String,
    pub started_at: Timestamp,
    pub duration: Duration,
    /// The most memory that was resident.
    pub peak_bytes: u64,
}

/// A handle; clones are the same runner.
#[derive(Clone)]
pub struct Runner(Arc<Inner>);

struct Inner {
    config: Config,
    private: PrivateDirectory,
    runtime: tokio::runtime::Handle,
    shared: Mutex<Shared>,
    ended: Notify,
}

struct Shared {
    queue: Queue<Waiting>,
    running: HashMap<Key, Running>,
    finished: HashMap<Key, Arc<Finished>>,
    tallies: BTreeMap<(OperationKind, &'static str), Tally>,
    is_draining: bool,
}

struct Waiting {
    request: Request,
    /// Who awaits the end in person, instead of by [`Runner::state`].
    awaited: Option<oneshot::Sender<Arc<Finished>>>,
}

struct Running {
    operation: OperationKind,
    label: Arc<str>,
    since: Timestamp,
    stop: watch::Sender<Option<Stop>>,
}

/// The runner at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    pub waiting: usize,
    pub running: usize,
    /// What the running operations may use together, and the most they may ever.
    pub bytes_in_use: u64,
    pub bytes_total: u64,
    /// Ended operations by kind and result (`success`, or [`super::Class::as_str`]).
    pub ended: BTreeMap<(OperationKind, &'static str), Tally>,
}

/// How many operations ended alike, and how long they took together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tally {
    pub count: u64,
    pub duration: Duration,
}

impl Runner {
    /// Makes the directories and removes what killed runners left in them. Operations run on the present runtime.
    pub fn start(config: Config) -> io::Result<Self> {
        let private = PrivateDirectory::open(&config.private)?;
        private_directories().create(command::index_directory(&config.cache))?;
        // Room for one usual operation is left to others.
        let share = config.total_memory.saturating_sub(config.operation_memory);
        let shared = Shared {
            queue: Queue::new(config.total_memory, share),
            running: HashMap::new(),
            finished: HashMap::new(),
            tallies: BTreeMap::new(),
            is_draining: false,
        };
        let runtime = tokio::runtime::Handle::current();
        let ended = Notify::new();
        Ok(Self(Arc::new(Inner { config, private, runtime, shared: Mutex::new(shared), ended })))
    }

    /// Puts a request in line, instead of a waiting one of the same key; what runs is not interrupted. A result that
    /// was not taken yet is forgotten. Never blocks.
    pub fn submit(&self, request: Request) -> Result<(), Refused> {
        self.push(Waiting { request, awaited: None })
    }

    /// Submits and waits for the end: for callers outside rounds. None if it was cancelled or replaced before it
    /// started.
    pub async fn run(&self, request: Request) -> Result<Option<Arc<Finished>>, Refused> {
        let (sender, receiver) = oneshot::channel();
        self.push(Waiting { request, awaited: Some(sender) })?;
        Ok(receiver.await.ok())
    }

    fn push(&self, waiting: Waiting) -> Result<(), Refused> {
        let inner = &self.0;
        let bytes = waiting.request.memory.unwrap_or(inner.config.operation_memory);
        let mut shared = inner.lock();
        if shared.is_draining {
            return Err(Refused::Draining);
        }
        let total = shared.queue.total();
        if bytes > total {
            return Err(Refused::TooLarge { asked: bytes, total });
        }
        if bytes < LEAST_MEMORY {
            return Err(Refused::TooSmall { asked: bytes, least: LEAST_MEMORY });
        }
        let key = waiting.request.key.clone();
        shared.finished.remove(&key);
        drop(shared.queue.push(key, bytes, waiting));
        inner.advance(&mut shared);
        Ok(())
    }

    pub fn state(&self, key: &Key) -> State {
        let shared = self.0.lock();
        if let Some(running) = shared.running.get(key) {
            let (operation, label, since) = (running.operation, running.label.clone(), running.since);
            let is_ending = running.stop.borrow().is_some();
            return State::Running { operation, label, since, is_ending };
        }
        match shared.finished.get(key) {
            Some(finished) => State::Finished(finished.clone()),
            None if shared.queue.is_waiting(key) => State::Waiting,
            None => State::Idle,
        }
    }

    /// The result of the key's last operation, once.
    pub fn take(&self, key: &Key) -> Option<Arc<Finished>> {
        self.0.lock().finished.remove(key)
    }

    /// Drops what waits for this key and ends what runs: SIGTERM, the grace, SIGKILL. Never blocks.
    pub fn cancel(&self, key: &Key) {
        let mut shared = self.0.lock();
        drop(shared.queue.remove(key));
        if let Some(running) = shared.running.get(key) {
            let kill_at = self.0.config.clock.instant() + self.0.config.grace;
            // The first word counts: a later one would put off the end.
            running.stop.send_if_modified(|stop| {
                let is_first = stop.is_none();
                stop.get_or_insert(Stop { why: Stopped::Cancelled, kill_at });
                is_first
            });
        }
        // What was dropped may have been the large one that the others waited behind.
        self.0.advance(&mut shared);
    }

    /// Starts nothing more, drops what waits, ends what runs within `grace`, and returns when all of it is gone.
    pub async fn drain(&self, grace: Duration) {
        self.0.lock().is_draining = true;
        self.cancel_all(grace).await;
        self.0.private.remove();
    }

    /// Drops what waits, ends what runs within `grace`, and returns when all of it is gone; what is submitted meanwhile is
    /// ended as well.
    pub async fn cancel_all(&self, grace: Duration) {
        let stop = Stop { why: Stopped::Draining, kill_at: self.0.config.clock.instant() + grace };
        loop {
            let ended = self.0.ended.notified();
            {
                let mut shared = self.0.lock();
                shared.queue.clear();
                if shared.running.is_empty() {
                    return;
                }
                for running in shared.running.values() {
                    running.stop.send_replace(Some(stop));
                }
            }
            ended.await;
        }
    }

    pub fn snapshot(&self) -> Snapshot {
        let shared = self.0.lock();
        Snapshot {
            waiting: shared.queue.waiting(),
            running: shared.running.len(),
            bytes_in_use: shared.queue.in_use(),
            bytes_total: shared.queue.total(),
            ended: shared.tallies.clone(),
        }
    }

    pub(super) fn config(&self) -> &Config {
        &self.0.config
    }
}

impl fmt::Debug for Runner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Runner({:?})", self.snapshot())
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, Shared> {
        // Nothing panics between two changes that belong together.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts what fits.
    fn advance(self: &Arc<Self>, shared: &mut Shared) {
        while !shared.is_draining
            && let Some((key, bytes, waiting)) = shared.queue.start_next()
        {
            let (stop, stops) = watch::channel(None);
            let (operation, label) = (waiting.request.operation.kind(), waiting.request.label.clone());
            let since = self.config.clock.now();
            shared.running.insert(key.clone(), Running { operation, label: label.clone(), since, stop });
            let inner = self.clone();
            self.runtime.spawn(async move {
                let Waiting { request, awaited } = waiting;
                let at_start = inner.config.clock.instant();
                // In a task of its own, so that a panic costs this operation and not its slot.
                let ran = tokio::spawn(inner.clone().perform(request, bytes, stops)).await;
                let (result, report) = ran.unwrap_or_else(|panic| {
                    (Err(Failure::new(Class::Other, format_args!("the runner failed: {panic}"))), Report::default())
                });
                let duration = inner.config.clock.instant() - at_start;
                let Report { exit, stdout, peak_bytes, .. } = report;
                let started_at = since;
                inner.finish(
                    &key,
                    Finished { operation, label, result, exit, stdout, started_at, duration, peak_bytes },
                    awaited,
                );
            });
        }
    }

    async fn perform(
        self: Arc<Self>,
        request: Request,
        memory: u64,
        stops: watch::Receiver<Option<Stop>>,
    ) -> (Result<(), Failure>, Report) {
        if request.start_by.is_some_and(|by| self.config.clock.instant() > by) {
            let message = "not begun: its credentials grew too old while it waited for its turn";
            return (Err(Failure::new(Class::NotBegun, message)), Report::default());
        }
        let ran = match self.files(&request) {
            Ok(directory) => self.run(&request, &directory, memory, stops).await,
            Err(error) => Err(error),
        };
        let (mut report, stopped) = match ran {
            Ok(ran) => ran,
            Err(error) => {
                let message = format_args!("cannot start helm: {error}");
                return (Err(Failure::new(Class::Killed, message)), Report::default());
            }
        };
        let Report { exit, signal, ref stderr, .. } = report;
        let ending = Ending { operation: request.operation.kind(), exit, signal, stderr, stopped };
        // Taken apart only now: in parts they are many times as large.
        let secrets: Vec<_> = output::secrets_in(&request.secret_values).chain(request.secrets.clone()).collect();
        let result = output::judge(ending, &secrets);
        report.stdout = output::redact(&report.stdout, &secrets);
        (result, report)
    }

    fn files(&self, request: &Request) -> io::Result<OperationDirectory> {
        let directory = self.private.operation()?;
        for (index, values) in request.values.iter().enumerate() {
            directory.write(&command::values_file(index), values)?;
        }
        if let Some(kubeconfig) = &request.kubeconfig {
            directory.write(command::KUBECONFIG, kubeconfig)?;
        }
        for (name, content) in &request.files {
            directory.write(name, content)?;
        }
        Ok(directory)
    }

    async fn run(
        &self,
        request: &Request,
        directory: &OperationDirectory,
        memory: u64,
        stops: watch::Receiver<Option<Stop>>,
    ) -> io::Result<(Report, Option<Stopped>)> {
        let mut environment = command::environment(directory.path(), &self.config.cache, memory);
        environment.extend(self.config.environment.iter().cloned());
        let task = Task {
            guard: &self.config.guard,
            program: &self.config.helm,
            arguments: request.operation.arguments(&request.key, request.timeout, request.values.len()),
            environment,
            directory: directory.path(),
            memory,
            deadline: self.config.clock.instant() + request.timeout + self.config.overtime,
            grace: self.config.grace,
            ends_gently: request.operation.kind().ends_gently(),
        };
        child::run(task, stops).await
    }

    fn finish(self: &Arc<Self>, key: &Key, finished: Finished, awaited: Option<oneshot::Sender<Arc<Finished>>>) {
        let result = finished.result.as_ref().map_or_else(|failure| failure.class.as_str(), |()| "success");
        let mut shared = self.lock();
        let tally = shared.tallies.entry((finished.operation, result)).or_default();
        tally.count += 1;
        tally.duration += finished.duration;
        shared.running.remove(key);
        shared.queue.finish(key);
        let finished = Arc::new(finished);
        let is_polled = awaited.is_none();
        match awaited {
            // Who waited may have gone.
            Some(awaited) => drop(awaited.send(finished)),
            None => drop(shared.finished.insert(key.clone(), finished)),
        }
        self.advance(&mut shared);
        drop(shared);
        self.ended.notify_waiters();
        if is_polled && !(self.config.on_change)(key) {
            self.lock().finished.remove(key);
        }
    }
}
