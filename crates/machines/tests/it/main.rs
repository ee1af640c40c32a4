//! The machines layer on a real control plane with the real controllers of Cluster API, and shards in this process.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should end")]

mod bed;
mod cluster;
mod identity;
mod space;
mod zone;
