//! Machines that are processes of this host.
//!
//! A machine outlives the server that made it: it has a process group of its own, and everything that is known of it
//! is in a folder under its instance's name, where the next server finds it.
//!
//! | file | what it says |
//! | --- | --- |
//! | `machine.json` | the labels, written before the process begins |
//! | `userdata` | what it runs, under the interpreter that its first line names, else `/bin/sh` |
//! | `alive` | empty and locked by the process for as long as it lives: its standard input |
//! | `pid` | written by the process itself before it runs the userdata |
//! | `log` | both its output streams |
//! | `termination-notice` | put there when the machine is about to be taken away; its agent passes it on |
//!
//! So no crash of a server leaves a process that its successor does not know, and no number that the kernel gave to
//! another process meanwhile is taken for ours.

mod folder;

use std::{
    io,
    path::{Path, PathBuf},
    process::Stdio,
};

use async_trait::async_trait;
use plan::shard::config::{self, Config, Findings, Problem};
use serde::Deserialize;
use tokio::process::Command;

use super::{MachineInfo, Order, Provider, ProviderError, ProviderVariables};
use crate::clock::Clock;
use folder::{Folder, Held, LOG, Labels, USERDATA};

/// The process tells its number itself: a server that dies right after it started the process could not.
const LAUNCH: &str = r#"echo "$$" >pid && exec "$@""#;

/// Where programs are on any host. A machine gets nothing else of the server's environment, which may hold keys.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What the configuration says of this provider, beside its kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ProcessSettings {
    /// Where machines have their folders. Servers of one shard must name the same one.
    pub directory: Option<PathBuf>,
    /// With it agents register their Nodes; without it there are none.
    pub kubeconfig: Option<PathBuf>,
    /// Machines end themselves once no process holds a lock on this file.
    pub lock: Option<PathBuf>,
    /// Our own binary, which userdata runs as the agent; the one that runs now if it is not named.
    pub program: Option<PathBuf>,
    pub region: String,
    pub zone: String,
    /// Machines are entries of a table of the server, and end with it: for benchmarks.
    pub in_process: bool,
}

impl ProcessSettings {
    pub fn read(provider: &config::Provider) -> Result<Self, ProviderError> {
        let settings = serde_json::Value::Object(provider.settings.clone());
        serde_json::from_value(settings).map_err(|error| ProviderError::new(format!("shard.provider: {error}")))
    }

    /// As templates see them.
    pub fn variables(&self, kind: &str, program: PathBuf) -> ProviderVariables {
        let text = |path: &Option<PathBuf>| path.as_deref().unwrap_or(Path::new("")).to_string_lossy().into_owned();
        ProviderVariables {
            kind: kind.to_owned(),
            region: self.region.clone(),
            zone: self.zone.clone(),
            program: text(&self.program.clone().or(Some(program))),
            kubeconfig: text(&self.kubeconfig),
            lock: text(&self.lock),
        }
    }
}

/// Checks what a configuration says to this provider.
pub(super) fn check(config: &Config, findings: &mut Findings) {
    if let Err(error) = ProcessSettings::read(&config.shard.provider) {
        let message = format!("{}; correct or remove it", error.message.trim_start_matches("shard.provider: "));
        findings.problems.push(Problem { field: "shard.provider".to_owned(), message });
    }
}

/// Clones share the folder, as servers share a cloud.
#[derive(Clone, Debug)]
pub struct Process {
    directory: PathBuf,
    clock: Clock,
}

impl Process {
    /// Opens the folder, or makes it. Private: userdata holds a nonce.
    pub fn open(directory: &Path, clock: Clock) -> Result<Self, ProviderError> {
        let directory = folder::open(directory).map_err(|error| failed("cannot use its folder", directory, &error))?;
        Ok(Self { directory, clock })
    }

    /// Where the machine of an instance has its files.
    fn folder(&self, instance_id: &str) -> Result<Folder, ProviderError> {
        Folder::of(&self.directory, instance_id)
            .ok_or_else(|| ProviderError::new(format!("{instance_id:?} cannot be the name of a folder")))
    }

    fn make(&self, order: &Order) -> Result<MachineInfo, ProviderError> {
        let folder = self.folder(&order.instance_id)?;
        let fail = |error: io::Error| failed("cannot start a machine in", folder.path(), &error);
        let held = folder.hold().map_err(fail)?;
        if let Some(machine) = folder.machine().map_err(fail)? {
            return Ok(machine);
        }
        let labels = Labels {
            instance_id: order.instance_id.clone(),
            cluster: order.cluster.clone(),
            shard: order.shard.clone(),
            tenant: order.tenant.clone(),
            group: order.group.clone(),
            on_demand: order.on_demand,
            created_at: self.clock.now(),
        };
        held.write(USERDATA, order.userdata.as_bytes()).map_err(fail)?;
        held.write_labels(&labels).map_err(fail)?;
        start(&held, &order.userdata).map_err(fail)?;
        Ok(labels.running())
    }

