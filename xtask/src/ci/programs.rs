//! Runs all test programs, each with a time limit: one at a time, or several where `MOST_AT_ONCE` says so and the machine
//! has memory for them.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::minutes;
use crate::report::{Executable, Executables};
use crate::workspace;

/// Tests wait for control planes more than they compute, so twice the cores of the smallest
/// supported machine keeps it busy; more would only make every wait longer.
const TEST_THREADS: &str = "4";
/// Two keep two cores busy for 83 % of the time: a whole run takes 18 minutes. More would need tests that wait longer: with
/// two, beside four busy loops, one of two runs had a request that took the API server more than its half minute.
const MOST_AT_ONCE: u64 = 2;
/// A Go program collects its garbage when its heap has grown by this percentage. With Go's own 100, etcd and
/// kube-apiserver that start and serve a little took 5.7 to 7.2 s of a core, with 400 they took 3.8 to 5.0 s; a whole
/// control plane grows from 0.7 to 1.0 GB.
const GARBAGE_COLLECTION: (&str, &str) = ("GOGC", "400");
/// Four tests of one program, each with a control plane and an operator: 3.6 GB were seen.
const MEMORY_EACH: u64 = 4 << 30;
/// On the slowest machine that was seen, the slowest program took 24 minutes beside another one, and more than 40 with four
/// busy loops beside both. CI ends the whole run after 90 minutes, without a verdict.
const LIMIT: Duration = Duration::from_hours(1);
/// How often a program that runs is named: some services that run tests end what is silent for ten minutes.
const NAMED_EVERY: Duration = Duration::from_mins(1);
/// How often a program is asked whether it has ended: little beside the seconds that the shortest take.
const POLL: Duration = Duration::from_millis(50);
/// Ends the process group `$1` when its standard input does.
const GUARD: &str = r#"read -r _; kill -s KILL -- "-$1""#;
/// As libtest ends its output where a test failed.
const FAILED: &str = "test result: FAILED";
/// The documentation tests of all crates: Cargo has no program for them.
const DOCUMENTATION: &str = "documentation tests";

/// What is to run: a test program, or without one the documentation tests.
struct Job<'a> {
    name: &'a str,
    executable: Option<&'a Executable>,
}

/// What one program did.
pub struct Run {
    pub name: String,
    pub took: Duration,
    /// Everything it wrote, under the line that `cargo test` would have begun it with.
    pub output: String,
    /// It did not end by itself within its time, or it failed and named no test.
    pub is_broken: bool,
}

/// Runs every program, shows its output when it ends, and returns all in the order in which they ended.
pub fn run_all(executables: &Executables) -> Result<Vec<Run>> {
    let folder = workspace::target().join("test-output");
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let programs = executables.values().map(|one| Job { name: &one.prefix, executable: Some(one) });
    let jobs = programs.chain([Job { name: DOCUMENTATION, executable: None }]).collect();
    let queue = Mutex::new(longest_first(jobs, &former_times()));
    let runs = Mutex::new(Vec::new());
    let at_once = at_once(MOST_AT_ONCE, available_memory());
    eprintln!("    {at_once} at a time; until a program ends its output is in {}", folder.display());
    std::thread::scope(|scope| {
        let work = || -> Result<()> {
            while let Some(job) = next(&queue) {
                eprintln!("    {} …", job.name);
                let run = run_one(&job, &folder, LIMIT)?;
                let mut runs = runs.lock().unwrap_or_else(PoisonError::into_inner);
                // Under the lock, so that two outputs never mix.
                println!("{}", run.output);
                eprintln!("    {}: ended after {}", run.name, minutes(run.took));
                runs.push(run);
            }
            Ok(())
        };
        let workers: Vec<_> = (0..at_once).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("a worker does not panic"))
    })?;
    let runs = runs.into_inner().unwrap_or_else(PoisonError::into_inner);
    remember_times(&runs);
    Ok(runs)
}

fn next<'a>(queue: &Mutex<VecDeque<Job<'a>>>) -> Option<Job<'a>> {
    queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
}

/// A long program that starts last would run alone at the end. One without a time may be long.
fn longest_first<'a>(mut jobs: Vec<Job<'a>>, times: &BTreeMap<String, f64>) -> VecDeque<Job<'a>> {
    let time = |job: &Job<'_>| times.get(job.name).copied().unwrap_or(f64::MAX);
    jobs.sort_by(|left, right| time(right).total_cmp(&time(left)).then_with(|| left.name.cmp(right.name)));
    jobs.into()
}

