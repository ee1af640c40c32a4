//! `strata shard run`: a server of one shard as a program.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use clap::Args;
use futures::FutureExt;
use plan::shard::config::Config;
use process::{Health, Part, Parts, Pulse, Registry, Tasks, admin, spawn_watchdog};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use shard::{
    client::Addresses,
    clock::{Clock, uuid},
    identity::Lifetimes,
    provider::{self, Endpoints, Opening},
    server::{self, Bound, Context, Identity, Options, Ports, Standing},
    store::{Store, layout::ShardLayout},
};
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::{
    hcloud::HcloudFlags,
    machines,
    metrics::ShardMetrics,
    storage::{StorageFlags, config},
};
use crate::{
    Failure,
    config::{Listen, LogFormat, listen},
    explained,
    operator::{start_logs_as, stop_on_signal},
};

/// What the server may take to release its locks after SIGTERM: two writes to storage, each with the patience of a
/// renewal. Supervisors give half a minute.
const LIMIT: Duration = Duration::from_secs(15);

/// Between looks for a configuration and keys that are not there yet.
const PAUSE: Duration = Duration::from_secs(1);

/// The ports are those of the original, so that its operators and agents find the server.
#[derive(Debug, Args)]
pub struct Flags {
    /// The shard to stand for
    shard: String,
    /// Where /health answers, and /livez and /readyz; 0 switches it off
    #[arg(long, env = "STRATA_SHARD_HEALTH_BIND_ADDRESS", value_parser = listen, default_value = ":8990", value_name = "ADDRESS")]
    health_bind_address: Listen,
    /// Where /metrics answers; 0 switches it off
    #[arg(long, env = "STRATA_SHARD_METRICS_BIND_ADDRESS", value_parser = listen, default_value = ":8995", value_name = "ADDRESS")]
    metrics_bind_address: Listen,
    /// HTTPS port that says who leads and holds the connections of standbys
    #[arg(long, env = "STRATA_SHARD_ELECTION_BIND_ADDRESS", value_parser = address, default_value = ":8991", value_name = "ADDRESS")]
    election_bind_address: SocketAddr,
    /// Where operators and agents register while the server leads
    #[arg(long, env = "STRATA_SHARD_REGISTRATION_BIND_ADDRESS", value_parser = address, default_value = ":8992", value_name = "ADDRESS")]
    registration_bind_address: SocketAddr,
    /// Where operators ask while the server leads
    #[arg(long, env = "STRATA_SHARD_OPERATOR_BIND_ADDRESS", value_parser = address, default_value = ":8993", value_name = "ADDRESS")]
    operator_bind_address: SocketAddr,
    /// Where agents report while the server leads
    #[arg(long, env = "STRATA_SHARD_AGENT_BIND_ADDRESS", value_parser = address, default_value = ":8994", value_name = "ADDRESS")]
    agent_bind_address: SocketAddr,
    /// Names and addresses under which others reach the server, separated by commas; other servers use the first
    /// [default: the machine's name, localhost, 127.0.0.1, ::1]
    #[arg(long, env = "STRATA_SHARD_ADVERTISE_HOST", value_delimiter = ',', value_name = "HOSTS")]
    advertise_host: Vec<String>,
    /// Where agents register, `HOST:PORT,HOST:PORT` of every server of the shard: new machines get the list, and find the
    /// next leader by it [default: this server alone]
    #[arg(long, env = "STRATA_SHARD_ADVERTISE_REGISTRATION", value_name = "ADDRESSES", requires = "advertise_agent")]
    advertise_registration: Option<Addresses>,
    /// Where agents report, as a list of the same form; given together with --advertise-registration
    #[arg(long, env = "STRATA_SHARD_ADVERTISE_AGENT", value_name = "ADDRESSES", requires = "advertise_registration")]
    advertise_agent: Option<Addresses>,
    #[command(flatten)]
    hcloud: HcloudFlags,
    /// Form of the log [default: json, on a terminal pretty]
    #[arg(long, env = "STRATA_LOG_FORMAT", value_enum)]
    log_format: Option<LogFormat>,
    /// Level or filter of the log
    #[arg(long, env = "STRATA_LOG_LEVEL", default_value = "info", value_name = "LEVEL")]
    log_level: String,
}

/// A port that cannot be switched off.
fn address(text: &str) -> Result<SocketAddr, String> {
    listen(text)?.0.ok_or_else(|| "this port cannot be switched off: write :8993 or 127.0.0.1:8993".to_owned())
}

