//! What load balancers do: real connections, forwarded to targets that are healthy.

use std::{
    collections::{BTreeMap, HashMap},
    net::Ipv4Addr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::future::join_all;
use serde::Serialize;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
    time::{sleep, timeout},
};

use super::{balancer_service::Service, probe::Probe};

/// A listener whose address is still held by one that is ending tries again this soon.
const BIND_INTERVAL: Duration = Duration::from_millis(50);
/// A target on this machine accepts at once or not at all.
const CONNECT_LIMIT: Duration = Duration::from_secs(3);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Health {
    #[default]
    Unknown,
    Healthy,
    Unhealthy,
}

/// A load balancer as the forwarding sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct Forwarded {
    pub id: i64,
    /// Where it listens.
    pub addresses: Vec<Ipv4Addr>,
    pub services: Vec<Service>,
    pub targets: Vec<Ipv4Addr>,
}

/// Who moves the bytes of the load balancers.
pub trait Forwarding: Send + Sync {
    /// All load balancers there are, after every change.
    fn configure(&self, balancers: &[Forwarded]);

    /// Of one load balancer's targets, by listening port.
    fn health(&self, balancer: i64) -> BTreeMap<(u16, Ipv4Addr), Health>;
}

/// Load balancers that are entries in a list and nothing more.
#[derive(Debug)]
pub struct NoForwarding;

impl Forwarding for NoForwarding {
    fn configure(&self, _: &[Forwarded]) {}

    fn health(&self, _: i64) -> BTreeMap<(u16, Ipv4Addr), Health> {
        BTreeMap::new()
    }
}

type Known = Arc<Mutex<BTreeMap<Ipv4Addr, Health>>>;

/// Forwards TCP on loopback addresses.
#[derive(Debug)]
pub struct Forwarder {
    ports: Mutex<HashMap<(i64, u16), Port>>,
    /// Health checks run this many times as often as configured: tests do not wait for seconds.
    speed: u32,
}

/// One service of one load balancer; its tasks end with it.
#[derive(Debug)]
struct Port {
    service: Service,
    addresses: Vec<Ipv4Addr>,
    targets: watch::Sender<Vec<Ipv4Addr>>,
    health: Known,
    _tasks: JoinSet<()>,
}

impl Forwarder {
    pub fn new(speed: u32) -> Self {
        Self { ports: Mutex::default(), speed: speed.max(1) }
    }

    fn open(&self, balancer: &Forwarded, service: &Service) -> Port {
        let (targets, watched) = watch::channel(balancer.targets.clone());
        let health = Known::default();
        let mut tasks = JoinSet::new();
        tasks.spawn(check(service.clone(), self.speed, watched, Arc::clone(&health)));
        for address in &balancer.addresses {
            let at = (*address, service.listen_port);
            tasks.spawn(listen(at, service.destination_port, Arc::clone(&health)));
        }
        let addresses = balancer.addresses.clone();
        Port { service: service.clone(), addresses, targets, health, _tasks: tasks }
    }
}

impl Forwarding for Forwarder {
    fn configure(&self, balancers: &[Forwarded]) {
        let mut ports = locked(&self.ports);
        let wanted = |id: i64, port: &Port| {
            let balancer = balancers.iter().find(|balancer| balancer.id == id);
            balancer.is_some_and(|balancer| {
                balancer.addresses == port.addresses && balancer.services.contains(&port.service)
            })
        };
        ports.retain(|(id, _), port| wanted(*id, port));
        for balancer in balancers {
            for service in &balancer.services {
                let port = ports.entry((balancer.id, service.listen_port));
                let port = port.or_insert_with(|| self.open(balancer, service));
                port.targets.send_if_modified(|targets| {
                    let is_new = *targets != balancer.targets;
                    targets.clone_from(&balancer.targets);
                    is_new
                });
            }
        }
    }

    fn health(&self, balancer: i64) -> BTreeMap<(u16, Ipv4Addr), Health> {
        let ports = locked(&self.ports);
        let own = ports.iter().filter(|((id, _), _)| *id == balancer);
        own.flat_map(|((_, port), of)| locked(&of.health).clone().into_iter().map(|(to, is)| ((*port, to), is)))
            .collect()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn listen(at: (Ipv4Addr, u16), to: u16, health: Known) {
    let listener = loop {
        match TcpListener::bind(at).await {
            Ok(listener) => break listener,
            Err(error) => tracing::debug!(?at, %error, "a simulated load balancer cannot listen yet"),
        }
        sleep(BIND_INTERVAL).await;
    };
    let turn = AtomicUsize::new(0);
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((client, _)) = accepted else { continue };
                let healthy: Vec<Ipv4Addr> = {
                    let known = locked(&health);
                    known.iter().filter(|(_, health)| **health == Health::Healthy).map(|(to, _)| *to).collect()
                };
                // Without a healthy target the client is dropped, which closes its connection.
                if let Some(&target) = healthy.get(turn.fetch_add(1, Ordering::Relaxed) % healthy.len().max(1)) {
                    connections.spawn(forward(client, (target, to)));
                }
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn forward(mut client: TcpStream, to: (Ipv4Addr, u16)) {
    let Ok(Ok(mut target)) = timeout(CONNECT_LIMIT, TcpStream::connect(to)).await else { return };
    // Small messages go on at once, as they came: what waits for acknowledgements does so at both ends already.
    let _ = (client.set_nodelay(true), target.set_nodelay(true));
    // Either side may end the connection at any time: that is no fault of the forwarding.
    let _ = tokio::io::copy_bidirectional(&mut client, &mut target).await;
}

/// Keeps `health` up to date. A new target is checked at once.
async fn check(service: Service, speed: u32, mut targets: watch::Receiver<Vec<Ipv4Addr>>, health: Known) {
    let settings = &service.health_check;
    let interval = Duration::from_secs(settings.interval.into()) / speed;
    let probe = Probe::new(settings);
    let mut against: BTreeMap<Ipv4Addr, u32> = BTreeMap::new();
    loop {
        let current = targets.borrow_and_update().clone();
        let results = join_all(current.iter().map(|target| probe.run(*target))).await;
        {
            let mut known = locked(&health);
            known.retain(|target, _| current.contains(target));
            for (target, is_fine) in current.iter().zip(results) {
                let found = if is_fine { Health::Healthy } else { Health::Unhealthy };
                let before = known.get(target).copied().unwrap_or_default();
                let count = against.entry(*target).or_default();
                *count = if found == before { 0 } else { *count + 1 };
                if before == Health::Unknown || *count >= settings.retries {
                    known.insert(*target, found);
                    *count = 0;
                }
            }
        }
        tokio::select! {
            () = sleep(interval) => {}
            changed = targets.changed() => if changed.is_err() { return },
        }
    }
}
