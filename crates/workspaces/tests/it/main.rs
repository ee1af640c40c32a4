//! The workspaces layer on real parts: the helm runner (with a fake helm for load and misbehaviour alone), HelmReleases
//! by an operator that has the rights which the chart gives it, Workspaces and Users.
#![expect(clippy::unwrap_used, reason = "all of this is tests; clippy takes only the marked functions for such")]
#![allow(clippy::needless_pass_by_value, reason = "tests hand over JSON literals")]

mod exhaustion;
mod fake;
mod harness;
mod lifetime;
mod release;
mod source;
mod workspace;

mod canary;
// One reader of captured logs for both layers' tests.
#[path = "../../../performers/tests/it/harness/capture.rs"]
#[allow(dead_code, reason = "the performers tests use all of it")]
mod capture;
mod change;
mod depend;
mod drift;
mod failure;
mod identity;
mod memory;
mod origin;
mod panic;
mod removal;
mod restart;
mod schema;
mod settled;
mod space;
mod world;