fn at_once(most: u64, memory: Option<u64>) -> u64 {
    memory.map_or(1, |bytes| bytes / MEMORY_EACH).clamp(1, most)
}

/// `None` where the system does not say.
fn available_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let kilobytes = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(kilobytes.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10)
}

fn run_one(job: &Job<'_>, folder: &Path, limit: Duration) -> Result<Run> {
    let (head, file, mut command) = if let Some(executable) = job.executable {
        let file = executable.path.file_name().unwrap_or(OsStr::new(job.name)).to_owned();
        (format!("     Running {} ({})\n", job.name, executable.path.display()), file, test(executable))
    } else {
        let arguments = ["test", "--workspace", "--locked", "--no-fail-fast", "--doc"];
        (String::new(), "documentation".into(), workspace::cargo(arguments))
    };
    let path = folder.join(file).with_extension("txt");
    let file = File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
    // One file for both keeps their order.
    command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
    let started = Instant::now();
    let ends = ends_within(limit, job.name, &mut command).with_context(|| format!("cannot run {}", job.name))?;
    let took = started.elapsed();
    let output = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let output = String::from_utf8_lossy(&output);
    // A failing test is the verdict's business; here only whether there is an account.
    let broken = match ends {
        None => Some(format!("had not ended after {} and was killed", minutes(limit))),
        Some(status) if !status.success() && !output.contains(FAILED) => {
            Some(format!("ended with {status} and named no failed test"))
        }
        Some(_) => None,
    };
    let end = broken.as_ref().map(|what| format!("\n{} {what}\n", job.name)).unwrap_or_default();
    Ok(Run { name: job.name.to_owned(), took, output: head + &output + &end, is_broken: broken.is_some() })
}

/// Runs a program to its end, or kills it after the limit with all that it started in its process group: `None`.
fn ends_within(limit: Duration, name: &str, command: &mut Command) -> io::Result<Option<ExitStatus>> {
    let started = Instant::now();
    let mut next_named = NAMED_EVERY;
    let mut child = command.process_group(0).spawn()?;
    let mut guard = guard(child.id())?;
    let ends = loop {
        if let Some(status) = child.try_wait()? {
            // Before its standard input ends: the group may be another's by then.
            guard.kill()?;
            break Some(status);
        }
        if started.elapsed() > limit {
            break None;
        }
        if started.elapsed() > next_named {
            eprintln!("    {name}: runs for {} min", next_named.as_secs() / 60);
            next_named += NAMED_EVERY;
        }
        std::thread::sleep(POLL);
    };
    // Closes its standard input.
    guard.wait()?;
    child.wait()?;
    Ok(ends)
}

/// Kills a process group when its standard input ends, be it with this process: Ctrl-C in a terminal does not reach the
/// group of a program.
fn guard(group: u32) -> io::Result<Child> {
    let mut guard = Command::new("sh");
    guard.args(["-c", GUARD, "sh"]).arg(group.to_string()).stdin(Stdio::piped()).process_group(0).spawn()
}

/// As `cargo test` starts it.
fn test(executable: &Executable) -> Command {
    let mut command = Command::new(&executable.path);
    command.current_dir(&executable.package).env("CARGO_MANIFEST_DIR", &executable.package);
    command.args(["--test-threads", TEST_THREADS]);
    // libtest knows how long each test took, and says so only where unstable options are allowed.
    command.args(["-Z", "unstable-options", "--report-time"]).env("RUSTC_BOOTSTRAP", "1");
    // For what the test starts; an operator gives helm an environment of its own.
    let (name, value) = GARBAGE_COLLECTION;
    command.env(name, value);
    // A failed test says what was wrong and where; two hundred lines of the executor's frames would hide it.
    command.env("RUST_BACKTRACE", "0");
    command
}

fn times_file() -> PathBuf {
    launcher::cache().join("test-times")
}

/// Seconds by name, as the last run on this machine measured them.
fn former_times() -> BTreeMap<String, f64> {
    parse_times(&std::fs::read_to_string(times_file()).unwrap_or_default())
}

