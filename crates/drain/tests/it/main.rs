//! Drains on a real control plane with simulated nodes. Names begin with the row of the specification they show.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should end")]
#![allow(clippy::needless_pass_by_value, reason = "tests hand over JSON literals")]

mod budget;
mod deadline;
mod engine;
mod fault;
mod kill;
mod later;
mod order;
mod place;
mod undo;
mod whole;
