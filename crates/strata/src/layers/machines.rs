//! The machines layer: its settings as users write them. Variables and the configuration file are the original's.

use std::path::{Path, PathBuf};

use clap::Args;
use kube::Config as ClientConfig;
use machines::{
    ApiServer,
    config::{DEFAULT_FILE, Given},
};
use runtime::Operator;
use serde::Deserialize;

use super::Layer;
use crate::{Failure, config::Values};

pub(crate) const LAYER: Layer = Layer { spec: machines::LAYER, is_configured, install };

/// Flags, environment and keys of the configuration file, as those of [`Values`].
#[derive(Clone, Debug, Default, Args, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(clippy::struct_field_names, reason = "each is the name of its flag")]
pub(crate) struct MachinesFlags {
    /// Configuration file of the machines layer: cluster_id, tenant and shards [default: /etc/nstance/operator/config.yaml, if it exists]
    #[arg(long, env = "STRATA_MACHINES_CONFIG", value_name = "FILE")]
    pub machines_config: Option<PathBuf>,
    /// ConfigMap with the shards, in place of the file's
    #[arg(long, env = "STRATA_MACHINES_SHARDS_CONFIG_MAP", value_name = "NAME")]
    pub machines_shards_config_map: Option<String>,
    /// Id of the cluster of shards [default: cluster_id of the file]
    #[arg(long, env = "STRATA_MACHINES_CLUSTER_ID", value_name = "ID")]
    pub machines_cluster_id: Option<String>,
    /// The tenant whose groups are managed [default: tenant of the file]
    #[arg(long, env = "STRATA_MACHINES_TENANT", value_name = "ID")]
    pub machines_tenant: Option<String>,
    /// Namespace of all objects of the machines layer [default: that of the lease]
    #[arg(long, env = "NSTANCE_NAMESPACE", value_name = "NAMESPACE")]
    pub machines_namespace: Option<String>,
    /// ConfigMap with the certificate of the shards' authority [default: nstance-cluster-ca]
    #[arg(long, env = "NSTANCE_CA_CONFIGMAP", value_name = "NAME")]
    pub machines_ca_config_map: Option<String>,
    /// Secret for the operator's certificate [default: nstance-operator-cert]
    #[arg(long, env = "NSTANCE_CERT_SECRET", value_name = "NAME")]
    pub machines_cert_secret: Option<String>,
    /// Secret for the operator's key [default: nstance-operator-key]
    #[arg(long, env = "NSTANCE_KEY_SECRET", value_name = "NAME")]
    pub machines_key_secret: Option<String>,
    /// Secret with the nonce that registers the operator [default: nstance-operator-nonce]
    #[arg(long, env = "NSTANCE_NONCE_SECRET", value_name = "NAME")]
    pub machines_nonce_secret: Option<String>,
    /// API server of the cluster that the instances join, where it is another one [default: the operator's own]
    #[arg(long, env = "NSTANCE_CAPI_ENDPOINT", value_name = "HOST:PORT")]
    pub machines_capi_endpoint: Option<String>,
    /// ServiceAccount whose tokens Cluster API uses [default: nstance-capi-workload]
    #[arg(long, env = "NSTANCE_CAPI_SERVICEACCOUNT", value_name = "NAME")]
    pub machines_capi_service_account: Option<String>,
    /// How many machines on demand the Pods of one namespace may have [default: 100]
    #[arg(long, env = "STRATA_MACHINES_ON_DEMAND_LIMIT", value_name = "COUNT")]
    pub machines_on_demand_limit: Option<usize>,
    /// Address of the API server's Service, if the operator runs in the cluster
    #[arg(long, env = "KUBERNETES_SERVICE_HOST", hide = true, value_name = "HOST")]
    pub machines_service_host: Option<String>,
}

impl MachinesFlags {
    /// These settings, and those of `other` where these are silent.
    pub fn or(self, other: Self) -> Self {
        Self {
            machines_config: self.machines_config.or(other.machines_config),
            machines_shards_config_map: self.machines_shards_config_map.or(other.machines_shards_config_map),
            machines_cluster_id: self.machines_cluster_id.or(other.machines_cluster_id),
            machines_tenant: self.machines_tenant.or(other.machines_tenant),
            machines_namespace: self.machines_namespace.or(other.machines_namespace),
            machines_ca_config_map: self.machines_ca_config_map.or(other.machines_ca_config_map),
            machines_cert_secret: self.machines_cert_secret.or(other.machines_cert_secret),
            machines_key_secret: self.machines_key_secret.or(other.machines_key_secret),
            machines_nonce_secret: self.machines_nonce_secret.or(other.machines_nonce_secret),
            machines_capi_endpoint: self.machines_capi_endpoint.or(other.machines_capi_endpoint),
            machines_capi_service_account: self.machines_capi_service_account.or(other.machines_capi_service_account),
            machines_on_demand_limit: self.machines_on_demand_limit.or(other.machines_on_demand_limit),
            machines_service_host: self.machines_service_host.or(other.machines_service_host),
        }
    }

    fn given(&self) -> Given {
        let default = || Some(PathBuf::from(DEFAULT_FILE)).filter(|file| Path::exists(file));
        Given {
            file: self.machines_config.clone().or_else(default),
            shards_config_map: self.machines_shards_config_map.clone(),
            cluster_id: self.machines_cluster_id.clone(),
            tenant: self.machines_tenant.clone(),
            namespace: self.machines_namespace.clone(),
            ca_config_map: self.machines_ca_config_map.clone(),
            cert_secret: self.machines_cert_secret.clone(),
            key_secret: self.machines_key_secret.clone(),
            nonce_secret: self.machines_nonce_secret.clone(),
            capi_endpoint: self.machines_capi_endpoint.clone(),
            capi_service_account: self.machines_capi_service_account.clone(),
        }
    }
}

fn is_configured(values: &Values) -> bool {
    values.machines.given().is_any()
}

fn install(operator: &mut Operator, values: &Values, client: &ClientConfig) -> Result<(), Failure> {
    let namespace = values.lease_namespace.as_deref().unwrap_or(&client.default_namespace);
    let settings = machines::config::Settings::read(&values.machines.given(), namespace)
        .map_err(|error| Failure::new(format!("the machines layer: {error}")))?;
    let api_server = ApiServer::of(client, values.machines.machines_service_host.as_deref());
    let mut config = machines::Config::new(settings, api_server);
    config.concurrency = values.concurrency.unwrap_or(config.concurrency);
    config.resync = values.resync.unwrap_or(config.resync);
    let limit = values.machines.machines_on_demand_limit;
    config.on_demand.machines = limit.unwrap_or(config.on_demand.machines);
    machines::install(operator, &config);
    Ok(())
}
