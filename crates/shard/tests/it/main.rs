//! The shard on real sockets, and its storage against a real service.

mod failover;
mod hostile;
mod rpc;
mod s3;
mod zone;
