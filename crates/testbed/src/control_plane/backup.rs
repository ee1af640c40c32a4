//! Backups of etcd: its files while it does not run.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use super::{ControlPlane, Error};
use crate::tools::copy;

/// What etcd held at one moment.
#[derive(Debug)]
pub struct Backup(PathBuf);

impl ControlPlane {
    /// Stops etcd for a moment to copy its files.
    pub async fn back_up(&self) -> Result<Backup, Error> {
        let backup = self.directory().join("backup");
        self.etcd().kill().await?;
        copy(&self.data(), &backup).map_err(in_directory(&backup))?;
        self.etcd().restart().await?;
        self.ready().await?;
        Ok(Backup(backup))
    }

    /// Puts the files of a backup in place of those that etcd has, and starts the API server anew: it holds what was.
    pub async fn restore(&self, Backup(backup): &Backup) -> Result<(), Error> {
        self.apiserver().kill().await?;
        self.etcd().kill().await?;
        let data = self.data();
        let replaced = fs::remove_dir_all(&data).and_then(|()| copy(backup, &data));
        replaced.map_err(in_directory(&data))?;
        self.etcd().restart().await?;
        self.apiserver().restart().await?;
        self.ready().await
    }

    fn data(&self) -> PathBuf {
        self.directory().join("etcd")
    }
}

fn in_directory(path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Directory { path, source }
}
