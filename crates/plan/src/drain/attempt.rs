//! What became of evictions that were sent.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Spends;

/// The last eviction that this process sent for a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    pub outcome: Outcome,
    /// How long until another may be sent if nothing happens.
    pub wait: Duration,
    pub spends: Option<Spends>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// No answer yet.
    Sent,
    /// The server has begun to delete the pod; the watch shows it.
    Accepted,
    /// A budget was in the way: another attempt when that budget has changed, or after the wait.
    Refused(String),
    Failed {
        message: String,
        is_forbidden: bool,
    },
}

/// Before a second attempt: what failed for a moment is over by then.
const FIRST_RETRY: Duration = Duration::from_secs(1);
/// A server that is overloaded or a right that is missing is asked for this often, for each pod.
const SLOWEST_RETRY: Duration = Duration::from_secs(30);
/// The server proposes this long after a budget refused; its change comes first where budgets may be read.
const REFUSED_RETRY: Duration = Duration::from_secs(10);
/// An accepted eviction that no watch has shown for this long, as after a restored etcd, is sent again.
const ACCEPTED_RETRY: Duration = Duration::from_secs(30);

/// How long to wait after an attempt, `failures` of which came before it in a row.
pub fn retry_after(outcome: &Outcome, failures: u32) -> Duration {
    match outcome {
        // The request ends by its own limit.
        Outcome::Sent => Duration::MAX,
        Outcome::Accepted => ACCEPTED_RETRY,
        Outcome::Refused(_) => REFUSED_RETRY,
        Outcome::Failed { .. } => (FIRST_RETRY * (1 << failures.min(5))).min(SLOWEST_RETRY),
    }
}
