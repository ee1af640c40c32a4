//! A store in a folder: one file per object, for one machine or a shared file system with working locks.
//!
//! A write takes the lock of its key, compares, writes a file beside the object, syncs it, renames it over the object
//! and syncs the folder. A reader takes no lock: it sees the object before or after the rename.

use std::{
    collections::HashSet,
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use async_trait::async_trait;
use jiff::Timestamp;
use rustix::fs::{FlockOperation, flock};

use super::{Etag, Expect, OBJECT_LIMIT, Object, Store, StoreError, check_body, check_key, content_etag};

/// Writers of different keys seldom share one of so many locks, and a folder of so many files is small.
const LOCKS: u8 = 64;

/// Beside the objects; keys never begin with a dot.
const LOCK_FOLDER: &str = ".lock";

/// Storage holds the cluster's keys: the owner reads, no one else.
const FOLDER_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;

#[derive(Clone, Debug)]
pub struct FileStore {
    root: PathBuf,
    /// Folders whose own entry this process made durable, so that a write need sync no more than its folder.
    durable: Arc<Mutex<HashSet<PathBuf>>>,
}

impl FileStore {
    /// Creates the folder if it is missing.
    pub fn open(root: impl Into<PathBuf>) -> io::Result<Self> {
        let root = root.into();
        fs::DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(root.join(LOCK_FOLDER))?;
        Ok(Self { root, durable: Arc::default() })
    }

    /// File operations block: they run on tokio's threads for that.
    async fn blocking<T: Send + 'static>(
        &self,
        key: &str,
        work: impl FnOnce(&Path, &str) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (root, owned) = (self.root.clone(), key.to_owned());
        let done = tokio::task::spawn_blocking(move || work(&root, &owned)).await;
        done.unwrap_or_else(|panic| Err(StoreError::unavailable(key, panic)))
    }
}

#[async_trait]
impl Store for FileStore {
    async fn get(&self, key: &str) -> Result<Option<Object>, StoreError> {
        check_key(key)?;
        self.blocking(key, |root, key| read(root, key).map_err(|error| StoreError::unavailable(key, error))).await
    }

    /// On one thread: handing each file to a thread costs more than reading it.
    async fn get_many(&self, keys: &[String]) -> Result<Vec<Option<Object>>, StoreError> {
        let Some(first) = keys.first() else { return Ok(Vec::new()) };
        keys.iter().try_for_each(|key| check_key(key))?;
        let keys = keys.to_vec();
        self.blocking(first, move |root, _| {
            let read = |key: &String| read(root, key).map_err(|error| StoreError::unavailable(key, error));
            keys.iter().map(read).collect()
        })
        .await
    }

    async fn put(&self, key: &str, body: Vec<u8>, expect: Expect) -> Result<Etag, StoreError> {
        check_key(key)?;
        check_body(key, &body)?;
        let durable = Arc::clone(&self.durable);
        self.blocking(key, move |root, key| {
            let swapped =
                swap(root, key, &body, &expect, &durable).map_err(|error| StoreError::unavailable(key, error))?;
            swapped.ok_or_else(|| StoreError::conflict(key))
        })
        .await
    }

    async fn delete(&self, key: &str) -> Result<(), StoreError> {
        check_key(key)?;
        self.blocking(key, |root, key| remove(root, key).map_err(|error| StoreError::unavailable(key, error))).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        check_key(prefix.trim_end_matches('/'))?;
        self.blocking(prefix, |root, prefix| {
            let mut keys = Vec::new();
            walk(root, prefix.trim_end_matches('/'), &mut keys)
                .map_err(|error| StoreError::unavailable(prefix, error))?;
            keys.retain(|key| key.starts_with(prefix));
            keys.sort();
            Ok(keys)
        })
        .await
    }
}

fn read(root: &Path, key: &str) -> io::Result<Option<Object>> {
    let file = match File::open(root.join(key)) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let metadata = file.metadata()?;
    // No store takes more: a file that another hand made larger is cut, and is no whole object to any reader.
    let most = OBJECT_LIMIT as u64 + 1;
    let mut body = Vec::with_capacity(usize::try_from(metadata.len().min(most)).unwrap_or(0));
    file.take(most).read_to_end(&mut body)?;
    let modified = metadata.modified().ok().and_then(|time| Timestamp::try_from(time).ok());
    Ok(Some(Object { etag: content_etag(&body), body, modified }))
}

