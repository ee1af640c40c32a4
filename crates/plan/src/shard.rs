//! Every decision of a zone shard: who leads, what a group is, which instances come and go. Pure: ids and time are
//! arguments, and what must be remembered is data that the server stores.

pub mod election;
