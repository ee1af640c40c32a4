//! cargo-deny: licences, sources and banned or doubled packages.

use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::workspace;

/// Fixed, so that a check of an unchanged tree never changes its answer.
const VERSION: &str = "0.20.2";

/// Installs cargo-deny unless it is there, then checks everything that needs no network.
pub fn run() -> Result<()> {
    let root = cache()?.join(format!("cargo-deny-{VERSION}"));
    let program = root.join("bin/cargo-deny");
    if !program.exists() {
        eprintln!("installing cargo-deny {VERSION}, once");
        // A debug build: the check itself takes a second either way, the build half the time.
        let mut cargo = workspace::cargo(["install", "--locked", "--debug", "--quiet"]);
        cargo.args(["--version", VERSION, "--root"]).arg(&root).arg("cargo-deny");
        workspace::run(&mut cargo)?;
    }
    // The check reads the sources of every platform's packages, not only of those built here.
    workspace::run(&mut workspace::cargo(["fetch", "--locked", "--quiet"]))?;
    let mut check = std::process::Command::new(program);
    check.current_dir(workspace::root());
    check.args(["--offline", "--locked", "check", "bans", "licenses", "sources"]);
    workspace::run(&mut check)
}

fn cache() -> Result<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    Ok(cache.or_else(home).context("neither XDG_CACHE_HOME nor HOME is set")?.join("strata"))
}
