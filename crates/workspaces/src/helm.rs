//! Helm as bounded child processes: nothing of it ever runs in the operator's own memory.
//!
//! [`Runner`] owns every helm process: callers submit a [`Request`] and go on, and look at [`Runner::state`] in a
//! later round. [`Charts`] finds and keeps chart archives, by children of the same runner.

mod charts;
mod child;
mod command;
mod files;
pub mod guard;
mod metrics;
mod output;
mod queue;
mod runner;

pub use charts::{Chart, ChartRef, Charts, ChartsConfig, Credentials, Found, archive};
pub use child::Guard;
pub use command::{Deploy, Operation, OperationKind, Pull, REGISTRY, REPOSITORIES};
pub use files::Private;
pub use output::{Class, Failure, redact, secrets_in};
pub use runner::{Config, Finished, Refused, Request, Runner, Snapshot, State, Tally};
