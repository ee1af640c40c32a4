//! Every decision strata takes, as pure functions of data: no client, no clock, no environment.
//! A live round, a golden test and a saved snapshot are the same input.

pub use clocks::Clocks;
pub use round::Why;

mod clocks;
pub mod drain;
pub mod event;
pub mod fact;
mod kubelet;
pub mod machines;
mod message;
pub mod object;
pub mod performers;
pub mod releases;
pub mod round;
pub mod shard;
pub mod workspaces;
