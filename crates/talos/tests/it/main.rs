//! The client against simulated nodes, and the vendor's own programs against both.

mod faults;
mod kubelet;
mod maintenance;
mod one_cluster;
mod one_control_plane;
mod programs;
