//! Compiled third-party packages, kept in the cache folder between clones.
//!
//! Cargo names the files of a registry's package by a hash of its version, features, profile and compiler; the clone's
//! path is no part of it. So a fresh clone can begin with the files of an earlier one, and Cargo itself decides what it
//! can use. Crates of this repository are never kept: Cargo takes them for unchanged by the times of their sources,
//! which say nothing about another clone.

use std::{
    collections::BTreeSet,
    ffi::{OsStr, OsString},
    fs::{self, File},
    hash::{DefaultHasher, Hash, Hasher},
    io,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, SystemTime},
};

/// A branch that changes `Cargo.lock` works beside the main one; a third would only fill the disk, at a gigabyte each.
const MOST_ENTRIES: usize = 2;

/// An entry that is being written, with the id of the process.
const PARTIAL: &str = ".partial-";
/// A copy takes seconds; an hour later it has been interrupted.
const PARTIAL_PATIENCE: Duration = Duration::from_hours(1);

/// What the launcher starts: where neither was compiled before, nothing of weight was. Its own parts always are.
const STARTED: [&str; 2] = ["xtask", "strata"];

/// What Cargo knows about each package, in folders `NAME-HASH`.
const FINGERPRINTS: &str = ".fingerprint";
/// All parts of Cargo's target folder whose files and folders are named for a package: `…NAME-HASH…`. Fingerprints come
/// last: Cargo trusts the files that they speak for, also those of a copy that was interrupted.
const PARTS: [&str; 3] = ["deps", "build", FINGERPRINTS];

/// What decides which packages a build compiles, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    /// Files of another compiler are of no use.
    toolchain: String,
    build: String,
}

impl Key {
    /// `settings` are manifests, the lock file, compiler flags: whatever changes the set of compiled packages.
    pub fn new<S: AsRef<[u8]>>(toolchain: &str, settings: impl IntoIterator<Item = S>) -> Self {
        let mut build = DefaultHasher::new();
        settings.into_iter().for_each(|setting| setting.as_ref().hash(&mut build));
        let mut compiler = DefaultHasher::new();
        toolchain.hash(&mut compiler);
        Self { toolchain: format!("{:016x}", compiler.finish()), build: format!("{:016x}", build.finish()) }
    }

    /// That of the repository at `root`, with the compiler that Cargo would use there.
    pub fn of(root: &Path) -> io::Result<Self> {
        let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let version = Command::new(rustc).arg("-vV").current_dir(root).output()?.stdout;
        let mut manifests = vec![root.join("Cargo.lock"), root.join("Cargo.toml"), root.join(".cargo/config.toml")];
        manifests.extend(own_crates(root).iter().map(|name| root.join("crates").join(name).join("Cargo.toml")));
        manifests.push(root.join("xtask/Cargo.toml"));
        let mut settings = manifests.iter().map(fs::read).collect::<io::Result<Vec<_>>>()?;
        let flags = ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "CARGO_BUILD_TARGET"];
        let flags = flags.map(|name| std::env::var_os(name).unwrap_or_default());
        settings.extend(flags.map(OsString::into_encoded_bytes));
        Ok(Self::new(&String::from_utf8_lossy(&version), settings))
    }

    fn entry(&self) -> String {
        format!("{}-{}", self.toolchain, self.build)
    }
}

/// Compiled packages of earlier builds.
#[derive(Debug)]
pub struct Store {
    folder: PathBuf,
}

impl Store {
    pub fn new(cache: &Path) -> Self {
        Self { folder: cache.join("dependencies") }
    }

    /// Puts kept packages into `target` (the folder of one profile): those of this key, else the latest of the same
    /// compiler. `false` if there are none, or if the clone has built something already; then the key is not needed,
    /// which takes a run of the compiler.
    pub fn restore(&self, key: impl FnOnce() -> io::Result<Key>, target: &Path) -> io::Result<bool> {
        if has_built(target) {
            return Ok(false);
        }
        let key = key()?;
        let exact = self.folder.join(key.entry());
        let latest = || {
            let mut entries = self.entries().into_iter().filter(|(_, name)| name.starts_with(&key.toolchain));
            entries.next_back().map(|(_, name)| self.folder.join(name))
        };
        let Some(entry) = Some(exact).filter(|path| path.is_dir()).or_else(latest) else { return Ok(false) };
        // The one used last is the one removed last. Another user's folder can be read all the same.
        let _ = File::open(&entry).and_then(|folder| folder.set_modified(SystemTime::now()));
        PARTS.iter().try_for_each(|part| copy(&entry.join(part), &target.join(part)))?;
        Ok(true)
    }

