//! `strata operator`.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{ArgAction, Args, ValueEnum};
use kube::Config as ClientConfig;
use plan::releases::LEAST_MEMORY;
use runtime::{Clock, LeaseConfig, ListMode, Operator, Settings};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use workspaces::helm::Guard;

use crate::{
    Failure,
    config::{LayerName, Listen, LogFormat, StreamingLists, Values},
    connection::client_config,
};

/// The original operator's lease: where both run, only one of them acts.
pub const DEFAULT_LEASE: &str = "b8e8a8a8.hourglass.eigenlayer.io";

/// Shorter, and a renewal (two ninths of it) could not finish on a busy API server.
const SHORTEST_LEASE: Duration = Duration::from_secs(1);

/// Every setting is taken from its flag, else its environment variable, else the configuration file, else the default.
#[derive(Debug, Args)]
pub struct Flags {
    /// YAML file with the same settings, keys in camel case
    #[arg(long, env = "STRATA_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Kubeconfig file [default: $KUBECONFIG or ~/.kube/config, else the pod's own service account]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig
    #[arg(long)]
    context: Option<String>,
    /// Name under which events are reported and the lease is held [default: the machine's name]
    #[arg(long, env = "POD_NAME", hide = true, value_name = "NAME")]
    instance: Option<String>,
    #[command(flatten)]
    values: Values,
    #[command(flatten)]
    original: OriginalFlags,
}

/// Flags of the original operator, so that its deployments start unchanged.
#[derive(Debug, Args)]
struct OriginalFlags {
    #[arg(long, hide = true, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    metrics_secure: Option<bool>,
    #[arg(long, hide = true, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    enable_http2: Option<bool>,
    #[arg(long, hide = true, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    zap_devel: Option<bool>,
    #[arg(long, hide = true)]
    zap_encoder: Option<String>,
    #[arg(long, hide = true)]
    zap_log_level: Option<String>,
    #[arg(long, hide = true)]
    zap_stacktrace_level: Option<String>,
    #[arg(long, hide = true)]
    zap_time_encoding: Option<String>,
}

impl OriginalFlags {
    /// What they mean in our own words.
    fn values(&self) -> Values {
        Values { log_format: self.log_format(), log_level: self.log_level(), ..Values::default() }
    }

    fn log_format(&self) -> Option<LogFormat> {
        match self.zap_encoder.as_deref() {
            Some("json") => Some(LogFormat::Json),
            Some(_) => Some(LogFormat::Pretty),
            None => self.zap_devel.map(|devel| if devel { LogFormat::Pretty } else { LogFormat::Json }),
        }
    }

    /// Numbers are zap's verbosity: anything above 0 is debug.
    fn log_level(&self) -> Option<String> {
        let level = self.zap_log_level.as_deref()?;
        Some(match level.parse::<u32>() {
            Ok(0) => "info".to_owned(),
            Ok(_) => "debug".to_owned(),
            Err(_) if level == "panic" => "error".to_owned(),
            Err(_) => level.to_owned(),
        })
    }
}

pub fn run(flags: &Flags) -> Result<(), Failure> {
    if flags.original.metrics_secure == Some(true) {
        return Err(Failure::new("--metrics-secure is not offered: /metrics is plain HTTP")
            .hint("leave the flag out and protect the port by a NetworkPolicy; the chart's does"));
    }
    let file = flags.config.as_deref().map(Values::read).transpose()?.unwrap_or_default();
    let values = flags.values.clone().or(flags.original.values()).or(file);
    start_logs(&values)?;
    // One thread: the work is waiting for the API server, and a second allocator arena would cost more memory than
    // a second core would win.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new(format!("cannot start: {error}")))?;
    let result = runtime.block_on(operate(flags, values));
    // Nothing that is still in flight may hold up the exit.
    runtime.shutdown_background();
    result
}

fn start_logs(values: &Values) -> Result<(), Failure> {
    let on_terminal = std::io::IsTerminal::is_terminal(&std::io::stderr());
    let default = if on_terminal { LogFormat::Pretty } else { LogFormat::Json };
    let format = match values.log_format.unwrap_or(default) {
        LogFormat::Json => runtime::LogFormat::Json,
        LogFormat::Pretty => runtime::LogFormat::Pretty,
    };
    runtime::init_logs(format, values.log_level.as_deref().unwrap_or("info")).map_err(Failure::new)
}

