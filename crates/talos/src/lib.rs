//! Talos Linux as strata sees it: the machine API and its client, the secrets of a cluster, the certificates made
//! from them, and the machine configuration of a node. Nothing here knows Kubernetes or a cloud; time is an argument.

pub mod certificate;
pub mod client;
pub mod configuration;
pub mod protocol;
mod random;
pub mod secrets;
pub mod snapshot;
pub mod talosconfig;

pub use certificate::{Authority, Pair};
pub use client::{Client, Credentials, Error, Maintenance};
pub use configuration::{NodeSpec, Role};
pub use secrets::{Secrets, SecretsError};
pub use talosconfig::Talosconfig;

/// The port of the machine API on every node.
pub const PORT: u16 = 50000;

/// Talos' own limit for one message; a larger one is refused instead of being read into memory.
pub const MESSAGE_LIMIT: usize = 32 * 1024 * 1024;