    fn end(&self, instance_id: &str) -> Result<(), ProviderError> {
        let folder = self.folder(instance_id)?;
        let end = || -> io::Result<()> {
            if folder.is_there()? {
                let held = folder.hold()?;
                held.end()?;
                held.remove()?;
            }
            Ok(())
        };
        end().map_err(|error| failed("cannot end the machine of", folder.path(), &error))
    }

    fn all(&self, cluster: &str, shard: &str) -> Result<Vec<MachineInfo>, ProviderError> {
        let fail = |error: io::Error| failed("cannot list the machines of", &self.directory, &error);
        let mut all = Vec::new();
        for folder in folder::all(&self.directory).map_err(fail)? {
            let is_other =
                |labels: Option<Labels>| labels.is_none_or(|labels| labels.cluster != cluster || labels.shard != shard);
            // One whose labels cannot be read may be ours.
            if !folder.labels().is_ok_and(is_other) {
                all.extend(folder.look(self.clock.now()));
            }
        }
        Ok(all)
    }
}

/// Starts the process. Its standard input is the lock that says it lives: passed on to it alone, whatever else this
/// server starts at the same moment.
fn start(held: &Held<'_>, userdata: &str) -> io::Result<()> {
    let alive = held.lock_alive()?;
    let log = held.append(LOG)?;
    #[expect(clippy::disallowed_methods, reason = "machines of this provider are processes")]
    let child = Command::new("/bin/sh")
        .args(["-c", LAUNCH, "machine"])
        .args(interpreter(userdata))
        .arg(USERDATA)
        .env_clear()
        .env("PATH", PATH)
        .env("HOME", held.path())
        .current_dir(held.path())
        .stdin(Stdio::from(alive))
        .stdout(log.try_clone()?)
        .stderr(log)
        // Whatever ends the server, or all processes of its group, does not end the machine.
        .process_group(0)
        .spawn()?;
    // Not waited for: dropped, it is collected by the runtime when it ends.
    drop(child);
    Ok(())
}

/// What the first line asks for. The file is not executed itself: one that another thread's child still holds open for
/// writing, by the accident of a fork, the kernel refuses to execute.
fn interpreter(userdata: &str) -> Vec<&str> {
    let line = userdata.lines().next().and_then(|line| line.strip_prefix("#!")).unwrap_or_default().trim();
    let (program, argument) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let words = [program, argument.trim()].into_iter().filter(|word| !word.is_empty());
    let words: Vec<_> = words.collect();
    if words.is_empty() { vec!["/bin/sh"] } else { words }
}

fn failed(what: &str, path: &Path, error: &io::Error) -> ProviderError {
    ProviderError::new(format!("{what} {}: {error}", path.display()))
}

impl Process {
    /// Files and locks are waited for on a thread that may wait.
    async fn apart<T: Send + 'static>(
        &self,
        work: impl FnOnce(Self) -> Result<T, ProviderError> + Send + 'static,
    ) -> Result<T, ProviderError> {
        let own = self.clone();
        let done = tokio::task::spawn_blocking(move || work(own)).await;
        done.unwrap_or_else(|error| Err(ProviderError::new(format!("the provider failed: {error}"))))
    }
}

#[async_trait]
impl Provider for Process {
    async fn create(&self, order: &Order) -> Result<MachineInfo, ProviderError> {
        let order = order.clone();
        self.apart(move |own| own.make(&order)).await
    }

    async fn delete(&self, instance_id: &str) -> Result<(), ProviderError> {
        let id = instance_id.to_owned();
        self.apart(move |own| own.end(&id)).await
    }

    async fn status(&self, instance_id: &str) -> Result<Option<MachineInfo>, ProviderError> {
        let folder = self.folder(instance_id)?;
        self.apart(move |own| Ok(folder.look(own.clock.now()))).await
    }

    async fn list(&self, cluster: &str, shard: &str) -> Result<Vec<MachineInfo>, ProviderError> {
        let (cluster, shard) = (cluster.to_owned(), shard.to_owned());
        self.apart(move |own| own.all(&cluster, &shard)).await
    }

    /// Processes are limited by the host alone.
    async fn free(&self, _: &str) -> Result<Option<u32>, ProviderError> {
        Ok(None)
    }

    fn node_provider_id(&self, shard: &str, machine: &MachineInfo) -> String {
        super::node_provider_id(super::PROCESS, shard, &machine.instance_id, &machine.provider_id)
    }

    fn pid(&self, instance_id: &str) -> Option<u32> {
        let folder = self.folder(instance_id).ok()?;
        if folder.is_alive().ok()? { folder.pid().ok()? } else { None }
    }
}

#[cfg(test)]
mod tests;
