//! The binary as users run it, on a real control plane.

#![allow(clippy::needless_pass_by_value, reason = "tests hand over JSON literals")]

mod agent;
mod campaign;
mod chart_args;
mod chart_rights;
mod cli;
mod descriptors;
#[cfg(feature = "dev")]
mod dev;
mod handover;
mod hcloud;
mod hostile;
mod kill;
mod missing_definition;
mod process;
mod releases;
mod restore;
mod shard;
mod shard_kill;
mod workspace_kill;
mod workspace_rights;

// One folder of verbs for both crates' tests; its head says why it is not a crate.
#[path = "../../../performers/tests/it/harness/mod.rs"]
#[allow(dead_code, reason = "the performers tests use all of it")]
mod harness;

#[path = "../../../workspaces/tests/it/space.rs"]
#[allow(dead_code, reason = "the workspaces tests use all of it")]
mod space;

// The zone of the shard's own tests.
#[path = "../../../shard/tests/it/zone.rs"]
#[allow(dead_code, reason = "the shard's tests use all of it")]
mod zone;

use harness::scene;
