//! Simulated Talos nodes over the real machine API. Each has loopback addresses of its own and runs real programs:
//! etcd and kube-apiserver on control planes, and everywhere a stand-in for the kubelet. What differs from the
//! original is listed in `docs/reference/simulators-talos.md`.

mod addresses;
mod apiserver;
mod applied;
mod cloud_controller;
mod cluster;
mod controllers;
mod etcd;
mod etcd_api;
mod fault;
mod impairment;
mod kubelet;
mod listener;
mod log;
mod machine;
mod node;
mod owner;
mod partition;
mod roles;
mod service;
mod world;

pub use addresses::{Addresses, Block};
pub use cluster::{Cluster, ClusterError, eventually, reaches_stage};
pub use controllers::{ControllerOptions, Controllers};
pub use fault::{BadCallFault, CallFault};
pub use impairment::Impairment;
pub use log::Call;
pub(crate) use log::FILE as LOG;
pub use machine::{Machine, MachineOptions};
pub use partition::{check as partitions_here, install as install_partitions};
pub use roles::CALLS;
pub use service::Dialect;
pub use world::{Error, World, WorldOptions};
