//! Simulated clusters: Hetzner's API and Talos nodes on this machine, brought up through the same clients that run real
//! ones. Servers that end are not started again: here dying is the point.

mod bring_up;
mod infrastructure;
mod nodes;

use std::{net::SocketAddr, path::PathBuf};

use serde::{Deserialize, Serialize};
use testbed::{
    cloud::{Cloud, CloudError, Reply, Request, ServerInfo, ask},
    talos::ControllerOptions,
};

use super::{event::Report, place::Place, session::Session};
use crate::{
    Failure,
    cluster::{ClusterFile, FILE, Mode, ROLE_LABEL, WorkersFile},
    explained,
};

/// Where the object of a cluster is.
const NAMESPACE: &str = "k8zner-system";
/// On everything of a cluster in the project.
pub const CLUSTER_LABEL: &str = "k8zner.io/cluster";

/// Programs for a person's hands, built beside those of the servers.
pub const TOOLS: [&str; 2] = ["talosctl", "etcdctl"];

/// Hetzner's API, as stock programs take it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Hcloud {
    pub endpoint: String,
    pub token: String,
    pub log: PathBuf,
}

/// A cluster, as stock programs take it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterStatus {
    pub name: String,
    pub namespace: String,
    /// The file for `-c`.
    pub config: PathBuf,
    /// Of an administrator, through the load balancer.
    pub kubeconfig: PathBuf,
    pub talosconfig: PathBuf,
    /// Of all nodes.
    pub talos_log: PathBuf,
    pub etcd: EtcdStatus,
}

/// What etcdctl takes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct EtcdStatus {
    pub ca: PathBuf,
    pub cert: PathBuf,
    pub key: PathBuf,
    pub endpoints: Vec<String>,
}

/// What runs.
pub struct Clusters {
    cloud: Cloud,
    pub clusters: Vec<ClusterStatus>,
}

impl Clusters {
    /// Starts the simulators and brings the cluster up, or back with the servers it had.
    pub async fn start(place: &Place, mode: Mode, cloud_controller: bool, report: &Report) -> Result<Self, Failure> {
        let file = cluster_file(mode);
        report.step("hcloud", "starting Hetzner's API and the servers there are");
        let controllers = ControllerOptions { cloud_controller, ..ControllerOptions::default() };
        let cloud = Box::pin(Cloud::start_with(&place.cloud(), controllers)).await?;
        report.done("hcloud", cloud.endpoint());
        let cluster = Box::pin(bring_up::bring_up(&cloud, place, &file, report)).await?;
        Ok(Self { cloud, clusters: vec![cluster] })
    }

    pub fn hcloud(&self) -> Hcloud {
        Hcloud {
            endpoint: self.cloud.endpoint(),
            token: self.cloud.token().to_owned(),
            log: self.cloud.log().to_owned(),
        }
    }

    /// Where faults are asked for.
    pub fn control(&self) -> SocketAddr {
        self.cloud.control()
    }

    pub async fn stop(self) {
        self.cloud.stop().await;
    }
}

/// An environment has one cluster: found out before anything is started.
pub fn check(place: &Place, mode: Mode) -> Result<(), Failure> {
    let wanted = mode.name();
    match place.cluster_names().into_iter().find(|name| name != wanted) {
        Some(other) => Err(Failure::new(format!("this environment has the cluster {other}, not {wanted}"))
            .hint(format!("start it with --cluster {other}, or begin anew with --fresh"))),
        None => Ok(()),
    }
}

/// What `--cluster` stands for. Every cluster has workers: without them a lost one could not be watched.
fn cluster_file(mode: Mode) -> ClusterFile {
    let workers = match mode {
        Mode::Dev => 1,
        Mode::Ha | Mode::Ha5 => 3,
    };
    let workers = WorkersFile { count: workers, size: "cx23".to_owned() };
    ClusterFile::new(mode.name(), "fsn1", mode, workers)
}

/// Paths of a cluster's files, whether they are there yet or not.
fn status_of(place: &Place, cloud: &Cloud, name: &str) -> ClusterStatus {
    let file = |file: &str| place.cluster(name).join(file);
    ClusterStatus {
        name: name.to_owned(),
        namespace: NAMESPACE.to_owned(),
        config: file(FILE),
        kubeconfig: file("kubeconfig"),
        talosconfig: file("talosconfig"),
        talos_log: cloud.talos_log().to_owned(),
        etcd: EtcdStatus {
            ca: file("etcd-ca.crt"),
            cert: file("etcd.crt"),
            key: file("etcd.key"),
            endpoints: Vec::new(),
        },
    }
}

/// Asks the simulators of an environment that is up.
pub async fn ask_simulators(session: &Session, request: &Request) -> Result<Reply, Failure> {
    let (Some(control), Some(hcloud)) = (session.control, &session.status.hcloud) else {
        return Err(Failure::new("the environment that is up has no simulated cluster")
            .hint("start one with `strata dev up --cluster ha`"));
    };
    match ask(control, &hcloud.token, request).await {
        Ok(Reply::Refused(why)) => Err(Failure::new(why)),
        Ok(reply) => Ok(reply),
        Err(error) => Err(Failure::new(explained(&error))),
    }
}

/// Fills in what changes while the environment is up: servers come and go.
pub async fn refresh(session: &mut Session) {
    let Ok(Reply::Servers(servers)) = ask_simulators(session, &Request::Servers).await else { return };
    for cluster in &mut session.status.clusters {
        cluster.etcd.endpoints = etcd_endpoints(&cluster.name, &servers);
    }
}

fn etcd_endpoints(cluster: &str, servers: &[ServerInfo]) -> Vec<String> {
    let is = |server: &ServerInfo, label: &str, value: &str| server.labels.get(label).is_some_and(|is| is == value);
    let own = servers.iter().filter(|server| is(server, CLUSTER_LABEL, cluster));
    let own = own.filter(|server| is(server, ROLE_LABEL, "control-plane"));
    own.filter_map(|server| server.private).map(|address| format!("https://{address}:2379")).collect()
}

impl From<CloudError> for Failure {
    fn from(error: CloudError) -> Self {
        let is_taken = matches!(error, CloudError::Taken(_));
        let failure = Self::new(explained(&error));
        if is_taken { failure.hint("end the other environment, or begin anew with --fresh") } else { failure }
    }
}

impl From<testbed::talos::ClusterError> for Failure {
    fn from(error: testbed::talos::ClusterError) -> Self {
        Self::new(explained(&error))
    }
}

impl From<talos::Error> for Failure {
    fn from(error: talos::Error) -> Self {
        Self::new(format!("the machine API: {}", explained(&error)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn etcd_is_where_the_control_planes_of_the_cluster_are() {
        let server = |cluster: &str, role: &str, last: u8| ServerInfo {
            name: format!("{cluster}-{last}"),
            labels: [(CLUSTER_LABEL.to_owned(), cluster.to_owned()), (ROLE_LABEL.to_owned(), role.to_owned())].into(),
            private: Some(std::net::Ipv4Addr::new(127, 40, 128, last)),
        };
        let servers =
            [server("ha", "control-plane", 2), server("ha", "worker", 3), server("other", "control-plane", 4)];
        assert_eq!(etcd_endpoints("ha", &servers), ["https://127.40.128.2:2379"]);
    }
}
