//! What `/metrics` of a shard's server says beside what every program says.

use std::fmt;

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric},
    metrics::{MetricType, gauge::ConstGauge},
};
use shard::server::Standing;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    shard: String,
}

/// Computed when it is asked for.
pub struct ShardMetrics {
    labels: Labels,
    standing: Standing,
}

impl fmt::Debug for ShardMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShardMetrics").field("labels", &self.labels).finish_non_exhaustive()
    }
}

impl ShardMetrics {
    pub fn new(shard: &str, standing: Standing) -> Self {
        Self { labels: Labels { shard: shard.to_owned() }, standing }
    }
}

/// Name, help, and what it says of a server.
type Metric = (&'static str, &'static str, fn(&Standing) -> i64);

const METRICS: [Metric; 6] = [
    ("strata_shard_leader", "1 while this server leads its shard", |one| one.leads_shard().into()),
    ("strata_shard_cluster_leader", "1 while this server leads the cluster of shards", |one| {
        one.leads_cluster().into()
    }),
    ("strata_shard_config_loaded", "1 once a configuration was loaded", |one| one.is_loaded().into()),
    (
        "strata_shard_damaged_records",
        "Records of instances in storage that cannot be read, while this server leads",
        |one| i64::try_from(one.damaged()).unwrap_or(i64::MAX),
    ),
    (
        "strata_shard_unknown_groups",
        "Groups of which storage or configuration do not say what they should be, while this server leads",
        |one| i64::try_from(one.unknown_groups()).unwrap_or(i64::MAX),
    ),
    (
        "strata_shard_groups_damaged",
        "1 while the file of groups is missing or cannot be read: a leader refuses changes of groups, no other server can lead",
        |one| one.groups_damaged().into(),
    ),
];

impl Collector for ShardMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        for (name, help, read) in METRICS {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            ConstGauge::new(read(&self.standing)).encode(metric.encode_family(&self.labels)?)?;
        }
        Ok(())
    }
}