pub fn run(flags: Flags, storage: &StorageFlags) -> Result<(), Failure> {
    start_logs_as(flags.log_format, &flags.log_level)?;
    raise_files();
    // Several threads: TLS of many agents must not delay the renewal of the lead.
    let runtime = tokio::runtime::Runtime::new().map_err(|error| Failure::new(format!("cannot start: {error}")))?;
    let result = runtime.block_on(serve(flags, storage));
    crate::operator::end(runtime);
    result
}

/// As many open files as the administrator allows: each agent is a connection, and the usual limit of 1024 is meant for
/// programs that use `select`.
fn raise_files() {
    let limit = getrlimit(Resource::Nofile);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    if let Err(error) = raised {
        tracing::warn!(%error, "the limit of open files stays as it is");
    }
}

async fn serve(flags: Flags, storage: &StorageFlags) -> Result<(), Failure> {
    let (stop, health, registry) = (CancellationToken::new(), Health::default(), Arc::<Registry>::default());
    let (standing, store, sealing) = (Standing::default(), storage.make()?, storage.sealing()?);
    plan::shard::id::check("SHARD", &flags.shard).map_err(|refusal| Failure::new(refusal.message))?;
    registry.collect(Box::new(ShardMetrics::new(&flags.shard, standing.clone())));
    let mut tasks = Tasks::default();
    open_admin_ports(&flags, &health, &registry, &standing, &mut tasks).await?;
    spawn_watchdog(health.clone()).map_err(|error| Failure::new(format!("cannot start the watchdog: {error}")))?;
    tokio::spawn(stop_on_signal(stop.clone()));
    tracing::info!(version = env!("CARGO_PKG_VERSION"), shard = flags.shard, "strata shard starts");
    let (failed, mut failure) = oneshot::channel();
    let part = Part {
        name: "server".to_owned(),
        limit: LIMIT,
        start: Box::new(move |stop: CancellationToken, pulse: Pulse| {
            async move {
                let server = Server { flags, store, sealing, standing };
                if let Err(error) = Box::pin(pulse.while_waiting(server.run(stop))).await {
                    // The receiver lives as long as the parts.
                    let _ = failed.send(error);
                }
            }
            .boxed()
        }),
    };
    let mut parts = Parts::start(vec![part], &health);
    let result = tokio::select! {
        biased;
        () = stop.cancelled() => Ok(()),
        name = tasks.any_ended() => Err(Failure::new(format!("task {name} ended"))),
        name = parts.any_ended() => Err(failure.try_recv().unwrap_or_else(|_| Failure::new(format!("part {name} ended")))),
    };
    // The server releases its locks first; its admin ports answer until then.
    parts.drain().await;
    tracing::info!("strata shard ends");
    result
}

async fn open_admin_ports(
    flags: &Flags,
    health: &Health,
    registry: &Arc<Registry>,
    standing: &Standing,
    tasks: &mut Tasks,
) -> Result<(), Failure> {
    let fail = |flag: &'static str| {
        move |error: process::ListenError| {
            Failure::new(error.to_string()).hint(format!("choose another address with {flag}; 0 switches the port off"))
        }
    };
    let loaded = {
        let standing = standing.clone();
        move || if standing.is_loaded() { Ok(()) } else { Err("the configuration is not loaded".to_owned()) }
    };
    health.require("configuration", loaded.clone());
    if let Some(address) = flags.health_bind_address.0 {
        let routes = admin::probe_routes(&["/", "/health"], loaded).merge(admin::health_routes(health.clone()));
        let health = tasks.listen("health", address, routes).await.map_err(fail("--health-bind-address"))?;
        tracing::info!(%health, "listening");
    }
    if let Some(address) = flags.metrics_bind_address.0 {
        let routes = admin::metrics_routes(Arc::clone(registry));
        let metrics = tasks.listen("metrics", address, routes).await.map_err(fail("--metrics-bind-address"))?;
        tracing::info!(%metrics, "listening");
    }
    Ok(())
}

struct Server {
    flags: Flags,
    store: Arc<dyn Store>,
    sealing: Option<shard::identity::SealingKey>,
    standing: Standing,
}

