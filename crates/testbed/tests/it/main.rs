//! The testbed's own tests, on the real programs.

mod control_plane;
mod fault_proxy;
mod faults;
mod lifetime;
mod pods;
mod real_node;
mod tool_cache;
