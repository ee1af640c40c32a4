//! What an administrator says about the layer: flags, the variables `NSTANCE_*` and the configuration file, whose names
//! and form are the original's.

mod file;
mod reload;

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use plan::shard::id;
use shard::client::Addresses;

pub use file::parse_shards;
pub use reload::Reload;

/// Where the original looks for its configuration file.
pub const DEFAULT_FILE: &str = "/etc/nstance/operator/config.yaml";
/// Names of the original's objects, where nothing else is said.
pub const CA_CONFIG_MAP: &str = "nstance-cluster-ca";
pub const NONCE_SECRET: &str = "nstance-operator-nonce";
pub const KEY_SECRET: &str = "nstance-operator-key";
pub const CERT_SECRET: &str = "nstance-operator-cert";
pub const WORKLOAD_ACCOUNT: &str = "nstance-capi-workload";

/// Names of Clusters become label values.
const LONGEST_CLUSTER_NAME: usize = 63;

/// The configured shards by their id.
pub type Shards = BTreeMap<String, ShardAddress>;

/// Where one shard's servers are reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardAddress {
    pub operator: Addresses,
    pub registration: Addresses,
}

/// Why the configuration cannot be used: which key, why, and what to write.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {why}; {remedy}")]
pub struct ConfigError {
    pub key: String,
    pub why: String,
    pub remedy: String,
}

impl ConfigError {
    pub(crate) fn new(key: impl Into<String>, why: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { key: key.into(), why: why.into(), remedy: remedy.into() }
    }
}

/// What flags and environment say; the variables are the original's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Given {
    /// `--machines-config`: the configuration file, the original's `--config`.
    pub file: Option<PathBuf>,
    /// `--machines-shards-config-map`: a ConfigMap of the namespace with the shards, in place of the file's: a key per shard with its address, or the
    /// key `config.yaml` with a configuration file.
    pub shards_config_map: Option<String>,
    /// `--machines-cluster-id`; wins over the file.
    pub cluster_id: Option<String>,
    /// `--machines-tenant`; wins over the file.
    pub tenant: Option<String>,
    /// `--machines-namespace`, `NSTANCE_NAMESPACE`.
    pub namespace: Option<String>,
    /// `--machines-ca-config-map`, `NSTANCE_CA_CONFIGMAP`.
    pub ca_config_map: Option<String>,
    /// `--machines-cert-secret`, `NSTANCE_CERT_SECRET`.
    pub cert_secret: Option<String>,
    /// `--machines-key-secret`, `NSTANCE_KEY_SECRET`.
    pub key_secret: Option<String>,
    /// `--machines-nonce-secret`, `NSTANCE_NONCE_SECRET`.
    pub nonce_secret: Option<String>,
    /// `--machines-capi-endpoint`, `NSTANCE_CAPI_ENDPOINT`.
    pub capi_endpoint: Option<String>,
    /// `--machines-capi-service-account`, `NSTANCE_CAPI_SERVICEACCOUNT`.
    pub capi_service_account: Option<String>,
}

impl Given {
    /// Whether the layer is configured at all: one that is not does not run unless it is named.
    pub fn is_any(&self) -> bool {
        self.file.is_some() || self.shards_config_map.is_some() || self.cluster_id.is_some()
    }
}

/// The settings of the layer, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    pub cluster_id: String,
    pub tenant: String,
    /// Of all objects of the layer.
    pub namespace: String,
    /// Where the shards are read from again and again.
    pub source: ShardSource,
    /// Those that are known at the start: none until a ConfigMap was read. A list that was read names one at least.
    pub shards: Arc<Shards>,
    pub names: Names,
    pub workload: Workload,
}

/// Where the list of shards is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShardSource {
    File(PathBuf),
    /// By name, in the namespace of the layer.
    ConfigMap(String),
}

/// Names of the objects that hold the operator's identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    pub ca_config_map: String,
    pub cert_secret: String,
    pub key_secret: String,
    pub nonce_secret: String,
}

/// Which cluster the instances become nodes of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Workload {
    /// The one that the operator runs for. Its kubeconfig has tokens of this ServiceAccount.
    Own { service_account: String },
    /// Another one. Its kubeconfig is the administrator's.
    External { host: String, port: u16 },
}

