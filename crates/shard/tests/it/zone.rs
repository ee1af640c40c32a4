//! A zone on loopback: servers of one shard in this process, with storage and machines in memory.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use plan::shard::election::Timing;
use shard::{
    client::{self, Addresses, Client, Registrant},
    clock::Clock,
    identity::{Authority, Claims, Lifetimes, Nonces, Role, client_tls, key_pair},
    provider::InProcess,
    server::{Bound, Context, Identity, Options, Ports, RunError, Standing, run},
    store::{Expect, MemoryStore, Store, layout::ShardLayout},
    wire,
};
use testbed::control_plane::free_ports;
use tokio::{sync::watch, task::JoinHandle};
use tokio_util::sync::CancellationToken;

const CONFIG: &str = r#"{
    "cluster": {"id": "dev"},
    "shard": {"id": "a", "provider": {"kind": "process"}, "subnet_pools": {"one": ["s1"]}},
    "templates": {"web": {"kind": "web", "arch": "amd64", "subnet_pool": "one"}},
    "groups": {"default": {"fixed": {"template": "web", "size": 1}}},
}"#;

/// For a server that no other one replaces: a busy machine must not cost it its lead, and with that its ports.
pub const STEADY: Timing = Timing { renew: Duration::from_secs(5), timeout: Duration::from_mins(10) };
/// For a server that follows a killed one within seconds. It takes a lock sooner than a living holder renews it.
pub const QUICK: Timing = Timing { renew: Duration::from_millis(300), timeout: Duration::from_secs(3) };

const DAY: Duration = Duration::from_hours(24);

pub struct Zone {
    pub store: MemoryStore,
    pub cloud: InProcess,
    pub authority: Arc<Authority>,
    pub nonces: Arc<Nonces>,
    pub clock: Clock,
    ids: Arc<AtomicU64>,
}

pub struct Server {
    pub bound: watch::Receiver<Option<Bound>>,
    stop: CancellationToken,
    task: JoinHandle<Result<(), RunError>>,
    pub standing: Standing,
}

impl Zone {
    pub async fn new() -> Self {
        Self::with(CONFIG, Clock::default()).await
    }

    pub async fn with(config: &str, clock: Clock) -> Self {
        // Another test of this process may have been first.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let store = MemoryStore::default();
        let key = ShardLayout::new("a").config();
        store.put(&key, config.as_bytes().to_vec(), Expect::Absent).await.expect("an empty store");
        let (authority, _) = Authority::create("dev", clock.now()).expect("an authority");
        let nonces = Nonces::load(&key_pair().serialize_pem()).expect("a key");
        let cloud = InProcess::new(clock.clone());
        let (authority, nonces) = (Arc::new(authority), Arc::new(nonces));
        Self { store, cloud, authority, nonces, clock, ids: Arc::new(AtomicU64::new(1)) }
    }

    /// Starts a server that binds any ports and is not replaced.
    pub fn start(&self, holder: &str) -> Server {
        self.start_with(holder, any(), STEADY)
    }

    pub fn start_with(&self, holder: &str, ports: Ports, timing: Timing) -> Server {
        self.start_on(Arc::new(self.store.clone()), holder, ports, timing)
    }

    pub fn start_on(&self, store: Arc<dyn Store>, holder: &str, ports: Ports, timing: Timing) -> Server {
        let (ids, standing) = (Arc::clone(&self.ids), Standing::default());
        let context = Context {
            cluster: "dev".to_owned(),
            shard: "a".to_owned(),
            layout: ShardLayout::new("a"),
            store,
            provider: Arc::new(self.cloud.clone()),
            clock: self.clock.clone(),
            ids: Box::new(move || u128::from(ids.fetch_add(1, Ordering::Relaxed))),
        };
        let identity = Identity {
            authority: Arc::clone(&self.authority),
            nonces: Arc::clone(&self.nonces),
            lifetimes: Lifetimes::default(),
        };
        let hosts = ["127.0.0.1".to_owned(), "::1".to_owned()].to_vec();
        let (context, holder) = (Arc::new(context), holder.to_owned());
        let options = Options { context, identity, ports, hosts, holder, timing, standing: standing.clone() };

        let (sender, bound) = watch::channel(None);
        let stop = CancellationToken::new();
        let task = tokio::spawn(run(options, sender, stop.clone()));
        Server { bound, stop, task, standing }
    }