/// Compares and replaces. `None` if the object is not what was expected.
fn swap(
    root: &Path,
    key: &str,
    body: &[u8],
    expect: &Expect,
    durable: &Mutex<HashSet<PathBuf>>,
) -> io::Result<Option<Etag>> {
    let path = root.join(key);
    let folder = path.parent().unwrap_or(root);
    if !root.is_dir() {
        // As an unmounted disk is. Made anew it would be another storage, in the place of the one that comes back.
        return Err(io::Error::new(io::ErrorKind::NotFound, "the folder of the storage is gone"));
    }
    fs::DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(folder)?;
    let _lock = lock(root, key)?;
    let holds = match (expect, read(root, key)?) {
        (Expect::Absent, there) => there.is_none(),
        (Expect::Content(etag), there) => there.is_some_and(|object| object.etag == *etag),
    };
    if !holds {
        return Ok(None);
    }
    // Under the key's lock the name is free; what a crash leaves there is overwritten by the next writer.
    let beside = folder.join(format!(".{}.new", path.file_name().unwrap_or_default().to_string_lossy()));
    if let Err(error) = write(&beside, body).and_then(|()| fs::rename(&beside, &path)) {
        // On a full disk half an object takes room that others need, and its name may never be written again.
        let _ = fs::remove_file(&beside);
        return Err(error);
    }
    sync_folders(root, folder, durable)?;
    Ok(Some(content_etag(body)))
}

fn write(path: &Path, body: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(FILE_MODE).open(path)?;
    file.write_all(body)?;
    file.sync_all()
}

/// A rename is durable once its folder is, and a new folder once its parent is.
fn sync_folders(root: &Path, folder: &Path, durable: &Mutex<HashSet<PathBuf>>) -> io::Result<()> {
    File::open(folder)?.sync_all()?;
    let known = || durable.lock().unwrap_or_else(PoisonError::into_inner);
    if known().contains(folder) {
        return Ok(());
    }
    for parent in folder.ancestors().skip(1).take_while(|parent| parent.starts_with(root)) {
        File::open(parent)?.sync_all()?;
    }
    known().insert(folder.to_owned());
    Ok(())
}