impl Server {
    async fn run(self, stop: CancellationToken) -> Result<(), Failure> {
        let Some(config) = stop.run_until_cancelled(self.config()).await else { return Ok(()) };
        let clock = Clock::default();
        let keys = shard::identity::ClusterKeys::load(&*self.store, &config.cluster.id, self.sealing.as_ref())
            .await
            .map_err(|error| Failure::new(explained(&error)))?;
        // What the configuration says is laid over it, also when it is read again.
        let lifetimes = Lifetimes::default();
        let identity = Identity { authority: keys.authority, nonces: keys.nonces, lifetimes };
        let (ids, hosts) = (clock.clone(), self.hosts());
        let (bound, mut bounds) = watch::channel(None);
        let opening = self.opening(&hosts[0], &identity, &clock, bounds.clone())?;
        let context = Context {
            cluster: config.cluster.id.clone(),
            shard: self.flags.shard.clone(),
            layout: ShardLayout::new(&self.flags.shard),
            store: self.store,
            provider: provider::open(&config, opening)
                .map_err(|error| Failure::new(format!("shard.provider: {}", explained(&error))))?,
            clock: clock.clone(),
            ids: Box::new(move || uuid(&ids)),
        };
        let ports = Ports {
            election: self.flags.election_bind_address,
            registration: self.flags.registration_bind_address,
            operator: self.flags.operator_bind_address,
            agent: self.flags.agent_bind_address,
        };
        let options = Options {
            context: Arc::new(context),
            identity,
            ports,
            holder: format!("{}_{}_{:x}", hosts[0], std::process::id(), clock.now().as_nanosecond()),
            hosts,
            timing: config.shard.election.timing(),
            standing: self.standing,
        };
        let announce = async {
            while bounds.changed().await.is_ok() {
                if let Some(Bound { registration, operator, agent }) = *bounds.borrow_and_update() {
                    tracing::info!(%registration, %operator, %agent, "leads");
                } else {
                    tracing::info!("does not lead any more");
                }
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            ended = server::run(options, bound, stop) => ended.map_err(|error| Failure::new(explained(&error))),
            () = announce => Ok(()),
        }
    }

    /// What new machines begin with: where they reach this server, or the next one under the same name.
    fn opening(
        &self,
        host: &str,
        identity: &Identity,
        clock: &Clock,
        bounds: watch::Receiver<Option<Bound>>,
    ) -> Result<Opening, Failure> {
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        let configured = Bound {
            registration: self.flags.registration_bind_address,
            operator: self.flags.operator_bind_address,
            agent: self.flags.agent_bind_address,
        };
        let (registration, agent) = (self.flags.advertise_registration.clone(), self.flags.advertise_agent.clone());
        // Machines are made while the server leads, and then it listens: any free port has a number.
        let endpoints = move || {
            let bound = bounds.borrow().unwrap_or(configured);
            let at = |address: SocketAddr| format!("{host}:{}", address.port());
            let listed = |list: &Option<Addresses>, own| list.as_ref().map_or_else(|| at(own), ToString::to_string);
            Endpoints {
                registration: listed(&registration, bound.registration),
                agent: listed(&agent, bound.agent),
                operator: at(bound.operator),
            }
        };
        let program = std::env::current_exe();
        Ok(Opening {
            nonces: identity.nonces.clone(),
            ca_pem: identity.authority.certificate_pem().to_owned(),
            endpoints: Arc::new(endpoints),
            clock: clock.clone(),
            program: program.map_err(|error| Failure::new(format!("cannot find this program: {error}")))?,
            directory: machines::directory(&self.flags.shard),
            hcloud: self.flags.hcloud.environment(),
        })
    }

    /// Waits for a configuration that can be used: it may be written, or corrected, while the server waits.
    async fn config(&self) -> Config {
        let mut last = String::new();
        loop {
            match config(&*self.store, &self.flags.shard).await {
                Ok(config) => return config,
                Err(failure) if failure.message != last => {
                    let (error, hint) = (&failure.message, failure.hint.as_deref());
                    tracing::error!(error, hint, "the configuration is not loaded; it is read again");
                    last = failure.message;
                }
                Err(_) => {}
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    fn hosts(&self) -> Vec<String> {
        let given: Vec<String> = self.flags.advertise_host.iter().filter(|host| !host.is_empty()).cloned().collect();
        if !given.is_empty() {
            return given;
        }
        let own = rustix::system::uname().nodename().to_string_lossy().into_owned();
        [own, "localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()].into()
    }
}