    /// Keeps the packages whose files carry one of these hashes; `false` if they are kept already. That there are none is
    /// an error: an entry without files would be preferred to good ones, and never replaced.
    pub fn save(&self, key: &Key, target: &Path, hashes: &BTreeSet<String>) -> io::Result<bool> {
        let entry = self.folder.join(key.entry());
        if entry.is_dir() {
            return Ok(false);
        }
        // Complete or not there at all, whoever reads meanwhile and whenever we are ended.
        let partial = self.folder.join(format!("{PARTIAL}{}", std::process::id()));
        let _ = fs::remove_dir_all(&partial);
        let copied = copy_packages(target, &partial, hashes);
        if let Err(error) = copied.and_then(|()| fs::rename(&partial, &entry)) {
            let _ = fs::remove_dir_all(&partial);
            return if entry.is_dir() { Ok(false) } else { Err(error) };
        }
        self.prune()?;
        Ok(true)
    }

    /// All entries, the latest last.
    fn entries(&self) -> Vec<(SystemTime, String)> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let mut entries: Vec<_> = entries
            .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.file_name().into_string().ok()?)))
            .collect();
        entries.sort();
        entries
    }

    /// Removes the oldest entries beyond the limit, and what interrupted runs left behind.
    fn prune(&self) -> io::Result<()> {
        let (partial, whole): (Vec<_>, Vec<_>) =
            self.entries().into_iter().partition(|(_, name)| name.starts_with(PARTIAL));
        let is_left = |modified: &SystemTime| modified.elapsed().is_ok_and(|age| age > PARTIAL_PATIENCE);
        let surplus = whole.len().saturating_sub(MOST_ENTRIES);
        let left = partial.iter().filter(|(modified, _)| is_left(modified));
        left.chain(&whole[..surplus]).try_for_each(|(_, name)| fs::remove_dir_all(self.folder.join(name)))
    }
}

/// Restored files are older than those of a package that was compiled here, so Cargo would compile most of them again.
fn has_built(target: &Path) -> bool {
    let is_started = |name: &String| name.rsplit_once('-').is_some_and(|(package, _)| STARTED.contains(&package));
    names(&target.join(FINGERPRINTS)).iter().any(is_started)
}

/// The crates of this repository: each lies in a folder of its name.
fn own_crates(root: &Path) -> Vec<String> {
    let mut crates = names(&root.join("crates"));
    crates.sort();
    crates
}

fn copy_packages(target: &Path, entry: &Path, hashes: &BTreeSet<String>) -> io::Result<()> {
    let mut is_empty = true;
    for part in PARTS {
        fs::create_dir_all(entry.join(part))?;
        let kept =
            names(&target.join(part)).into_iter().filter(|name| hash(name).is_some_and(|it| hashes.contains(it)));
        for name in kept {
            copy(&target.join(part).join(&name), &entry.join(part).join(&name))?;
            is_empty = false;
        }
    }
    if is_empty {
        return Err(io::Error::other(format!("{} has none of the compiled packages", target.display())));
    }
    Ok(())
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// The hash in a name that Cargo gave: `libserde-0123456789abcdef.rmeta`, `build/serde-0123456789abcdef`.
pub fn hash(name: &str) -> Option<&str> {
    let stem = Path::new(name).file_stem().and_then(OsStr::to_str)?;
    let (_, hash) = stem.rsplit_once('-')?;
    (hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(hash)
}

/// A file or a folder with all it holds. Cargo compares the times of files, so they stay.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    if from.is_dir() {
        fs::create_dir_all(to)?;
        for entry in fs::read_dir(from)? {
            let name = entry?.file_name();
            copy(&from.join(&name), &to.join(&name))?;
        }
        return Ok(());
    }
    // Not a link: Cargo and build scripts write some of these files in place. Renamed when it is whole: it may replace a
    // file that has its fingerprint already.
    let mut partial = to.as_os_str().to_owned();
    partial.push(".partial");
    fs::copy(from, &partial)?;
    File::options().append(true).open(&partial)?.set_modified(fs::metadata(from)?.modified()?)?;
    fs::rename(&partial, to)
}

#[cfg(test)]
mod tests {
    use super::*;

    const THIRD: &str = "00000000000000a1";
    const OWN: &str = "00000000000000b2";