fn remove(root: &Path, key: &str) -> io::Result<()> {
    let _lock = lock(root, key)?;
    match fs::remove_file(root.join(key)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Held until the file is dropped, or the process ends.
fn lock(root: &Path, key: &str) -> io::Result<File> {
    let number = content_etag(key.as_bytes()).0.bytes().fold(0u8, |sum, byte| sum.wrapping_mul(31) ^ byte) % LOCKS;
    let folder = root.join(LOCK_FOLDER);
    let open = || {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(FILE_MODE).open(folder.join(number.to_string()))
    };
    let file = match open() {
        // A storage that was put back from a backup has the objects, and need not have this.
        Err(error) if error.kind() == io::ErrorKind::NotFound && root.is_dir() => {
            fs::DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(&folder)?;
            open()?
        }
        file => file?,
    };
    flock(&file, FlockOperation::LockExclusive)?;
    Ok(file)
}

fn walk(root: &Path, folder: &str, keys: &mut Vec<String>) -> io::Result<()> {
    let entries = match fs::read_dir(root.join(folder)) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let Some(key) = name.to_str().map(|name| format!("{folder}/{name}")).filter(|key| check_key(key).is_ok())
        else {
            continue;
        };
        let kind = entry.file_type()?;
        if kind.is_dir() {
            walk(root, &key, keys)?;
        } else if kind.is_file() || kind.is_symlink() {
            keys.push(key);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_crash_between_write_and_rename_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let store = FileStore::open(folder.path()).unwrap();
        let etag = store.put("a/b", b"one".to_vec(), Expect::Absent).await.unwrap();
        fs::write(folder.path().join("a/.b.new"), b"half").unwrap();
        assert_eq!(store.get("a/b").await.unwrap().unwrap().body, b"one");
        assert_eq!(store.list("a/").await.unwrap(), ["a/b"]);
        store.put("a/b", b"two".to_vec(), Expect::Content(etag)).await.unwrap();
        assert_eq!(store.get("a/b").await.unwrap().unwrap().body, b"two");
        assert!(!folder.path().join("a/.b.new").exists());
    }

    #[tokio::test]
    async fn a_full_disk_is_named_and_left_without_half_an_object() {
        let folder = tempfile::tempdir().unwrap();
        let store = FileStore::open(folder.path()).unwrap();
        fs::create_dir(folder.path().join("a")).unwrap();
        std::os::unix::fs::symlink("/dev/full", folder.path().join("a/.b.new")).unwrap();
        let error = store.put("a/b", b"one".to_vec(), Expect::Absent).await.unwrap_err();
        assert!(process::explained(&error).contains("No space left on device"), "{}", process::explained(&error));
        assert_eq!(fs::read_dir(folder.path().join("a")).unwrap().count(), 0);
        store.put("a/b", b"one".to_vec(), Expect::Absent).await.expect("there is room again");
    }

    #[tokio::test]
    async fn what_is_no_key_is_not_listed_and_hides_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let store = FileStore::open(folder.path()).unwrap();
        store.put("a/b.json", b"one".to_vec(), Expect::Absent).await.unwrap();
        for name in ["b.json~", "#b.json#", "copy of b.json", "b(1).json", "ü", ".b.json.swp"] {
            fs::write(folder.path().join("a").join(name), b"one").unwrap();
        }
        fs::create_dir(folder.path().join("a/lost+found")).unwrap();
        std::os::unix::net::UnixListener::bind(folder.path().join("a/socket")).unwrap();
        let keys = store.list("a/").await.unwrap();
        assert_eq!(keys, ["a/b.json"]);
        assert_eq!(store.get_many(&keys).await.unwrap().len(), 1);
    }

    #[tokio::test]
    async fn a_file_that_is_larger_than_any_object_takes_no_more_memory_than_one() {
        let folder = tempfile::tempdir().unwrap();
        let store = FileStore::open(folder.path()).unwrap();
        fs::create_dir(folder.path().join("a")).unwrap();
        File::create(folder.path().join("a/b")).unwrap().set_len(1 << 40).unwrap();
        assert_eq!(store.get("a/b").await.unwrap().unwrap().body.len(), OBJECT_LIMIT + 1);
    }

    #[tokio::test]
    async fn a_storage_that_was_replaced_meanwhile_is_written_to() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("storage");
        let store = FileStore::open(&root).unwrap();
        let etag = store.put("a/b", b"one".to_vec(), Expect::Absent).await.unwrap();
        // Put back from a backup of the objects alone.
        fs::rename(&root, folder.path().join("before")).unwrap();
        fs::create_dir_all(root.join("a")).unwrap();
        fs::write(root.join("a/b"), b"one").unwrap();
        store.put("a/b", b"two".to_vec(), Expect::Content(etag)).await.unwrap();
        store.delete("a/b").await.unwrap();
        // One that is gone, as an unmounted disk is, is not made anew.
        fs::remove_dir_all(&root).unwrap();
        assert!(store.delete("a/b").await.is_err());
        let error = store.put("a/b", b"one".to_vec(), Expect::Absent).await.unwrap_err();
        assert!(process::explained(&error).contains("is gone") && !root.exists(), "{error}");
    }

    #[tokio::test]
    async fn others_cannot_read_the_keys_in_storage() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let store = FileStore::open(folder.path().join("new")).unwrap();
        store.put("cluster/secret/ca.key", b"k".to_vec(), Expect::Absent).await.unwrap();
        let mode = |path: &str| fs::metadata(folder.path().join("new").join(path)).unwrap().permissions().mode();
        assert_eq!(mode("cluster/secret") & 0o077, 0);
        assert_eq!(mode("cluster/secret/ca.key") & 0o077, 0);
    }
}
