//! How patient the layer is. All of it is configuration, so that tests shorten it.

use std::time::Duration;

/// Durations the decisions depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// A scheduled pod that is still pending after this long is replaced; the original operator's
    /// five minutes. Doubled with every replacement in a row, since each one restarts the image pull.
    pub pending_limit: Duration,
    /// The doubling of [`Policy::pending_limit`] ends here.
    pub pending_limit_cap: Duration,
    /// An ended pod is replaced after this long, doubled with every replacement in a row.
    pub failure_delay: Duration,
    /// The doubling of [`Policy::failure_delay`] ends here. A pod that lived longer than this
    /// starts the count afresh: what ended it is then hardly what ended the ones before.
    pub failure_delay_cap: Duration,
    /// How long past its grace period a pod or Service may hold up the Performer's deletion, for
    /// example by a foreign finalizer or on a lost node.
    pub deletion_margin: Duration,
    /// What the API server is unable to do for this long, try after try, is reported. A report costs two status writes,
    /// and a server that was away for a moment has better things to do.
    pub problem_delay: Duration,
    /// A container that ended twice and not in this window is no longer in a crash loop; kubelet
    /// forgets its own back-off after the same ten minutes.
    pub crash_window: Duration,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            pending_limit: Duration::from_mins(5),
            pending_limit_cap: Duration::from_hours(1),
            failure_delay: Duration::from_secs(10),
            failure_delay_cap: Duration::from_mins(5),
            deletion_margin: Duration::from_secs(30),
            problem_delay: Duration::from_secs(10),
            crash_window: Duration::from_mins(10),
        }
    }
}

impl Policy {
    pub(super) fn failure_delay_after(&self, replacements: u32) -> Duration {
        doubled(self.failure_delay, replacements).min(self.failure_delay_cap)
    }

    pub(super) fn pending_limit_after(&self, replacements: u32) -> Duration {
        doubled(self.pending_limit, replacements).min(self.pending_limit_cap)
    }
}

fn doubled(base: Duration, times: u32) -> Duration {
    base.saturating_mul(1_u32.checked_shl(times).unwrap_or(u32::MAX))
}
