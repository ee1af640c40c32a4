//! A server's life: it stands for its shard, and while it leads it serves.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use plan::shard::election::Timing;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{
    listener::{Keepalive, Listener},
    service::{ClusterLead, Parts, agent_service, operator_service, registration_service},
    term::{Context, Term, TermError},
};
use crate::{
    identity::{Authority, Lifetimes, Nonces, Registrar, ServerTls},
    store::{Election, Lead, Role, layout},
};

/// A server certificate lasts a day and is exchanged after half of it.
const CERTIFICATE: Duration = Duration::from_hours(24);

/// The agents' port pings as the original's: an agent behind a dead link is noticed in half a minute.
const AGENTS: Keepalive = Keepalive { interval: Duration::from_secs(20), timeout: Duration::from_secs(10) };

/// Operators are few and poll every 30 s by themselves.
const OPERATORS: Keepalive = Keepalive { interval: Duration::from_mins(1), timeout: Duration::from_secs(20) };

/// After an error that may pass: storage that is away, a damaged object that is repaired.
const PAUSE: Duration = Duration::from_secs(1);

/// Who the server is in the cluster.
pub struct Identity {
    pub authority: Arc<Authority>,
    pub nonces: Arc<Nonces>,
    pub lifetimes: Lifetimes,
}

/// Where it listens while it leads. Port 0 takes any.
#[derive(Clone, Copy, Debug)]
pub struct Ports {
    pub registration: SocketAddr,
    pub operator: SocketAddr,
    pub agent: SocketAddr,
}

/// Everything a server is started with.
pub struct Options {
    pub context: Arc<Context>,
    pub identity: Identity,
    pub ports: Ports,
    /// Under which clients reach it: names and addresses for its certificate.
    pub hosts: Vec<String>,
    /// One run of one server.
    pub holder: String,
    pub timing: Timing,
}

/// Where a leader listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    pub registration: SocketAddr,
    pub operator: SocketAddr,
    pub agent: SocketAddr,
}

/// Runs until `stop`; then it releases what it leads. `bound` says where it listens, while it does.
pub async fn run(options: Options, bound: watch::Sender<Option<Bound>>, stop: CancellationToken) {
    let store = Arc::clone(&options.context.store);
    let lock = options.context.layout.lock();
    let mut election = Election::new(store, &lock, &options.holder, "", options.timing);
    while !stop.is_cancelled() {
        let wait = match election.look().await {
            Ok(Role::Leader(lead)) => {
                let led = lead_shard(&options, &mut election, lead, &bound, &stop).await;
                bound.send_replace(None);
                if let Err(error) = led {
                    tracing::error!(%error, "the lead ended");
                }
                PAUSE
            }
            Ok(Role::Standby { look_in, .. }) => look_in,
            Err(error) => {
                tracing::warn!(%error, "election");
                PAUSE
            }
        };
        stop.run_until_cancelled(tokio::time::sleep(wait)).await;
    }
    if let Err(error) = election.release().await {
        tracing::warn!(%error, "the lock was not released; it lapses");
    }
}

/// Serves until the lead ends or the server stops.
async fn lead_shard(
    options: &Options,
    election: &mut Election,
    lead: Lead,
    bound: &watch::Sender<Option<Bound>>,
    stop: &CancellationToken,
) -> Result<(), TermError> {
    let term = Arc::new(Term::open(Arc::clone(&options.context), lead.clone()).await?);
    let parts = parts(options, &term);
    let tls = server_tls(options)?;
    let _ports = open_ports(options, &parts, &tls, bound).await?;
    let ended = async {
        tokio::select! {
            () = stop.cancelled() => {}
            () = lead.ended() => {}
            () = renew_shard(election, options.timing, &lead) => {}
        }
    };
    tokio::select! {
        () = ended => Ok(()),
        error = rounds(&term) => Err(error),
        error = collect(&term) => Err(error),
        () = lead_cluster(options, &parts.cluster_lead) => Ok(()),
        error = exchange(options, &tls) => Err(error),
    }
}

fn parts(options: &Options, term: &Arc<Term>) -> Parts {
    let context = &options.context;
    let registrar = Registrar {
        store: Arc::clone(&context.store),
        authority: Arc::clone(&options.identity.authority),
        nonces: Arc::clone(&options.identity.nonces),
        cluster: context.cluster.clone(),
        shard: context.shard.clone(),
        layout: context.layout.clone(),
        lifetimes: options.identity.lifetimes,
    };
    Parts {
        term: Arc::clone(term),
        registrar: Arc::new(registrar),
        cluster_lead: ClusterLead::default(),
        clock: context.clock.clone(),
    }
}

