//! What a run of `cargo test` said, as data.
//!
//! Cargo prints which binary it runs, libtest one line per test. Neither names the package of an
//! integration test binary (every crate calls its own `it`), so the list of executables comes from
//! Cargo's JSON messages of the build that went before.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

/// How one test ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    Passed,
    Failed,
    /// Marked `#[ignore]`.
    Ignored,
    /// The test itself found a prerequisite missing and said which.
    Skipped(String),
    /// It ran for a minute or more, and its program ended before it.
    Unfinished,
}

/// Every test of a run by its full name: `crate::module::test` for unit tests,
/// `crate::binary::module::test` for integration tests.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Report {
    pub tests: BTreeMap<String, Verdict>,
    /// Binaries that ended without a summary, or whose summary disagrees with their lines, or that had to be ended.
    pub broken: Vec<String>,
}

/// Test binaries by file name (`it-0123456789abcdef`).
pub type Executables = BTreeMap<String, Executable>;

/// One test binary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Executable {
    /// The name that its tests are under.
    pub prefix: String,
    pub path: PathBuf,
    /// The folder of its package, where its tests expect to run.
    pub package: PathBuf,
}

#[derive(Deserialize)]
struct Artifact {
    package_id: String,
    manifest_path: PathBuf,
    target: Target,
    executable: Option<String>,
    profile: Profile,
}

#[derive(Deserialize)]
struct Target {
    kind: Vec<String>,
    name: String,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

/// Reads the messages of `cargo test --no-run --message-format=json`.
pub fn executables(messages: &str) -> Executables {
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Artifact>(line).ok())
        .filter(|artifact| artifact.profile.test)
        .filter_map(|artifact| {
            let path = artifact.executable.as_deref()?;
            let executable = Executable {
                prefix: test_prefix(&artifact.package_id, &artifact.target),
                path: path.into(),
                package: artifact.manifest_path.parent()?.to_owned(),
            };
            Some((file_name(path).to_owned(), executable))
        })
        .collect()
}

fn test_prefix(package_id: &str, target: &Target) -> String {
    let target_name = target.name.replace('-', "_");
    if target.kind.iter().any(|kind| kind == "test") {
        format!("{}::{target_name}", package_name(package_id))
    } else {
        target_name
    }
}

