//! `strata operator`.

use std::{path::PathBuf, time::Duration};

use clap::{ArgAction, Args};
use kube::{
    Config as ClientConfig,
    config::{KubeConfigOptions, Kubeconfig},
};
use runtime::{Clock, LeaseConfig, ListMode, Operator, Settings};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::{
    Failure,
    config::{File, LayerName, Listen, LogFormat, StreamingLists, duration, listen},
};

/// The original operator's lease: where both run, only one of them acts.
pub const DEFAULT_LEASE: &str = "b8e8a8a8.hourglass.eigenlayer.io";

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
    /// Layers to run, separated by commas [default: all]
    #[arg(long, env = "STRATA_LAYERS", value_enum, value_delimiter = ',')]
    layers: Option<Vec<LayerName>>,
    /// Where /metrics answers; 0 switches it off [default: :8080]
    #[arg(long, env = "STRATA_METRICS_BIND_ADDRESS", value_parser = listen, value_name = "ADDRESS")]
    metrics_bind_address: Option<Listen>,
    /// Where /livez, /healthz and /readyz answer; 0 switches it off [default: :8081]
    #[arg(long, env = "STRATA_HEALTH_PROBE_BIND_ADDRESS", value_parser = listen, value_name = "ADDRESS")]
    health_probe_bind_address: Option<Listen>,
    /// Act only while holding the lease; switch off only where a single replica is certain [default: true]
    #[arg(long, env = "STRATA_LEADER_ELECT", action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    leader_elect: Option<bool>,
    /// Name of the lease [default: b8e8a8a8.hourglass.eigenlayer.io]
    #[arg(long, env = "STRATA_LEASE_NAME", value_name = "NAME")]
    lease_name: Option<String>,
    /// Namespace of the lease [default: $POD_NAMESPACE, else the namespace of the kubeconfig or pod]
    #[arg(long, env = "POD_NAMESPACE", value_name = "NAMESPACE")]
    lease_namespace: Option<String>,
    /// Others take over when the leader has been silent this long [default: 6s]
    #[arg(long, env = "STRATA_LEASE_DURATION", value_parser = duration, value_name = "DURATION")]
    lease_duration: Option<Duration>,
    /// json for machines, pretty for people [default: json, or pretty on a terminal]
    #[arg(long, env = "STRATA_LOG_FORMAT", value_enum)]
    log_format: Option<LogFormat>,
    /// Level, or a filter like info,performers=debug [default: info]
    #[arg(long, env = "STRATA_LOG_LEVEL", value_name = "FILTER")]
    log_level: Option<String>,
    /// Period of the drift check of every object [default: 2m]
    #[arg(long, env = "STRATA_RESYNC", value_parser = duration, value_name = "DURATION")]
    resync: Option<Duration>,
    /// Objects of one kind reconciled at once [default: 10]
    #[arg(long, env = "STRATA_CONCURRENCY", value_name = "N")]
    concurrency: Option<usize>,
    /// A request to the API server without answer is given up and retried after this long [default: 10s]
    #[arg(long, env = "STRATA_REQUEST_TIMEOUT", value_parser = duration, value_name = "DURATION")]
    request_timeout: Option<Duration>,
    /// What running reconciles may take to finish after SIGTERM [default: 5s]
    #[arg(long, env = "STRATA_GRACE_PERIOD", value_parser = duration, value_name = "DURATION")]
    grace_period: Option<Duration>,
    /// Fill caches by streaming lists [default: auto]
    #[arg(long, env = "STRATA_STREAMING_LISTS", value_enum, value_name = "MODE")]
    streaming_lists: Option<StreamingLists>,
    /// Replace a scheduled pod that is still pending after this long [default: 5m]
    #[arg(long, env = "STRATA_PENDING_LIMIT", value_parser = duration, value_name = "DURATION")]
    pending_limit: Option<Duration>,
    /// Replace an ended pod after this long, doubled each time in a row [default: 10s]
    #[arg(long, env = "STRATA_FAILURE_DELAY", value_parser = duration, value_name = "DURATION")]
    failure_delay: Option<Duration>,
    /// How long past its grace period a pod may hold up a deletion [default: 30s]
    #[arg(long, env = "STRATA_DELETION_MARGIN", value_parser = duration, value_name = "DURATION")]
    deletion_margin: Option<Duration>,
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
    let file = flags.config.as_deref().map(File::read).transpose()?.unwrap_or_default();
    start_logs(flags, &file)?;
    // One thread: the work is waiting for the API server, and a second allocator arena would cost more memory than
    // a second core would win.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new(format!("cannot start: {error}")))?;
    let result = runtime.block_on(operate(flags, file));
    // Nothing that is still in flight may hold up the exit.
    runtime.shutdown_background();
    result
}

