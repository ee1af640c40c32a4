//! HelmRelease counts by readiness.

use std::{collections::BTreeMap, fmt, sync::Arc};

use api::condition::ConditionType;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, gauge::ConstGauge},
};

use crate::workspace::Releases;

/// Counted when asked for.
pub(crate) struct ReleaseMetrics(pub Arc<Releases>);

impl fmt::Debug for ReleaseMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReleaseMetrics")
    }
}

impl Collector for ReleaseMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let mut counts = BTreeMap::<_, i64>::new();
        self.0.store().for_each(|key, object| {
            let ready = object.status.as_ref().and_then(|status| status.condition(ConditionType::Ready));
            let (status, reason) = ready.map_or((None, None), |ready| (Some(ready.status), Some(ready.reason)));
            let status = status.map_or_else(|| "Unknown".to_owned(), |status| format!("{status:?}"));
            let reason = reason.map_or("New", |reason| reason.as_str());
            *counts.entry((key.namespace.to_string(), status, reason)).or_default() += 1;
        });
        let help = "HelmReleases by readiness and its reason";
        let mut family = encoder.encode_descriptor("strata_releases", help, None, MetricType::Gauge)?;
        for ((namespace, status, reason), count) in counts {
            let labels = [("namespace", namespace.as_str()), ("ready", status.as_str()), ("reason", reason)];
            ConstGauge::new(count).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}
