//! Helm as bounded child processes: nothing of it ever runs in the operator's own memory.
//!
//! [`Runner`] runs them as [jobs](runtime::jobs): callers submit a [`Request`] and go on, and look at
//! [`Runner::state`] in a later round. [`Charts`] finds and keeps chart archives, by operations of the same runner.

mod charts;
mod command;
mod metrics;
mod output;
mod request;
mod runner;

pub use charts::{Chart, ChartRef, Charts, ChartsConfig, Credentials, Found, archive};
pub use command::{Deploy, Operation, OperationKind, Pull, REGISTRY, REPOSITORIES};
pub use output::{Class, Failure, redact, secrets_in};
pub use request::{Contents, First, Reading, Refused, Request, Unread};
pub use runner::{Config, Finished, Runner, Snapshot, State, largest_memory};
pub use runtime::child::{Guard, Private};
