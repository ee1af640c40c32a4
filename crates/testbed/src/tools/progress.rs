//! What is being built, for people who wait.

use std::{
    sync::Mutex,
    time::{Duration, Instant},
};

/// One moment of making one program available.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    pub program: &'a str,
    pub version: &'a str,
    pub state: State,
    pub elapsed: Duration,
    /// Programs still missing after this one.
    pub left: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Another process is building it.
    Waiting,
    Building,
    /// It is there now.
    Built,
}

/// Shows steps. Called when a state begins and then every second until it ends.
pub trait Progress: Send + Sync {
    fn report(&self, step: &Step<'_>);
}

/// Plain lines on standard error: when a state begins, every 15 seconds, and at the end.
#[derive(Debug, Default)]
pub struct Plain {
    last: Mutex<Option<(State, String, Instant)>>,
}

/// Often enough to show life in a CI log, seldom enough not to fill it.
const PLAIN_INTERVAL: Duration = Duration::from_secs(15);

impl Progress for Plain {
    fn report(&self, step: &Step<'_>) {
        let mut last = self.last.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let is_due = last.as_ref().is_none_or(|(state, program, at)| {
            *state != step.state || program != step.program || at.elapsed() >= PLAIN_INTERVAL
        });
        if is_due {
            eprintln!("{step}");
            *last = Some((step.state, step.program.to_owned(), Instant::now()));
        }
    }
}

impl std::fmt::Display for Step<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { program, version, left, .. } = self;
        let seconds = self.elapsed.as_secs();
        match self.state {
            State::Waiting => write!(f, "waiting for another process to build {program} {version} ({seconds} s)"),
            State::Building => write!(f, "building {program} {version} ({seconds} s, {left} more to build)"),
            State::Built => write!(f, "built {program} {version} in {seconds} s ({left} more to build)"),
        }
    }
}
