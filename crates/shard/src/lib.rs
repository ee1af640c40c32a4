//! The zone shard: the protocol `nstance.v1`, its client, and the server that owns one zone's instances.
//!
//! Server, client, storage and providers are a library, so that tests run several servers in one process. What is
//! decided is decided in `plan::shard`.

pub mod client;
pub mod clock;
pub mod config;
pub mod identity;
pub mod provider;
pub mod record;
pub mod server;
pub mod store;
pub mod wire;
