//! What the runner did and does, as metrics.

use std::fmt;

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
};

use super::runner::Runner;

impl Collector for Runner {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let snapshot = self.snapshot();
        let gauges = [
            ("strata_helm_waiting", "Helm operations that wait for their turn", snapshot.waiting as u64),
            ("strata_helm_running", "Helm operations that run", snapshot.running as u64),
            ("strata_helm_memory_bytes", "What the running helm operations may use", snapshot.bytes_in_use),
            ("strata_helm_memory_budget_bytes", "What all helm operations may use together", snapshot.bytes_total),
        ];
        for (name, help, value) in gauges {
            let encoder = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX)).encode(encoder)?;
        }
        let help = "Helm operations by operation and result";
        let mut family = encoder.encode_descriptor("strata_helm_operations", help, None, MetricType::Counter)?;
        for ((kind, result), tally) in &snapshot.ended {
            let labels = [("operation", kind.as_str()), ("result", result)];
            ConstCounter::new(tally.count).encode(family.encode_family(&labels)?)?;
        }
        let help = "Time spent in helm operations by operation and result";
        let mut family = encoder.encode_descriptor("strata_helm_operation_seconds", help, None, MetricType::Counter)?;
        for ((kind, result), tally) in &snapshot.ended {
            let labels = [("operation", kind.as_str()), ("result", result)];
            ConstCounter::new(tally.duration.as_secs_f64()).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}
