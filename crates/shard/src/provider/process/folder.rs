//! The folder of one machine, and the locks in it.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::Duration,
};

use jiff::Timestamp;
use plan::shard::instance::MachineStatus;
use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
    process::{Pid, Signal, kill_process_group, test_kill_process_group},
};
use serde::{Deserialize, Serialize};

use crate::provider::MachineInfo;

pub const LABELS: &str = "machine.json";
pub const USERDATA: &str = "userdata";
pub const ALIVE: &str = "alive";
pub const PID: &str = "pid";
pub const LOG: &str = "log";
pub const NOTICE: &str = "termination-notice";

/// What a machine has to leave its work in order: an agent takes its Node out of the cluster, which a busy API server may
/// have to be asked for more than once. With twice [`SOON`] it fits the server's deadline for a call.
const GRACE: Duration = Duration::from_secs(15);

/// For what a process does at once: to write its number, to end when it is not asked.
const SOON: Duration = Duration::from_secs(5);

/// The end of a process has no event for a process that is not its parent; this often is invisible beside the end.
const POLL: Duration = Duration::from_millis(10);

/// What a machine was made with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Labels {
    pub instance_id: String,
    pub cluster: String,
    pub shard: String,
    pub tenant: String,
    pub group: String,
    /// Machines of earlier versions do not say so.
    #[serde(default)]
    pub on_demand: bool,
    pub created_at: Timestamp,
}

impl Labels {
    pub fn running(&self) -> MachineInfo {
        self.with(MachineStatus::Running)
    }

    /// Of a machine that is not known to be anyone's.
    fn unknown(instance_id: &str, now: Timestamp) -> MachineInfo {
        MachineInfo {
            instance_id: instance_id.to_owned(),
            provider_id: instance_id.to_owned(),
            status: MachineStatus::Unknown,
            // Never old enough to be swept: it may be another shard's.
            created_at: now,
            noticed: false,
            group: String::new(),
            on_demand: false,
        }
    }

    fn with(&self, status: MachineStatus) -> MachineInfo {
        MachineInfo {
            instance_id: self.instance_id.clone(),
            // Unique by itself, and the last part of the Node's provider id.
            provider_id: self.instance_id.clone(),
            status,
            created_at: self.created_at,
            noticed: false,
            group: self.group.clone(),
            on_demand: self.on_demand,
        }
    }
}

/// One machine's folder, which need not be there.
#[derive(Clone, Debug)]
pub struct Folder {
    path: PathBuf,
}

/// A folder that is there, and that no other server changes meanwhile.
pub struct Held<'a> {
    folder: &'a Folder,
    _lock: File,
}

/// Makes the folder of all machines and removes what an interrupted removal left in it.
pub fn open(directory: &Path) -> io::Result<PathBuf> {
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let directory = directory.canonicalize()?;
    for entry in fs::read_dir(&directory)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "removed") {
            absent_is_fine(fs::remove_dir_all(path))?;
        }
    }
    Ok(directory)
}

/// The folders of all machines. A plain file is none.
pub fn all(directory: &Path) -> io::Result<Vec<Folder>> {
    let entries: Vec<_> = fs::read_dir(directory)?.collect::<io::Result<_>>()?;
    let folders = entries.iter().filter(|entry| !entry.file_type().is_ok_and(|kind| kind.is_file()));
    Ok(folders.filter_map(|entry| Folder::of(directory, entry.file_name().to_str()?)).collect())
}

impl Folder {
    /// `None` for a name that leads elsewhere.
    pub fn of(directory: &Path, instance_id: &str) -> Option<Self> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        let fits = !instance_id.is_empty() && instance_id.bytes().all(plain);
        fits.then(|| Self { path: directory.join(instance_id) })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn is_there(&self) -> io::Result<bool> {
        self.path.try_exists()
    }

