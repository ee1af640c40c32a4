//! The workspaces layer: its settings as users write them, and where helm is.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{ArgAction, Args};
use kube::Config as ClientConfig;
use plan::releases::LEAST_MEMORY;
use runtime::Operator;
use serde::Deserialize;
use workspaces::helm::Guard;

use super::Layer;
use crate::{
    Failure,
    config::{self, Lower, Values},
};

pub(crate) const LAYER: Layer = Layer { spec: workspaces::LAYER, is_configured: |_| true, install };

/// Flags, environment and keys of the configuration file, as those of [`Values`].
#[derive(Clone, Debug, Default, Args, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct WorkspacesFlags {
    /// The helm program (version 4) [default: helm beside this program, else on the PATH]
    #[arg(long, env = "STRATA_HELM", value_name = "FILE")]
    pub helm: Option<PathBuf>,
    /// Memory that all helm processes may use together [default: 1280Mi]
    #[arg(long, env = "STRATA_HELM_MEMORY", value_parser = config::bytes, value_name = "BYTES")]
    #[serde(deserialize_with = "config::read_bytes")]
    pub helm_memory: Option<u64>,
    /// Memory that one helm process may use, unless its release says otherwise [default: 256Mi]
    #[arg(long, env = "STRATA_HELM_OPERATION_MEMORY", value_parser = config::bytes, value_name = "BYTES")]
    #[serde(deserialize_with = "config::read_bytes")]
    pub helm_operation_memory: Option<u64>,
    /// Memory that one release may ask for by spec.memory [default: --helm-memory less --helm-operation-memory]
    #[arg(long, env = "STRATA_HELM_MAX_OPERATION_MEMORY", value_parser = config::bytes, value_name = "BYTES")]
    #[serde(deserialize_with = "config::read_bytes")]
    pub helm_max_operation_memory: Option<u64>,
    /// Time that one release may ask for by spec.timeout and spec.rollback.timeout [default: 1h]
    #[arg(long, env = "STRATA_HELM_MAX_TIMEOUT", value_parser = config::duration, value_name = "DURATION")]
    #[serde(deserialize_with = "config::read_duration")]
    pub helm_max_timeout: Option<Duration>,
    /// From SIGTERM to SIGKILL for helm processes, at time-outs and when the operator stops [default: 30s]
    #[arg(long, env = "STRATA_HELM_GRACE_PERIOD", value_parser = config::duration, value_name = "DURATION")]
    #[serde(deserialize_with = "config::read_duration")]
    pub helm_grace_period: Option<Duration>,
    /// How long an unfinished helm operation of another client may stay unchanged before the operator takes the release over [default: 30s]
    #[arg(long, env = "STRATA_HELM_LOCK_PATIENCE", value_parser = config::duration, value_name = "DURATION")]
    #[serde(deserialize_with = "config::read_duration")]
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
    #[arg(long, env = "STRATA_CHART_TIME_TO_LIVE", value_parser = config::duration, value_name = "DURATION")]
    #[serde(deserialize_with = "config::read_duration")]
    pub chart_time_to_live: Option<Duration>,
    /// What chart archives may take on disk, and indexes of repositories again [default: 512Mi]
    #[arg(long, env = "STRATA_CHART_CACHE_SIZE", value_parser = config::bytes, value_name = "BYTES")]
    #[serde(deserialize_with = "config::read_bytes")]
    pub chart_cache_size: Option<u64>,
}

