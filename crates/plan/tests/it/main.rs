//! Decisions as data in, data out. Names begin with the row of the specification they show.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should end")]
#![allow(clippy::needless_pass_by_value, reason = "specs are written at the call")]

mod build;
mod clock;
mod decide;
mod event;
mod object;
mod property;
mod release;
mod status;
mod trouble;
mod workspaces;
mod world;
