//! A server's life: it stands for its shard, and while it leads it serves.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use plan::shard::election::Timing;
use process::explained;
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{
    election_port::ElectionPort,
    limits::{Limits, Unary},
    listener::Listener,
    said::Said,
    schedule::rounds,
    service::{ClusterLead, Parts, agent_service, operator_service, registration_service},
    standby::Standby,
    standing::Standing,
    term::{Context, Term, TermError, load_config},
};
use crate::{
    identity::{Authority, Lifetimes, Nonces, Registrar, ServerTls, web_client_tls},
    store::{
        Election, Lead, Lost, Role,
        conformance::{Unfit, prove},
        layout,
    },
    wire::MESSAGE_LIMIT,
};

/// A server certificate lasts a day and is exchanged after half of it.
const CERTIFICATE: Duration = Duration::from_hours(24);

/// The agents' port pings as the original's: an agent behind a dead link is noticed in half a minute. An agent has one
/// connection with three streams, and a second one while it reconnects.
const AGENTS: Limits =
    Limits { ping: (Duration::from_secs(20), Duration::from_secs(10)), connections: 4, calls: 8, unary: None };

/// Operators are few and poll every 30 s by themselves. A call has time for the provider's and storage's deadlines, and
/// two requests of the largest size fit, and four such answers.
const OPERATORS: Limits = Limits {
    ping: (Duration::from_mins(1), Duration::from_secs(20)),
    connections: 16,
    calls: 64,
    unary: Some(Unary {
        deadline: Duration::from_mins(1),
        bytes: 2 * MESSAGE_LIMIT,
        answers: 4 * MESSAGE_LIMIT,
        streams: "Watch",
        watches: WATCHES,
    }),
};

/// Of one operator: three at a time, and those that were replaced and stay open until their connections end.
const WATCHES: usize = 64;

/// So long a clock that was set may refuse new connections.
const CERTIFICATE_CHECK: Duration = Duration::from_secs(30);

/// Entries of the certificate log live for days to a year: a day more costs nothing, and reading all of them does.
const PURGE: Duration = Duration::from_hours(24);

/// After an error that may pass: storage that is away, a damaged object that is repaired.
const PAUSE: Duration = Duration::from_secs(1);

/// Who the server is in the cluster.
pub struct Identity {
    pub authority: Arc<Authority>,
    pub nonces: Arc<Nonces>,
    pub lifetimes: Lifetimes,
}

/// Where it listens. Port 0 takes any.
#[derive(Clone, Copy, Debug)]
pub struct Ports {
    /// Open for as long as the server runs; the others while it leads.
    pub election: SocketAddr,
    pub registration: SocketAddr,
    pub operator: SocketAddr,
    pub agent: SocketAddr,
}

/// Everything a server is started with.
pub struct Options {
    pub context: Arc<Context>,
    pub identity: Identity,
    pub ports: Ports,
    /// Under which clients reach it: names and addresses for its certificate. Other servers use the first.
    pub hosts: Vec<String>,
    /// One run of one server.
    pub holder: String,
    pub timing: Timing,
    /// Says from outside what the server is.
    pub standing: Standing,
}

/// Where a leader listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    pub registration: SocketAddr,
    pub operator: SocketAddr,
    pub agent: SocketAddr,
}

