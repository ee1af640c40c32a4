//! The repository and the programs run in it.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// What was compiled is read by us, what is wrong by people.
pub const MESSAGES: &str = "--message-format=json-render-diagnostics";

/// The repository's root: the folder above this crate.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().expect("xtask lies in the repository").to_owned()
}

/// Where Cargo puts what it builds, in one folder for each profile.
pub fn target() -> PathBuf {
    let profile = launcher::profile_folder().expect("the system knows where this program is");
    profile.parent().expect("the folder of a profile lies in Cargo's").to_owned()
}

/// The Cargo that started us, with its arguments, at the repository's root.
pub fn cargo<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments).current_dir(root()).stdin(Stdio::null());
    command
}

/// Runs to the end with our own output; a failure names the command.
pub fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot start {}", shown(command)))?;
    if !status.success() {
        bail!("{} ended with {status}", shown(command));
    }
    Ok(())
}

/// Runs to the end and returns standard output; standard error is passed on.
pub fn output(command: &mut Command) -> Result<String> {
    let output =
        command.stderr(Stdio::inherit()).output().with_context(|| format!("cannot start {}", shown(command)))?;
    if !output.status.success() {
        bail!("{} ended with {}", shown(command), output.status);
    }
    String::from_utf8(output.stdout).context("output is not UTF-8")
}

/// The workspace's packages as Cargo describes them, without those from outside.
pub fn metadata(root: &Path) -> Result<String> {
    let mut command = cargo(["metadata", "--no-deps", "--format-version", "1", "--locked"]);
    output(command.current_dir(root))
}

fn shown(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let program = program.file_name().unwrap_or(program.as_os_str()).to_string_lossy();
    let arguments = command.get_args().map(OsStr::to_string_lossy);
    std::iter::once(program).chain(arguments).collect::<Vec<_>>().join(" ")
}

/// Writes a file and the folders above it.
pub fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let folder = path.parent().expect("a file lies in a folder");
    std::fs::create_dir_all(folder)
        .and_then(|()| std::fs::write(path, bytes))
        .with_context(|| format!("cannot write {}", path.display()))
}
