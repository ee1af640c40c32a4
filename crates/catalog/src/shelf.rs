//! Where built programs are kept, and the files they are installed with.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use crate::Tool;

/// The folder `tools` of the cache.
#[derive(Debug, Clone)]
pub struct Shelf {
    folder: PathBuf,
}

/// Two threads of one process may write the same pins.
static WRITES: AtomicU64 = AtomicU64::new(0);

impl Shelf {
    /// `cache` is [`crate::cache`], or a folder of a test.
    pub fn new(cache: &Path) -> Self {
        Self { folder: cache.join("tools") }
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Where a program is once it is built.
    pub fn program(&self, tool: &Tool) -> PathBuf {
        self.folder.join(tool.cache_key())
    }

    /// The folder of its files, under the paths they have in the upstream module.
    pub fn files(&self, tool: &Tool) -> PathBuf {
        self.folder.join(format!("{}.files", tool.cache_key()))
    }

    /// Whether the program has no files, or they are there.
    pub fn has_files(&self, tool: &Tool) -> bool {
        tool.files.is_empty() || self.files(tool).is_dir()
    }

    /// Where the process that builds a program holds a lock.
    pub fn lock(&self, tool: &Tool) -> PathBuf {
        self.module(tool).join(format!("{}.lock", tool.name))
    }

    /// Where it is built.
    pub fn module(&self, tool: &Tool) -> PathBuf {
        self.folder.join("modules").join(tool.cache_key())
    }

    /// A private copy of the pins, so that Go never writes to the source tree and an installed binary
    /// needs none.
    pub fn write_module(&self, tool: &Tool) -> io::Result<PathBuf> {
        let directory = self.module(tool);
        fs::create_dir_all(&directory)?;
        let pins = [("go.mod", tool.module.go_mod), ("go.sum", tool.module.go_sum)];
        for (name, text) in pins.into_iter().chain(tool.module.main_go.map(|text| ("main.go", text))) {
            let path = directory.join(name);
            if fs::read_to_string(&path).is_ok_and(|present| present == text) {
                continue;
            }
            let number = WRITES.fetch_add(1, Ordering::Relaxed);
            let partial = directory.join(format!(".{name}-{}-{number}", std::process::id()));
            fs::write(&partial, text)?;
            fs::rename(&partial, &path)?;
        }
        Ok(directory)
    }
}
