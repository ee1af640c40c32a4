//! `cargo xtask first-start`: how long a newcomer waits, with every cache empty but downloads.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use testbed::tools::CATALOG;

use crate::workspace;

/// Lines of Cargo and git that name one package each; what they add up to follows.
const NOISE: [&str; 5] = ["Compiling ", "Downloaded ", "Downloading ", "Cloning ", "done."];

/// Clones the last commit, starts it as a newcomer would, prints when each part was there, and ends it.
pub fn run() -> Result<()> {
    let folder = workspace::target().join("first-start");
    remove(&folder)?;
    let clone = folder.join("clone");
    let mut git = Command::new("git");
    workspace::run(git.args(["clone", "--quiet"]).arg(workspace::root()).arg(&clone))?;
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    println!("first start on {cores} cores, load before: {}", load());
    let result = follow(&mut start(&clone, &folder, ["up", "--detach"]));
    let ended = workspace::run(&mut start(&clone, &folder, ["down"]));
    result.and(ended)?;
    remove(&folder)
}

/// `cargo dev …` in the clone, as on a machine that never built it.
fn start<const N: usize>(clone: &Path, folder: &Path, arguments: [&str; N]) -> Command {
    let mut cargo = workspace::cargo([OsStr::new("dev")]);
    cargo.args(arguments).current_dir(clone);
    for variable in ["CARGO_TARGET_DIR", "CARGO_BUILD_TARGET_DIR", "GOCACHE", "KUBEBUILDER_ASSETS"] {
        cargo.env_remove(variable);
    }
    // A program that is there already would not be built.
    for tool in &CATALOG {
        cargo.env_remove(tool.variable());
    }
    // Go's own cache follows the first; downloads of Cargo and Go lie elsewhere and stay.
    cargo.env("XDG_CACHE_HOME", folder.join("cache")).env("STRATA_DEV_DIR", folder.join("dev"));
    cargo
}

/// Prints each line of progress with the time since the start, and at last that it succeeded.
fn follow(command: &mut Command) -> Result<()> {
    let started = Instant::now();
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().context("cannot start cargo")?;
    let shown = child.stderr.take().context("standard error is piped").and_then(|stderr| show(stderr, started));
    if shown.is_err() {
        let _ = child.kill();
    }
    let status = child.wait()?;
    shown?;
    ensure!(status.success(), "cargo dev up ended with {status}");
    println!("{} strata is up", stamp(started.elapsed()));
    Ok(())
}

fn show(progress: impl Read, started: Instant) -> Result<()> {
    for line in BufReader::new(progress).lines() {
        let line = line.context("cannot read what cargo dev up prints")?;
        if is_shown(&line) {
            println!("{} {line}", stamp(started.elapsed()));
        }
    }
    Ok(())
}

fn is_shown(line: &str) -> bool {
    let line = line.trim();
    !line.is_empty() && !NOISE.iter().any(|noise| line.starts_with(noise))
}

fn stamp(time: Duration) -> String {
    format!("{:>3}:{:02}", time.as_secs() / 60, time.as_secs() % 60)
}

fn load() -> String {
    std::fs::read_to_string("/proc/loadavg").map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())
}

fn remove(folder: &Path) -> Result<()> {
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", folder.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::{Pid, test_kill_process};

    use super::*;

    #[test]
    fn parts_are_shown_and_single_packages_are_not() {
        let shown =
            ["✔ control plane: ready at https://127.0.0.1:1 (5.0 s)", "built etcd 3.7.3 in 57 s, beside strata"];
        assert!(shown.into_iter().all(is_shown));
        assert!(!["   Compiling serde v1.0.2", "", "  Downloaded kube v5.0.0"].into_iter().any(is_shown));
        assert_eq!(stamp(Duration::from_secs(725)), " 12:05");
    }

    #[test]
    fn no_cache_but_downloads_is_left_to_a_first_start() {
        let command = start(Path::new("/clone"), Path::new("/x"), ["up"]);
        let environment: Vec<_> = command.get_envs().collect();
        for variable in ["GOCACHE", "KUBEBUILDER_ASSETS", "STRATA_KUBE_APISERVER", "STRATA_CAPI"] {
            assert!(environment.contains(&(OsStr::new(variable), None)), "{variable}");
        }
        assert!(environment.contains(&(OsStr::new("XDG_CACHE_HOME"), Some(OsStr::new("/x/cache")))));
        assert_eq!(command.get_args().collect::<Vec<_>>(), ["dev", "up"]);
    }

    #[test]
    fn a_start_whose_output_cannot_be_read_is_ended() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pid");
        let mut command = Command::new("sh");
        // No UTF-8.
        command.args(["-c", r#"echo $$ > "$1"; printf '\377\n' >&2; exec sleep 600"#, "sh"]).arg(&file);
        let error = follow(&mut command).unwrap_err().to_string();
        assert!(error.contains("cannot read"), "{error}");
        let id = std::fs::read_to_string(&file).unwrap().trim().parse().unwrap();
        assert!(test_kill_process(Pid::from_raw(id).unwrap()).is_err(), "it is still there");
    }

    #[test]
    fn a_start_that_fails_is_a_failure() {
        let error = follow(Command::new("sh").args(["-c", "exit 3"])).unwrap_err().to_string();
        assert!(error.contains("ended with exit status: 3"), "{error}");
    }
}
