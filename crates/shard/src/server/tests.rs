//! Servers in one process, on a stepped clock.

mod crash;
mod life;
mod request;
mod world;
