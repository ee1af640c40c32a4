//! kube-controller-manager and kube-scheduler of a simulated cluster: one of each instead of one per control plane,
//! which would take 200 MB more per node. Beside them, where asked for, a stand-in for the cloud controller.

use std::{path::Path, sync::Arc, time::Duration};

use kube::Client;
use talos::{Authority, Pair};
use tokio_util::task::AbortOnDropHandle;

use super::{Cluster, ClusterError, apiserver, cloud_controller, node::Node, world::Shared};
use crate::{
    control_plane::CLIENT_LIMITS,
    pki::write_private,
    process::{Child, Program},
    tools,
    users::{self, Proof},
};

const PROGRAMS: [&str; 2] = ["kube-controller-manager", "kube-scheduler"];

/// How soon a silent Node is noticed, and what becomes of one whose server is gone.
#[derive(Clone, Copy, Debug)]
pub struct ControllerOptions {
    /// After how long without a Lease a Node is unknown.
    pub node_grace: Duration,
    /// How often Nodes are looked at.
    pub node_period: Duration,
    /// Whether a stand-in for the cloud controller deletes the Nodes of servers that are gone.
    pub cloud_controller: bool,
}

impl Default for ControllerOptions {
    /// Three Leases may be late; Kubernetes' own 50 s would be most of a test.
    fn default() -> Self {
        Self { node_grace: Duration::from_secs(10), node_period: Duration::from_secs(1), cloud_controller: false }
    }
}

/// Both programs, and the stand-in where it was asked for; they end when this is dropped. A program that ends before is
/// started again.
#[derive(Debug)]
pub struct Controllers {
    _programs: Vec<Arc<Child>>,
    _stand_in: Option<AbortOnDropHandle<()>>,
}

impl Cluster {
    /// Starts them against the cluster's endpoint.
    pub async fn start_controllers(&self, options: ControllerOptions) -> Result<Controllers, ClusterError> {
        let of = Of {
            cluster: &self.name,
            kubernetes: &self.secrets.kubernetes,
            service_account_key: &self.secrets.service_account_key,
            server: format!("https://{}:{}", self.endpoint, apiserver::PORT),
            world: self.world.shared(),
        };
        of.start(self.world.directory(), options).await.map_err(ClusterError::Controllers)
    }
}

impl Controllers {
    /// Of the cluster that a control plane is of.
    pub(super) async fn of(node: &Node, directory: &Path, options: ControllerOptions) -> Result<Self, String> {
        let keys = node.applied.control_plane.as_ref().ok_or("a worker has no keys")?;
        let of = Of {
            cluster: &node.applied.cluster_name,
            kubernetes: &node.applied.kubernetes,
            service_account_key: &keys.service_account,
            server: node.applied.endpoint.clone(),
            world: node.world.clone(),
        };
        of.start(directory, options).await
    }
}

/// Whose controllers they are.
struct Of<'a> {
    cluster: &'a str,
    kubernetes: &'a Pair,
    service_account_key: &'a str,
    server: String,
    world: Shared,
}

impl Of<'_> {
    async fn start(&self, directory: &Path, options: ControllerOptions) -> Result<Controllers, String> {
        let programs = tools::ensure(&PROGRAMS, &tools::Plain::default()).await.map_err(|error| error.to_string())?;
        let directory = directory.join(format!("{}-controllers", self.cluster));
        std::fs::create_dir_all(&directory)
            .map_err(|error| format!("cannot create {}: {error}", directory.display()))?;
        let file = |name: &str, text: &str| -> Result<String, String> {
            let path = directory.join(name);
            write_private(&path, text).map_err(|error| error.to_string())?;
            Ok(path.display().to_string())
        };
        let manager = [
            ("service-account-private-key-file", file("service-account.key", self.service_account_key)?),
            ("root-ca-file", file("ca.crt", &self.kubernetes.certificate)?),
            ("node-monitor-grace-period", format!("{}ms", options.node_grace.as_millis())),
            ("node-monitor-period", format!("{}ms", options.node_period.as_millis())),
        ];
        let own: [&[(&str, String)]; 2] = [&manager, &[]];
        let mut running = Vec::new();
        let mut stand_in = None;
        for ((name, path), own) in PROGRAMS.into_iter().zip(&programs).zip(own) {
            let kubeconfig = self.kubeconfig(&format!("system:{name}"))?;
            let text = serde_saphyr::to_string(&kubeconfig).expect("a JSON value has a YAML form");
            let kubeconfig = file(&format!("{name}.kubeconfig"), &text)?;
            let flags = own.iter().map(|(name, value)| format!("--{name}={value}"));
            let program = Program::new(name, path, directory.join(format!("{name}.log")))
                .args([format!("--kubeconfig={kubeconfig}")])
                .args(["--leader-elect=false", "--secure-port=0"])
                .args(CLIENT_LIMITS)
                .args(flags);
            let child = Arc::new(Child::start(program).map_err(|error| error.to_string())?);
            // Both also give up when they find no API server at their start.
            child.keep();
            running.push(child);
        }
        if options.cloud_controller {
            let kubeconfig = self.kubeconfig("system:cloud-controller-manager")?;
            let client = Client::try_from(users::own_config(kubeconfig).await).map_err(|error| error.to_string())?;
            let lasting = cloud_controller::run(client, self.world.clone(), options.node_period);
            stand_in = Some(AbortOnDropHandle::new(tokio::spawn(lasting)));
        }
        Ok(Controllers { _programs: running, _stand_in: stand_in })
    }

    /// Its controllers act under this one name, which alone has too few rights for them.
    fn kubeconfig(&self, user: &str) -> Result<serde_json::Value, String> {
        let authority = Authority::open(self.kubernetes.clone()).map_err(|error| error.to_string())?;
        let identity = apiserver::admin(&authority, user)?;
        Ok(users::kubeconfig(&self.server, authority.certificate(), &Proof::Certificate(identity)))
    }
}
