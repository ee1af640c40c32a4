//! Both programs of a benchmark are built with optimisation.

use std::{
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::workspace;

/// Turns this process into its optimised self: an unoptimised benchmark would take the CPU from what it measures, and
/// make the floors slower than they are.
pub fn go_on_optimised() -> Result<()> {
    let program = built("release", "xtask", &[])?;
    let error = Command::new(program).args(std::env::args_os().skip(1)).exec();
    Err(error).context("cannot start the optimised benchmark")
}

/// The operator as the production image has it: the feature `dev` is off there, and would cost megabytes of program.
pub fn operator() -> Result<PathBuf> {
    built("dist", "strata", &["--no-default-features"])
}

#[derive(Deserialize)]
struct Artifact {
    executable: Option<PathBuf>,
}

fn built(profile: &str, package: &str, features: &[&str]) -> Result<PathBuf> {
    eprintln!("bench: cargo build --profile {profile} -p {package} {} …", features.join(" "));
    let mut cargo = workspace::cargo(["build", "--profile", profile, "--package", package]);
    let messages = workspace::output(cargo.args(features).arg("--message-format=json-render-diagnostics"))?;
    let executables = messages.lines().filter_map(|line| serde_json::from_str::<Artifact>(line).ok()?.executable);
    let is_named = |path: &PathBuf| path.file_name() == Path::new(package).file_name();
    executables.into_iter().find(is_named).with_context(|| format!("Cargo built no program {package}"))
}