/// Why a server does not run at all.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error("this storage may not hold a shard")]
    Unfit(#[from] Unfit),
    #[error(transparent)]
    Setup(#[from] TermError),
}

/// Runs until `stop`; then it releases what it leads. `bound` says where it listens, while it does.
pub async fn run(
    options: Options,
    bound: watch::Sender<Option<Bound>>,
    stop: CancellationToken,
) -> Result<(), RunError> {
    let Some(ready) = stop.run_until_cancelled(prepare(&options)).await else { return Ok(()) };
    ready?;
    let tls = server_tls(&options)?;
    let web = tls.web().map_err(setup)?;
    let port = ElectionPort::bind(options.ports.election, web, options.standing.clone()).await.map_err(setup)?;
    options.standing.set_election(port.address);
    let address = advertised(&options.hosts, port.address);
    let store = Arc::clone(&options.context.store);
    let lock = options.context.layout.lock();
    let mut election = Election::new(store, &lock, &options.holder, &address, options.timing);
    let server = Server { options: &options, tls: &tls, port: &port, address: &address, bound: &bound, stop: &stop };
    let stood = tokio::select! {
        stood = server.stand(&mut election) => stood,
        error = exchange(&options, &tls) => Err(error),
    };
    // Released first, then the connections of standbys end with the port: they look, and find the lock free.
    if let Err(error) = election.release().await {
        tracing::warn!(error = %explained(&error), "the lock was not released; it lapses");
    }
    drop(port);
    Ok(stood?)
}

/// What must hold before the server stands for its shard: storage that refuses stale writes, and a configuration.
async fn prepare(options: &Options) -> Result<(), Unfit> {
    let (context, mut said) = (&options.context, Said::default());
    loop {
        let unique = format!("{:032x}", (context.ids)());
        match prove(&*context.store, &unique).await {
            Ok(()) => break,
            Err(Unfit::Failed { what, source }) => {
                let error = explained(&source);
                if said.is_news(&error) {
                    tracing::warn!(error, "storage is not proven yet: it failed {what}; it is tried until it does not");
                }
            }
            Err(unfit) => return Err(unfit),
        }
        tokio::time::sleep(PAUSE).await;
    }
    while let Err(error) = load_config(context).await {
        let error = explained(&error);
        if said.is_news(&error) {
            tracing::error!(error, "no configuration yet; it is read again until it is good");
        }
        tokio::time::sleep(PAUSE).await;
    }
    options.standing.set_loaded();
    Ok(())
}

/// Where other servers find the election port.
fn advertised(hosts: &[String], bound: SocketAddr) -> String {
    match hosts.first().map(|host| (host, host.parse::<IpAddr>())) {
        Some((_, Ok(ip))) => SocketAddr::new(ip, bound.port()).to_string(),
        Some((host, Err(_))) => format!("{host}:{}", bound.port()),
        None => bound.to_string(),
    }
}

/// One run of one server.
struct Server<'a> {
    options: &'a Options,
    tls: &'a ServerTls,
    port: &'a ElectionPort,
    /// Of the election port.
    address: &'a str,
    bound: &'a watch::Sender<Option<Bound>>,
    stop: &'a CancellationToken,
}

