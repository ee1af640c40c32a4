//! `strata release`, `strata workspace`, `strata group` and `strata drain` as their users run them, on a real API server.
//! The tests write the status that an operator would.

mod diff;
mod drain;
mod group;
pub mod place;
mod refusal;
mod release;
mod workspace;
