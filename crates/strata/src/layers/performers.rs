//! The performers layer: its settings as users write them.

use std::time::Duration;

use clap::Args;
use kube::Config as ClientConfig;
use runtime::Operator;
use serde::Deserialize;

use super::Layer;
use crate::{
    Failure,
    config::{self, Lower, Values},
};

pub(crate) const LAYER: Layer = Layer { spec: performers::LAYER, is_configured: |_| true, install };

/// Flags, environment and keys of the configuration file, as those of [`Values`].
#[derive(Clone, Copy, Debug, Default, Args, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PerformersFlags {
    /// Replace a scheduled pod that is still pending after this long [default: 5m]
    #[arg(long, env = "STRATA_PENDING_LIMIT", value_parser = config::duration, value_name = "DURATION")]
    #[serde(deserialize_with = "config::read_duration")]
    pub pending_limit: Option<Duration>,
    /// Replace an ended pod after this long, doubled each time in a row [default: 10s]
    #[arg(long, env = "STRATA_FAILURE_DELAY", value_parser = config::duration, value_name = "DURATION")]
    #[serde(deserialize_with = "config::read_duration")]
    pub failure_delay: Option<Duration>,
    /// How long past its grace period a pod may hold up a deletion [default: 30s]
    #[arg(long, env = "STRATA_DELETION_MARGIN", value_parser = config::duration, value_name = "DURATION")]
    #[serde(deserialize_with = "config::read_duration")]
    pub deletion_margin: Option<Duration>,
}

impl PerformersFlags {
    /// These settings, and those of `other` where these are silent.
    pub fn or(self, other: Self) -> Self {
        Self {
            pending_limit: self.pending_limit.or(other.pending_limit),
            failure_delay: self.failure_delay.or(other.failure_delay),
            deletion_margin: self.deletion_margin.or(other.deletion_margin),
        }
    }

    /// What its durations may not be below.
    pub fn durations(&self) -> [Lower; 3] {
        [
            Lower {
                flag: "--pending-limit",
                given: self.pending_limit,
                // Pulling a small image and starting a container takes seconds.
                least: Duration::from_secs(10),
                because: "pods would be replaced while they start",
                default: "5m",
            },
            Lower {
                flag: "--failure-delay",
                given: self.failure_delay,
                least: Duration::from_secs(1),
                because: "a pod that ends at once would be replaced without pause",
                default: "10s",
            },
            Lower {
                flag: "--deletion-margin",
                given: self.deletion_margin,
                // The kubelet reports an ended pod within about a second.
                least: Duration::from_secs(1),
                because: "finalizers would be released before the kubelet reports a pod's end",
                default: "30s",
            },
        ]
    }
}

#[allow(clippy::unnecessary_wraps, reason = "the form that every layer has")]
fn install(operator: &mut Operator, values: &Values, _: &ClientConfig) -> Result<(), Failure> {
    let mut config = performers::Config::default();
    config.concurrency = values.concurrency.unwrap_or(config.concurrency);
    config.resync = values.resync.unwrap_or(config.resync);
    let (flags, policy) = (&values.performers, &mut config.policy);
    policy.pending_limit = flags.pending_limit.unwrap_or(policy.pending_limit);
    policy.failure_delay = flags.failure_delay.unwrap_or(policy.failure_delay);
    policy.deletion_margin = flags.deletion_margin.unwrap_or(policy.deletion_margin);
    performers::install(operator, config);
    Ok(())
}
