//! How a runner works.

use std::{ffi::OsString, path::PathBuf, time::Duration};

use process::Clock;
use runtime::{
    child::{Guard, Silence},
    jobs::OnChange,
};

/// How a runner works.
pub struct Config {
    /// The helm program.
    pub helm: PathBuf,
    pub guard: Guard,
    /// Where values and credentials are written, for as long as an operation runs; best a file system in memory.
    pub private: PathBuf,
    /// What is worth keeping between operations and starts: indexes, charts, discovery.
    pub cache: PathBuf,
    /// Bytes for all helm processes together.
    pub total_memory: u64,
    /// Bytes for one, unless its request says otherwise.
    pub operation_memory: u64,
    /// How much longer than its own timeout helm may take: it then ends by itself, with the better message.
    pub overtime: Duration,
    /// From SIGTERM to SIGKILL.
    pub grace: Duration,
    /// How long helm goes on while we are stopped; for as long as it likes where no other replica could act.
    pub silence: Option<Silence>,
    /// Passed on to helm: proxies.
    pub environment: Vec<(OsString, OsString)>,
    pub clock: Clock,
    pub on_change: OnChange,
}

impl Config {
    /// With the defaults of the specification: 1 GiB for all, 256 MiB for each, so that four run at once, three of them
    /// of one namespace.
    pub fn new(helm: PathBuf, guard: Guard, private: PathBuf, cache: PathBuf) -> Self {
        Self {
            helm,
            guard,
            private,
            cache,
            total_memory: 1 << 30,
            operation_memory: 256 << 20,
            // helm needs two requests to store that a wait was in vain.
            overtime: Duration::from_secs(10),
            // As long as the default grace of a pod.
            grace: Duration::from_secs(30),
            silence: None,
            environment: Vec::new(),
            clock: Clock::default(),
            on_change: Box::new(|_| true),
        }
    }
}
