//! The protocol `nstance.v1`: messages and services generated from `proto/`, and what is agreed beside them.

#[allow(clippy::pedantic, clippy::allow_attributes_without_reason, reason = "generated")]
mod generated {
    tonic::include_proto!("nstance.v1");
}

pub mod codec;
mod convert;
mod event;
mod fence;
mod group_list;

pub use convert::{instance_event, read_timestamp, timestamp};
pub use event::GroupChange;
pub use fence::Fence;
pub use generated::*;
pub use group_list::ListGroupsResponse;

/// Both peers refuse a longer message: gRPC's own default, which the original keeps.
pub const MESSAGE_LIMIT: usize = 4 * 1024 * 1024;

#[cfg(test)]
mod tests;
