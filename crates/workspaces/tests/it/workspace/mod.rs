//! Workspaces and Users under the chart's ServiceAccount and rights. Names begin with the row they show.

mod config;
mod deletion;
mod fault;
mod harness;
mod network;
mod repair;
mod rival;
mod service;
mod settled;
mod turn;
mod user;
mod whole;

pub use harness::Space;