    /// A client with a certificate that the authority issued without asking.
    pub fn client(&self, addresses: &str, subject: (&str, &str, Role)) -> Client {
        Client::new(addresses.parse().expect("addresses"), self.tls(Some(subject)))
    }

    pub fn tls(&self, subject: Option<(&str, &str, Role)>) -> Arc<rustls::ClientConfig> {
        let identity = subject.map(|subject| {
            let key = key_pair();
            let public = key.public_key_pem();
            let now = self.clock.now();
            let issued = self.authority.issue_client(subject, public.as_bytes(), now, DAY);
            (issued.expect("a certificate").0, key.serialize_pem())
        });
        let identity = identity.as_ref().map(|(certificate, key)| (&**certificate, &**key));
        client_tls(self.authority.certificate_pem(), identity, Arc::new(self.clock.clone())).expect("TLS")
    }

    /// Registers an operator by a nonce, as an operator would: until the cluster has its leader.
    pub async fn register(&self, address: SocketAddr, tenant: &str) -> Arc<rustls::ClientConfig> {
        let key = key_pair();
        let nonce = self.nonces.issue(&Claims::operator("dev", tenant, self.clock.now(), DAY)).expect("a nonce");
        let request = wire::RegisterClientRequest {
            registration_nonce_jwt: nonce,
            public_key_pem: key.public_key_pem().into_bytes(),
            ..wire::RegisterClientRequest::default()
        };
        let addresses: Addresses = address.to_string().parse().expect("an address");
        let certificate = loop {
            let answer =
                client::register(addresses.clone(), self.tls(None), Registrant::Operator, request.clone()).await;
            match answer {
                Ok(answer) => break answer.client_certificate_pem,
                Err(error) if error.code() == tonic::Code::FailedPrecondition => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                Err(error) => panic!("registration: {error}"),
            }
        };
        let certificate = String::from_utf8(certificate).expect("PEM");
        let identity = Some((&*certificate, &*key.serialize_pem()));
        client_tls(self.authority.certificate_pem(), identity, Arc::new(self.clock.clone())).expect("TLS")
    }
}

impl Server {
    /// Waits until it leads.
    pub async fn leads(&mut self) -> Bound {
        self.bound.wait_for(Option::is_some).await.expect("it runs").expect("just seen")
    }

    /// Ends it as SIGTERM would.
    pub async fn stop(self) {
        self.stop.cancel();
        self.task.await.expect("it stops").expect("it ran");
    }

    /// Waits until its election port is open.
    pub async fn election(&self) -> SocketAddr {
        eventually("the election port", || async { self.standing.election() }).await
    }

    /// Why it ended by itself.
    pub async fn ended(self) -> RunError {
        self.task.await.expect("it ends").expect_err("it does not run")
    }

    /// Ends it as SIGKILL would.
    pub fn kill(self) {
        self.task.abort();
    }
}

/// Any ports.
pub fn any() -> Ports {
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    Ports { election: any, registration: any, operator: any, agent: any }
}

/// Addresses that stay free while their server is down: outgoing connections do not take ports of this range.
pub fn free<const N: usize>(ip: impl Into<IpAddr>) -> [SocketAddr; N] {
    let ip = ip.into();
    free_ports().map(|port| SocketAddr::new(ip, port))
}

/// Asks until the answer is there: instances follow a request in their own time.
pub async fn eventually<T, F: Future<Output = Option<T>>>(what: &str, mut ask: impl FnMut() -> F) -> T {
    let until = tokio::time::Instant::now() + Duration::from_mins(2);
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(tokio::time::Instant::now() < until, "{what} did not happen");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Waits until the server has seen another report of an instance's agent.
pub async fn reported(client: &Client, id: &str) {
    let seen = || async {
        let status = client.instance_status(id).await.ok()?;
        status.last_seen.map(|time| (time.seconds, time.nanos))
    };
    let before = eventually("an answer", seen).await;
    eventually("a report", || async { seen().await.filter(|now| *now > before) }).await;
}

pub fn upsert(key: &str, size: i32) -> wire::UpsertGroupRequest {
    let config = wire::GroupConfig { template: "web".to_owned(), size, ..wire::GroupConfig::default() };
    wire::UpsertGroupRequest { key: key.to_owned(), config: Some(config), remove_first: vec![] }
}
