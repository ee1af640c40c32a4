//! Both programs of a benchmark are built with optimisation.

use std::{
    ffi::OsStr,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::workspace::{self, MESSAGES};

/// Turns this process into its optimised self: an unoptimised benchmark would take the CPU from what it measures, and
/// make the floors slower than they are.
pub fn go_on_optimised() -> Result<()> {
    let program = built("release", "xtask", &[])?;
    let error = Command::new(program).args(std::env::args_os().skip(1)).exec();
    Err(error).context("cannot start the optimised benchmark")
}

/// The operator that is measured.
pub struct Program {
    pub path: PathBuf,
    /// By a flag, so that it may be of any version.
    pub is_given: bool,
}

impl Program {
    /// The given one, or one as the production image has it: the feature `dev` is off there, and would cost megabytes of
    /// program.
    pub fn find(given: Option<&Path>) -> Result<Self> {
        let path = match given {
            Some(path) => path.canonicalize().with_context(|| format!("there is no program {}", path.display()))?,
            None => built("dist", "strata", &["--no-default-features"])?,
        };
        Ok(Self { path, is_given: given.is_some() })
    }

    /// As the program prints it.
    pub fn version(&self) -> Result<String> {
        Ok(workspace::output(Command::new(&self.path).arg("version"))?.trim().to_owned())
    }
}

/// The profile that a program was built with, which Cargo names the folder for. That of a copy elsewhere is not known.
pub fn profile(program: &Path) -> &'static str {
    match program.parent().and_then(Path::file_name).and_then(OsStr::to_str) {
        Some("debug") => "dev",
        Some("release") => "release",
        Some("dist") => "dist",
        _ => "unknown",
    }
}

#[derive(Deserialize)]
struct Artifact {
    executable: Option<PathBuf>,
}

fn built(profile: &str, package: &str, features: &[&str]) -> Result<PathBuf> {
    eprintln!("bench: cargo build --locked --profile {profile} -p {package} {} …", features.join(" "));
    let mut cargo = workspace::cargo(["build", "--locked", "--profile", profile, "--package", package, MESSAGES]);
    let messages = workspace::output(cargo.args(features))?;
    let executables = messages.lines().filter_map(|line| serde_json::from_str::<Artifact>(line).ok()?.executable);
    let is_named = |path: &PathBuf| path.file_name() == Path::new(package).file_name();
    executables.into_iter().find(is_named).with_context(|| format!("Cargo built no program {package}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_shows_its_profile_by_its_folder_only() {
        let of = |path: &str| profile(Path::new(path));
        assert_eq!(of("/repository/target/dist/strata"), "dist");
        assert_eq!(of("/repository/target/x86_64-unknown-linux-musl/release/strata"), "release");
        assert_eq!(of("/repository/target/debug/xtask"), "dev");
        assert_eq!(of("/usr/local/bin/strata"), "unknown");
    }
}
