//! The one command that checks everything.

mod compiled;
mod programs;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use compiled::Used;
use programs::Run;

use crate::report::{self, Executables, Report, Verdict};
use crate::workspace::{self, MESSAGES, cargo};
use crate::{acceptance as table, codegen, deny, tidy, tools};

/// Enough to see what to work on.
const SLOWEST_SHOWN: usize = 15;

/// One step that ran, for the summary.
struct Step {
    name: &'static str,
    took: Duration,
    error: Option<anyhow::Error>,
}

/// Work that a thread of its own did beside the steps.
type Beside<T> = (Result<T>, Duration);

#[derive(Default)]
struct Steps(Vec<Step>);

impl Steps {
    /// Runs one step. A failure is kept, not returned: later steps still say what they know.
    fn run<T>(&mut self, name: &'static str, step: impl FnOnce() -> Result<T>) -> Option<T> {
        eprintln!("==> {name}");
        let (result, took) = timed(step);
        self.ended(name, result, took)
    }

    /// Waits for work that began earlier; its time is its own, not that of the wait.
    fn join<T>(&mut self, name: &'static str, work: ScopedJoinHandle<'_, Beside<T>>) -> Option<T> {
        eprintln!("==> {name}");
        let (result, took) = work.join().unwrap_or_else(|_| (Err(anyhow!("it panicked")), Duration::ZERO));
        self.ended(name, result, took)
    }

    fn ended<T>(&mut self, name: &'static str, result: Result<T>, took: Duration) -> Option<T> {
        let (value, error) = match result {
            Ok(value) => (Some(value), None),
            Err(error) => (None, Some(error)),
        };
        match &error {
            None => eprintln!("    {name}: ok after {}", minutes(took)),
            Some(error) => eprintln!("    {name}: FAILED after {}: {error:#}", minutes(took)),
        }
        self.0.push(Step { name, took, error });
        value
    }

    /// `total` is less than the sum where steps ran beside each other.
    fn summary(&self, total: Duration) -> String {
        let lines = self.0.iter().map(|step| {
            let verdict = if step.error.is_some() { "FAILED" } else { "ok" };
            format!("  {:>12}  {verdict:6}  {}\n", minutes(step.took), step.name)
        });
        let title = format!("\nwhere the time went ({} in all)\n", minutes(total));
        std::iter::once(title).chain(lines).collect()
    }

    fn failed(&self) -> Vec<&'static str> {
        self.0.iter().filter(|step| step.error.is_some()).map(|step| step.name).collect()
    }
}

fn timed<T>(work: impl FnOnce() -> Result<T>) -> Beside<T> {
    let start = Instant::now();
    let result = work();
    (result, start.elapsed())
}

/// Runs all steps, the tests beside so many busy loops, prints where the time went and the counts, and fails if any step
/// did.
pub fn run(busy_loops: usize) -> Result<()> {
    let start = Instant::now();
    let mut steps = Steps::default();
    // Where caches are empty, Go and cargo-deny take as long as the Rust build does.
    let report = std::thread::scope(|scope| {
        let programs = scope.spawn(|| timed(tools::build_all));
        let deny = scope.spawn(|| timed(deny::install));
        let built = build_and_check(&mut steps);
        steps.join("real programs, beside the builds", programs);
        steps.run("generated files", || codegen::run(true));
        let report = built.and_then(|()| steps.run("tests", || beside_busy_loops(busy_loops, run_tests)));
        if steps.join("cargo-deny, beside the builds", deny).is_some() {
            steps.run("dependencies", deny::run);
        }
        report
    });
    if let Some(report) = &report {
        steps.run("verdict of the tests", || judge(report));
        steps.run("acceptance table", || check_acceptance(report));
    }
    eprint!("{}", steps.summary(start.elapsed()));
    let report = report.unwrap_or_default();
    println!("{}", report.closing_line());
    match steps.failed().as_slice() {
        [] => Ok(()),
        failed => bail!("failed: {}", failed.join(", ")),
    }
}

/// All that compiles; `None` if there are no tests to run.
fn build_and_check(steps: &mut Steps) -> Option<()> {
    let mut used = Used::default();
    steps.run("packages of the real node", install_packages);
    steps.run("formatting", || workspace::run(&mut cargo(["fmt", "--all", "--check"])));
    let linted = steps.run("clippy", || {
        let mut clippy = cargo(["clippy", "--workspace", "--all-targets", "--locked", MESSAGES]);
        used.read(&workspace::output(clippy.args(["--", "-D", "warnings"]))?);
        Ok(())
    });
    steps.run("tidy", tidy::run);
    let built = steps.run("build of the tests", || {
        used.read(&build_tests()?);
        Ok(())
    });
    let documented = steps.run("documentation", || {
        let mut doc = cargo(["doc", "--workspace", "--no-deps", "--locked", MESSAGES]);
        used.read(&workspace::output(doc.env("RUSTDOCFLAGS", "-D warnings"))?);
        Ok(())
    });
    // A build that ended early did not name all that it uses.
    if (linted, built, documented) == (Some(()), Some(()), Some(())) {
        steps.run("compiled dependencies", || used.keep());
    }
    built
}

