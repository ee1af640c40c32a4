//! Every decision of a zone shard: who leads, what a group is, which instances come and go. Pure: ids and time are
//! arguments, and what must be remembered is data that the server stores.

pub mod config;
pub mod election;
pub mod event;
pub mod fence;
pub mod group;
pub mod id;
pub mod instance;
pub mod on_demand;
pub mod pace;
pub mod refusal;
pub mod round;
pub mod sweep;