async fn operate(flags: &Flags, values: Values) -> Result<(), Failure> {
    let client_config = client_config(flags.kubeconfig.as_deref(), flags.context.as_deref()).await?;
    let clock = Clock::default();
    let settings = settings(&values, instance(flags), &client_config.default_namespace, &clock);
    let performers = performers_config(&values)?;
    if settings.lease.as_ref().is_some_and(|lease| lease.duration < SHORTEST_LEASE) {
        return Err(Failure::new(format!("--lease-duration is below {SHORTEST_LEASE:?}"))
            .hint("a lease must outlast a slow request to the API server; the default is 6s"));
    }
    let client = runtime::connect(client_config.clone())
        .map_err(|error| Failure::new(format!("cannot make a client for the API server: {error}")))?;

    let stop = CancellationToken::new();
    let mut operator = Operator::new(client, settings, clock, stop.clone());
    let layers = values.layers.clone().unwrap_or_else(|| LayerName::value_variants().to_vec());
    if layers.contains(&LayerName::Performers) {
        performers::install(&mut operator, performers);
    }
    if layers.contains(&LayerName::Workspaces) {
        let config = workspaces_config(&values, client_config)?;
        workspaces::install(&mut operator, config)
            .map_err(|error| Failure::new(format!("cannot prepare for helm: {error}")))?;
    }
    runtime::spawn_watchdog(operator.health.clone())
        .map_err(|error| Failure::new(format!("cannot start the watchdog: {error}")))?;
    tokio::spawn(stop_on_signal(stop));
    tracing::info!(version = env!("CARGO_PKG_VERSION"), "strata operator starts");
    operator
        .run(|bound| tracing::info!(health = ?bound.health, metrics = ?bound.metrics, "listening"))
        .await
        .map_err(|error| Failure::new(error.to_string()))?;
    tracing::info!("strata operator ends");
    Ok(())
}

/// The first signal asks for an orderly end, the second does not wait for it.
async fn stop_on_signal(stop: CancellationToken) {
    let (Ok(mut term), Ok(mut int)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) else {
        tracing::error!("cannot listen for signals");
        return;
    };
    let mut next = async || tokio::select! { _ = term.recv() => {} _ = int.recv() => {} };
    next().await;
    tracing::info!("stopping");
    stop.cancel();
    next().await;
    std::process::exit(130);
}

fn settings(values: &Values, instance: String, default_namespace: &str, clock: &Clock) -> Settings {
    let lease = values.leader_elect.unwrap_or(true).then(|| LeaseConfig {
        namespace: values.lease_namespace.clone().unwrap_or_else(|| default_namespace.to_owned()),
        name: values.lease_name.clone().unwrap_or_else(|| DEFAULT_LEASE.to_owned()),
        identity: format!("{instance}_{}_{:x}", std::process::id(), clock.now().as_nanosecond()),
        duration: values.lease_duration.unwrap_or(Duration::from_secs(6)),
    });
    let every_address = |port| Listen(Some((std::net::Ipv6Addr::UNSPECIFIED, port).into()));
    Settings {
        lease,
        health_address: values.health_probe_bind_address.unwrap_or(every_address(8081)).0,
        metrics_address: values.metrics_bind_address.unwrap_or(every_address(8080)).0,
        grace: values.grace_period.unwrap_or(Duration::from_secs(5)),
        request_timeout: values.request_timeout.unwrap_or(Duration::from_secs(10)),
        list_mode: match values.streaming_lists.unwrap_or(StreamingLists::Auto) {
            StreamingLists::Auto => None,
            StreamingLists::On => Some(ListMode::Streaming),
            StreamingLists::Off => Some(ListMode::Paged),
        },
        instance,
    }
}