    /// Waits for its turn. The lock is one on the folder itself: whoever waited for a folder that was removed meanwhile
    /// begins anew.
    pub fn hold(&self) -> io::Result<Held<'_>> {
        loop {
            DirBuilder::new().recursive(true).mode(0o700).create(&self.path)?;
            let Some(lock) = absent_is_none(File::open(&self.path))? else { continue };
            blocking(&lock, FlockOperation::LockExclusive)?;
            let ours = lock.metadata()?;
            let is_same = |there: fs::Metadata| (there.dev(), there.ino()) == (ours.dev(), ours.ino());
            if absent_is_none(fs::metadata(&self.path))?.is_some_and(is_same) {
                return Ok(Held { folder: self, _lock: lock });
            }
        }
    }

    pub fn labels(&self) -> io::Result<Option<Labels>> {
        let Some(text) = absent_is_none(fs::read(self.path.join(LABELS)))? else { return Ok(None) };
        let damaged = |error| io::Error::other(format!("{}: {error}", self.path.join(LABELS).display()));
        serde_json::from_slice(&text).map(Some).map_err(damaged)
    }

    /// The machine. One whose process never began is none: to make it again begins it.
    pub fn machine(&self) -> io::Result<Option<MachineInfo>> {
        let Some(labels) = self.labels()? else { return Ok(None) };
        let noticed = self.path.join(NOTICE).try_exists()?;
        if self.is_alive()? {
            return Ok(Some(MachineInfo { noticed, ..labels.running() }));
        }
        // It may have begun and ended between the two looks: its number stays.
        Ok(self.pid()?.map(|_| MachineInfo { noticed, ..labels.with(MachineStatus::Stopped) }))
    }

    /// The machine, or that there is one of which nothing is known: a folder that cannot be read hides no other, and is
    /// not an absent machine.
    pub fn look(&self, now: Timestamp) -> Option<MachineInfo> {
        self.machine().unwrap_or_else(|error| {
            let path = self.path.display();
            tracing::warn!(%path, %error, "a machine's folder cannot be read; restore it, or end its process and remove it");
            Some(Labels::unknown(&self.path.file_name().unwrap_or_default().to_string_lossy(), now))
        })
    }

    /// Whether the process holds its lock.
    pub fn is_alive(&self) -> io::Result<bool> {
        let Some(file) = absent_is_none(File::open(self.path.join(ALIVE)))? else { return Ok(false) };
        match flock(&file, FlockOperation::NonBlockingLockShared) {
            Ok(()) => Ok(false),
            Err(Errno::WOULDBLOCK) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }

    /// The process' number, once it began. Only while it is alive this is no other process.
    pub fn pid(&self) -> io::Result<Option<u32>> {
        let text = absent_is_none(fs::read_to_string(self.path.join(PID)))?;
        Ok(text.and_then(|text| text.trim().parse().ok()))
    }
}

impl Held<'_> {
    pub fn path(&self) -> &Path {
        &self.folder.path
    }

    /// Replaces a file at once, so that a reader sees the old or the new text.
    pub fn write(&self, name: &str, text: &[u8]) -> io::Result<()> {
        let (path, partial) = (self.path().join(name), self.path().join(format!("{name}.new")));
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let mut file = options.open(&partial)?;
        file.write_all(text)?;
        // A host that loses its power keeps labels that can be read: without them nothing is decided on the machine.
        file.sync_all()?;
        fs::rename(partial, path)
    }

    pub fn write_labels(&self, labels: &Labels) -> io::Result<()> {
        self.write(LABELS, &serde_json::to_vec_pretty(labels)?)
    }

    pub fn append(&self, name: &str) -> io::Result<File> {
        OpenOptions::new().append(true).create(true).mode(0o600).open(self.path().join(name))
    }

    /// The sign of life, to be handed to the process. Those who look at it hold it for a moment each.
    pub fn lock_alive(&self) -> io::Result<File> {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = file.open(self.path().join(ALIVE))?;
        blocking(&file, FlockOperation::LockExclusive)?;
        Ok(file)
    }

    /// Ends the process and its group: asks first, then does not ask.
    pub fn end(&self) -> io::Result<()> {
        let folder = self.folder;
        if !folder.is_alive()? {
            return Ok(());
        }
        // It may be about to write its number.
        let begun = until(SOON, || Ok(folder.pid()?.is_some() || !folder.is_alive()?))?;
        let pid = folder.pid()?.and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
        let Some(group) = pid else {
            return if begun { Ok(()) } else { Err(io::Error::other("its process does not begin")) };
        };
        signal(group, Signal::TERM)?;
        if !until(GRACE, || Ok(!folder.is_alive()?))? {
            signal(group, Signal::KILL)?;
            if !until(SOON, || Ok(!folder.is_alive()?))? {
                return Err(io::Error::other("its process does not end"));
            }
        }
        // What it left behind in its group. The number is not given away while the group has members.
        if test_kill_process_group(group).is_ok() {
            signal(group, Signal::KILL)?;
        }
        Ok(())
    }

    /// At once for those who look: what is being removed has another name.
    pub fn remove(self) -> io::Result<()> {
        let removed = self.path().with_extension("removed");
        absent_is_fine(fs::remove_dir_all(&removed))?;
        fs::rename(self.path(), &removed)?;
        absent_is_fine(fs::remove_dir_all(removed))
    }
}

/// Looks for about so long.
fn until(time: Duration, mut is_so: impl FnMut() -> io::Result<bool>) -> io::Result<bool> {
    let looks = time.as_millis() / POLL.as_millis();
    for _ in 0..looks {
        if is_so()? {
            return Ok(true);
        }
        std::thread::sleep(POLL);
    }
    is_so()
}

fn signal(group: Pid, signal: Signal) -> io::Result<()> {
    match kill_process_group(group, signal) {
        Ok(()) | Err(Errno::SRCH) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn blocking(file: &File, operation: FlockOperation) -> io::Result<()> {
    loop {
        match flock(file, operation) {
            Err(Errno::INTR) => {}
            done => return Ok(done?),
        }
    }
}

fn absent_is_none<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn absent_is_fine(result: io::Result<()>) -> io::Result<()> {
    absent_is_none(result).map(drop)
}
