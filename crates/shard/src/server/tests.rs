//! Servers in one process, on a stepped clock.

mod crash;
mod request;
mod world;
