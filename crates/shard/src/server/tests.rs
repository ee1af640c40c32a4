//! Servers in one process, on a stepped clock.

mod crash;
mod end;
mod life;
mod refusal;
mod request;
mod schedule;
mod world;
