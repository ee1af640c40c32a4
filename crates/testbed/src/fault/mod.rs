//! A proxy between a client and the API server that makes the faults which a test asks for.
//!
//! It speaks plain HTTP/1.1 and HTTP/2 (prior knowledge) on a free loopback port. The credential of the upstream
//! kubeconfig is its own: whoever can reach the port acts as that user. Where that kubeconfig has none, the client's
//! bearer token is passed on. Upgrades (exec, attach, port-forward) are not.
//!
//! A crash at the third write of an operator, after the server has committed it:
//! ```no_run
//! # use testbed::fault::{Calls, Fault, FaultError, FaultProxy};
//! # async fn crash(proxy: &FaultProxy, mut operator: tokio::process::Child) -> Result<(), FaultError> {
//! let writes = Calls::writes("*").only_if(|request| request.resource != "leases");
//! let third = proxy.inject(writes.nth(3), Fault::HoldAfterCommit);
//! let write = third.reached().await?;
//! operator.start_kill()?;
//! println!("killed at {write}");
//! proxy.clear();
//! # Ok(())
//! # }
//! ```

mod forward;
mod log;
mod request;
mod rule;
mod watch;

use std::{
    fmt, io,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use hyper::service::service_fn;
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use kube::{
    Client,
    config::{Kubeconfig, KubeconfigError},
};
use tokio::{net::TcpListener, task::JoinSet};
use tokio_util::task::AbortOnDropHandle;

pub use self::{
    log::Seen,
    request::{ApiRequest, Verb},
    rule::{Calls, Fault, Injected},
    watch::HeldEvents,
};
use self::{
    rule::{Rule, lock},
    watch::{Command, Watches},
};
use crate::{process::RemovedAtEnd, users};

/// An operator has a connection per call in flight and one per watch: far below this, which only stops a runaway.
const MOST_CONNECTIONS: usize = 1024;

#[derive(Debug, thiserror::Error)]
pub enum FaultError {
    #[error("the fault proxy cannot listen or write its kubeconfig")]
    Io(#[from] io::Error),
    #[error("the upstream kubeconfig cannot be used")]
    Kubeconfig(#[from] KubeconfigError),
    #[error("no client can be made from the kubeconfig")]
    Client(#[source] Box<kube::Error>),
    #[error("no call met the fault in time: {0}")]
    NotReached(String),
}

/// The connection breaks here.
#[derive(Debug)]
struct Cut;

impl fmt::Display for Cut {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("connection cut")
    }
}

impl std::error::Error for Cut {}

struct Shared {
    upstream: Client,
    rules: Mutex<Vec<Arc<Rule>>>,
    watches: Arc<Watches>,
    log: log::Log,
}

impl Shared {
    /// Every rule counts the call; the first that takes it decides.
    fn rule_for(&self, request: &ApiRequest) -> Option<Arc<Rule>> {
        let mut chosen = None;
        for rule in lock(&self.rules).iter() {
            if rule.takes(request) && chosen.is_none() {
                chosen = Some(rule.clone());
            }
        }
        chosen
    }
}

/// The running proxy; it ends, with every connection, when dropped.
pub struct FaultProxy {
    shared: Arc<Shared>,
    address: SocketAddr,
    seed: u64,
    folder: tempfile::TempDir,
    /// Tests keep proxies in statics, which are never dropped.
    _removed: RemovedAtEnd,
    _server: AbortOnDropHandle<()>,
}

impl FaultProxy {
    /// Starts a proxy in front of the server of `upstream`, acting as its user. All chances follow `seed`.
    pub async fn start(upstream: Kubeconfig, seed: u64) -> Result<Self, FaultError> {
        let mut config = users::config(upstream).await?;
        // The client behind the proxy decides about retries; none may happen unseen here.
        config.default_retry = false;
        let upstream = Client::try_from(config).map_err(|error| FaultError::Client(Box::new(error)))?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let shared =
            Arc::new(Shared { upstream, rules: Mutex::default(), watches: Watches::new(), log: log::Log::default() });
        let folder = tempfile::Builder::new().prefix("strata-fault-").tempdir()?;
        let removed = RemovedAtEnd::new(folder.path())?;
        let server = AbortOnDropHandle::new(tokio::spawn(serve(listener, shared.clone())));
        let proxy = Self { shared, address, seed, folder, _removed: removed, _server: server };
        std::fs::write(proxy.kubeconfig_path(), proxy.kubeconfig_value().to_string())?;
        Ok(proxy)
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// A kubeconfig that leads through the proxy, without a credential.
    pub fn kubeconfig(&self) -> Kubeconfig {
        serde_json::from_value(self.kubeconfig_value()).expect("this is the form of a kubeconfig")
    }

    fn kubeconfig_value(&self) -> serde_json::Value {
        serde_json::json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "fault-proxy",
            "clusters": [{ "name": "fault-proxy", "cluster": { "server": self.url() } }],
            "users": [{ "name": "fault-proxy", "user": {} }],
            "contexts": [{ "name": "fault-proxy", "context": { "cluster": "fault-proxy", "user": "fault-proxy" } }],
        })
    }

    /// The same as a file, for programs. JSON is YAML.
    pub fn kubeconfig_path(&self) -> PathBuf {
        let folder: &Path = self.folder.path();
        folder.join("kubeconfig")
    }

    /// A client through the proxy that shows every fault: it does not retry by itself.
    pub async fn client(&self) -> Result<Client, FaultError> {
        let mut config = users::config(self.kubeconfig()).await?;
        config.default_retry = false;
        Client::try_from(config).map_err(|error| FaultError::Client(Box::new(error)))
    }

    /// From now on these calls meet this fault. Of several faults for one call the one injected first strikes, but the
    /// call counts for all.
    pub fn inject(&self, calls: Calls, fault: Fault) -> Injected {
        let mut rules = lock(&self.shared.rules);
        let number = u64::try_from(rules.len()).expect("a test injects few faults");
        let rule = Rule::new(calls, fault, self.seed.rotate_left(17) ^ number);
        let handle = rule.handle();
        rules.push(rule);
        handle
    }

    /// Ends all faults: held calls and held events go on.
    pub fn clear(&self) {
        for rule in lock(&self.shared.rules).drain(..) {
            rule.handle().end();
        }
        self.shared.watches.release_all();
    }

    /// All calls for resources so far, in the order they arrived.
    pub fn requests(&self) -> Vec<Seen> {
        self.shared.log.entries()
    }

    /// Breaks the live watches of a resource now; returns how many there were.
    pub fn cut_watches(&self, pattern: &str) -> usize {
        self.shared.watches.command(pattern, |_| Command::Cut)
    }

    /// Tells the live watches of a resource that their history is gone (410 in the stream); returns how many there were.
    pub fn expire_watches(&self, pattern: &str) -> usize {
        self.shared.watches.command(pattern, |_| Command::Expire)
    }

    /// Holds back the events of all watches of a resource, present and future.
    pub fn hold_events(&self, pattern: &str) -> HeldEvents {
        self.shared.watches.hold(pattern)
    }

    /// Sends past events once more into the live watches of a resource: those for which `choose` says so, oldest first,
    /// each watch only what a watch of the same selectors has shown. Returns how many watches there were.
    pub fn replay_events(&self, pattern: &str, choose: impl Fn(&serde_json::Value) -> bool) -> usize {
        let watches = &self.shared.watches;
        watches.command(pattern, |view| {
            let mut events = watches.past(view);
            events.retain(|event| serde_json::from_slice(event).is_ok_and(|event| choose(&event)));
            Command::Replay(events)
        })
    }
}

async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept(), if connections.len() < MOST_CONNECTIONS => match accepted {
                Ok((stream, _)) => {
                    // A watch event is one small write: without this it waits for the client's delayed acknowledgement.
                    let _ = stream.set_nodelay(true);
                    let shared = shared.clone();
                    connections.spawn(async move {
                        let service = service_fn(move |request| shared.clone().answer(request));
                        let served = auto::Builder::new(TokioExecutor::new())
                            .serve_connection(TokioIo::new(stream), service)
                            .await;
                        if let Err(error) = served {
                            tracing::debug!(%error, "connection ended");
                        }
                    });
                }
                Err(error) => tracing::warn!(%error, "the fault proxy could not accept a connection"),
            },
            Some(_) = connections.join_next() => {}
        }
    }
}
