//! A test that cannot run is listed, and fails where nothing may be skipped.

use std::process::{Command, Output};

use anyhow::Result;

const LINE: &str = "SKIPPED skip::lacking: it lacks a reason to run";

#[test]
#[ignore = "started by a_skipped_test_is_listed_and_fails_in_ci"]
fn lacking() {
    testbed::skip("it lacks a reason to run").unwrap();
}

fn run(ci: Option<&str>) -> Result<Output> {
    let mut command = Command::new(std::env::current_exe()?);
    // Two threads: with one, libtest runs the test on a thread that does not bear its name.
    command.args(["skip::lacking", "--exact", "--ignored", "--test-threads=2"]).env_remove("CI");
    Ok(command.envs(ci.map(|value| ("CI", value))).output()?)
}

#[test]
fn a_skipped_test_is_listed_and_fails_in_ci() -> Result<()> {
    for elsewhere in [None, Some("false")] {
        let output = run(elsewhere)?;
        assert!(output.status.success(), "{output:?}");
        assert!(String::from_utf8(output.stderr)?.lines().any(|line| line == LINE));
    }
    let output = run(Some("true"))?;
    assert!(!output.status.success());
    assert!(String::from_utf8(output.stdout)?.contains("it lacks a reason to run"));
    Ok(())
}
