//! The machines layer on a real control plane with Cluster API's own controllers, and shards in this process. Names begin
//! with the row of the specification they show.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should end")]
#![allow(clippy::needless_pass_by_value, reason = "tests hand over JSON literals")]

mod accounts;
mod autoscaler;
mod bad_input;
mod bed;
mod cluster;
mod contract;
mod departure;
mod deployment;
mod drains;
mod external;
mod fault;
mod gate;
mod identity;
mod import;
mod kill;
mod lead;
mod machine;
mod on_demand;
mod pool;
mod replicas;
mod scene;
mod space;
mod streams;
mod strike;
mod takeover;
mod wire;
mod zone;
mod zones;
