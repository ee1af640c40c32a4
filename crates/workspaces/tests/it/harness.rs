//! A runner in a temporary directory, and charts written on the spot.

use std::{
    fs::{self, File},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Result, bail};
use flate2::{Compression, write::GzEncoder};
use runtime::Key;
use tempfile::TempDir;
use tokio::sync::Notify;
use workspaces::helm::{Chart, Config, Contents, Deploy, Finished, Guard, Operation, Request, Runner, State};

/// Nothing here takes more than a few seconds on an idle machine; a loaded one is many times slower.
pub const PATIENCE: Duration = Duration::from_mins(2);

pub struct Scene {
    pub runner: Runner,
    pub directory: TempDir,
    pub changed: Arc<Notify>,
}

impl Scene {
    /// With the real helm.
    pub async fn real() -> Result<Self> {
        Self::real_with(|_| {}).await
    }

    pub async fn real_with(adjust: impl FnOnce(&mut Config)) -> Result<Self> {
        let helm = testbed::tools::path("helm").await?;
        Self::start(tempfile::tempdir()?, helm, adjust)
    }

    /// With a shell script for helm: `$1` is the operation, `$2` the release, `$SCENE` this scene's directory.
    pub fn fake(script: &str, adjust: impl FnOnce(&mut Config)) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let helm = directory.path().join("helm");
        fs::write(&helm, format!("#!/bin/sh\nPATH=/usr/bin:/bin\n{script}\n"))?;
        fs::set_permissions(&helm, fs::Permissions::from_mode(0o700))?;
        Self::start(directory, helm, adjust)
    }

    fn start(directory: TempDir, helm: PathBuf, adjust: impl FnOnce(&mut Config)) -> Result<Self> {
        let changed = Arc::new(Notify::new());
        let mut config = config(helm, directory.path());
        let notify = changed.clone();
        config.on_change = Box::new(move |_| {
            notify.notify_waiters();
            true
        });
        adjust(&mut config);
        Ok(Self { runner: Runner::start(config)?, directory, changed })
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Lines of a file that a fake helm writes; none if it is not there yet.
    pub fn lines(&self, name: &str) -> Vec<String> {
        let text = fs::read_to_string(self.path(name)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    pub async fn until<T>(&self, complaint: &str, mut look: impl FnMut() -> Option<T>) -> Result<T> {
        let looking = async {
            loop {
                let changed = self.changed.notified();
                if let Some(found) = look() {
                    return found;
                }
                // Files and processes of a fake helm give no event to wait for.
                let _ = tokio::time::timeout(Duration::from_millis(50), changed).await;
            }
        };
        match tokio::time::timeout(PATIENCE, looking).await {
            Ok(found) => Ok(found),
            Err(_) => bail!("{complaint} within {} s: {:?}", PATIENCE.as_secs(), self.runner),
        }
    }

    pub async fn finished(&self, key: &Key) -> Result<Finished> {
        self.until("not finished", || match self.runner.state(key) {
            State::Finished(_) => self.runner.take(key),
            _ => None,
        })
        .await
    }

    pub async fn run(&self, request: Request) -> Result<Finished> {
        let key = request.key.clone();
        self.runner.submit(request)?;
        self.finished(&key).await
    }

    /// Everything that was submitted has ended.
    pub async fn idle(&self) -> Result<()> {
        let is_idle = || {
            let snapshot = self.runner.snapshot();
            (snapshot.waiting + snapshot.running == 0).then_some(())
        };
        self.until("not idle", is_idle).await
    }

    /// Directories of operations that are still there.
    pub fn operation_directories(&self) -> Vec<PathBuf> {
        let entries = |path: PathBuf| fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
        entries(self.path("private")).flat_map(entries).filter(|path| path.is_dir()).collect()
    }
}

/// One second of grace and no overtime; everything below `directory`.
pub fn config(helm: PathBuf, directory: &Path) -> Config {
    let guard = Guard { program: env!("CARGO_BIN_EXE_helm-guard").into(), arguments: Vec::new() };
    let mut config = Config::new(helm, guard, directory.join("private"), directory.join("cache"));
    config.grace = Duration::from_secs(1);
    config.overtime = Duration::ZERO;
    config.environment.push(("SCENE".into(), directory.into()));
    config
}

pub fn request(key: &Key, operation: Operation) -> Request {
    with(key, Contents::new(operation))
}

/// A request for helm to get these.
pub fn with(key: &Key, contents: Contents) -> Request {
    Request {
        key: key.clone(),
        namespaces: Vec::new(),
        operation: contents.operation.kind(),
        label: "test".into(),
        timeout: PATIENCE,
        time: None,
        memory: None,
        contents: Box::new(|| Box::pin(async { Ok(contents) })),
    }
}

pub fn install(key: &Key) -> Request {
    request(key, Operation::Install(deploy("/none.tgz".into())))
}

pub fn uninstall(key: &Key) -> Request {
    request(key, Operation::Uninstall { keep_history: false, wait: false })
}

pub fn deploy(path: PathBuf) -> Deploy {
    let chart = Chart { path, name: "chart".into(), version: "1.0.0".into(), digest: "none".into() };
    Deploy { chart: Arc::new(chart), wait: false, history_max: 5, skip_crds: false, force_conflicts: false }
}

/// Packs a chart of one template; `name-version.tgz` below `directory`.
pub fn pack(directory: &Path, name: &str, version: &str, template: &str) -> Result<PathBuf> {
    let path = directory.join(format!("{name}-{version}.tgz"));
    let mut archive = tar::Builder::new(GzEncoder::new(File::create(&path)?, Compression::fast()));
    let metadata = format!("apiVersion: v2\nname: {name}\nversion: {version}\n");
    for (file, content) in [("Chart.yaml", metadata.as_str()), ("templates/all.yaml", template)] {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        archive.append_data(&mut header, format!("{name}/{file}"), content.as_bytes())?;
    }
    archive.into_inner()?.finish()?;
    Ok(path)
}

/// A zombie is dead, only not yet collected by whoever inherited it.
pub fn is_alive(pid: &str) -> bool {
    let status = fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
    status.rsplit(") ").next().is_some_and(|fields| !fields.is_empty() && !fields.starts_with(['Z', 'X']))
}