fn server_tls(options: &Options) -> Result<ServerTls, TermError> {
    let (authority, clock) = (&options.identity.authority, &options.context.clock);
    let identity = authority.issue_server(&options.hosts, clock.now(), CERTIFICATE).map_err(setup)?;
    ServerTls::new(authority.certificate_pem(), &identity, Arc::new(clock.clone())).map_err(setup)
}

/// New connections get a new certificate after half the life of the old one.
async fn exchange(options: &Options, tls: &ServerTls) -> TermError {
    loop {
        tokio::time::sleep(CERTIFICATE / 2).await;
        let now = options.context.clock.now();
        let issued = options.identity.authority.issue_server(&options.hosts, now, CERTIFICATE);
        let replaced = issued.map_err(setup).and_then(|identity| tls.replace(&identity).map_err(setup));
        if let Err(error) = replaced {
            return error;
        }
    }
}

/// What keeps a leader from serving, and is not storage's fault.
fn setup(error: impl std::error::Error) -> TermError {
    TermError::Damaged { key: "the server's identity or ports".to_owned(), why: error.to_string() }
}

async fn open_ports(
    options: &Options,
    parts: &Parts,
    tls: &ServerTls,
    bound: &watch::Sender<Option<Bound>>,
) -> Result<[Listener; 3], TermError> {
    let (ports, mutual) = (options.ports, tls.mutual().map_err(setup)?);
    let open = tls.open().map_err(setup)?;
    let registration = registration_service(parts.clone());
    let registration = Listener::bind(ports.registration, open, OPERATORS, registration).await.map_err(setup)?;
    let operator = operator_service(parts.clone());
    let operator = Listener::bind(ports.operator, Arc::clone(&mutual), OPERATORS, operator).await.map_err(setup)?;
    let agent = Listener::bind(ports.agent, mutual, AGENTS, agent_service(parts.clone())).await.map_err(setup)?;
    bound.send_replace(Some(Bound {
        registration: registration.address,
        operator: operator.address,
        agent: agent.address,
    }));
    Ok([registration, operator, agent])
}

async fn renew_shard(election: &mut Election, timing: Timing, lead: &Lead) {
    loop {
        tokio::time::sleep(timing.renew).await;
        match election.look().await {
            Ok(Role::Leader(current)) if current.epoch() == lead.epoch() => {}
            Ok(_) => return,
            // The lead lasts as long as it lasts; the next renewal may succeed.
            Err(error) => tracing::warn!(%error, "the lock was not renewed"),
        }
    }
}

/// Carries rounds out when something changed, and when time is due.
async fn rounds(term: &Term) -> TermError {
    loop {
        let next = match term.settle_due().await {
            Ok(next) => next,
            Err(TermError::Lost(error)) => return error.into(),
            Err(error) => {
                tracing::warn!(%error, "a round was not finished");
                term.enqueue_all();
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let wait = term.until(next);
        tokio::select! {
            () = term.wake.notified() => {}
            () = tokio::time::sleep(wait) => term.enqueue_all(),
        }
    }
}

/// Looks at all machines at intervals, and removes those that no record owns.
async fn collect(term: &Term) -> TermError {
    loop {
        tokio::time::sleep(term.collection_interval()).await;
        match term.sweep().await {
            Ok(_) => {}
            Err(TermError::Lost(error)) => return error.into(),
            Err(error) => tracing::warn!(%error, "the machines were not looked at"),
        }
    }
}

/// Only a shard's leader stands for the cluster: a standby could neither register nor renew anyone.
async fn lead_cluster(options: &Options, current: &ClusterLead) {
    let store = Arc::clone(&options.context.store);
    let mut election = Election::new(store, layout::CLUSTER_LOCK, &options.holder, "", options.timing);
    loop {
        let wait = match election.look().await {
            Ok(Role::Leader(lead)) => {
                current.store(Some(Arc::new(lead)));
                options.timing.renew
            }
            Ok(Role::Standby { look_in, .. }) => {
                current.store(None);
                look_in
            }
            Err(error) => {
                tracing::warn!(%error, "election of the cluster's leader");
                PAUSE
            }
        };
        tokio::time::sleep(wait.max(Duration::from_millis(10))).await;
    }
}