    fn write(path: &Path, text: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// What Cargo leaves behind: one package of a registry, one of ours.
    fn built(target: &Path) {
        write(&target.join(format!(".fingerprint/serde-{THIRD}/lib-serde")), "f");
        write(&target.join(format!("build/serde-{THIRD}/out/private.rs")), "b");
        write(&target.join(format!("deps/libserde-{THIRD}.rlib")), "third");
        write(&target.join(format!(".fingerprint/xtask-{OWN}/bin-xtask")), "f");
        write(&target.join(format!("deps/xtask-{OWN}")), "ours");
        write(&target.join(format!("deps/it-{OWN}")), "ours");
    }

    fn third() -> BTreeSet<String> {
        [THIRD.to_owned()].into()
    }

    #[test]
    fn a_fresh_clone_gets_third_party_packages_with_their_times_and_none_of_ours() {
        let folder = tempfile::tempdir().unwrap();
        let (first, second) = (folder.path().join("first"), folder.path().join("second"));
        built(&first);
        let rlib = format!("deps/libserde-{THIRD}.rlib");
        let long_ago = SystemTime::UNIX_EPOCH + Duration::from_hours(9);
        File::options().append(true).open(first.join(&rlib)).unwrap().set_modified(long_ago).unwrap();
        let (store, key) = (Store::new(folder.path()), Key::new("rustc 1", ["lock"]));
        assert!(store.save(&key, &first, &third()).unwrap());
        assert!(!store.save(&key, &first, &third()).unwrap(), "kept already");

        // The launcher was compiled there a moment ago, with a package that is kept.
        write(&second.join(&rlib), "younger");
        write(&second.join(".fingerprint/catalog-00000000000000c3/lib-catalog"), "f");
        assert!(store.restore(|| Ok(key), &second).unwrap());
        assert_eq!(fs::read_to_string(second.join(&rlib)).unwrap(), "third");
        assert_eq!(fs::metadata(second.join(&rlib)).unwrap().modified().unwrap(), long_ago);
        assert!(second.join(format!("build/serde-{THIRD}/out/private.rs")).is_file());
        assert!(second.join(format!(".fingerprint/serde-{THIRD}/lib-serde")).is_file());
        let ours = |part| names(&second.join(part)).into_iter().filter(|name| name.contains(OWN)).count();
        assert_eq!(PARTS.map(ours), [0, 0, 0]);
    }

    #[test]
    fn a_clone_that_has_built_keeps_what_it_has() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("target");
        built(&target);
        let (store, key) = (Store::new(folder.path()), Key::new("rustc 1", ["lock"]));
        store.save(&key, &target, &third()).unwrap();
        assert!(!store.restore(|| panic!("the compiler need not be asked"), &target).unwrap());
    }

    #[test]
    fn an_interrupted_restore_leaves_no_fingerprint_of_a_package_that_is_not_whole() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("target");
        built(&target);
        let (store, key) = (Store::new(folder.path()), Key::new("rustc 1", ["lock"]));
        store.save(&key, &target, &third()).unwrap();
        for part in ["deps", "build"] {
            let clone = folder.path().join(format!("without-{part}"));
            // A file where a folder is to be ends the copy there.
            write(&clone.join(part), "");
            assert!(store.restore(|| Ok(key.clone()), &clone).is_err());
            assert!(!clone.join(FINGERPRINTS).exists(), "{part}");
        }
    }

    #[test]
    fn another_lock_file_begins_with_the_latest_packages_and_another_compiler_with_none() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("target");
        built(&target);
        let store = Store::new(folder.path());
        store.save(&Key::new("rustc 1", ["lock"]), &target, &third()).unwrap();
        let restore = |toolchain: &str, target: &str| {
            store.restore(|| Ok(Key::new(toolchain, ["other lock"])), &folder.path().join(target)).unwrap()
        };
        assert!(restore("rustc 1", "same"));
        assert!(!restore("rustc 2", "newer"));
    }

    #[test]
    fn an_entry_without_files_is_refused_and_takes_no_place() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("target");
        built(&target);
        let (store, key) = (Store::new(folder.path()), Key::new("rustc 1", ["lock"]));
        let error = store.save(&key, &folder.path().join("elsewhere"), &third()).unwrap_err().to_string();
        assert!(error.contains("elsewhere has none"), "{error}");
        assert!(store.entries().is_empty());
        assert!(store.save(&key, &target, &third()).unwrap());
    }

    #[test]
    fn old_entries_are_removed_and_the_one_used_last_stays() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("target");
        built(&target);
        let store = Store::new(folder.path());
        let key = |lock: &str| Key::new("rustc 1", [lock]);
        let age = |lock: &str, hours: u64| {
            let time = SystemTime::now() - Duration::from_hours(hours);
            File::open(store.folder.join(key(lock).entry())).unwrap().set_modified(time).unwrap();
        };
        for (lock, hours) in [("a", 5), ("b", 4)] {
            store.save(&key(lock), &target, &third()).unwrap();
            age(lock, hours);
        }
        assert!(store.restore(|| Ok(key("a")), &folder.path().join("clone")).unwrap());
        store.save(&key("c"), &target, &third()).unwrap();
        let is_kept = |lock: &str| store.folder.join(key(lock).entry()).is_dir();
        assert_eq!(["a", "b", "c"].map(is_kept), [true, false, true]);
    }

    #[test]
    fn hashes_are_read_from_the_names_that_cargo_gives() {
        assert_eq!(hash("libserde-0123456789abcdef.rmeta"), Some("0123456789abcdef"));
        assert_eq!(hash("serde_json-0123456789abcdef"), Some("0123456789abcdef"));
        assert_eq!(hash("strata"), None);
        assert_eq!(hash("built-in"), None);
    }
}
