//! The one command that checks everything.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::report::{self, Executables, Report, Verdict};
use crate::workspace::{self, cargo};
use crate::{acceptance as table, codegen, deny, tidy, tools};

/// Tests wait for control planes more than they compute, so twice the cores of the smallest
/// supported machine keeps it busy; more would only make every wait longer.
const TEST_THREADS: &str = "4";

/// One step that ran, for the summary.
struct Step {
    name: &'static str,
    took: Duration,
    error: Option<anyhow::Error>,
}

#[derive(Default)]
struct Steps(Vec<Step>);

impl Steps {
    /// Runs one step. A failure is kept, not returned: later steps still tell what they know.
    fn run<T>(&mut self, name: &'static str, step: impl FnOnce() -> Result<T>) -> Option<T> {
        eprintln!("==> {name}");
        let start = Instant::now();
        let result = step();
        let took = start.elapsed();
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

    fn summary(&self) -> String {
        let total = self.0.iter().map(|step| step.took).sum();
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

/// Runs all steps, prints where the time went and the counts, and fails if any step did.
pub fn run() -> Result<()> {
    let mut steps = Steps::default();
    steps.run("packages of the real node", install_packages);
    steps.run("formatting", || workspace::run(&mut cargo(["fmt", "--all", "--check"])));
    steps.run("clippy", || {
        let mut clippy = cargo(["clippy", "--workspace", "--all-targets", "--locked"]);
        workspace::run(clippy.args(["--", "-D", "warnings"]))
    });
    steps.run("tidy", tidy::run);
    let built = steps.run("build of the tests", build_tests);
    steps.run("real programs", tools::build_all);
    steps.run("generated files", || codegen::run(true));
    let report = built.and_then(|()| steps.run("tests", run_tests));
    if let Some(report) = &report {
        steps.run("verdict of the tests", || judge(report));
        steps.run("acceptance table", || check_acceptance(report));
    }
    steps.run("documentation", || {
        let mut doc = cargo(["doc", "--workspace", "--no-deps", "--locked"]);
        workspace::run(doc.env("RUSTDOCFLAGS", "-D warnings"))
    });
    steps.run("dependencies", deny::run);

    eprint!("{}", steps.summary());
    let report = report.unwrap_or_default();
    println!("{}", report.closing_line());
    match steps.failed().as_slice() {
        [] => Ok(()),
        failed => bail!("failed: {}", failed.join(", ")),
    }
}

/// Where it cannot be done, the tests that need them say what is missing; CI must have them.
fn install_packages() -> Result<()> {
    match testbed::node::install() {
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
    let (status, output) = merged_output(&mut list, |_| Ok(()))?;
    ensure!(status.success(), "cargo test --list ended with {status}: {output}");
    let tests = report::listed(&output, &saved_executables()?);
    let path = acceptance_file();
    let markdown = std::fs::read_to_string(&path)?;
    workspace::write(&path, table::update(&markdown, &tests).as_bytes())
}

/// Builds every test program and keeps Cargo's list of them.
fn build_tests() -> Result<()> {
    let mut build = cargo(["test", "--workspace", "--locked", "--no-run"]);
    build.arg("--message-format=json-render-diagnostics");
    let messages = workspace::output(&mut build)?;
    workspace::write(&executables_file(), messages.as_bytes())
}

/// Runs all tests in one `cargo test`, shows the output and keeps it.
fn run_tests() -> Result<Report> {
    let mut test = cargo(["test", "--workspace", "--locked", "--no-fail-fast"]);
    test.args(["--", "--test-threads", TEST_THREADS]);
    let mut file = File::create(report_file()).context("cannot create the test report")?;
    // A failing test is the verdict's business; here only whether there is a report.
    merged_output(&mut test, |line| {
        file.write_all(line)?;
        std::io::stdout().write_all(line)
    })?;
    saved_report()
}

/// Runs a command to its end and hands on each line as it comes.
///
/// Cargo names the binaries on standard error, libtest the tests on standard output: one pipe for
/// both keeps their order.
fn merged_output(
    command: &mut Command,
    mut each: impl FnMut(&[u8]) -> std::io::Result<()>,
) -> Result<(ExitStatus, String)> {
    let (reader, writer) = std::io::pipe().context("cannot make a pipe")?;
    command.stdout(writer.try_clone()?).stderr(writer);
    let mut child = command.spawn().context("cannot start cargo")?;
    // The command still holds the pipe's writing ends; without them it ends with the child.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut lines = BufReader::new(reader);
    let (mut line, mut all) = (Vec::new(), String::new());
    while lines.read_until(b'\n', &mut line)? > 0 {
        each(&line)?;
        all.push_str(&String::from_utf8_lossy(&line));
        line.clear();
    }
    Ok((child.wait().context("cannot wait for cargo")?, all))
}

fn judge(report: &Report) -> Result<()> {
    for (name, verdict) in &report.tests {
        match verdict {
            Verdict::Failed => eprintln!("    failed: {name}"),
            Verdict::Skipped(reason) => eprintln!("    skipped: {name}: {reason}"),
            Verdict::Passed | Verdict::Ignored => {}
        }
    }
    for binary in &report.broken {
        eprintln!("    broken: {binary} ended without an account of all its tests");
    }
    if report.tests.is_empty() {
        bail!("no test ran");
    }
    let skipped = report.count(|verdict| matches!(verdict, Verdict::Skipped(_)));
    if skipped > 0 && in_ci() {
        bail!("{skipped} tests skipped, which CI=true does not allow");
    }
    let failed = report.count(|verdict| *verdict == Verdict::Failed) + report.broken.len();
    if failed > 0 {
        bail!("{failed} failed");
    }
    Ok(())
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
    workspace::root().join("target/test-report.txt")
}

fn executables_file() -> PathBuf {
    workspace::root().join("target/test-executables.jsonl")
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
        let mut seen = Vec::new();
        let (status, output) = merged_output(&mut command, |line| {
            seen.push(line.to_vec());
            Ok(())
        })
        .unwrap();
        assert_eq!(status.code(), Some(3));
        assert_eq!(output, "a\nb\nc");
        assert_eq!(seen, [b"a\n".to_vec(), b"b\n".to_vec(), b"c".to_vec()]);
    }

    #[test]
    fn a_failed_step_is_kept_and_the_next_one_runs() {
        let mut steps = Steps::default();
        assert_eq!(steps.run("first", || bail!("no")), None::<()>);
        assert_eq!(steps.run("second", || Ok(7)), Some(7));
        assert_eq!(steps.failed(), ["first"]);
        let summary = steps.summary();
        assert!(summary.contains("FAILED  first\n") && summary.contains("ok      second\n"), "{summary}");
    }

    #[test]
    fn times_are_for_people() {
        assert_eq!(minutes(Duration::from_millis(1250)), "1.2 s");
        assert_eq!(minutes(Duration::from_secs(125)), "2 min 05 s");
    }
}
