//! Whether the shards know the operator, and until when.

use std::fmt;

use plan::machines::identity::{Action, Standing};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric},
    metrics::{MetricType, counter::Counter, family::Family, gauge::ConstGauge},
};
use tokio::sync::watch;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Tried {
    action: &'static str,
    result: &'static str,
}

/// Clones are the same.
#[derive(Clone, Debug)]
pub(super) struct IdentityMetrics {
    standing: watch::Receiver<Standing>,
    tried: Family<Tried, Counter>,
}

impl IdentityMetrics {
    pub fn new(standing: watch::Receiver<Standing>) -> Self {
        Self { standing, tried: Family::default() }
    }

    pub fn tried(&self, action: Action, is_success: bool) {
        let action = match action {
            Action::MakeKey => "make_key",
            Action::Register => "register",
            Action::Renew => "renew",
            Action::DeleteNonce => "delete_nonce",
        };
        let result = if is_success { "success" } else { "failure" };
        self.tried.get_or_create(&Tried { action, result }).inc();
    }
}

impl Collector for IdentityMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let standing = self.standing.borrow().clone();
        let (name, help) = ("strata_machines_registered", "Whether the shards know the operator by its certificate");
        let registered = ConstGauge::new(i64::from(standing.is_registered));
        registered.encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)?;
        if let Some(until) = standing.not_after {
            let name = "strata_machines_certificate_expiry_timestamp_seconds";
            let help = "When the operator's certificate expires, in seconds since 1970";
            let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            ConstGauge::new(until.as_second()).encode(metric)?;
        }
        let (name, help) =
            ("strata_machines_identity_attempts", "Attempts to get, renew or store the operator's identity");
        self.tried.encode(encoder.encode_descriptor(name, help, None, MetricType::Counter)?)
    }
}
