//! What is known about a running environment, by others as well.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::{
    charts::Addresses,
    clusters::{ClusterStatus, Hcloud},
    shards::Endpoints,
};

/// Written when everything is up, removed at the end.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Session {
    pub status: Status,
    /// Where the simulators take requests for faults; it takes the token of Hetzner's API.
    pub control: Option<SocketAddr>,
    pub metrics: String,
    /// The kubectl of our tools, where it was built.
    pub kubectl: Option<PathBuf>,
    /// From the start of the first program to the operator's readiness.
    pub ready_after_millis: u64,
}

/// The form that scripts rely on.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    pub kubeconfig: PathBuf,
    /// Only our own control plane's log is at hand.
    pub audit_log: Option<PathBuf>,
    /// Where the sample charts are.
    pub charts: Addresses,
    /// Where the zones keep what they must not lose: a folder. There are none on a cluster of the user's.
    pub storage: Option<PathBuf>,
    /// The certificate of the zones' authority, in PEM.
    pub ca: Option<PathBuf>,
    /// By zone.
    pub endpoints: BTreeMap<String, Endpoints>,
    /// Hetzner's API, where there is a simulated cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hcloud: Option<Hcloud>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clusters: Vec<ClusterStatus>,
    pub programs: Vec<Program>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Program {
    pub name: String,
    pub pid: u32,
    pub log: PathBuf,
}

/// A cluster that we did not start and that has to be left as it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Guest {
    pub kubeconfig: PathBuf,
    /// The file's current one may be another by now.
    pub context: Option<String>,
    /// Whether the operator's lease was there before us.
    pub had_lease: bool,
}

impl Guest {
    /// One that noted no context, as former versions did, is at any.
    pub fn is_at(&self, kubeconfig: &Path, context: Option<&str>) -> bool {
        self.kubeconfig == kubeconfig && (self.context.is_none() || self.context.as_deref() == context)
    }
}
