//! Building one program with the machine's Go into the cache.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use catalog::{GO_ENVIRONMENT, Shelf};
use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};

use super::{Error, Progress, State, Step, Tool};
use crate::process::{Child, Program, tail};

/// How often progress is reported and a lock that another process holds is tried again.
const TICK: Duration = Duration::from_secs(1);

/// Where programs are built and with which Go.
#[derive(Debug)]
pub(super) struct Workshop {
    pub(super) shelf: Shelf,
    pub(super) go: PathBuf,
}

impl Workshop {
    pub(super) fn from_environment() -> Self {
        Self { shelf: Shelf::new(&catalog::cache()), go: "go".into() }
    }

    pub(super) fn cached(&self, tool: &Tool) -> PathBuf {
        self.shelf.program(tool)
    }

    /// Whether the program and the files it is installed with are there.
    pub(super) fn is_complete(&self, tool: &Tool) -> bool {
        self.cached(tool).is_file() && self.shelf.has_files(tool)
    }

    /// Builds `tool` and fetches its files, or waits for the process that is already building it.
    pub(super) async fn build(
        &self,
        tool: &'static Tool,
        left: usize,
        progress: &dyn Progress,
    ) -> Result<PathBuf, Error> {
        let display = Display { tool, left, progress, started: Instant::now() };
        let finished = self.cached(tool);
        let bench = self.lock(tool, &display).await?;
        if !self.is_complete(tool) {
            check_go(&self.go, &bench.module, tool)?;
        }
        if !finished.is_file() {
            display.show(State::Building);
            let partial = bench.module.join(tool.name);
            run_go(&self.go, &bench.module, tool, &partial, &display).await?;
            fs::rename(&partial, &finished).map_err(|source| self.cache_error(source))?;
        }
        self.keep_files(tool, &bench.module).await?;
        display.show(State::Built);
        Ok(finished)
    }

    /// The folder of the program's files, fetched where they are missing.
    pub(super) async fn files(&self, tool: &'static Tool, progress: &dyn Progress) -> Result<PathBuf, Error> {
        if !self.shelf.has_files(tool) {
            let display = Display { tool, left: 0, progress, started: Instant::now() };
            let bench = self.lock(tool, &display).await?;
            check_go(&self.go, &bench.module, tool)?;
            self.keep_files(tool, &bench.module).await?;
        }
        Ok(self.shelf.files(tool))
    }

    /// Makes this process the only one that builds `tool`.
    async fn lock(&self, tool: &'static Tool, display: &Display<'_>) -> Result<Bench, Error> {
        let module = self.shelf.write_module(tool).map_err(|source| self.cache_error(source))?;
        let lock = File::create(self.shelf.lock(tool)).map_err(|source| self.cache_error(source))?;
        loop {
            match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(Errno::WOULDBLOCK) => display.show(State::Waiting),
                // A file system without locks, for one.
                Err(error) => return Err(self.cache_error(error.into())),
            }
            tokio::time::sleep(TICK).await;
        }
        Ok(Bench { module, _lock: lock })
    }

    pub(super) fn cache_error(&self, source: io::Error) -> Error {
        Error::Cache { path: self.shelf.folder().to_owned(), source }
    }
}

/// The pins of one program, locked against other processes.
struct Bench {
    module: PathBuf,
    _lock: File,
}

/// Asks Go to read the pins, which it refuses when it is too old for them.
fn check_go(go: &Path, module: &Path, tool: &Tool) -> Result<(), Error> {
    let go_mod = fs::read_to_string(module.join("go.mod")).unwrap_or_default();
    let version = go_mod.lines().find_map(|line| line.strip_prefix("go ")).unwrap_or("1.26").to_owned();
    let output = std::process::Command::new(go).args(["list", "-m"]).env("GOWORK", "off").current_dir(module).output();
    match output {
        Err(_) => Err(Error::NoGo { program: tool.name, go: go.to_owned(), version, variable: tool.variable() }),
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            Err(Error::OldGo { program: tool.name, version, said, variable: tool.variable() })
        }
    }
}

async fn run_go(go: &Path, module: &Path, tool: &'static Tool, out: &Path, display: &Display<'_>) -> Result<(), Error> {
    let log = module.join(format!("{}.log", tool.name));
    let _ = fs::remove_file(&log);
    let mut program = Program::new("go build", go, &log).args(tool.go_arguments(out));
    for (name, value) in GO_ENVIRONMENT {
        program = program.env(name, value);
    }
    program.directory = Some(module.to_owned());
    let child = Child::start(program)?;
    let mut tick = tokio::time::interval(TICK);
    let status = loop {
        tokio::select! {
            status = child.exited() => break status,
            _ = tick.tick() => display.show(State::Building),
        }
    };
    if status == 0 { Ok(()) } else { Err(Error::Build { program: tool.name, tail: tail(&log), log }) }
}

struct Display<'a> {
    tool: &'static Tool,
    left: usize,
    progress: &'a dyn Progress,
    started: Instant,
}

impl Display<'_> {
    fn show(&self, state: State) {
        self.progress.report(&Step {
            program: self.tool.name,
            version: self.tool.version(),
            state,
            elapsed: self.started.elapsed(),
            left: self.left,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::Plain;

    #[tokio::test]
    async fn without_go_the_message_says_so_and_names_the_remedy() {
        let cache = tempfile::tempdir().unwrap();
        let workshop = Workshop { shelf: Shelf::new(cache.path()), go: "/nonexistent/go".into() };
        let tool = Tool::named("etcd").unwrap();
        let error = workshop.build(tool, 0, &Plain::default()).await.unwrap_err().to_string();
        assert!(error.contains("Go toolchain is missing") && error.contains("install Go 1."), "{error}");
        assert!(error.contains("STRATA_ETCD"), "{error}");
    }

    #[test]
    fn a_go_older_than_the_pins_is_refused_with_the_remedy() {
        let module = tempfile::tempdir().unwrap();
        fs::write(module.path().join("go.mod"), "module x\n\ngo 1.999.0\n").unwrap();
        let error = check_go(Path::new("go"), module.path(), Tool::named("etcd").unwrap()).unwrap_err().to_string();
        assert!(error.contains("needs Go 1.999.0 or newer") && error.contains("install a newer Go"), "{error}");
    }
}