impl WorkspacesFlags {
    /// These settings, and those of `other` where these are silent.
    pub fn or(self, other: Self) -> Self {
        Self {
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

    /// What its durations may not be below.
    pub fn durations(&self) -> [Lower; 3] {
        [
            Lower {
                flag: "--helm-grace-period",
                given: self.helm_grace_period,
                // As for the grace period.
                least: Duration::from_millis(100),
                because: "helm could not record that it was ended",
                default: "30s",
            },
            Lower {
                flag: "--helm-lock-patience",
                given: self.helm_lock_patience,
                least: Duration::from_secs(1),
                because: "the operator would take releases over while another client's helm still runs",
                default: "30s",
            },
            Lower {
                flag: "--chart-time-to-live",
                given: self.chart_time_to_live,
                least: Duration::from_secs(1),
                because: "indexes would be fetched for every look at a release",
                default: "5m",
            },
        ]
    }
}

/// What helm gets of the environment.
const PROXIES: [&str; 6] = ["HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"];

fn install(operator: &mut Operator, values: &Values, client: &ClientConfig) -> Result<(), Failure> {
    let config = settings(values, client.clone())?;
    workspaces::install(operator, config).map_err(|error| Failure::new(format!("cannot prepare for helm: {error}")))
}

fn settings(values: &Values, client: ClientConfig) -> Result<workspaces::Config, Failure> {
    let flags = &values.workspaces;
    let program =
        std::env::current_exe().map_err(|error| Failure::new(format!("cannot find this program: {error}")))?;
    let helm = helm_program(flags, &program)?;
    let directory = flags.helm_directory.clone().unwrap_or_else(|| std::env::temp_dir().join("strata"));
    let guard = Guard { program, arguments: vec!["guard".into()] };
    let server = client.cluster_url.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
    let mut config = workspaces::Config::new(client, helm, guard, directory.join("private"), directory.join("cache"));
    config.concurrency = values.concurrency.unwrap_or(config.concurrency);
    config.resync = values.resync.unwrap_or(config.resync);
    config.grace = flags.helm_grace_period.unwrap_or(config.grace);
    config.policy.total_memory = flags.helm_memory.unwrap_or(config.policy.total_memory);
    config.operation_memory = operation_memory(flags, config.policy.total_memory, config.operation_memory)?;
    let (total, operation) = (config.policy.total_memory, config.operation_memory);
    config.policy.largest_memory = largest_memory(flags, total, operation)?;
    config.policy.longest_timeout = flags.helm_max_timeout.unwrap_or(config.policy.longest_timeout);
    config.policy.lock_patience = flags.helm_lock_patience.unwrap_or(config.policy.lock_patience);
    config.policy.other_namespaces = flags.helm_other_namespaces.unwrap_or(false);
    config.policy.local_charts = flags.helm_local_charts.unwrap_or(false);
    config.charts.time_to_live = flags.chart_time_to_live.unwrap_or(config.charts.time_to_live);
    config.charts.cache_bytes = flags.chart_cache_size.unwrap_or(config.charts.cache_bytes);
    config.environment = std::env::vars_os().filter(|(name, _)| PROXIES.iter().any(|proxy| name == proxy)).collect();
    spare(&server, &mut config.environment);
    Ok(config)
}

/// Adds the API server to those that no proxy is for: helm would take one for it, and we do not.
fn spare(server: &str, environment: &mut Vec<(OsString, OsString)>) {
    if environment.is_empty() {
        return;
    }
    let is_list = |name: &OsString| name.eq_ignore_ascii_case("NO_PROXY");
    let given = environment.iter().filter(|(name, value)| is_list(name) && !value.is_empty());
    let mut list: OsString = given.flat_map(|(_, value)| [value.as_os_str(), ",".as_ref()]).collect();
    list.push(server);
    environment.retain(|(name, _)| !is_list(name));
    environment.push(("NO_PROXY".into(), list));
}

/// Bytes for one helm process. Without a word about it, the default gives way to a small total.
fn operation_memory(flags: &WorkspacesFlags, total: u64, default: u64) -> Result<u64, Failure> {
    let too_small = |flag: &str, bytes: u64| {
        Failure::new(format!("{flag} is {bytes} bytes, helm needs at least {LEAST_MEMORY}"))
            .hint(format!("set {flag} to 128Mi or more"))
    };
    if total < LEAST_MEMORY {
        return Err(too_small("--helm-memory", total));
    }
    match flags.helm_operation_memory {
        None => Ok(default.min(total)),
        Some(bytes) if bytes < LEAST_MEMORY => Err(too_small("--helm-operation-memory", bytes)),
        Some(bytes) if bytes > total => {
            let message = format!(
                "--helm-operation-memory is {bytes} bytes, all helm processes together may use {total}: none would start"
            );
            Err(Failure::new(message).hint("lower it, or raise --helm-memory"))
        }
        Some(bytes) => Ok(bytes),
    }
}

/// Bytes that one release may ask for: at most what leaves room for an ordinary operation beside it.
fn largest_memory(flags: &WorkspacesFlags, total: u64, operation: u64) -> Result<u64, Failure> {
    let most = workspaces::helm::largest_memory(total, operation);
    match flags.helm_max_operation_memory {
        None => Ok(most),
        Some(bytes) if bytes > most => {
            let message = format!(
                "--helm-max-operation-memory is {bytes} bytes, and beside one ordinary operation all helm processes together may use {most}: others would wait for it"
            );
            Err(Failure::new(message).hint("lower it, or raise --helm-memory"))
        }
        Some(bytes) if bytes < operation => {
            let message = format!(
                "--helm-max-operation-memory is {bytes} bytes, less than the {operation} of an ordinary operation"
            );
            Err(Failure::new(message).hint("raise it, or lower --helm-operation-memory"))
        }
        Some(bytes) => Ok(bytes),
    }
}

fn helm_program(flags: &WorkspacesFlags, program: &Path) -> Result<PathBuf, Failure> {
    if let Some(helm) = &flags.helm {
        return Ok(helm.clone());
    }
    let beside = program.parent().map(Path::to_owned);
    let path = std::env::vars_os().find_map(|(name, value)| (name == "PATH").then_some(value)).unwrap_or_default();
    let found = beside.into_iter().chain(std::env::split_paths(&path)).map(|folder| folder.join("helm"));
    found.into_iter().find(|file| file.is_file()).ok_or_else(|| {
        Failure::new("the workspaces layer needs the program helm, version 4, and there is none on the PATH")
            .hint("name it with --helm FILE, or leave the layer out: --layers performers")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn helm_reaches_the_api_server_without_a_proxy() {
        let pair = |name: &str, value: &str| (OsString::from(name), OsString::from(value));
        let mut environment = vec![pair("no_proxy", ".corp"), pair("HTTPS_PROXY", "http://p:1")];
        spare("10.0.0.1", &mut environment);
        assert_eq!(environment, [pair("HTTPS_PROXY", "http://p:1"), pair("NO_PROXY", ".corp,10.0.0.1")]);
        let mut both = vec![pair("no_proxy", ".corp"), pair("NO_PROXY", ".lab")];
        spare("10.0.0.1", &mut both);
        assert_eq!(both, [pair("NO_PROXY", ".corp,.lab,10.0.0.1")]);
        let mut none = Vec::new();
        spare("10.0.0.1", &mut none);
        assert!(none.is_empty());
    }

    #[test]
    fn memory_with_which_no_helm_would_run_is_refused_by_its_flag() {
        const MIB: u64 = 1 << 20;
        let memory = |total, operation: Option<u64>| {
            let flags =
                WorkspacesFlags { helm_operation_memory: operation.map(|mib| mib * MIB), ..WorkspacesFlags::default() };
            operation_memory(&flags, total * MIB, 256 * MIB).map(|bytes| bytes / MIB)
        };
        assert_eq!(memory(1024, None).unwrap(), 256);
        assert_eq!(memory(200, None).unwrap(), 200);
        assert_eq!(memory(1024, Some(128)).unwrap(), 128);
        assert_eq!(memory(512, Some(512)).unwrap(), 512);
        for (total, operation, message, hint) in [
            (127, None, "--helm-memory is 133169152 bytes", "set --helm-memory to 128Mi or more"),
            (1024, Some(127), "--helm-operation-memory is 133169152 bytes", "set --helm-operation-memory to 128Mi"),
            (512, Some(513), "--helm-operation-memory is 537919488 bytes", "raise --helm-memory"),
        ] {
            let failure = memory(total, operation).unwrap_err();
            assert!(failure.message.starts_with(message), "{}", failure.message);
            assert!(failure.hint.unwrap().contains(hint));
        }
    }
    #[test]
    fn one_release_never_gets_all_memory() {
        const MIB: u64 = 1 << 20;
        let largest = |total: u64, asked: Option<u64>| {
            let flags =
                WorkspacesFlags { helm_max_operation_memory: asked.map(|mib| mib * MIB), ..WorkspacesFlags::default() };
            largest_memory(&flags, total * MIB, 256 * MIB).map(|bytes| bytes / MIB)
        };
        assert_eq!(largest(1280, None).unwrap(), 1024);
        assert_eq!(largest(1280, Some(512)).unwrap(), 512);
        assert_eq!(largest(256, None).unwrap(), 256, "there is room for one alone");
        for (asked, message) in [(1025, "is 1074790400 bytes"), (128, "less than the 268435456")] {
            let failure = largest(1280, Some(asked)).unwrap_err();
            assert!(failure.message.contains(message), "{}", failure.message);
        }
    }
}
