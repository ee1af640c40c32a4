//! The shard on real sockets, and its storage against a real service.

mod election;
mod failover;
mod frames;
mod group;
mod hcloud;
mod hostile;
mod ping;
mod rpc;
mod s3;
mod zone;
