//! The log of a process whose standard error is not read any more.

#![expect(clippy::disallowed_methods, reason = "only another process can lose its standard error")]

use std::{
    io::{PipeWriter, Read},
    process::{Child, Command, Stdio},
    sync::mpsc::channel,
    time::Duration,
};

use anyhow::{Context, Result};
use process::LogFormat;

/// A test of this program in a process of its own.
fn started(test: &str, stderr: PipeWriter) -> Result<Child> {
    let mut program = Command::new(std::env::current_exe()?);
    program.args(["--exact", test, "--ignored", "--nocapture"]).stdin(Stdio::null()).stdout(Stdio::piped());
    Ok(program.stderr(stderr).spawn()?)
}

#[test]
fn a_lost_standard_error_costs_the_log_and_nothing_else() -> Result<()> {
    let (reader, writer) = std::io::pipe()?;
    drop(reader);
    let ended = started("log::logs_and_goes_on", writer)?.wait_with_output()?;
    let said = String::from_utf8(ended.stdout)?;
    assert!(ended.status.success() && said.contains("went on"), "{} {said}", ended.status);
    Ok(())
}

#[test]
fn a_panic_does_not_wait_for_a_reader_of_the_log() -> Result<()> {
    let (_not_read, writer) = std::io::pipe()?;
    let mut child = started("log::panics_and_goes_on", writer)?;
    let mut stdout = child.stdout.take().context("it has one")?;
    let (said, is_said) = channel();
    std::thread::spawn(move || {
        let mut text = String::new();
        let _ = stdout.read_to_string(&mut text);
        let _ = said.send(text);
    });
    let said = is_said.recv_timeout(Duration::from_mins(1));
    let _ = child.kill();
    child.wait()?;
    let said = said.context("it waits for its standard error")?;
    assert!(said.contains("went on"), "{said}");
    Ok(())
}

#[test]
fn a_panic_is_a_line_of_the_log() -> Result<()> {
    let (mut reader, writer) = std::io::pipe()?;
    let child = started("log::panics", writer)?;
    let mut log = String::new();
    reader.read_to_string(&mut log)?;
    let status = child.wait_with_output()?.status;
    assert!(!status.success());
    let line = log.lines().find(|line| line.contains("panicked: for this test")).context(log.clone())?;
    let line: serde_json::Value = serde_json::from_str(line)?;
    assert_eq!(line["level"], "ERROR");
    assert!(line["at"].as_str().is_some_and(|at| at.contains("log.rs")), "{line}");
    Ok(())
}

#[test]
#[ignore = "started by a_lost_standard_error_costs_the_log_and_nothing_else"]
fn logs_and_goes_on() {
    process::init_logs(LogFormat::Json, "info").unwrap();
    tracing::info!("this is not read");
    process::flush_logs(Duration::from_mins(1));
    println!("went on");
}

#[test]
#[ignore = "started by a_panic_does_not_wait_for_a_reader_of_the_log"]
fn panics_and_goes_on() {
    process::init_logs(LogFormat::Json, "info").unwrap();
    // More than a pipe holds.
    for _ in 0..2000 {
        tracing::info!("this is not read, and neither are the many others like it that fill the pipe to its end");
    }
    assert!(std::panic::catch_unwind(|| panic!("for this test")).is_err());
    println!("went on");
}

#[test]
#[ignore = "started by a_panic_is_a_line_of_the_log"]
fn panics() {
    process::init_logs(LogFormat::Json, "info").unwrap();
    panic!("for this test");
}
