//! Which cluster a command speaks to.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Args;
use kube::{Client, Config, config::Kubeconfig};
use runtime::{KubeconfigError, config_of_kubeconfig};

use crate::Failure;

/// One answer of an API server that works comes well within this; a person should not sit before a dead one for the
/// client's own five minutes.
const ANSWER_PATIENCE: Duration = Duration::from_secs(30);

#[derive(Debug, Args)]
pub struct ConnectionFlags {
    /// Namespace [default: that of the kubeconfig's context]
    #[arg(long, short, global = true)]
    pub namespace: Option<String>,
    /// Kubeconfig file [default: $KUBECONFIG or ~/.kube/config]
    #[arg(long, global = true, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig [default: its current one]
    #[arg(long, global = true)]
    pub context: Option<String>,
}

impl ConnectionFlags {
    /// A client, and the namespace to work in.
    pub async fn connect(&self) -> Result<(Client, String), Failure> {
        let mut config = client_config(self.kubeconfig.as_deref(), self.context.as_deref()).await?;
        config.read_timeout = Some(ANSWER_PATIENCE);
        let namespace = self.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        let client = runtime::connect_command(config)
            .map_err(|error| Failure::new(format!("cannot make a client for the API server: {error}")))?;
        Ok((client, namespace))
    }
}

/// What a kubeconfig says, or in a pod its own service account.
pub async fn client_config(kubeconfig: Option<&Path>, context: Option<&str>) -> Result<Config, Failure> {
    let unreachable = |error: &dyn std::fmt::Display| {
        Failure::new(format!("no cluster to connect to: {error}"))
            .hint("name one with --kubeconfig FILE, or take that of `strata dev up`: export KUBECONFIG=\"$(strata dev kubeconfig)\"")
    };
    let read = match kubeconfig {
        Some(path) => Kubeconfig::read_from(path),
        None => Kubeconfig::read(),
    };
    let found = match read {
        Ok(read) => config_of_kubeconfig(read, context).await,
        Err(error) => Err(KubeconfigError::Unusable(error.to_string())),
    };
    match found {
        Ok(config) => Ok(config),
        Err(error) if kubeconfig.is_some() || context.is_some() => Err(unreachable(&error)),
        // It names a cluster: another one never takes its place.
        Err(error @ KubeconfigError::Proxied) => Err(unreachable(&error)),
        Err(error) => {
            Config::incluster().map_err(|pod| unreachable(&format_args!("{error}; and no pod's own account: {pod}")))
        }
    }
}
