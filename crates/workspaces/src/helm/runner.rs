//! Helm as an executor of [jobs](runtime::jobs): each operation is a child process with a memory limit of its own, under
//! a guard, in a private directory.
//!
//! [`Runner::submit`] puts a request in line and returns; a layer looks at [`Runner::state`] in its rounds, and
//! `on_change` says when a look is worth it.

mod config;

use std::{collections::BTreeMap, ffi::OsString, fmt, io, path::PathBuf, sync::Arc, time::Duration};

use jiff::Timestamp;
use plan::releases::LEAST_MEMORY;
use process::Clock;
use runtime::{
    Key, Leadership,
    child::{self, Guard, OperationDirectory, Private, PrivateDirectory, Report, Silence, private_directories},
    jobs::{self, Budget, Draw, Ended, Executor, Job, Jobs, NotBegun, Stopped, Stops, Tally},
};
use tokio_util::sync::CancellationToken;

pub use self::config::Config;
use super::{
    command::{self, Operation, OperationKind},
    output::{self, Class, Ending, Failure},
    request::{Contents, Reading, Refused, Request, Unread},
};

/// The budget that helm operations draw from.
const MEMORY: &str = "helm memory";
/// For reading values, credentials and the chart's place when the turn has come: a few requests, each of which is given
/// up after ten seconds by default.
const PREPARATION: Duration = Duration::from_mins(1);

/// The most that one operation may use, where an ordinary one uses `operation_memory` of the total.
pub fn largest_memory(total_memory: u64, operation_memory: u64) -> u64 {
    Budget::of(total_memory, operation_memory).share
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
    /// Until it is taken, or the key's next request.
    Finished(Finished),
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

impl From<Arc<jobs::Finished<Output>>> for Finished {
    fn from(finished: Arc<jobs::Finished<Output>>) -> Self {
        let jobs::Finished { kind, label, ended, started_at, duration } = &*finished;
        let (operation, label) = (OperationKind::of(kind), label.clone());
        let (started_at, duration) = (*started_at, *duration);
        let Output { result, exit, stdout, peak_bytes } = output(ended);
        Self { operation, label, result, exit, stdout, started_at, duration, peak_bytes }
    }
}

/// A handle; clones are the same runner.
#[derive(Clone)]
pub struct Runner(Jobs<Helm>);

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

impl Runner {
    /// Makes the directories and removes what killed runners left in them. Operations run on the present runtime.
    pub fn start(config: Config) -> io::Result<Self> {
        let private = PrivateDirectory::open(&config.private)?;
        private_directories().create(command::index_directory(&config.cache))?;
        let Config { total_memory, operation_memory, grace, clock, on_change, .. } = config;
        let executor = Helm {
            program: config.helm,
            guard: config.guard,
            private,
            cache: config.cache,
            operation_memory,
            overtime: config.overtime,
            silence: config.silence,
            environment: config.environment,
        };
        let budgets = vec![(MEMORY, Budget::of(total_memory, operation_memory))];
        let config = jobs::Config { budgets, preparation: PREPARATION, grace, clock, on_change };
        Ok(Self(Jobs::new(executor, config)))
    }

    /// Puts a request in line, instead of a waiting one of the same key; what runs is not interrupted. A result that
    /// was not taken yet is forgotten. Never blocks.
    pub fn submit(&self, request: Request) -> Result<(), Refused> {
        Ok(self.0.submit(self.job(request)?)?)
    }

    /// Submits at once, and what it returns waits for the end: for callers outside rounds. None if it was cancelled or
    /// replaced before it started.
    pub fn run(&self, request: Request) -> Result<impl Future<Output = Option<Finished>> + use<>, Refused> {
        let ended = self.0.run(self.job(request)?)?;
        Ok(async { ended.await.map(Finished::from) })
    }

    /// Lets a waiting operation start in the turn of a further namespace, too.
    pub fn join(&self, key: &Key, namespace: &Arc<str>) {
        self.0.join(key, namespace);
    }

    fn job(&self, request: Request) -> Result<Job<Task>, Refused> {
        let helm = self.0.executor();
        let Request { key, namespaces, operation, label, timeout, time, memory, contents } = request;
        let memory = memory.unwrap_or(helm.operation_memory);
        if memory < LEAST_MEMORY {
            return Err(Refused::TooSmall { asked: memory, least: LEAST_MEMORY });
        }
        Ok(Job {
            namespaces,
            kind: operation.as_str(),
            label,
            draws: vec![Draw::new(MEMORY, memory)],
            time: time.unwrap_or(timeout).saturating_add(helm.overtime),
            task: Task { key: key.clone(), timeout, memory, contents },
            key,
        })
    }

    pub fn state(&self, key: &Key) -> State {
        match self.0.state(key) {
            jobs::State::Idle => State::Idle,
            jobs::State::Waiting => State::Waiting,
            jobs::State::Running { kind, label, since, is_ending } => {
                State::Running { operation: OperationKind::of(kind), label, since, is_ending }
            }
            jobs::State::Finished(finished) => State::Finished(finished.into()),
        }
    }

    /// The result of the key's last operation, once.
    pub fn take(&self, key: &Key) -> Option<Finished> {
        self.0.take(key).map(Finished::from)
    }

    /// The release's object is gone: drops what waits, and the result of what has ended.
    pub fn forget(&self, key: &Key) {
        self.0.forget(key);
    }

    /// Drops what waits for this key and ends what runs: SIGTERM, the grace, SIGKILL. Never blocks.
    pub fn cancel(&self, key: &Key) {
        self.0.cancel(key);
    }

    /// Starts nothing more, drops what waits, ends what runs within `grace`, and returns when all of it is gone.
    pub async fn drain(&self, grace: Duration) {
        self.0.drain(grace).await;
        self.0.executor().private.remove();
    }

    /// Ends all helm processes whenever the lead is lost, before another replica may act, and when the process stops.
    pub async fn end_with(&self, leadership: &Leadership, margin: Duration, stop: &CancellationToken, grace: Duration) {
        self.0.end_with(leadership, margin, stop, grace).await;
        self.0.executor().private.remove();
    }

    pub fn snapshot(&self) -> Snapshot {
        let jobs::Snapshot { waiting, running, budgets, ended } = self.0.snapshot();
        let (bytes_in_use, bytes_total) = budgets.get(MEMORY).copied().unwrap_or_default();
        let ended = ended.into_iter().map(|((kind, result), tally)| ((OperationKind::of(kind), result), tally));
        Snapshot { waiting, running, bytes_in_use, bytes_total, ended: ended.collect() }
    }

    pub(super) fn cache(&self) -> &std::path::Path {
        &self.0.executor().cache
    }

    pub(super) fn environment(&self) -> &[(OsString, OsString)] {
        &self.0.executor().environment
    }

    pub(super) fn clock(&self) -> &Clock {
        &self.0.config().clock
    }

    /// As if an operation of this key had ended.
    pub(super) fn changed(&self, key: &Key) {
        (self.0.config().on_change)(key);
    }
}

impl fmt::Debug for Runner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Runner({:?})", self.snapshot())
    }
}

