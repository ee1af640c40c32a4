//! The agent against servers of a shard in this process, and a real API server.

mod life;
mod node;

// The zone of the shard's own tests.
#[path = "../../../shard/tests/it/zone.rs"]
#[allow(dead_code, reason = "the shard's tests use all of it")]
mod zone;

use std::{net::SocketAddr, path::Path, time::Duration};

use agent::{AgentError, NodeOptions, Options};
use shard::{
    client::Client,
    identity::{Claims, Role},
    server::Bound,
};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use zone::{Zone, eventually, reported};

const DAY: Duration = Duration::from_hours(24);

/// An instance of the zone's static group, and the folder of its agent.
struct Instance {
    id: String,
    folder: tempfile::TempDir,
}

/// An agent that runs as a task of this process.
struct Running {
    stop: CancellationToken,
    task: JoinHandle<Result<(), AgentError>>,
}

impl Instance {
    /// As userdata leaves it.
    async fn new(zone: &Zone) -> Self {
        let first = || async { zone.cloud.machines().first().map(|machine| machine.instance_id.clone()) };
        let id = eventually("the static group's instance", first).await;
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("ca.crt"), zone.authority.certificate_pem()).expect("a file");
        let instance = Self { id, folder };
        instance.write_nonce(&instance.nonce(zone));
        instance
    }

    fn nonce(&self, zone: &Zone) -> String {
        let claims = Claims::agent("dev", "default", &self.id, zone.clock.now(), DAY);
        zone.nonces.issue(&Claims { shard: "a".to_owned(), ..claims }).expect("a nonce")
    }

    fn write_nonce(&self, nonce: &str) {
        std::fs::write(self.path("nonce.jwt"), nonce).expect("a file");
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    fn options(&self, registration: &str, agent: &str, node: Option<NodeOptions>) -> Options {
        Options {
            instance_id: self.id.clone(),
            registration: registration.parse().expect("addresses"),
            agent: agent.parse().expect("addresses"),
            identity_dir: self.folder.path().to_owned(),
            hostname: self.id.clone(),
            ipv4: "127.0.0.1".to_owned(),
            ipv6: String::new(),
            report_interval: Duration::from_millis(50),
            notice_file: Some(self.path("notice")),
            notice_interval: Duration::from_millis(20),
            end_with_lock: None,
            node,
        }
    }

    fn start(&self, zone: &Zone, bound: &Bound, node: Option<NodeOptions>) -> Running {
        run(zone, self.options(&bound.registration.to_string(), &bound.agent.to_string(), node))
    }
}

fn run(zone: &Zone, options: Options) -> Running {
    let stop = CancellationToken::new();
    let task = tokio::spawn(agent::run(options, zone.clock.clone(), stop.clone()));
    Running { stop, task }
}

impl Running {
    /// As SIGTERM would.
    async fn stop(self) {
        self.stop.cancel();
        self.task.await.expect("it stops").expect("it worked");
    }

    /// As SIGKILL would.
    fn kill(self) {
        self.task.abort();
    }
}

fn operator(zone: &Zone, address: SocketAddr) -> Client {
    zone.client(&address.to_string(), ("dev", "default", Role::Operator))
}

fn exists(path: &Path) -> bool {
    path.try_exists().expect("a folder")
}
