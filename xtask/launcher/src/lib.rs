//! The first program of a fresh clone: small enough to be there within seconds, so that the long builds after it start
//! with what is already compiled, and beside each other.

pub mod dependencies;
pub mod programs;

use std::{
    io,
    path::{Path, PathBuf},
};

pub use catalog::cache;

/// Where Cargo puts what it builds in our own profile: the folder of this program. Nothing else knows of all the settings
/// that decide it.
pub fn profile_folder() -> io::Result<PathBuf> {
    let program = std::env::current_exe()?;
    program.parent().map(Path::to_owned).ok_or_else(|| io::Error::other("this program lies in no folder"))
}
