//! A zone on loopback: one shard's server in this process, with storage and machines in memory.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use machines::config::{ShardAddress, Shards};
use plan::shard::election::Timing;
use process::Clock;
use shard::{
    client::{self, Registrant},
    identity::{Authority, Claims, ClientKey, Lifetimes, Nonces, client_tls, key_pair},
    provider::InProcess,
    server::{Bound, Context, Identity, Options, Ports, Standing, run},
    store::{Expect, MemoryStore, Store, layout::ShardLayout},
    wire,
};
use tokio::{sync::watch, task::JoinHandle};
use tokio_util::sync::CancellationToken;

const CONFIG: &str = r#"{
    "cluster": {"id": "dev"},
    "shard": {"id": "a", "provider": {"kind": "process"}, "subnet_pools": {"one": ["s1"]}},
    "templates": {"web": {"kind": "web", "arch": "amd64", "subnet_pool": "one"}},
    "groups": {"default": {"fixed": {"template": "web", "size": 0}}},
}"#;

const DAY: Duration = Duration::from_hours(24);

/// Of servers that no other one replaces: a busy machine must not cost them their lead, and with that their ports.
pub const STEADY: Timing = Timing { renew: Duration::from_secs(5), timeout: Duration::from_mins(10) };
/// Certificates of operators last an hour, so that a stepped clock does not outlive those of the server.
pub const LIFETIME: Duration = Duration::from_hours(1);

/// One shard, `a`, whose server leads the cluster as well.
pub struct Zone {
    pub authority: Arc<Authority>,
    pub clock: Clock,
    nonces: Arc<Nonces>,
    bound: Bound,
    _server: Server,
}

struct Server(JoinHandle<()>);

impl Drop for Server {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Zone {
    pub async fn start(clock: Clock) -> Self {
        // Another test of this process may have been first.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let store = MemoryStore::default();
        let key = ShardLayout::new("a").config();
        store.put(&key, CONFIG.as_bytes().to_vec(), Expect::Absent).await.expect("an empty store");
        let (authority, _) = Authority::create("dev", clock.now()).expect("an authority");
        let (authority, nonces) =
            (Arc::new(authority), Arc::new(Nonces::load(&key_pair().serialize_pem()).expect("a key")));
        let ids = AtomicU64::new(1);
        let context = Context {
            cluster: "dev".to_owned(),
            shard: "a".to_owned(),
            layout: ShardLayout::new("a"),
            store: Arc::new(store),
            provider: Arc::new(InProcess::new(clock.clone())),
            clock: clock.clone(),
            ids: Box::new(move || u128::from(ids.fetch_add(1, Ordering::Relaxed))),
        };
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let options = Options {
            context: Arc::new(context),
            identity: Identity {
                authority: authority.clone(),
                nonces: nonces.clone(),
                lifetimes: Lifetimes { operator: LIFETIME, ..Lifetimes::default() },
            },
            ports: Ports { election: any, registration: any, operator: any, agent: any },
            hosts: vec!["127.0.0.1".to_owned()],
            holder: "test".to_owned(),
            timing: STEADY,
            standing: Standing::default(),
        };
        let (sender, mut bound) = watch::channel(None);
        let server = tokio::spawn(async move {
            run(options, sender, CancellationToken::new()).await.expect("it runs");
        });
        let bound = bound.wait_for(Option::is_some).await.expect("it runs").expect("just seen");
        Self { authority, clock, nonces, bound, _server: Server(server) }
    }

    pub fn ca(&self) -> String {
        self.authority.certificate_pem().to_owned()
    }

    /// For an operator of the tenant `default`.
    pub fn nonce(&self) -> String {
        self.nonces.issue(&Claims::operator("dev", "default", self.clock.now(), DAY)).expect("a nonce")
    }

    pub fn address(&self) -> ShardAddress {
        let text = |address: SocketAddr| address.to_string().parse().expect("an address");
        ShardAddress { operator: text(self.bound.operator), registration: text(self.bound.registration) }
    }

    /// This shard, and one before it at an address where nothing answers.
    pub fn shards(&self) -> Shards {
        let dead = |port: u16| format!("127.0.0.1:{port}").parse().expect("an address");
        let silent = ShardAddress { operator: dead(1), registration: dead(1) };
        [("a".to_owned(), self.address()), ("0-silent".to_owned(), silent)].into()
    }

    /// Uses a nonce as an operator with this key would.
    pub async fn spend(&self, nonce: &str, key: &ClientKey) {
        let tls = client_tls(&self.ca(), None, Arc::new(self.clock.clone())).expect("TLS");
        loop {
            let request = wire::RegisterClientRequest {
                registration_nonce_jwt: nonce.to_owned(),
                public_key_pem: key.public_pem.clone().into_bytes(),
                ..wire::RegisterClientRequest::default()
            };
            let call = client::register(self.address().registration, tls.clone(), Registrant::Operator, request);
            match call.await {
                Ok(_) => return,
                // It does not lead the cluster yet.
                Err(error) if error.code() == client::Code::FailedPrecondition => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                Err(error) => panic!("registration: {error}"),
            }
        }
    }
}