/// Where it cannot be done, the tests that need them say what is missing; CI must have them.
fn install_packages() -> Result<()> {
    // With these, and without a program of ours, tests build a simulated cluster.
    let stock = ["curl", "jq"];
    let install_stock = || {
        let is_there = stock.into_iter().all(testbed::packages::is_on_path);
        if is_there { Ok(()) } else { testbed::packages::install(&stock) }
    };
    let installed = testbed::node::install().and_then(|()| testbed::talos::install_partitions());
    match installed.and_then(|()| install_stock()) {
        Err(error) if !in_ci() => {
            eprintln!("    not installed: {error}");
            Ok(())
        }
        result => result.context("cannot install them"),
    }
}

/// Compares the table with the report that the last whole run left behind.
pub fn acceptance() -> Result<()> {
    check_acceptance(&saved_report()?)
}

/// Brings the table's test names up to date with the tests there are.
pub fn update_acceptance() -> Result<()> {
    build_tests()?;
    let mut list = cargo(["test", "--workspace", "--locked", "--", "--list"]);
    let (status, output) = merged_output(&mut list)?;
    ensure!(status.success(), "cargo test --list ended with {status}: {output}");
    let tests = report::listed(&output, &saved_executables()?);
    let path = acceptance_file();
    let markdown = std::fs::read_to_string(&path)?;
    workspace::write(&path, table::update(&markdown, &tests).as_bytes())
}

/// Builds every test program and keeps Cargo's list of them.
fn build_tests() -> Result<String> {
    let mut build = cargo(["test", "--workspace", "--locked", "--no-run", MESSAGES]);
    let messages = workspace::output(&mut build)?;
    workspace::write(&executables_file(), messages.as_bytes())?;
    Ok(messages)
}

