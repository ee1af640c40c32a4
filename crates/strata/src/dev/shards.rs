//! Two zones: a server each for the shards `dev-1` and `dev-2`, whose machines are processes that stand for Nodes.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::Path,
    time::Duration,
};

use futures::future::{join_all, try_join_all};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams},
};
use serde::{Deserialize, Serialize};
use serde_json::json;
use shard::{
    clock::Clock,
    provider::{Process, Provider, ProviderError},
    store::FileStore,
};
use testbed::{
    control_plane::{READY_PATIENCE, free_port_beside},
    process::{Child, Program},
};
use tokio::{net::TcpStream, time::Instant};

use super::{
    cluster::{Cluster, POLL, dynamic},
    event::Report,
    machines,
    place::Place,
};
use crate::{Failure, shard as command};

pub const NAMES: [&str; 2] = ["dev-1", "dev-2"];
pub const CLUSTER: &str = "dev";
/// As whom agents keep their Nodes.
pub const AGENT: &str = "strata-agent";

/// For both its locks; one that is slower is killed, and its successor waits for the leader's timeout.
const STOP_GRACE: Duration = Duration::from_secs(5);
/// Ports are free when they are drawn; another program takes one in the moment after once in a thousand starts.
const PORT_ATTEMPTS: usize = 3;

/// Where a zone's server listens: `host:port` each, the same from run to run as long as the ports are free.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoints {
    pub health: SocketAddr,
    pub election: SocketAddr,
    pub registration: SocketAddr,
    pub operator: SocketAddr,
    pub agent: SocketAddr,
}

/// The running servers.
pub struct Shards {
    servers: Vec<Child>,
    pub endpoints: BTreeMap<String, Endpoints>,
}

/// `shard-dev-1`.
fn name(shard: &str) -> String {
    format!("shard-{shard}")
}

pub fn log(shard: &str) -> String {
    format!("{}.log", name(shard))
}

impl Shards {
    /// Starts both and waits until they lead. `kubeconfig` is the agents' own.
    pub async fn start(place: &Place, cluster: &Cluster, kubeconfig: &Path, report: &Report) -> Result<Self, Failure> {
        report.step("zones", format!("starting the servers of {}", NAMES.join(" and ")));
        for object in rights() {
            cluster.apply(&object).await?;
        }
        end_machines(place).await?;
        forget_nodes(cluster).await?;
        init(place, kubeconfig).await?;
        let shards = Self::listening(place).await?;
        choose(place, &shards.endpoints)?;
        report.done("zones", format!("{} serve; their instances are the Nodes of the pool `web`", NAMES.join(", ")));
        Ok(shards)
    }

    async fn listening(place: &Place) -> Result<Self, Failure> {
        let mut endpoints = draw(&place.endpoints());
        for _ in 1..PORT_ATTEMPTS {
            match Self::try_start(place, endpoints).await {
                Err(failure) if failure.message.contains("in use") => endpoints = draw(&BTreeMap::new()),
                result => return result,
            }
        }
        Self::try_start(place, endpoints).await
    }

    async fn try_start(place: &Place, endpoints: BTreeMap<String, Endpoints>) -> Result<Self, Failure> {
        let servers = endpoints.iter().map(|(shard, endpoints)| Ok(Child::start(program(place, shard, endpoints)?)?));
        let servers: Vec<Child> = servers.collect::<Result<_, Failure>>()?;
        try_join_all(servers.iter().zip(endpoints.values()).map(|(server, endpoints)| leads(server, endpoints)))
            .await?;
        Ok(Self { servers, endpoints })
    }

    pub fn children(&self) -> &[Child] {
        &self.servers
    }

    /// The servers first, so that none of them starts again what is ended then.
    pub async fn stop(self, place: &Place) -> Result<(), Failure> {
        try_join_all(self.servers.iter().map(|server| server.terminate(STOP_GRACE))).await?;
        end_machines(place).await
    }
}

/// Chooses where the zones will serve, before they do: the operator is started beside them.
pub fn announce(place: &Place) -> Result<(), Failure> {
    choose(place, &draw(&place.endpoints()))
}

fn choose(place: &Place, endpoints: &BTreeMap<String, Endpoints>) -> Result<(), Failure> {
    place.write_endpoints(endpoints)?;
    machines::write_config(place, endpoints)
}

/// Ends what runs of both zones, without a trace for the next server but the machines' absence. Machines end by
/// themselves when the environment does; this waits for it, and lets their agents take their Nodes with them.
pub async fn end_machines(place: &Place) -> Result<(), Failure> {
    let fail = |error: ProviderError| Failure::new(format!("cannot end the instances of the zones: {error}"));
    for shard in NAMES {
        let directory = place.machines(shard);
        if !directory.is_dir() {
            continue;
        }
        let machines = Process::open(&directory, Clock::default()).map_err(fail)?;
        let all = machines.list(CLUSTER, shard).await.map_err(fail)?;
        let ended = join_all(all.iter().map(|machine| machines.delete(&machine.instance_id))).await;
        ended.into_iter().collect::<Result<(), _>>().map_err(fail)?;
    }
    Ok(())
}

/// Removes the Nodes of instances of a run that was killed: no instance lives when the servers start.
async fn forget_nodes(cluster: &Cluster) -> Result<(), Failure> {
    let nodes = Api::<Node>::all(cluster.client.clone());
    let of_zones = ListParams::default().labels(&format!("nstance.dev/shard in ({})", NAMES.join(",")));
    for node in nodes.list_metadata(&of_zones).await? {
        match nodes.delete(&node.name_any(), &DeleteParams::default()).await {
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            result => drop(result?),
        }
    }
    Ok(())
}