/// `path+file:///src/crates/plan#0.1.0` (a URL: not for use as a path) or `…/crates/foo#bar@0.1.0`.
fn package_name(package_id: &str) -> String {
    let (path, fragment) = package_id.split_once('#').unwrap_or((package_id, ""));
    let name = match fragment.split_once('@') {
        Some((name, _)) => name,
        None => file_name(path),
    };
    name.replace('-', "_")
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Reads the plain output of `cargo test`, standard output and error in one stream.
pub fn parse(output: &str, executables: &Executables) -> Report {
    let mut report = Report::default();
    let mut section: Option<Section> = None;
    for line in output.lines() {
        if let Some(prefix) = section_start(line, executables) {
            report.close(section.replace(Section::new(prefix)));
        } else if let Some(current) = &mut section {
            current.read(line);
        }
    }
    report.close(section);
    report
}

/// Full names of all tests in the output of `cargo test -- --list`.
pub fn listed(output: &str, executables: &Executables) -> Vec<String> {
    let mut prefix = None;
    let mut names = Vec::new();
    for line in output.lines() {
        if let Some(start) = section_start(line, executables) {
            prefix = Some(start);
        } else if let (Some(prefix), Some(path)) = (&prefix, line.strip_suffix(": test")) {
            names.push(format!("{prefix}::{path}"));
        }
    }
    names
}

/// How long each test took, the slowest first; empty where libtest did not say.
pub fn slowest(output: &str, executables: &Executables) -> Vec<(Duration, String)> {
    let mut prefix = None;
    let mut times = Vec::new();
    for line in output.lines() {
        if let Some(start) = section_start(line, executables) {
            prefix = Some(start);
        } else if let (Some(prefix), Some((path, _)), Some(time)) = (&prefix, result_line(line), time(line)) {
            times.push((time, format!("{prefix}::{path}")));
        }
    }
    times.sort_by(|left, right| right.cmp(left));
    times
}

/// `test a::b ... ok <1.234s>`.
fn time(line: &str) -> Option<Duration> {
    let (_, seconds) = line.strip_suffix("s>")?.rsplit_once(" <")?;
    Duration::try_from_secs_f64(seconds.parse().ok()?).ok()
}

impl Report {
    pub fn count(&self, wanted: impl Fn(&Verdict) -> bool) -> usize {
        self.tests.values().filter(|verdict| wanted(verdict)).count()
    }

    /// A broken binary counts as one failure.
    pub fn failures(&self) -> usize {
        self.count(|verdict| matches!(verdict, Verdict::Failed | Verdict::Unfinished)) + self.broken.len()
    }

    /// The closing line: `3 passed, 0 failed, 1 skipped`.
    pub fn closing_line(&self) -> String {
        format!(
            "{} passed, {} failed, {} skipped",
            self.count(|verdict| *verdict == Verdict::Passed),
            self.failures(),
            self.count(|verdict| matches!(verdict, Verdict::Ignored | Verdict::Skipped(_))),
        )
    }

    fn close(&mut self, section: Option<Section>) {
        let Some(section) = section else { return };
        if section.summary != Some(section.lines) {
            self.broken.push(section.prefix.clone());
        }
        let unfinished = section.slow.into_iter().map(|path| (path, Verdict::Unfinished));
        // A result replaces the mark of a slow test.
        for (path, verdict) in unfinished.chain(section.tests) {
            self.tests.insert(format!("{}::{path}", section.prefix), verdict);
        }
    }
}

/// Not a test but a program that a test starts, and kills.
const HELPER: &str = " ... ignored, started ";

/// One test binary, or the documentation tests of one crate.
struct Section {
    prefix: String,
    tests: BTreeMap<String, Verdict>,
    /// Tests of which libtest said that they take long.
    slow: Vec<String>,
    /// Result lines seen, to compare with what the summary counted.
    lines: usize,
    summary: Option<usize>,
}

impl Section {
    fn new(prefix: String) -> Self {
        Self { prefix, tests: BTreeMap::new(), slow: Vec::new(), lines: 0, summary: None }
    }

    fn read(&mut self, line: &str) {
        if let Some((path, reason)) = skip_line(line) {
            self.tests.insert(path.to_owned(), Verdict::Skipped(reason.to_owned()));
        } else if let Some((path, verdict)) = result_line(line) {
            self.lines += 1;
            if line.contains(HELPER) {
                return;
            }
            let skipped = matches!(self.tests.get(path), Some(Verdict::Skipped(_)));
            // A test that skips itself returns, and libtest calls that `ok`.
            if !(skipped && verdict == Verdict::Passed) {
                self.tests.insert(path.to_owned(), verdict);
            }
        } else if let Some(path) = slow_line(line) {
            self.slow.push(path.to_owned());
        } else if let Some(count) = summary_line(line) {
            // Documentation tests of one crate may print several summaries.
            self.summary = Some(self.summary.unwrap_or(0) + count);
        }
    }
}

/// `Running unittests src/lib.rs (target/debug/deps/plan-0123456789abcdef)` or `Doc-tests plan`.
fn section_start(line: &str, executables: &Executables) -> Option<String> {
    let line = line.trim_start();
    if let Some(name) = line.strip_prefix("Doc-tests ") {
        return Some(format!("{name}::doc"));
    }
    let (_, path) = line.strip_prefix("Running ")?.rsplit_once(" (")?;
    let file = file_name(path.strip_suffix(')')?);
    Some(executables.get(file).map_or_else(|| file.to_owned(), |executable| executable.prefix.clone()))
}

/// `test a::b ... ok`, `test a::b - should panic ... FAILED`, `test a::b ... ignored, reason`.
fn result_line(line: &str) -> Option<(&str, Verdict)> {
    let (name, result) = line.strip_prefix("test ")?.rsplit_once(" ... ")?;
    let verdict = match result.split([' ', ',']).next()? {
        "ok" => Verdict::Passed,
        "FAILED" => Verdict::Failed,
        "ignored" => Verdict::Ignored,
        _ => return None,
    };
    Some((name.strip_suffix(" - should panic").unwrap_or(name), verdict))
}

/// `test a::b has been running for over 60 seconds`.
fn slow_line(line: &str) -> Option<&str> {
    Some(line.strip_prefix("test ")?.split_once(" has been running for over ")?.0)
}

/// `SKIPPED a::b: reason`, written by the test itself past libtest's capture.
fn skip_line(line: &str) -> Option<(&str, &str)> {
    line.strip_prefix("SKIPPED ")?.split_once(": ")
}

/// `test result: ok. 3 passed; 1 failed; 1 ignored; 0 measured; 9 filtered out; finished in 0.01s`.
fn summary_line(line: &str) -> Option<usize> {
    let (_, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let mut sum = 0;
    for part in counts.split("; ") {
        if let Some((number, "passed" | "failed" | "ignored")) = part.split_once(' ') {
            sum += number.parse::<usize>().ok()?;
        }
    }
    Some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MESSAGES: &str = r#"
{"reason":"compiler-artifact","package_id":"path+file:///src/strata/crates/plan#0.1.0","manifest_path":"/src/strata/crates/plan/Cargo.toml","target":{"kind":["lib"],"name":"plan"},"profile":{"test":true},"executable":"/build/debug/deps/plan-0aaa"}
{"reason":"compiler-artifact","package_id":"path+file:///src/strata/crates/plan#0.1.0","manifest_path":"/src/strata/crates/plan/Cargo.toml","target":{"kind":["lib"],"name":"plan"},"profile":{"test":false},"executable":null}
{"reason":"compiler-artifact","package_id":"path+file:///src/strata/crates/performers#0.1.0","manifest_path":"/src/strata/crates/performers/Cargo.toml","target":{"kind":["test"],"name":"it"},"profile":{"test":true},"executable":"/build/debug/deps/it-0bbb"}
{"reason":"compiler-artifact","package_id":"path+file:///src/strata/crates/odd-dir#some-name@0.1.0","manifest_path":"/src/strata/crates/odd-dir/Cargo.toml","target":{"kind":["test"],"name":"it"},"profile":{"test":true},"executable":"/build/debug/deps/it-0ccc"}
{"reason":"compiler-artifact","package_id":"path+file:///src/strata/crates/strata#0.1.0","manifest_path":"/src/strata/crates/strata/Cargo.toml","target":{"kind":["bin"],"name":"strata"},"profile":{"test":false},"executable":"/build/debug/strata"}
{"reason":"build-finished","success":true}
"#;

    fn check(output: &str, tests: &[(&str, Verdict)], broken: &[&str]) {
        let report = parse(output, &executables(MESSAGES));
        let expected = tests.iter().map(|(name, verdict)| ((*name).to_owned(), verdict.clone()));
        assert_eq!(report.tests, expected.collect());
        assert_eq!(report.broken, broken);
    }

    #[test]
    fn executables_are_named_for_package_and_binary() {
        let found = executables(MESSAGES);
        let named: Vec<_> = found.iter().map(|(file, one)| (file.as_str(), one.prefix.as_str())).collect();
        assert_eq!(named, [("it-0bbb", "performers::it"), ("it-0ccc", "some_name::it"), ("plan-0aaa", "plan")]);
        let plan = &found["plan-0aaa"];
        assert_eq!(plan.path, PathBuf::from("/build/debug/deps/plan-0aaa"));
        assert_eq!(plan.package, PathBuf::from("/src/strata/crates/plan"));
    }

    #[test]
    fn every_binary_has_its_own_names() {
        check(
            "   Compiling plan v0.1.0
     Running unittests src/lib.rs (target/debug/deps/plan-0aaa)

running 2 tests
test pod::p09_one_container ... ok
test pod::breaks - should panic ... ok

test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s

     Running tests/it/main.rs (/build/debug/deps/it-0bbb)

running 2 tests
test repair::p17_pod_comes_back has been running for over 60 seconds
test repair::p17_pod_comes_back ... FAILED
test slow ... ignored, takes an hour
test victim ... ignored, started and killed by another

failures:
    repair::p17_pod_comes_back

test result: FAILED. 0 passed; 1 failed; 2 ignored; 0 measured; 0 filtered out; finished in 61.2s

   Doc-tests plan

running 1 test
test crates/plan/src/lib.rs - Budget (line 3) ... ok

test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.2s
",
            &[
                ("plan::pod::p09_one_container", Verdict::Passed),
                ("plan::pod::breaks", Verdict::Passed),
                ("performers::it::repair::p17_pod_comes_back", Verdict::Failed),
                ("performers::it::slow", Verdict::Ignored),
                ("plan::doc::crates/plan/src/lib.rs - Budget (line 3)", Verdict::Passed),
            ],
            &[],
        );
    }

    #[test]
    fn a_test_that_skips_itself_is_not_passed() {
        check(
            "     Running tests/it/main.rs (target/debug/deps/it-0bbb)
SKIPPED node::p30_real_pull: needs root: run as root
test node::p30_real_pull ... ok
test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s
",
            &[("performers::it::node::p30_real_pull", Verdict::Skipped("needs root: run as root".to_owned()))],
            &[],
        );
    }

    #[test]
    fn a_test_that_fails_after_it_said_skipped_has_failed() {
        check(
            "     Running tests/it/main.rs (target/debug/deps/it-0bbb)
SKIPPED node::a: needs root
test node::a ... FAILED
test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s
",
            &[("performers::it::node::a", Verdict::Failed)],
            &[],
        );
    }

    #[test]
    fn a_binary_that_dies_is_broken() {
        check(
            "     Running tests/it/main.rs (target/debug/deps/it-0bbb)
test a ... ok
error: test failed, to rerun pass `-p performers --test it`
     Running unittests src/lib.rs (target/debug/deps/plan-0aaa)
test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
",
            &[("performers::it::a", Verdict::Passed)],
            &["performers::it"],
        );
    }

    #[test]
    fn a_test_that_its_program_did_not_wait_for_is_unfinished() {
        check(
            "     Running tests/it/main.rs (target/debug/deps/it-0bbb)
test hangs has been running for over 60 seconds
test slow has been running for over 60 seconds
test slow ... ok
",
            &[("performers::it::hangs", Verdict::Unfinished), ("performers::it::slow", Verdict::Passed)],
            &["performers::it"],
        );
    }

    #[test]
    fn a_line_lost_in_foreign_output_is_noticed() {
        check(
            "     Running tests/it/main.rs (target/debug/deps/it-0bbb)
test a ... ok
garbagetest b ... ok
test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
",
            &[("performers::it::a", Verdict::Passed)],
            &["performers::it"],
        );
    }

    #[test]
    fn listed_tests_have_the_names_of_the_report() {
        let output = "     Running unittests src/lib.rs (target/debug/deps/plan-0aaa)
pod::p09_one_container: test
bench: benchmark
     Running tests/it/main.rs (target/debug/deps/it-0bbb)
p17_repair: test

1 test, 0 benchmarks
";
        let names = listed(output, &executables(MESSAGES));
        assert_eq!(names, ["plan::pod::p09_one_container", "performers::it::p17_repair"]);
    }

    #[test]
    fn the_slowest_tests_come_first_and_verdicts_are_read_beside_their_times() {
        let output = "     Running plan (/build/debug/deps/plan-0aaa)
test quick ... ok <0.001s>
test other ... ok
     Running performers::it (/build/debug/deps/it-0bbb)
test slow ... FAILED <61.500s>
test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 61.5s
";
        let expected = [(61_500, "performers::it::slow"), (1, "plan::quick")];
        let expected = expected.map(|(millis, name)| (Duration::from_millis(millis), name.to_owned()));
        assert_eq!(slowest(output, &executables(MESSAGES)), expected);
        let report = parse(output, &executables(MESSAGES));
        assert_eq!(report.tests["plan::quick"], Verdict::Passed);
        assert_eq!(report.tests["performers::it::slow"], Verdict::Failed);
    }

    #[test]
    fn an_unknown_binary_keeps_its_file_name() {
        check(
            "     Running tests/it/main.rs (target/debug/deps/it-9999)
test a ... ok
test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
",
            &[("it-9999::a", Verdict::Passed)],
            &[],
        );
    }

    #[test]
    fn lines_before_the_first_binary_count_for_nothing() {
        check("test a ... ok\ntest result: ok. 1 passed; 0 failed\n", &[], &[]);
    }

    #[test]
    fn the_closing_line_counts_broken_binaries_as_failures() {
        let report = Report {
            tests: [
                ("a".to_owned(), Verdict::Passed),
                ("b".to_owned(), Verdict::Failed),
                ("c".to_owned(), Verdict::Ignored),
                ("d".to_owned(), Verdict::Skipped("no root".to_owned())),
                ("e".to_owned(), Verdict::Unfinished),
            ]
            .into(),
            broken: vec!["it".to_owned()],
        };
        assert_eq!(report.closing_line(), "1 passed, 3 failed, 2 skipped");
    }
}
