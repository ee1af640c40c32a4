//! `strata release`, `strata workspace` and `strata drain` as their users run them, on a real API server. The tests write the status
//! that an operator would.

mod diff;
mod drain;
pub mod place;
mod refusal;
mod release;
mod workspace;