/// The executor.
struct Helm {
    program: PathBuf,
    guard: Guard,
    private: PrivateDirectory,
    cache: PathBuf,
    operation_memory: u64,
    overtime: Duration,
    silence: Option<Silence>,
    environment: Vec<(OsString, OsString)>,
}

/// All that is held while an operation waits.
struct Task {
    key: Key,
    timeout: Duration,
    memory: u64,
    contents: Reading,
}

/// An operation whose turn has come.
struct Prepared {
    key: Key,
    timeout: Duration,
    memory: u64,
    contents: Contents,
}

#[derive(Clone, Debug)]
struct Output {
    result: Result<(), Failure>,
    exit: Option<i32>,
    stdout: String,
    peak_bytes: u64,
}

impl Output {
    fn failed(failure: Failure) -> Self {
        Self { result: Err(failure), exit: None, stdout: String::new(), peak_bytes: 0 }
    }
}

/// What became of an operation, whether helm was started or not.
fn output(ended: &Ended<Output>) -> Output {
    let failure = match ended {
        Ended::Done(output) => return output.clone(),
        Ended::Outdated(what) => Failure::new(Class::NotBegun, format_args!("not begun: {what}")),
        Ended::NotBegun(Stopped::Deadline) => {
            let limit = PREPARATION.as_secs();
            let message = format_args!("not begun: its values and credentials were not read within {limit} s");
            Failure::new(Class::Unreachable, message)
        }
        Ended::NotBegun(Stopped::Cancelled) => Failure::new(Class::NotBegun, "cancelled before it began"),
        Ended::NotBegun(Stopped::Ending) => Failure::new(Class::NotBegun, "not begun: the operator stops"),
        Ended::Abandoned(_) => Failure::new(Class::Killed, "helm did not end when it was killed; it is left alone"),
        Ended::Panicked(panic) => Failure::new(Class::Other, format_args!("the runner failed: {panic}")),
    };
    Output::failed(failure)
}

