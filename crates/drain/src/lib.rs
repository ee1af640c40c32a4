//! Empties nodes of any cluster: cordon, evictions within the budgets, and the wait until all is gone.
//!
//! [`Drains`] holds the drains of one cluster. Each follows its node, the pods bound to it and the cluster's budgets by
//! watches that end with it, plans by [`plan::drain`] whenever one of them changes, and sends at most one eviction for
//! each pod that may go. What the cluster shows is the state: after a restart, or in another process with the same
//! [`Order::id`](plan::drain::Order), a drain goes on where it is.

mod drains;
mod execute;
mod follow;
mod ledger;
mod run;
mod view;

pub use drains::{Drains, Progress, Request};