fn start_logs(flags: &Flags, file: &File) -> Result<(), Failure> {
    let on_terminal = std::io::IsTerminal::is_terminal(&std::io::stderr());
    let default = if on_terminal { LogFormat::Pretty } else { LogFormat::Json };
    let format = flags.log_format.or(flags.original.log_format()).or(file.log_format).unwrap_or(default);
    let format = match format {
        LogFormat::Json => runtime::LogFormat::Json,
        LogFormat::Pretty => runtime::LogFormat::Pretty,
    };
    let level = flags.log_level.clone().or(flags.original.log_level()).or(file.log_level.clone());
    runtime::init_logs(format, level.as_deref().unwrap_or("info")).map_err(Failure::new)
}

async fn operate(flags: &Flags, file: File) -> Result<(), Failure> {
    let client_config = client_config(flags).await?;
    let settings = settings(flags, &file, &client_config.default_namespace);
    let performers = performers_config(flags, &file)?;
    let layers = flags.layers.clone().or(file.layers).unwrap_or_else(|| vec![LayerName::Performers]);
    let client = runtime::connect(client_config)
        .map_err(|error| Failure::new(format!("cannot make a client for the API server: {error}")))?;

    let stop = CancellationToken::new();
    let clock = Clock::default();
    let mut operator = Operator::new(client, settings, clock, stop.clone());
    for layer in layers {
        match layer {
            LayerName::Performers => performers::install(&mut operator, performers.clone()),
        }
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

async fn client_config(flags: &Flags) -> Result<ClientConfig, Failure> {
    let options = KubeConfigOptions { context: flags.context.clone(), ..KubeConfigOptions::default() };
    let unreachable = |error: &dyn std::fmt::Display| {
        Failure::new(format!("no cluster to connect to: {error}"))
            .hint("name one with --kubeconfig FILE, or start one on this machine with `strata dev up`")
    };
    let config = match &flags.kubeconfig {
        Some(path) => {
            let kubeconfig = Kubeconfig::read_from(path).map_err(|error| unreachable(&error))?;
            ClientConfig::from_custom_kubeconfig(kubeconfig, &options).await.map_err(|error| unreachable(&error))?
        }
        None if flags.context.is_some() => {
            ClientConfig::from_kubeconfig(&options).await.map_err(|error| unreachable(&error))?
        }
        None => ClientConfig::infer().await.map_err(|error| unreachable(&error))?,
    };
    Ok(config)
}

fn settings(flags: &Flags, file: &File, default_namespace: &str) -> Settings {
    let instance = instance();
    let is_elected = flags.leader_elect.or(file.leader_elect).unwrap_or(true);
    let lease = is_elected.then(|| LeaseConfig {
        namespace: flags
            .lease_namespace
            .clone()
            .or(file.lease_namespace.clone())
            .unwrap_or_else(|| default_namespace.to_owned()),
        name: flags.lease_name.clone().or(file.lease_name.clone()).unwrap_or_else(|| DEFAULT_LEASE.to_owned()),
        identity: format!("{instance}_{:x}", jiff::Timestamp::now().as_nanosecond()),
        duration: flags.lease_duration.or(file.lease_duration).unwrap_or(Duration::from_secs(6)),
    });
    let address = |flag: Option<Listen>, file: Option<Listen>, default: &str| {
        flag.or(file).or_else(|| listen(default).ok()).and_then(|listen| listen.0)
    };
    Settings {
        lease,
        health_address: address(flags.health_probe_bind_address, file.health_probe_bind_address, ":8081"),
        metrics_address: address(flags.metrics_bind_address, file.metrics_bind_address, ":8080"),
        grace: flags.grace_period.or(file.grace_period).unwrap_or(Duration::from_secs(5)),
        request_timeout: flags.request_timeout.or(file.request_timeout).unwrap_or(Duration::from_secs(10)),
        list_mode: match flags.streaming_lists.or(file.streaming_lists).unwrap_or(StreamingLists::Auto) {
            StreamingLists::Auto => None,
            StreamingLists::On => Some(ListMode::Streaming),
            StreamingLists::Off => Some(ListMode::Paged),
        },
        instance,
    }
}

fn performers_config(flags: &Flags, file: &File) -> Result<performers::Config, Failure> {
    let mut config = performers::Config::default();
    config.concurrency = flags.concurrency.or(file.concurrency).unwrap_or(config.concurrency);
    if config.concurrency == 0 {
        return Err(Failure::new("--concurrency 0 would reconcile nothing").hint("set at least 1; the default is 10"));
    }
    config.resync = flags.resync.or(file.resync).unwrap_or(config.resync);
    let policy = &mut config.policy;
    policy.pending_limit = flags.pending_limit.or(file.pending_limit).unwrap_or(policy.pending_limit);
    policy.failure_delay = flags.failure_delay.or(file.failure_delay).unwrap_or(policy.failure_delay);
    policy.deletion_margin = flags.deletion_margin.or(file.deletion_margin).unwrap_or(policy.deletion_margin);
    Ok(config)
}

/// The pod's or the machine's name.
fn instance() -> String {
    let node = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("{node}_{}", std::process::id())
}
