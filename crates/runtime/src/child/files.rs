//! Private files: one directory per child, readable by us alone, gone when the child is.

use std::{
    fmt,
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use rustix::fs::{FlockOperation, flock};

use super::guard::ORPHAN_GRACE;

/// Content that must not be shown: `Debug` prints its length alone.
#[derive(Clone, PartialEq, Eq)]
pub struct Private(Arc<[u8]>);

impl Private {
    pub fn new(content: impl AsRef<[u8]>) -> Self {
        Self(content.as_ref().into())
    }

    pub fn expose(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Private {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{} private bytes]", self.0.len())
    }
}

/// The directory of one runner of children. Its lock shows others that it is alive.
#[derive(Debug)]
pub struct PrivateDirectory {
    path: PathBuf,
    next: AtomicU64,
    left: Left,
    _lock: File,
}

/// Directories of operations that have ended and whose files could not be removed.
type Left = Arc<Mutex<Vec<PathBuf>>>;

const PREFIX: &str = "runner-";
const LOCK: &str = "lock";
/// Their guards end them; a second more for the end itself. What then still lives has lost its guard as well.
const ORPHAN_PATIENCE: Duration = ORPHAN_GRACE.saturating_add(Duration::from_secs(1));
/// Invisible beside the start of a process.
const ORPHAN_LOOK: Duration = Duration::from_millis(10);

impl PrivateDirectory {
    /// Makes one below `parent`, and removes those of runners that were killed.
    pub fn open(parent: &Path) -> io::Result<Self> {
        private_directories().create(parent)?;
        // A runner of the same process id was here before: process ids repeat, in containers always.
        let path = (0u32..)
            .map(|attempt| parent.join(format!("{PREFIX}{}-{attempt}", std::process::id())))
            .find_map(|path| match DirBuilder::new().mode(0o700).create(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => None,
                made => Some(made.map(|()| path)),
            })
            .expect("the attempts never end")?;
        let lock = File::create(path.join(LOCK))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        sweep(parent, &path)?;
        Ok(Self { path, next: AtomicU64::new(0), left: Left::default(), _lock: lock })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A directory for one operation.
    pub fn operation(&self) -> io::Result<OperationDirectory> {
        let path = self.path.join(self.next.fetch_add(1, Ordering::Relaxed).to_string());
        let left = self.left.clone();
        lock(&left).retain(|path| fs::remove_dir_all(path).is_err());
        DirBuilder::new().mode(0o700).create(&path)?;
        Ok(OperationDirectory { path, left })
    }

    /// At the end of the runner; the next one would sweep it as well.
    pub fn remove(&self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove the directory of child processes");
        }
    }
}

/// Removes what runners left that are gone: their lock is free. A directory without a lock is one that is just being
/// made, or no runner's at all. Their children may live a little longer, and are waited for: no other may do the same
/// work meanwhile.
fn sweep(parent: &Path, own: &Path) -> io::Result<()> {
    for entry in fs::read_dir(parent)? {
        let path = entry?.path();
        let is_runner = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(PREFIX));
        let Ok(lock) = File::open(path.join(LOCK)) else { continue };
        if is_runner && path != own && flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok() {
            remove_left(&path)?;
        }
    }
    Ok(())
}

/// Removes the directory of a runner that is gone. Another that starts at the same time may have done so: its lock was
/// free again then, on a file that is no more.
fn remove_left(path: &Path) -> io::Result<()> {
    let removed = orphans_ended(path, ORPHAN_PATIENCE).and_then(|has_ended| {
        if !has_ended {
            tracing::warn!(path = %path.display(), "a child process of an earlier operator does not end");
        }
        fs::remove_dir_all(path)
    });
    removed.or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) })
}

/// Waits for the children at work in an operation's directory: it is locked for as long.
fn orphans_ended(runner: &Path, patience: Duration) -> io::Result<bool> {
    let mut looks = patience.as_millis() / ORPHAN_LOOK.as_millis();
    for entry in fs::read_dir(runner)? {
        let entry = entry?;
        // The runner's own lock, which we hold, is a file.
        if !entry.file_type()?.is_dir() {
            continue;
        }
        let operation = File::open(entry.path())?;
        while flock(&operation, FlockOperation::NonBlockingLockExclusive).is_err() {
            if looks == 0 {
                return Ok(false);
            }
            looks -= 1;
            thread::sleep(ORPHAN_LOOK);
        }
    }
    Ok(true)
}

fn lock(left: &Left) -> MutexGuard<'_, Vec<PathBuf>> {
    left.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removed when dropped; what cannot be removed then, before the next operation.
#[derive(Debug)]
pub struct OperationDirectory {
    path: PathBuf,
    left: Left,
}

impl OperationDirectory {
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn write(&self, name: &str, content: &Private) -> io::Result<()> {
        let path = self.path.join(name);
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?.write_all(content.expose())
    }
}

impl Drop for OperationDirectory {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            tracing::error!(
                path = %self.path.display(), %error,
                "cannot remove the files of a child process; trying again before the next one"
            );
            lock(&self.left).push(std::mem::take(&mut self.path));
        }
    }
}

/// Makes a directory for us alone, with its parents.
pub fn private_directories() -> DirBuilder {
    let mut builder = DirBuilder::new();
    builder.recursive(true).mode(0o700);
    builder
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn files_are_private_and_leave_with_the_operation() {
        let parent = tempfile::tempdir().unwrap();
        let directory = PrivateDirectory::open(&parent.path().join("p")).unwrap();
        let (one, two) = (directory.operation().unwrap(), directory.operation().unwrap());
        one.write("values", &Private::new("secret")).unwrap();
        assert_ne!(one.path(), two.path());
        assert_eq!((mode(one.path()), mode(&one.path().join("values"))), (0o700, 0o600));
        assert_eq!(fs::read(one.path().join("values")).unwrap(), b"secret");
        let path = one.path().to_owned();
        drop(one);
        assert!(!path.exists() && two.path().exists());
        assert_eq!(format!("{:?}", Private::new("secret")), "[6 private bytes]");
    }

    #[test]
    fn only_what_dead_runners_left_is_swept() {
        let parent = tempfile::tempdir().unwrap();
        let dead = parent.path().join("runner-1-0");
        let foreign = parent.path().join("notes");
        for path in [&dead, &foreign] {
            fs::create_dir(path).unwrap();
            fs::write(path.join(LOCK), "").unwrap();
        }
        let alive = PrivateDirectory::open(parent.path()).unwrap();
        assert!(!dead.exists() && foreign.exists());
        let second = PrivateDirectory::open(parent.path()).unwrap();
        assert!(alive.path.exists());
        second.remove();
        assert!(!second.path.exists());
    }

    #[test]
    fn what_another_runner_swept_meanwhile_is_swept() {
        let parent = tempfile::tempdir().unwrap();
        remove_left(&parent.path().join("runner-1-0")).unwrap();
        let file = parent.path().join("runner-2-0");
        fs::write(&file, "").unwrap();
        remove_left(&file).unwrap_err();
    }

    #[test]
    fn only_a_child_at_work_is_waited_for() {
        let parent = tempfile::tempdir().unwrap();
        let dead = PrivateDirectory::open(parent.path()).unwrap();
        let operation = dead.operation().unwrap();
        assert!(orphans_ended(&dead.path, Duration::ZERO).unwrap());
        let at_work = File::open(operation.path()).unwrap();
        flock(&at_work, FlockOperation::NonBlockingLockShared).unwrap();
        assert!(!orphans_ended(&dead.path, ORPHAN_LOOK).unwrap());
    }
}