/// Makes what is missing of the storage. What is there keeps the user's changes.
async fn init(place: &Place, kubeconfig: &Path) -> Result<(), Failure> {
    let cannot = |error: std::io::Error| Failure::new(format!("cannot use {}: {error}", place.storage().display()));
    let store = FileStore::open(place.storage()).map_err(cannot)?;
    for shard in NAMES {
        command::make(&store, CLUSTER, shard, config(place, shard, kubeconfig), None).await?;
    }
    Ok(())
}

/// Times are those of a person who watches, not of a zone with machines that take minutes.
fn config(place: &Place, shard: &str, kubeconfig: &Path) -> String {
    let arch = if std::env::consts::ARCH == "aarch64" { "arm64" } else { "amd64" };
    let config = json!({
        "cluster": { "id": CLUSTER },
        "shard": {
            "id": shard,
            "provider": {
                "kind": "process",
                "directory": place.machines(shard),
                "kubeconfig": kubeconfig,
                "lock": place.lock(),
                "region": CLUSTER,
                "zone": shard,
            },
            "subnet_pools": { "default": ["local"] },
            "health_check_interval": "10s",
            "default_drain_timeout": "30s",
            "garbage_collection": { "interval": "15s", "registration_timeout": "1m" },
            "election": { "frequent": "1s", "leader_timeout": "15s" },
        },
        "templates": { "web": { "kind": "web", "arch": arch, "subnet_pool": "default" } },
    });
    command::commented(shard, &config)
}

fn program(place: &Place, shard: &str, endpoints: &Endpoints) -> Result<Program, Failure> {
    let binary = std::env::current_exe()
        .map_err(|error| Failure::new(format!("cannot find this program's own file: {error}")))?;
    let log = place.file(&log(shard));
    // A failed start is explained by its own lines only.
    let _ = std::fs::remove_file(&log);
    let addresses = [
        ("health", endpoints.health),
        ("election", endpoints.election),
        ("registration", endpoints.registration),
        ("operator", endpoints.operator),
        ("agent", endpoints.agent),
    ];
    Ok(Program::new(name(shard), binary, log)
        .args(["shard", "run", shard, "--log-format", "json", "--advertise-host", "127.0.0.1,localhost"])
        .args(["--storage".into(), place.storage().into_os_string()])
        .args(addresses.map(|(name, address)| format!("--{name}-bind-address={address}")))
        // Any free port: `/metrics` is in the server's log.
        .args(["--metrics-bind-address", "127.0.0.1:0"]))
}

/// Waits until the server listens for agents, which it does last.
async fn leads(server: &Child, endpoints: &Endpoints) -> Result<(), Failure> {
    let deadline = Instant::now() + READY_PATIENCE;
    while TcpStream::connect(endpoints.agent).await.is_err() {
        let (name, log, tail) = (&server.program().name, server.program().log.display(), server.log_tail());
        if !server.is_running() {
            let status = server.exited().await;
            return Err(Failure::new(format!("{name} ended with status {status}; the end of {log}:\n{tail}")));
        }
        if Instant::now() > deadline || tail.contains("in use") {
            return Err(Failure::new(format!("{name} does not lead its shard; the end of {log}:\n{tail}")));
        }
        tokio::time::sleep(POLL).await;
    }
    Ok(())
}

/// Addresses for both zones: those of before, if they are free.
fn draw(before: &BTreeMap<String, Endpoints>) -> BTreeMap<String, Endpoints> {
    let mut taken = BTreeSet::new();
    let mut one = |shard: &str| {
        if let Some(before) = before.get(shard).filter(|before| before.all().into_iter().all(is_free)) {
            taken.extend(before.all().map(|address| address.port()));
            return before.clone();
        }
        let mut next = || SocketAddr::from((Ipv4Addr::LOCALHOST, free_port_beside(&mut taken)));
        Endpoints { health: next(), election: next(), registration: next(), operator: next(), agent: next() }
    };
    NAMES.map(|shard| (shard.to_owned(), one(shard))).into()
}

fn is_free(address: SocketAddr) -> bool {
    TcpListener::bind(address).is_ok()
}

impl Endpoints {
    fn all(&self) -> [SocketAddr; 5] {
        [self.health, self.election, self.registration, self.operator, self.agent]
    }
}

/// What agents may do: Nodes and their Leases.
fn rights() -> [kube::api::DynamicObject; 4] {
    let rights = agent::rights::rights(AGENT);
    [dynamic(&rights.cluster_role), dynamic(&rights.cluster_binding), dynamic(&rights.role), dynamic(&rights.binding)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_stay_the_same_unless_one_is_taken_and_differ_from_each_other() {
        let first = draw(&BTreeMap::new());
        assert_eq!(first.keys().collect::<Vec<_>>(), NAMES);
        let ports: BTreeSet<u16> = first.values().flat_map(Endpoints::all).map(|address| address.port()).collect();
        assert_eq!(ports.len(), 10);
        assert_eq!(draw(&first), first);
        let _taken = TcpListener::bind(first["dev-1"].operator).unwrap();
        let next = draw(&first);
        assert_ne!(next["dev-1"].operator, first["dev-1"].operator);
        assert_eq!(next["dev-2"], first["dev-2"]);
    }

    #[test]
    fn the_first_configuration_is_good() {
        let directory = tempfile::tempdir().unwrap();
        let place = Place::choose(Some(directory.path().to_owned()), None).unwrap();
        let text = config(&place, "dev-1", Path::new("/x/kubeconfig"));
        let (config, findings) = shard::config::parse(&text);
        assert_eq!(findings, plan::shard::config::Findings::default());
        let config = config.unwrap();
        assert_eq!((&*config.cluster.id, &*config.shard.id), ("dev", "dev-1"));
        assert!(config.groups.is_empty() && config.templates.keys().eq(["web"]));
    }
}
