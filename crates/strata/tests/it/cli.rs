//! `strata release` and `strata workspace` as their users run them, on a real API server. The tests write the status
//! that an operator would.

mod diff;
pub mod place;
mod refusal;
mod release;
mod workspace;
