//! Values as users write them: durations, addresses, and the file that holds them.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{ArgAction, Args};
use jiff::SignedDuration;
use serde::{Deserialize, Deserializer, de::Error as _};

use crate::Failure;

/// A duration like `2m`, `90s` or `1h30m`.
pub fn duration(text: &str) -> Result<Duration, String> {
    let advice = "write it like 2m, 90s or 1h30m";
    let signed: SignedDuration = text.parse().map_err(|_| format!("{text:?} is not a duration: {advice}"))?;
    let duration = Duration::try_from(signed).map_err(|_| format!("{text:?} is negative: {advice}"))?;
    if duration.is_zero() { Err(format!("{text:?} is zero: {advice}")) } else { Ok(duration) }
}

/// An amount of memory like `512Mi`, `1G` or a number of bytes.
pub fn bytes(text: &str) -> Result<u64, String> {
    plan::object::bytes(text).ok_or_else(|| format!("{text:?} is not an amount of memory: write it like 512Mi or 1Gi"))
}

/// Where to listen: `:8080` (all addresses), `127.0.0.1:8080`, or `0` for nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listen(pub Option<SocketAddr>);

pub fn listen(text: &str) -> Result<Listen, String> {
    if text == "0" {
        return Ok(Listen(None));
    }
    // Go's habit, which existing deployments rely on: no host means every address.
    let full = if text.starts_with(':') { format!("[::]{text}") } else { text.to_owned() };
    full.parse().map(|address| Listen(Some(address))).map_err(|_| {
        format!("{text:?} is not an address to listen on: write :8080, 127.0.0.1:8080, or 0 to switch it off")
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    Json,
    Pretty,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StreamingLists {
    /// Where the server offers them (Kubernetes 1.34 and newer)
    Auto,
    On,
    Off,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LayerName {
    Performers,
    Workspaces,
}

/// Every setting of the operator. The same structure is filled from flags, from the environment (by clap) and from the
/// configuration file, whose keys are the long flags in camel case.
#[derive(Clone, Debug, Default, Args, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Values {
    /// Layers to run, separated by commas [default: all]
    #[arg(long, env = "STRATA_LAYERS", value_enum, value_delimiter = ',')]
    pub layers: Option<Vec<LayerName>>,
    /// Where /metrics answers; 0 switches it off [default: :8080]
    #[arg(long, env = "STRATA_METRICS_BIND_ADDRESS", value_parser = listen, value_name = "ADDRESS")]
    #[serde(deserialize_with = "read_listen")]
    pub metrics_bind_address: Option<Listen>,
    /// Where /livez, /healthz and /readyz answer; 0 switches it off [default: :8081]
    #[arg(long, env = "STRATA_HEALTH_PROBE_BIND_ADDRESS", value_parser = listen, value_name = "ADDRESS")]
    #[serde(deserialize_with = "read_listen")]
    pub health_probe_bind_address: Option<Listen>,
    /// Act only while holding the lease; switch off only where a single replica is certain [default: true]
    #[arg(long, env = "STRATA_LEADER_ELECT", action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub leader_elect: Option<bool>,
    /// Name of the lease [default: b8e8a8a8.hourglass.eigenlayer.io]
    #[arg(long, env = "STRATA_LEASE_NAME", value_name = "NAME")]
    pub lease_name: Option<String>,
    /// Namespace of the lease [default: $POD_NAMESPACE, else the namespace of the kubeconfig or pod]
    #[arg(long, env = "POD_NAMESPACE", value_name = "NAMESPACE")]
    pub lease_namespace: Option<String>,
    /// Others take over when the leader has been silent this long [default: 6s]
    #[arg(long, env = "STRATA_LEASE_DURATION", value_parser = duration, value_name = "DURATION")]
    #[serde(deserialize_with = "read_duration")]
    pub lease_duration: Option<Duration>,
    /// json for machines, pretty for people [default: json, or pretty on a terminal]
    #[arg(long, env = "STRATA_LOG_FORMAT", value_enum)]
    pub log_format: Option<LogFormat>,
    /// Level, or a filter like info,performers=debug [default: info]
    #[arg(long, env = "STRATA_LOG_LEVEL", value_name = "FILTER")]
    pub log_level: Option<String>,
    /// Period of the drift check of every object [default: 2m]
    #[arg(long, env = "STRATA_RESYNC", value_parser = duration, value_name = "DURATION")]
    #[serde(deserialize_with = "read_duration")]
    pub resync: Option<Duration>,
    /// Objects of one kind reconciled at once [default: 10]
    #[arg(long, env = "STRATA_CONCURRENCY", value_name = "N")]
    pub concurrency: Option<usize>,
    /// A request to the API server without answer is given up and retried after this long [default: 10s]
    #[arg(long, env = "STRATA_REQUEST_TIMEOUT", value_parser = duration, value_name = "DURATION")]
    #[serde(deserialize_with = "read_duration")]
    pub request_timeout: Option<Duration>,
    /// What running reconciles may take to finish after SIGTERM [default: 5s]
    #[arg(long, env = "STRATA_GRACE_PERIOD", value_parser = duration, value_name = "DURATION")]
    #[serde(deserialize_with = "read_duration")]
    pub grace_period: Option<Duration>,
    /// Fill caches by streaming lists [default: auto]
    #[arg(long, env = "STRATA_STREAMING_LISTS", value_enum, value_name = "MODE")]
    pub streaming_lists: Option<StreamingLists>,
    /// Replace a scheduled pod that is still pending after this long [default: 5m]
    #[arg(long, env = "STRATA_PENDING_LIMIT", value_parser = duration, value_name = "DURATION")]
    #[serde(deserialize_with = "read_duration")]
    pub pending_limit: Option<Duration>,
    /// Replace an ended pod after this long, doubled each time in a row [default: 10s]
    #[arg(long, env = "STRATA_FAILURE_DELAY", value_parser = duration, value_name = "DURATION")]
    #[serde(deserialize_with = "read_duration")]
    pub failure_delay: Option<Duration>,
    /// How long past its grace period a pod may hold up a deletion [default: 30s]
    #[arg(long, env = "STRATA_DELETION_MARGIN", value_parser = duration, value_name = "DURATION")]
    #[serde(deserialize_with = "read_duration")]
    pub deletion_margin: Option<Duration>,
    /// The helm program (version 4) [default: helm beside this program, else on the PATH]
    #[arg(long, env = "STRATA_HELM", value_name = "FILE")]
    pub helm: Option<PathBuf>,
    /// Memory that all helm processes may use together [default: 1280Mi]
    #[arg(long, env = "STRATA_HELM_MEMORY", value_parser = bytes, value_name = "BYTES")]
    #[serde(deserialize_with = "read_bytes")]
    pub helm_memory: Option<u64>,
    /// Memory that one helm process may use, unless its release says otherwise [default: 256Mi]
    #[arg(long, env = "STRATA_HELM_OPERATION_MEMORY", value_parser = bytes, value_name = "BYTES")]
    #[serde(deserialize_with = "read_bytes")]
    pub helm_operation_memory: Option<u64>,
    /// Memory that one release may ask for by spec.memory [default: --helm-memory less --helm-operation-memory]
    #[arg(long, env = "STRATA_HELM_MAX_OPERATION_MEMORY", value_parser = bytes, value_name = "BYTES")]
    #[serde(deserialize_with = "read_bytes")]
    pub helm_max_operation_memory: Option<u64>,
    /// Time that one release may ask for by spec.timeout [default: 1h]
    #[arg(long, env = "STRATA_HELM_MAX_TIMEOUT", value_parser = duration, value_name = "DURATION")]
    #[serde(deserialize_with = "read_duration")]
    pub helm_max_timeout: Option<Duration>,
    /// From SIGTERM to SIGKILL for helm processes, at time-outs and when the operator stops [default: 30s]
    #[arg(long, env = "STRATA_HELM_GRACE_PERIOD", value_parser = duration, value_name = "DURATION")]
    #[serde(deserialize_with = "read_duration")]
    pub helm_grace_period: Option<Duration>,
    /// How long somebody else's unfinished helm operation is left alone after its last change [default: 30s]
    #[arg(long, env = "STRATA_HELM_LOCK_PATIENCE", value_parser = duration, value_name = "DURATION")]
    #[serde(deserialize_with = "read_duration")]
    pub helm_lock_patience: Option<Duration>,
    /// Let releases go to other namespaces than their object's [default: false]
    #[arg(long, env = "STRATA_HELM_OTHER_NAMESPACES", action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub helm_other_namespaces: Option<bool>,
    /// Let releases take charts from the operator's own disk, by file:// [default: false]
    #[arg(long, env = "STRATA_HELM_LOCAL_CHARTS", action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub helm_local_charts: Option<bool>,
    /// Where charts, indexes and, while helm runs, its private files are kept [default: strata in the directory for temporary files]
    #[arg(long, env = "STRATA_HELM_DIRECTORY", value_name = "DIRECTORY")]
    pub helm_directory: Option<PathBuf>,
    /// How long a repository's index is believed [default: 5m]
    #[arg(long, env = "STRATA_CHART_TIME_TO_LIVE", value_parser = duration, value_name = "DURATION")]
    #[serde(deserialize_with = "read_duration")]
    pub chart_time_to_live: Option<Duration>,
    /// What chart archives may take on disk, and indexes of repositories again [default: 512Mi]
    #[arg(long, env = "STRATA_CHART_CACHE_SIZE", value_parser = bytes, value_name = "BYTES")]
    #[serde(deserialize_with = "read_bytes")]
    pub chart_cache_size: Option<u64>,
}

impl Values {
    /// These settings, and those of `other` where these are silent.
    pub fn or(self, other: Self) -> Self {
        Self {
            layers: self.layers.or(other.layers),
            metrics_bind_address: self.metrics_bind_address.or(other.metrics_bind_address),
            health_probe_bind_address: self.health_probe_bind_address.or(other.health_probe_bind_address),
            leader_elect: self.leader_elect.or(other.leader_elect),
            lease_name: self.lease_name.or(other.lease_name),
            lease_namespace: self.lease_namespace.or(other.lease_namespace),
            lease_duration: self.lease_duration.or(other.lease_duration),
            log_format: self.log_format.or(other.log_format),
            log_level: self.log_level.or(other.log_level),
            resync: self.resync.or(other.resync),
            concurrency: self.concurrency.or(other.concurrency),
            request_timeout: self.request_timeout.or(other.request_timeout),
            grace_period: self.grace_period.or(other.grace_period),
            streaming_lists: self.streaming_lists.or(other.streaming_lists),
            pending_limit: self.pending_limit.or(other.pending_limit),
            failure_delay: self.failure_delay.or(other.failure_delay),
            deletion_margin: self.deletion_margin.or(other.deletion_margin),
            helm: self.helm.or(other.helm),
            helm_memory: self.helm_memory.or(other.helm_memory),
            helm_operation_memory: self.helm_operation_memory.or(other.helm_operation_memory),
            helm_max_operation_memory: self.helm_max_operation_memory.or(other.helm_max_operation_memory),
            helm_max_timeout: self.helm_max_timeout.or(other.helm_max_timeout),
            helm_grace_period: self.helm_grace_period.or(other.helm_grace_period),
            helm_lock_patience: self.helm_lock_patience.or(other.helm_lock_patience),
            helm_other_namespaces: self.helm_other_namespaces.or(other.helm_other_namespaces),
            helm_local_charts: self.helm_local_charts.or(other.helm_local_charts),
            helm_directory: self.helm_directory.or(other.helm_directory),
            chart_time_to_live: self.chart_time_to_live.or(other.chart_time_to_live),
            chart_cache_size: self.chart_cache_size.or(other.chart_cache_size),
        }
    }

    pub fn read(path: &Path) -> Result<Self, Failure> {
        let shown = path.display();
        let text = std::fs::read_to_string(path)
            .map_err(|error| Failure::new(format!("cannot read the configuration file {shown}: {error}")))?;
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        serde_saphyr::from_str(&text).map_err(|error| {
            Failure::new(format!("configuration file {shown}: {error}"))
                .hint("keys are the long flags in camel case, for example leaseDuration: 6s")
        })
    }
}

fn read_duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    Option::<String>::deserialize(deserializer)?.map(|text| duration(&text).map_err(D::Error::custom)).transpose()
}

fn read_bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    Option::<String>::deserialize(deserializer)?.map(|text| bytes(&text).map_err(D::Error::custom)).transpose()
}

fn read_listen<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Listen>, D::Error> {
    Option::<String>::deserialize(deserializer)?.map(|text| listen(&text).map_err(D::Error::custom)).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_name_the_remedy() {
        assert_eq!(duration("1m30s"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        for wrong in ["", "5", "-3s", "0s", "soon"] {
            assert!(duration(wrong).unwrap_err().contains("write it like 2m"), "{wrong}");
        }
    }

    #[test]
    fn addresses_follow_the_habit_of_existing_deployments() {
        assert_eq!(listen(":8080").unwrap().0.unwrap().port(), 8080);
        assert_eq!(listen("127.0.0.1:0").unwrap().0.unwrap().to_string(), "127.0.0.1:0");
        assert_eq!(listen("0"), Ok(Listen(None)));
        assert!(listen("8080").unwrap_err().contains("write :8080"));
    }

    #[test]
    fn an_unknown_key_is_refused_by_name() {
        let error = serde_saphyr::from_str::<Values>("leaseDuratoin: 6s\n").unwrap_err().to_string();
        assert!(error.contains("leaseDuratoin"), "{error}");
    }
}
