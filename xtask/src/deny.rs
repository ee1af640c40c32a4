//! cargo-deny: licences, sources and banned or doubled packages.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::workspace;

/// Fixed, so that a check of an unchanged tree never changes its answer.
const VERSION: &str = "0.20.2";

/// Installs cargo-deny unless it is there.
pub fn install() -> Result<()> {
    let root = folder();
    if program(&root).exists() {
        return Ok(());
    }
    eprintln!("installing cargo-deny {VERSION}, once");
    // A debug build: the check itself takes a second either way, the build half the time.
    let mut cargo = workspace::cargo(["install", "--locked", "--debug", "--quiet"]);
    cargo.args(["--version", VERSION, "--root"]).arg(&root).arg("cargo-deny");
    workspace::run(&mut cargo)
}

/// Checks everything that needs no network.
pub fn run() -> Result<()> {
    // The check reads the sources of every platform's packages, not only of those built here.
    workspace::run(&mut workspace::cargo(["fetch", "--locked", "--quiet"]))?;
    let mut check = Command::new(program(&folder()));
    check.current_dir(workspace::root());
    check.args(["--offline", "--locked", "check", "bans", "licenses", "sources"]);
    workspace::run(&mut check)
}

fn folder() -> PathBuf {
    launcher::cache().join(format!("cargo-deny-{VERSION}"))
}

fn program(folder: &Path) -> PathBuf {
    folder.join("bin/cargo-deny")
}
