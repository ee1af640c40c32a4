//! Packages of the system, for what no program of ours can be built for.

use std::{io, process::Command};

/// Whether a program lies in a folder of `PATH`.
pub fn is_on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// Installs packages where that can be done, as root on a machine with apt-get; else it does nothing.
pub fn install(packages: &[&str]) -> io::Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let mut update = Command::new("apt-get");
    // A new machine may have no lists, and old ones name packages that are gone.
    update.arg("update");
    let mut install = Command::new("apt-get");
    install.args(["install", "--yes", "--no-install-recommends"]).args(packages);
    for mut command in [update, install] {
        let status = command.env("DEBIAN_FRONTEND", "noninteractive").status()?;
        if !status.success() {
            return Err(io::Error::other(format!("{command:?} ended with {status}")));
        }
    }
    Ok(())
}
