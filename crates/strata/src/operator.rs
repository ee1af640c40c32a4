//! `strata operator`.

use std::{path::PathBuf, time::Duration};

use clap::{ArgAction, Args};
use process::Clock;
use runtime::{LeaseConfig, ListMode, Operator, Settings, rights::DEFAULT_LEASE};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::{
    Failure,
    config::{Listen, LogFormat, StreamingLists, Values},
    connection::client_config,
    layers,
};

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
    values.check()?;
    start_logs(&values)?;
    // One thread: the work is waiting for the API server, and a second allocator arena would cost more memory than
    // a second core would win.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new(format!("cannot start: {error}")))?;
    let result = runtime.block_on(operate(flags, values));
    end(runtime);
    result
}

/// For the last lines of the log: a reader that is stuck must not hold up the end.
const LAST_LINES: Duration = Duration::from_secs(1);

/// Nothing that is still in flight holds up the exit, and no line of the log is lost by it.
pub(crate) fn end(runtime: tokio::runtime::Runtime) {
    runtime.shutdown_background();
    process::flush_logs(LAST_LINES);
}

fn start_logs(values: &Values) -> Result<(), Failure> {
    start_logs_as(values.log_format, values.log_level.as_deref().unwrap_or("info"))
}

pub(crate) fn start_logs_as(format: Option<LogFormat>, level: &str) -> Result<(), Failure> {
    let on_terminal = std::io::IsTerminal::is_terminal(&std::io::stderr());
    let default = if on_terminal { LogFormat::Pretty } else { LogFormat::Json };
    let format = match format.unwrap_or(default) {
        LogFormat::Json => process::LogFormat::Json,
        LogFormat::Pretty => process::LogFormat::Pretty,
    };
    process::init_logs(format, level).map_err(Failure::new)
}

async fn operate(flags: &Flags, values: Values) -> Result<(), Failure> {
    let client_config = client_config(flags.kubeconfig.as_deref(), flags.context.as_deref()).await?;
    let clock = Clock::default();
    let settings = settings(&values, instance(flags), &client_config.default_namespace, &clock);
    let client = runtime::connect(client_config.clone())
        .map_err(|error| Failure::new(format!("cannot make a client for the API server: {error}")))?;

    let stop = CancellationToken::new();
    let mut operator = Operator::new(client, settings, clock, stop.clone());
    layers::install(&mut operator, &values, &client_config)?;
    process::spawn_watchdog(operator.health.clone())
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
pub(crate) async fn stop_on_signal(stop: CancellationToken) {
    let (Ok(mut term), Ok(mut int)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) else {
        tracing::error!("cannot listen for signals");
        return;
    };
    let mut next = async || tokio::select! { _ = term.recv() => {} _ = int.recv() => {} };
    next().await;
    tracing::info!("stopping");
    stop.cancel();
    next().await;
    process::flush_logs(LAST_LINES);
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

/// The pod's or the machine's name.
fn instance(flags: &Flags) -> String {
    flags.instance.clone().unwrap_or_else(|| rustix::system::uname().nodename().to_string_lossy().into_owned())
}
