//! The log of a process whose standard error is not read any more.

#![expect(clippy::disallowed_methods, reason = "only another process can lose its standard error")]

use std::process::{Command, Stdio};

use anyhow::Result;
use process::LogFormat;

#[test]
fn a_lost_standard_error_costs_the_log_and_nothing_else() -> Result<()> {
    let (reader, writer) = std::io::pipe()?;
    drop(reader);
    let program = ["--exact", "log::logs_and_goes_on", "--ignored", "--nocapture"];
    let ended = Command::new(std::env::current_exe()?)
        .args(program)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(writer)
        .output()?;
    let said = String::from_utf8(ended.stdout)?;
    assert!(ended.status.success() && said.contains("went on"), "{} {said}", ended.status);
    Ok(())
}

#[test]
#[ignore = "started by a_lost_standard_error_costs_the_log_and_nothing_else"]
fn logs_and_goes_on() {
    process::init_logs(LogFormat::Json, "info").unwrap();
    tracing::info!("this is not read");
    process::flush_logs(std::time::Duration::from_mins(1));
    println!("went on");
}
