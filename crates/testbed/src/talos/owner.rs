//! The user as whom the programs of a simulated server run: traffic on loopback can be distinguished by nothing else.

use std::{
    fs, io,
    net::Ipv4Addr,
    os::unix::fs::{PermissionsExt, chown},
    path::Path,
};

/// A uid, which is its group's number as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Owner(pub u32);

impl Owner {
    /// The number of the address, which no other server on this machine has; `None` where this process may not change
    /// users.
    pub(super) fn of(address: Ipv4Addr) -> Option<Self> {
        rustix::process::geteuid().is_root().then(|| Self(address.into()))
    }
}

/// Closes a disk to all others and gives it to its owner.
pub(super) fn close(disk: &Path, owner: Option<Owner>) -> io::Result<()> {
    fs::set_permissions(disk, fs::Permissions::from_mode(0o700))?;
    owner.map_or(Ok(()), |owner| give(disk, owner))
}

/// Gives a folder with all that is in it to the owner.
fn give(path: &Path, owner: Owner) -> io::Result<()> {
    give_one(path, owner)?;
    if fs::symlink_metadata(path)?.is_dir() {
        for entry in fs::read_dir(path)? {
            give(&entry?.path(), owner)?;
        }
    }
    Ok(())
}

/// Gives one file or folder to the owner.
pub(super) fn give_one(path: &Path, owner: Owner) -> io::Result<()> {
    chown(path, Some(owner.0), Some(owner.0))
}
