//! The runtime on a real API server, with kinds that every cluster has.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should end")]
#![allow(clippy::needless_pass_by_value, reason = "tests hand over JSON literals")]

mod apply;
mod broken;
mod cluster;
mod dynamic;
mod lease;
mod log;
mod panic;
mod plain;
mod round;
mod subresource;
mod watch;
mod world;