fn performers_config(values: &Values) -> Result<performers::Config, Failure> {
    let mut config = performers::Config::default();
    config.concurrency = values.concurrency.unwrap_or(config.concurrency);
    if config.concurrency == 0 {
        return Err(Failure::new("--concurrency 0 would reconcile nothing").hint("set at least 1; the default is 10"));
    }
    config.resync = values.resync.unwrap_or(config.resync);
    let policy = &mut config.policy;
    policy.pending_limit = values.pending_limit.unwrap_or(policy.pending_limit);
    policy.failure_delay = values.failure_delay.unwrap_or(policy.failure_delay);
    policy.deletion_margin = values.deletion_margin.unwrap_or(policy.deletion_margin);
    Ok(config)
}

/// What helm gets of the environment.
const PROXIES: [&str; 6] = ["HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"];

fn workspaces_config(values: &Values, client: ClientConfig) -> Result<workspaces::Config, Failure> {
    let program =
        std::env::current_exe().map_err(|error| Failure::new(format!("cannot find this program: {error}")))?;
    let helm = helm_program(values, &program)?;
    let directory = values.helm_directory.clone().unwrap_or_else(|| std::env::temp_dir().join("strata"));
    let guard = Guard { program, arguments: vec!["guard".into()] };
    let mut config = workspaces::Config::new(client, helm, guard, directory.join("private"), directory.join("cache"));
    config.concurrency = values.concurrency.unwrap_or(config.concurrency);
    config.resync = values.resync.unwrap_or(config.resync);
    config.grace = values.helm_grace_period.unwrap_or(config.grace);
    config.policy.total_memory = values.helm_memory.unwrap_or(config.policy.total_memory);
    config.operation_memory = operation_memory(values, config.policy.total_memory, config.operation_memory)?;
    let (total, operation) = (config.policy.total_memory, config.operation_memory);
    config.policy.largest_memory = largest_memory(values, total, operation)?;
    config.policy.longest_timeout = values.helm_max_timeout.unwrap_or(config.policy.longest_timeout);
    config.policy.lock_patience = values.helm_lock_patience.unwrap_or(config.policy.lock_patience);
    config.policy.other_namespaces = values.helm_other_namespaces.unwrap_or(false);
    config.policy.local_charts = values.helm_local_charts.unwrap_or(false);
    config.charts.time_to_live = values.chart_time_to_live.unwrap_or(config.charts.time_to_live);
    config.charts.cache_bytes = values.chart_cache_size.unwrap_or(config.charts.cache_bytes);
    config.environment = std::env::vars_os().filter(|(name, _)| PROXIES.iter().any(|proxy| name == proxy)).collect();
    Ok(config)
}

/// Bytes for one helm process. Without a word about it, the default gives way to a small total.
fn operation_memory(values: &Values, total: u64, default: u64) -> Result<u64, Failure> {
    let too_small = |flag: &str, bytes: u64| {
        Failure::new(format!("{flag} is {bytes} bytes, helm needs at least {LEAST_MEMORY}"))
            .hint(format!("set {flag} to 128Mi or more"))
    };
    if total < LEAST_MEMORY {
        return Err(too_small("--helm-memory", total));
    }
    match values.helm_operation_memory {
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
fn largest_memory(values: &Values, total: u64, operation: u64) -> Result<u64, Failure> {
    let most = workspaces::helm::largest_memory(total, operation);
    match values.helm_max_operation_memory {
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

fn helm_program(values: &Values, program: &Path) -> Result<PathBuf, Failure> {
    if let Some(helm) = &values.helm {
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

/// The pod's or the machine's name.
fn instance(flags: &Flags) -> String {
    flags.instance.clone().unwrap_or_else(|| rustix::system::uname().nodename().to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_with_which_no_helm_would_run_is_refused_by_its_flag() {
        const MIB: u64 = 1 << 20;
        let memory = |total, operation: Option<u64>| {
            let values = Values { helm_operation_memory: operation.map(|mib| mib * MIB), ..Values::default() };
            operation_memory(&values, total * MIB, 256 * MIB).map(|bytes| bytes / MIB)
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
            let values = Values { helm_max_operation_memory: asked.map(|mib| mib * MIB), ..Values::default() };
            largest_memory(&values, total * MIB, 256 * MIB).map(|bytes| bytes / MIB)
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
