//! Real parts for tests and for `strata dev`: pinned programs, a control plane, simulated nodes, storage.

pub mod audit;
pub mod capi;
pub mod charts;
pub mod cloud;
pub mod control_plane;
pub mod fault;
pub mod helm;
pub mod hetzner;
mod install;
pub mod kwok;
mod looks;
pub mod node;
pub mod packages;
mod patience;
pub mod pki;
pub mod process;
mod random;
mod skip;
mod storage;
pub mod talos;
pub mod tools;
mod users;

pub use control_plane::{Backup, ControlPlane, Lent, Options, Workloads};
pub use looks::Looks;
pub use patience::patient;
pub use random::Random;
pub use skip::{published, skip};
pub use users::{User, install_crypto, may, until_allowed};