impl Settings {
    /// `namespace` is the pod's own; it counts where `NSTANCE_NAMESPACE` says nothing.
    pub fn read(given: &Given, namespace: &str) -> Result<Self, ConfigError> {
        let file = given.file.as_deref().map(file::read).transpose()?.unwrap_or_default();
        let cluster_id = named("cluster_id", given.cluster_id.as_ref().or(file.cluster_id.as_ref()))?;
        let tenant = named("tenant", given.tenant.as_ref().or(file.tenant.as_ref()))?;
        let (source, shards) = match (&given.shards_config_map, &given.file) {
            // Not the file's either: what the ConfigMap adds to them would count as removed until it was read.
            (Some(name), _) => (ShardSource::ConfigMap(name.clone()), Shards::new()),
            (None, Some(path)) => (ShardSource::File(path.clone()), file.shards.ok_or_else(file::no_shards)?),
            (None, None) => return Err(file::no_shards()),
        };
        let or = |given: &Option<String>, default: &str| given.clone().unwrap_or_else(|| default.to_owned());
        let settings = Self {
            cluster_id,
            tenant,
            namespace: or(&given.namespace, namespace),
            source,
            shards: Arc::new(shards),
            names: Names {
                ca_config_map: or(&given.ca_config_map, CA_CONFIG_MAP),
                cert_secret: or(&given.cert_secret, CERT_SECRET),
                key_secret: or(&given.key_secret, KEY_SECRET),
                nonce_secret: or(&given.nonce_secret, NONCE_SECRET),
            },
            workload: match given.capi_endpoint.as_deref().filter(|endpoint| !endpoint.is_empty()) {
                Some(endpoint) => external(endpoint)?,
                None => Workload::Own { service_account: or(&given.capi_service_account, WORKLOAD_ACCOUNT) },
            },
        };
        settings.check_name()?;
        Ok(settings)
    }

    /// Of the Cluster, the NstanceCluster and the NstanceControlPlane. Neither id holds two hyphens in a row, so no two
    /// pairs share one.
    pub fn cluster_name(&self) -> String {
        format!("{}--{}", self.cluster_id, self.tenant)
    }

    /// Of the Secret by which Cluster API reaches the workload cluster.
    pub fn kubeconfig_secret(&self) -> String {
        format!("{}-kubeconfig", self.cluster_name())
    }

    /// The object or file with the list of shards, for people.
    pub fn shard_list(&self) -> String {
        match &self.source {
            ShardSource::File(path) => path.display().to_string(),
            ShardSource::ConfigMap(name) => format!("ConfigMap {}/{name}", self.namespace),
        }
    }

    fn check_name(&self) -> Result<(), ConfigError> {
        let name = self.cluster_name();
        if name.len() <= LONGEST_CLUSTER_NAME {
            return Ok(());
        }
        let why =
            format!("the Cluster would be named {name}, {} characters, at most {LONGEST_CLUSTER_NAME}", name.len());
        Err(ConfigError::new("cluster_id and tenant", why, "choose a shorter cluster_id or tenant"))
    }
}

/// An id that must be there.
fn named(key: &'static str, value: Option<&String>) -> Result<String, ConfigError> {
    let flag = key.replace('_', "-");
    let missing = || {
        let remedy = format!("write it in the configuration file, or give --machines-{flag}");
        ConfigError::new(key, "it is missing", remedy)
    };
    let value = value.filter(|value| !value.is_empty()).ok_or_else(missing)?;
    check_id(key, value)?;
    Ok(value.clone())
}

fn check_id(key: &str, value: &str) -> Result<(), ConfigError> {
    id::check(key, value).map_err(|_| {
        let rule =
            "write 1 to 32 lower-case letters, digits and single hyphens, beginning and ending with a letter or digit";
        ConfigError::new(key, format!("{value:?} is not a name"), rule)
    })
}

/// `host:port` is read as https; a port that is missing is the scheme's.
fn external(endpoint: &str) -> Result<Workload, ConfigError> {
    let refuse = |why: &str| {
        ConfigError::new("NSTANCE_CAPI_ENDPOINT", format!("{endpoint:?} {why}"), "write https://HOST:PORT or HOST:PORT")
    };
    let (scheme, rest) = endpoint.split_once("://").unwrap_or(("https", endpoint));
    let default: u16 = match scheme {
        "https" => 443,
        "http" => 80,
        _ => return Err(refuse("has an unknown scheme")),
    };
    let authority = rest.split('/').next().unwrap_or_default();
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, port.parse().ok().filter(|port| *port > 0)),
        _ => (authority, Some(default)),
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    match port {
        Some(port) if !host.is_empty() => Ok(Workload::External { host: host.to_owned(), port }),
        Some(_) => Err(refuse("has no host")),
        None => Err(refuse("has no valid port")),
    }
}

#[cfg(test)]
mod tests;