/// Takes processor time from what runs meanwhile, until it has ended. Each loop has a session of its own: Linux may share
/// processors out by sessions, and that of the test programs would be starved.
fn beside_busy_loops<T>(count: usize, work: impl FnOnce() -> Result<T>) -> Result<T> {
    /// Ends them, also where the work panics.
    struct Loops(Vec<Child>);
    impl Drop for Loops {
        fn drop(&mut self) {
            for child in &mut self.0 {
                let _ = child.kill().and_then(|()| child.wait());
            }
        }
    }
    let mut loops = Loops(Vec::new());
    for _ in 0..count {
        let mut command = Command::new("setsid");
        // Also where we are killed.
        command.args(["sh", "-c", r#"while [ -d "/proc/$0" ]; do :; done"#]).arg(std::process::id().to_string());
        loops.0.push(command.stdin(Stdio::null()).spawn().context("cannot start setsid, of util-linux")?);
    }
    work()
}

/// Runs all tests, shows their output and keeps it, and says which took long.
fn run_tests() -> Result<Report> {
    let executables = saved_executables()?;
    let mut runs = programs::run_all(&executables)?;
    let output: String = runs.iter().map(|run| run.output.as_str()).collect();
    workspace::write(&report_file(), output.as_bytes())?;
    runs.sort_by_key(|run| std::cmp::Reverse(run.took));
    eprintln!("\ntest programs");
    for run in &runs {
        eprintln!("  {:>12}  {}", minutes(run.took), run.name);
    }
    eprintln!("slowest tests");
    for (took, name) in report::slowest(&output, &executables).iter().take(SLOWEST_SHOWN) {
        eprintln!("  {:>12}  {name}", minutes(*took));
    }
    let mut report = saved_report()?;
    add_broken(&mut report, &runs);
    Ok(report)
}

/// Also where its output is complete or names no test at all.
fn add_broken(report: &mut Report, runs: &[Run]) {
    let broken = runs.iter().filter(|run| run.is_broken).map(|run| run.name.clone());
    report.broken.extend(broken);
    report.broken.sort();
    report.broken.dedup();
}

/// Runs a command to its end.
///
/// Cargo names the binaries on standard error, libtest the tests on standard output: one pipe for
/// both keeps their order.
fn merged_output(command: &mut Command) -> Result<(ExitStatus, String)> {
    let (mut reader, writer) = std::io::pipe().context("cannot make a pipe")?;
    command.stdout(writer.try_clone()?).stderr(writer);
    let mut child = command.spawn().context("cannot start cargo")?;
    // The command still holds the pipe's writing ends; without them it ends with the child.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut output = Vec::new();
    reader.read_to_end(&mut output)?;
    Ok((child.wait().context("cannot wait for cargo")?, String::from_utf8_lossy(&output).into_owned()))
}

fn judge(report: &Report) -> Result<()> {
    for (name, verdict) in &report.tests {
        match verdict {
            Verdict::Failed => eprintln!("    failed: {name}"),
            Verdict::Unfinished => eprintln!("    still running when its program ended: {name}"),
            Verdict::Skipped(reason) => eprintln!("    skipped: {name}: {reason}"),
            Verdict::Passed | Verdict::Ignored => {}
        }
    }
    for binary in &report.broken {
        eprintln!("    broken: {binary} had to be ended, or failed without an account of all its tests");
    }
    if report.tests.is_empty() {
        bail!("no test ran");
    }
    let skipped = report.count(|verdict| matches!(verdict, Verdict::Skipped(_)));
    if skipped > 0 && in_ci() {
        bail!("{skipped} tests skipped, which CI=true does not allow");
    }
    match report.failures() {
        0 => Ok(()),
        failed => bail!("{failed} failed"),
    }
}

fn check_acceptance(report: &Report) -> Result<()> {
    let markdown = std::fs::read_to_string(acceptance_file()).context("cannot read docs/acceptance.md")?;
    let findings = table::check(&markdown, report, !in_ci());
    for line in findings.skips.iter().chain(&findings.problems) {
        eprintln!("    {line}");
    }
    match findings.problems.len() {
        0 => Ok(()),
        count => bail!("docs/acceptance.md and the test report disagree in {count} places"),
    }
}

fn saved_report() -> Result<Report> {
    Ok(report::parse(&saved(&report_file())?, &saved_executables()?))
}

fn saved_executables() -> Result<Executables> {
    Ok(report::executables(&saved(&executables_file())?))
}

fn saved(path: &Path) -> Result<String> {
    let bytes =
        std::fs::read(path).with_context(|| format!("cannot read {}: run cargo xtask ci first", path.display()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn acceptance_file() -> PathBuf {
    workspace::root().join("docs/acceptance.md")
}

fn in_ci() -> bool {
    std::env::var("CI").is_ok_and(|value| value == "true")
}

fn report_file() -> PathBuf {
    workspace::target().join("test-report.txt")
}

fn executables_file() -> PathBuf {
    workspace::target().join("test-executables.jsonl")
}

fn minutes(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    if seconds < 60.0 {
        format!("{seconds:.1} s")
    } else {
        format!("{} min {:02} s", time.as_secs() / 60, time.as_secs() % 60)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_outputs_come_in_the_order_they_were_written() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo a; echo b >&2; printf c; exit 3"]);
        let (status, output) = merged_output(&mut command).unwrap();
        assert_eq!(status.code(), Some(3));
        assert_eq!(output, "a\nb\nc");
    }

    #[test]
    fn work_beside_the_steps_counts_with_its_own_time() {
        let mut steps = Steps::default();
        std::thread::scope(|scope| {
            let work = scope.spawn(|| (Ok(7), Duration::from_secs(90)));
            assert_eq!(steps.join("good", work), Some(7));
            let work = scope.spawn(|| (Err::<(), _>(anyhow!("no")), Duration::from_secs(2)));
            assert_eq!(steps.join("bad", work), None);
        });
        assert_eq!(steps.failed(), ["bad"]);
        let summary = steps.summary(Duration::from_secs(91));
        assert!(summary.contains("(1 min 31 s in all)") && summary.contains("1 min 30 s  ok      good"), "{summary}");
    }

    #[test]
    fn busy_loops_run_beside_the_work_and_end_with_it() {
        let end = format!("done\0{}\0", std::process::id());
        let is_loop = |process: &Path| {
            std::fs::read(process.join("cmdline")).is_ok_and(|line| String::from_utf8_lossy(&line).ends_with(&end))
        };
        let loops = || std::fs::read_dir("/proc").unwrap().flatten().filter(|entry| is_loop(&entry.path())).count();
        // A process that is being replaced by its program has no command line yet.
        let settled = || {
            let deadline = Instant::now() + Duration::from_secs(20);
            let mut count = loops();
            while count != 2 && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(10));
                count = loops();
            }
            Ok(count)
        };
        assert_eq!(beside_busy_loops(2, settled).unwrap(), 2);
        assert_eq!(loops(), 0);
    }

    #[test]
    fn a_failed_step_is_kept_and_the_next_one_runs() {
        let mut steps = Steps::default();
        assert_eq!(steps.run("first", || bail!("no")), None::<()>);
        assert_eq!(steps.run("second", || Ok(7)), Some(7));
        assert_eq!(steps.failed(), ["first"]);
        let summary = steps.summary(Duration::ZERO);
        assert!(summary.contains("FAILED  first\n") && summary.contains("ok      second\n"), "{summary}");
    }

    #[test]
    fn a_program_that_had_to_be_ended_is_broken_once_whatever_it_wrote() {
        let run = |name: &str, is_broken| Run {
            name: name.to_owned(),
            took: Duration::ZERO,
            output: String::new(),
            is_broken,
        };
        let tests = [("plan::good".to_owned(), Verdict::Passed)].into();
        let mut report = Report { tests, broken: vec!["strata::it".to_owned()] };
        add_broken(&mut report, &[run("strata::it", true), run("plan", false), run("documentation tests", true)]);
        assert_eq!(report.broken, ["documentation tests", "strata::it"]);
        assert_eq!(judge(&report).unwrap_err().to_string(), "2 failed");
    }

    #[test]
    fn times_are_for_people() {
        assert_eq!(minutes(Duration::from_millis(1250)), "1.2 s");
        assert_eq!(minutes(Duration::from_secs(125)), "2 min 05 s");
    }
}
