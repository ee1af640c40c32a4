//! What only a process of its own can show.

#![expect(clippy::disallowed_methods, reason = "a process that ends itself must be another one")]

use std::process::{Command, Stdio};
use std::time::Duration;

use process::{Health, LogFormat};

#[test]
fn a_stalled_process_says_what_stalls_and_ends_itself() {
    let program = std::env::current_exe().unwrap();
    let arguments = ["--exact", "stands_still", "--ignored", "--nocapture"];
    let ended = Command::new(program).args(arguments).stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(70), "{said}");
    assert!(said.contains("stalled") && said.contains("work"), "{said}");
}

#[test]
#[ignore = "started by a_stalled_process_says_what_stalls_and_ends_itself"]
fn stands_still() {
    process::init_logs(LogFormat::Json, "info").unwrap();
    let health = Health::default();
    let _pulse = health.pulse("work");
    process::spawn_watchdog(health).unwrap();
    // Longer than any watchdog waits.
    std::thread::sleep(Duration::from_mins(5));
}
