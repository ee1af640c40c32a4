//! The binary as users run it, on a real control plane.

#![allow(clippy::needless_pass_by_value, reason = "tests hand over JSON literals")]

mod chart_rights;
#[cfg(feature = "dev")]
mod dev;
mod handover;
mod kill;
mod process;

#[path = "../../../performers/tests/it/capture.rs"]
#[allow(dead_code, reason = "the performers tests use all of it")]
mod capture;
#[path = "../../../performers/tests/it/harness.rs"]
#[allow(dead_code, reason = "the performers tests use all of it")]
mod harness;
#[path = "../../../performers/tests/it/observe.rs"]
#[allow(dead_code, reason = "the performers tests use all of it")]
mod observe;
#[path = "../../../performers/tests/it/scene.rs"]
#[allow(dead_code, reason = "the performers tests use all of it")]
mod scene;