fn parse_times(text: &str) -> BTreeMap<String, f64> {
    let line = |line: &str| {
        let (seconds, name) = line.split_once(' ')?;
        Some((name.to_owned(), seconds.parse().ok()?))
    };
    text.lines().filter_map(line).collect()
}

/// Only the order of the next run depends on it.
fn remember_times(runs: &[Run]) {
    let lines = runs.iter().map(|run| format!("{:.1} {}\n", run.took.as_secs_f64(), run.name));
    if let Err(error) = workspace::write(&times_file(), lines.collect::<String>().as_bytes()) {
        eprintln!("    times not kept: {error:#}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_and_unknown_programs_start_first() {
        let times = parse_times("3.5 plan\n300.0 strata::it\n20 talos::it\nnonsense\n");
        let jobs = ["plan", "talos::it", "new::it", "strata::it"].map(|name| Job { name, executable: None });
        let order: Vec<_> = longest_first(jobs.into(), &times).iter().map(|job| job.name).collect();
        assert_eq!(order, ["new::it", "strata::it", "talos::it", "plan"]);
    }

    #[test]
    fn no_more_programs_run_at_a_time_than_are_steady_and_memory_allows() {
        let memory = [None, Some(1 << 30), Some(7 << 30), Some(9 << 30), Some(64 << 30)];
        assert_eq!(memory.map(|memory| at_once(2, memory)), [1, 1, 1, 2, 2]);
        assert_eq!(memory.map(|memory| at_once(1, memory)), [1; 5]);
    }

    #[test]
    fn a_program_runs_in_its_package_with_rare_collections_and_both_its_outputs_keep_their_order() {
        let folder = tempfile::tempdir().unwrap();
        let (executable, run) =
            run_script(folder.path(), r#"pwd; echo wrong >&2; echo "$CARGO_MANIFEST_DIR $GOGC""#, LIMIT);
        let (script, package) = (executable.path.display(), executable.package.display());
        assert_eq!(run.output, format!("     Running plan::it ({script})\n{package}\nwrong\n{package} 400\n"));
        assert!(!run.is_broken);
    }

    #[test]
    fn a_program_that_fails_and_names_no_failed_test_is_broken() {
        let check = |script: &str, is_broken: bool| {
            let folder = tempfile::tempdir().unwrap();
            let (_, run) = run_script(folder.path(), script, LIMIT);
            assert_eq!(run.is_broken, is_broken, "{}", run.output);
            assert_eq!(
                run.output.ends_with("plan::it ended with exit status: 101 and named no failed test\n"),
                is_broken
            );
        };
        check("echo 'test result: FAILED. 1 passed; 1 failed'; exit 101", false);
        check("echo 'test result: ok. 1 passed; 0 failed'; exit 101", true);
        check("exit 101", true);
    }

    #[test]
    fn a_program_that_hangs_is_killed_with_what_it_started_and_its_output_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let hang = "sleep 600 & echo $! > server; echo test a ... ok; wait";
        // Long enough for a shell to begin on a busy machine.
        let (executable, run) = run_script(folder.path(), hang, Duration::from_secs(3));
        assert!(run.is_broken);
        let end = "test a ... ok\n\nplan::it had not ended after 3.0 s and was killed\n";
        assert!(run.output.ends_with(end), "{}", run.output);
        let server = std::fs::read_to_string(executable.package.join("server")).unwrap();
        // What is dead may stay in the process table, without a command line.
        let is_alive = || std::fs::read(format!("/proc/{}/cmdline", server.trim())).is_ok_and(|line| !line.is_empty());
        let deadline = Instant::now() + Duration::from_secs(10);
        while is_alive() {
            assert!(Instant::now() < deadline, "what it started still runs");
            std::thread::sleep(POLL);
        }
    }

    /// Runs a shell script as the test program of a package in `folder`.
    fn run_script(folder: &Path, script: &str, limit: Duration) -> (Executable, Run) {
        let path = folder.join("it-0aaa");
        workspace::write(&path, format!("#!/bin/sh\n{script}\n").as_bytes()).unwrap();
        let mode = <std::fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o755);
        std::fs::set_permissions(&path, mode).unwrap();
        let executable = Executable { prefix: "plan::it".to_owned(), path, package: folder.canonicalize().unwrap() };
        let run = run_one(&Job { name: "plan::it", executable: Some(&executable) }, folder, limit).unwrap();
        (executable, run)
    }
}
