//! kube-controller-manager and kube-scheduler of a simulated cluster: one of each instead of one per control plane,
//! which would take 200 MB more per node.

use std::{path::Path, time::Duration};

use talos::Authority;

use super::{Cluster, ClusterError, Error, apiserver};
use crate::{
    control_plane::CLIENT_LIMITS,
    pki::write_private,
    process::{Child, Program},
    tools,
    users::{self, Proof},
};

/// How soon a silent Node is noticed.
#[derive(Clone, Copy, Debug)]
pub struct ControllerOptions {
    /// After how long without a Lease a Node is unknown.
    pub node_grace: Duration,
    /// How often Nodes are looked at.
    pub node_period: Duration,
}

impl Default for ControllerOptions {
    /// Three Leases may be late; Kubernetes' own 50 s would be most of a test.
    fn default() -> Self {
        Self { node_grace: Duration::from_secs(10), node_period: Duration::from_secs(1) }
    }
}

/// Both programs; they end when this is dropped.
#[derive(Debug)]
pub struct Controllers {
    _programs: [Child; 2],
}

impl Cluster {
    /// Starts both against the cluster's endpoint.
    pub async fn start_controllers(&self, options: ControllerOptions) -> Result<Controllers, ClusterError> {
        let names = ["kube-controller-manager", "kube-scheduler"];
        let programs = tools::ensure(&names, &tools::Plain::default()).await.map_err(Error::from)?;
        let directory = self.world.directory().join(format!("{}-controllers", self.name));
        std::fs::create_dir_all(&directory).map_err(|source| Error::Machine {
            name: self.name.clone(),
            action: format!("cannot create {}", directory.display()),
            source,
        })?;
        let file = |name: &str, text: &str| -> Result<String, ClusterError> {
            let path = directory.join(name);
            write_private(&path, text).map_err(|error| ClusterError::Controllers(error.to_string()))?;
            Ok(path.display().to_string())
        };
        let mut kubeconfigs = Vec::new();
        for name in names {
            let kubeconfig = self.component_kubeconfig(&format!("system:{name}"))?;
            kubeconfigs.push(file(&format!("{name}.kubeconfig"), &kubeconfig)?);
        }
        let manager = [
            ("service-account-private-key-file", file("service-account.key", &self.secrets.service_account_key)?),
            ("root-ca-file", file("ca.crt", &self.secrets.kubernetes.certificate)?),
            ("node-monitor-grace-period", format!("{}ms", options.node_grace.as_millis())),
            ("node-monitor-period", format!("{}ms", options.node_period.as_millis())),
        ];
        let start = |number: usize, own: &[(&str, String)]| {
            start(names[number], &programs[number], &directory, &kubeconfigs[number], own)
        };
        Ok(Controllers { _programs: [start(0, &manager)?, start(1, &[])?] })
    }

    /// Its controllers act under this one name, which alone has too few rights for them.
    fn component_kubeconfig(&self, user: &str) -> Result<String, ClusterError> {
        let authority = Authority::open(self.secrets.kubernetes.clone());
        let authority = authority.map_err(|error| ClusterError::Controllers(error.to_string()))?;
        let identity = apiserver::admin(&authority, user).map_err(ClusterError::Controllers)?;
        let server = format!("https://{}:{}", self.endpoint, apiserver::PORT);
        let kubeconfig = users::kubeconfig(&server, authority.certificate(), &Proof::Certificate(identity));
        Ok(serde_saphyr::to_string(&kubeconfig).expect("a JSON value has a YAML form"))
    }
}

fn start(
    name: &str,
    path: &Path,
    directory: &Path,
    kubeconfig: &str,
    own: &[(&str, String)],
) -> Result<Child, ClusterError> {
    let flags = own.iter().map(|(name, value)| format!("--{name}={value}"));
    let program = Program::new(name, path, directory.join(format!("{name}.log")))
        .args([format!("--kubeconfig={kubeconfig}")])
        .args(["--leader-elect=false", "--secure-port=0"])
        .args(CLIENT_LIMITS)
        .args(flags);
    Ok(Child::start(program).map_err(Error::from)?)
}
