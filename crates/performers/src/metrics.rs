//! Performers by phase and what they ask for, counted when somebody asks.

use std::{collections::BTreeMap, fmt, sync::Arc};

use api::performer::{Performer, Phase};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, gauge::ConstGauge},
};
use runtime::Kind;

use crate::view::PerformerView;

pub(crate) struct PerformerMetrics(pub Arc<Kind<PerformerView, Performer>>);

impl fmt::Debug for PerformerMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PerformerMetrics")
    }
}

#[derive(Default)]
struct Counts {
    by_phase: BTreeMap<(String, &'static str), i64>,
    requested: BTreeMap<(String, String), f64>,
}

impl Counts {
    fn add(&mut self, namespace: &str, performer: &Performer) {
        // A Performer nobody has reported on yet is about to be pending.
        let phase = performer.status.as_ref().and_then(|status| status.phase).unwrap_or(Phase::Pending);
        *self.by_phase.entry((namespace.to_owned(), phase.as_str())).or_default() += 1;
        let Ok(desired) = plan::performers::validate(performer) else { return };
        let requests = desired.resources.and_then(|resources| resources.requests).unwrap_or_default();
        for (resource, quantity) in requests {
            if let Some(amount) = amount(&quantity.0) {
                *self.requested.entry((namespace.to_owned(), resource)).or_default() += amount;
            }
        }
    }
}

impl Collector for PerformerMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let mut counts = Counts::default();
        self.0.store().for_each(|key, performer| counts.add(&key.namespace, performer));
        let mut performers = encoder.encode_descriptor(
            "strata_performers",
            "Performers by namespace and phase",
            None,
            MetricType::Gauge,
        )?;
        for ((namespace, phase), count) in &counts.by_phase {
            let labels = [("namespace", namespace.as_str()), ("phase", phase)];
            ConstGauge::new(*count).encode(performers.encode_family(&labels)?)?;
        }
        let help = "Sum of the resources that performers request, in the base unit (cores, bytes, devices)";
        let mut requested = encoder.encode_descriptor("strata_performer_requests", help, None, MetricType::Gauge)?;
        for ((namespace, resource), amount) in &counts.requested {
            let labels = [("namespace", namespace.as_str()), ("resource", resource.as_str())];
            ConstGauge::new(*amount).encode(requested.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

/// A Kubernetes quantity as a number: `500m`, `8Gi`, `1e3`.
fn amount(quantity: &str) -> Option<f64> {
    const SUFFIXES: [(&str, f64); 15] = [
        ("Ki", 1024.0),
        ("Mi", 1_048_576.0),
        ("Gi", 1_073_741_824.0),
        ("Ti", 1_099_511_627_776.0),
        ("Pi", 1_125_899_906_842_624.0),
        ("Ei", 1_152_921_504_606_846_976.0),
        ("n", 1e-9),
        ("u", 1e-6),
        ("m", 1e-3),
        ("k", 1e3),
        ("M", 1e6),
        ("G", 1e9),
        ("T", 1e12),
        ("P", 1e15),
        ("E", 1e18),
    ];
    if let Ok(plain) = quantity.parse() {
        return Some(plain);
    }
    let (number, factor) =
        SUFFIXES.iter().find_map(|(suffix, factor)| Some((quantity.strip_suffix(suffix)?, factor)))?;
    number.parse::<f64>().ok().map(|number| number * factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_in_all_their_forms() {
        let amounts = ["2", "500m", "8Gi", "1e3", "1.5G", "x"].map(amount);
        let expected = [Some(2.0), Some(0.5), Some(8_589_934_592.0), Some(1000.0), Some(1.5e9), None];
        assert_eq!(amounts, expected);
    }
}