impl Executor for Helm {
    type Task = Task;
    type Contents = Prepared;
    type Output = Output;

    async fn prepare(&self, task: Task) -> Result<Prepared, NotBegun<Output>> {
        let Task { key, timeout, memory, contents } = task;
        match contents().await {
            Ok(contents) => Ok(Prepared { key, timeout, memory, contents }),
            Err(Unread::Outdated(what)) => Err(NotBegun::Outdated(what)),
            Err(Unread::Failed(failure)) => Err(NotBegun::Failed(Output::failed(failure))),
        }
    }

    async fn execute(&self, mut prepared: Prepared, mut stops: Stops) -> Output {
        if let Some(first) = prepared.contents.first.take() {
            let done = tokio::select! {
                done = first() => done,
                _ = stops.asked() => Err(Failure::new(Class::Cancelled, "ended before helm began")),
            };
            if let Err(Failure { class, message }) = done {
                let message = output::redact(&message, &secrets(&prepared.contents));
                return Output::failed(Failure { class, message });
            }
        }
        let mut peak_bytes = 0;
        if let Some(before) = prepared.contents.before.take() {
            let output = self.run(&prepared, &before, stops.clone()).await;
            if output.result.is_err() {
                return output;
            }
            peak_bytes = output.peak_bytes;
        }
        let operation = prepared.contents.operation.clone();
        let output = self.run(&prepared, &operation, stops).await;
        Output { peak_bytes: output.peak_bytes.max(peak_bytes), ..output }
    }

    fn result(ended: &Ended<Output>) -> &'static str {
        output(ended).result.map_or_else(|failure| failure.class.as_str(), |()| "success")
    }
}

/// Taken apart only when they are needed: in parts they are many times as large.
fn secrets(contents: &Contents) -> Vec<Private> {
    output::secrets_in(&contents.secret_values).chain(contents.secrets.clone()).collect()
}

impl Helm {
    /// One helm process.
    async fn run(&self, prepared: &Prepared, operation: &Operation, stops: Stops) -> Output {
        let ran = match self.files(&prepared.contents) {
            Ok(directory) => {
                let ran = child::run(self.child(prepared, operation, &directory), stops).await;
                ran.map_err(|error| error.to_string())
            }
            Err(error) => {
                let place = self.private.path().display();
                Err(format!("its values and credentials cannot be written to {place}: {error}"))
            }
        };
        let (report, stopped) = match ran {
            Ok(ran) => ran,
            Err(error) => {
                return Output::failed(Failure::new(Class::Killed, format_args!("cannot start helm: {error}")));
            }
        };
        let Report { exit, signal, ref stderr, is_abandoned, .. } = report;
        let ending = Ending { operation: operation.kind(), exit, signal, stderr, stopped, is_abandoned };
        let secrets = secrets(&prepared.contents);
        let result = output::judge(ending, &secrets);
        Output { result, exit, stdout: output::redact(&report.stdout, &secrets), peak_bytes: report.peak_bytes }
    }

    fn files(&self, contents: &Contents) -> io::Result<OperationDirectory> {
        let directory = self.private.operation()?;
        for (index, values) in contents.values.iter().enumerate() {
            directory.write(&command::values_file(index), values)?;
        }
        if let Some(kubeconfig) = &contents.kubeconfig {
            directory.write(command::KUBECONFIG, kubeconfig)?;
        }
        for (name, content) in &contents.files {
            directory.write(name, content)?;
        }
        Ok(directory)
    }

    fn child<'a>(
        &'a self,
        prepared: &Prepared,
        operation: &Operation,
        directory: &'a OperationDirectory,
    ) -> child::Task<'a> {
        let Prepared { key, timeout, memory, contents } = prepared;
        let mut environment = command::environment(directory.path(), &self.cache, *memory);
        environment.extend(self.environment.iter().cloned());
        child::Task {
            guard: &self.guard,
            program: &self.program,
            arguments: operation.arguments(key, *timeout, contents.values.len()),
            environment,
            directory: directory.path(),
            memory: *memory,
            file_bytes: operation.kind().file_bytes(),
            ends_gently: operation.kind().ends_gently(),
            silence: self.silence,
        }
    }
}