impl Server<'_> {
    /// Stands for the shard, and serves while it leads.
    async fn stand(&self, election: &mut Election) -> Result<(), TermError> {
        // Once each: a damaged object ends every lead, or every look, and is tried every second.
        let (mut standby, mut ended, mut failed) = (self.standby()?, Said::default(), Said::default());
        let mut followed = Said::default();
        while !self.stop.is_cancelled() {
            let looked = election.look().await;
            if looked.is_ok() && failed.ends() {
                tracing::info!("the election goes on");
            }
            match looked {
                Ok(Role::Leader(lead)) => {
                    followed.ends();
                    self.options.standing.set_shard(Some(&lead));
                    let led = self.lead_shard(election, lead).await;
                    self.options.standing.set_shard(None);
                    self.options.standing.set_bound(None);
                    self.options.standing.set_term(None);
                    self.bound.send_replace(None);
                    match led.map_err(|error| explained(&error)) {
                        Ok(()) => drop(ended.ends()),
                        Err(error) if ended.is_news(&error) => tracing::error!(error, "the lead ended"),
                        Err(_) => {}
                    }
                    if !self.stop.is_cancelled() {
                        self.port.hang_up();
                        self.stop.run_until_cancelled(tokio::time::sleep(PAUSE)).await;
                    }
                }
                Ok(Role::Standby { leader, look_in }) => {
                    // Another server leads, and knows better.
                    self.options.standing.set_groups_damaged(false);
                    if let Some(leader) = leader.as_deref().filter(|leader| followed.is_news(leader)) {
                        tracing::info!(leader, "stands by");
                    }
                    self.stop.run_until_cancelled(standby.wait(leader.as_deref(), look_in)).await;
                }
                Err(error) => {
                    let error = explained(&error);
                    if failed.is_news(&error) {
                        tracing::warn!(error, "election; it is tried again until it succeeds");
                    }
                    self.stop.run_until_cancelled(tokio::time::sleep(PAUSE)).await;
                }
            }
        }
        Ok(())
    }

    fn standby(&self) -> Result<Standby, TermError> {
        let (authority, clock) = (&self.options.identity.authority, &self.options.context.clock);
        Ok(Standby::new(web_client_tls(authority.certificate_pem(), Arc::new(clock.clone())).map_err(setup)?))
    }

    /// Leads until the lead ends or the server stops.
    async fn lead_shard(&self, election: &mut Election, lead: Lead) -> Result<(), TermError> {
        let options = self.options;
        let (store, current) = (Arc::clone(&options.context.store), ClusterLead::default());
        let mut cluster = Election::new(store, layout::CLUSTER_LOCK, &options.holder, self.address, options.timing);
        // Renewed from the first moment: to read thousands of records may take longer than a lead lasts.
        let led = tokio::select! {
            () = self.stop.cancelled() => Ok(()),
            () = lead.ended() => Ok(()),
            () = renew_shard(election, options.timing, &lead) => Ok(()),
            led = self.serve(&lead, &mut cluster, &current) => led,
        };
        self.set_cluster(&current, None);
        if let Err(error) = cluster.release().await {
            tracing::warn!(error = %explained(&error), "the cluster's lock was not released; it lapses");
        }
        led
    }

    /// Opens the shard, and serves until that fails.
    async fn serve(&self, lead: &Lead, cluster: &mut Election, current: &ClusterLead) -> Result<(), TermError> {
        let options = self.options;
        let opened = Term::open(Arc::clone(&options.context), lead.clone()).await;
        let groups = options.context.layout.groups();
        let is_damaged = matches!(&opened, Err(TermError::Damaged { key, .. }) if *key == groups);
        options.standing.set_groups_damaged(is_damaged);
        let term = Arc::new(opened?);
        options.standing.set_term(Some(Arc::clone(&term)));
        let parts = parts(options, &term, current);
        let _ports = open_ports(options, &parts, self.tls, self.bound).await?;
        options.standing.set_bound(*self.bound.borrow());
        Err(tokio::select! {
            error = rounds(&term) => error,
            error = collect(&term, current) => error,
            error = follow(&term) => error,
            error = self.lead_cluster(cluster, current) => error,
        })
    }

    /// Only a shard's leader stands for the cluster: a standby could neither register nor renew anyone.
    async fn lead_cluster(&self, election: &mut Election, current: &ClusterLead) -> TermError {
        let mut standby = match self.standby() {
            Ok(standby) => standby,
            Err(error) => return error,
        };
        let mut failed = Said::default();
        loop {
            let began = Instant::now();
            let looked = election.look().await;
            if looked.is_ok() && failed.ends() {
                tracing::info!("the election of the cluster's leader goes on");
            }
            match looked {
                Ok(Role::Leader(lead)) => {
                    self.set_cluster(current, Some(lead));
                    tokio::time::sleep_until(began + self.options.timing.renew).await;
                }
                Ok(Role::Standby { leader, look_in }) => {
                    self.set_cluster(current, None);
                    standby.wait(leader.as_deref(), look_in.max(Duration::from_millis(10))).await;
                }
                Err(error) => {
                    let error = explained(&error);
                    if failed.is_news(&error) {
                        tracing::warn!(error, "election of the cluster's leader; it is tried again until it succeeds");
                    }
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    fn set_cluster(&self, current: &ClusterLead, lead: Option<Lead>) {
        self.options.standing.set_cluster(lead.clone());
        current.store(lead.map(Arc::new));
    }
}

fn parts(options: &Options, term: &Arc<Term>, cluster_lead: &ClusterLead) -> Parts {
    let context = &options.context;
    let (lifetimes, configured) = (options.identity.lifetimes, Arc::clone(term));
    let registrar = Registrar {
        store: Arc::clone(&context.store),
        authority: Arc::clone(&options.identity.authority),
        nonces: Arc::clone(&options.identity.nonces),
        cluster: context.cluster.clone(),
        shard: context.shard.clone(),
        layout: context.layout.clone(),
        lifetimes: Box::new(move || lifetimes.configured(&configured.certificates())),
    };
    Parts {
        term: Arc::clone(term),
        registrar: Arc::new(registrar),
        cluster_lead: ClusterLead::clone(cluster_lead),
        clock: context.clock.clone(),
    }
}

fn server_tls(options: &Options) -> Result<ServerTls, TermError> {
    let (authority, clock) = (&options.identity.authority, &options.context.clock);
    let identity = authority.issue_server(&options.hosts, clock.now(), CERTIFICATE).map_err(setup)?;
    ServerTls::new(authority.certificate_pem(), &identity, Arc::new(clock.clone())).map_err(setup)
}

/// New connections get a new certificate after half the life of the old one. By wall time, as clients judge it: a clock
/// that was set, or a machine that slept, must not leave the server with one that is over.
async fn exchange(options: &Options, tls: &ServerTls) -> TermError {
    let mut issued_at = options.context.clock.now();
    loop {
        tokio::time::sleep(CERTIFICATE_CHECK).await;
        let now = options.context.clock.now();
        if (issued_at..issued_at + CERTIFICATE / 2).contains(&now) {
            continue;
        }
        issued_at = now;
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
    // From the beginning of the write that won it, as the lead is measured.
    let mut next = lead.until().map_or_else(Instant::now, |until| until - timing.valid() + timing.renew);
    loop {
        tokio::time::sleep_until(next).await;
        // Slow storage must not make renewals rare as well.
        next = Instant::now() + timing.renew;
        match election.look().await {
            Ok(Role::Leader(current)) if current.epoch() == lead.epoch() => {}
            Ok(_) => return,
            // The lead lasts as long as it lasts; the next renewal may succeed, and comes sooner: after a whole interval
            // it would come when the lead is over.
            Err(error) => {
                tracing::warn!(error = %explained(&error), "the lock was not renewed");
                next = Instant::now() + PAUSE.min(timing.renew);
            }
        }
    }
}

/// Looks at all machines at intervals, and removes those that no record owns. Less often the certificate log and the
/// nonces are read.
async fn collect(term: &Term, cluster: &ClusterLead) -> TermError {
    let mut purge_at = Instant::now();
    loop {
        tokio::time::sleep(term.collection_interval()).await;
        if let Err(error) = term.recheck().await {
            tracing::warn!(error = %explained(&error), "the damaged records were not read again");
        }
        match term.sweep().await {
            Ok(_) => {}
            Err(TermError::Lost(error @ Lost::Ended)) => return error.into(),
            Err(error) => tracing::warn!(error = %explained(&error), "the machines were not looked at"),
        }
        if Instant::now() < purge_at {
            continue;
        }
        match purge(term).await {
            Ok(()) => purge_at = Instant::now() + PURGE,
            Err(TermError::Lost(error @ Lost::Ended)) => return error.into(),
            Err(error) => {
                tracing::warn!(error = %explained(&error), "the certificate log or agents' keys were not purged");
            }
        }
        // The cluster's leader does it; its lead may end meanwhile, and this shard's goes on.
        if let Some(lead) = cluster.load_full().filter(|lead| lead.is_valid())
            && let Err(error) = term.purge_operator_nonces(&lead).await
        {
            tracing::warn!(error = %explained(&error), "the nonces of operators were not purged");
        }
    }
}

async fn purge(term: &Term) -> Result<(), TermError> {
    term.purge_certificate_log().await?;
    term.purge_agent_keys().await?;
    Ok(())
}

/// Looks at machines whose agents hung up.
async fn follow(term: &Term) -> TermError {
    loop {
        let next = term.follow_up().await;
        tokio::select! {
            () = term.hung_up.notified() => {}
            () = tokio::time::sleep(term.until(next)) => {}
        }
    }
}
