//! Servers in one process, on a stepped clock.

mod clock;
mod crash;
mod damage;
mod end;
mod life;
mod refusal;
mod request;
mod schedule;
mod world;
