//! The testbed's own tests, on the real programs.

mod control_plane;
mod fault;
mod node;
