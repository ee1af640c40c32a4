//! A cluster's file together with the project that its servers are in.

use std::path::PathBuf;

use hetzner::{Client, Clients, LoadBalancer, Network, Resource, Server, Token};

use super::{
    ClusterFlags, Surroundings,
    file::{ClusterFile, read_secrets},
    versions::{self, Versions},
};
use crate::Failure;

/// A cluster that commands are about.
pub struct Project {
    path: PathBuf,
    file: ClusterFile,
    client: Client,
}

/// The load balancer of a cluster's API.
pub fn balancer_name(cluster: &str) -> String {
    format!("{cluster}-kube")
}

/// What the environment of `strata dev` knows.
struct Dev {
    config: Option<PathBuf>,
    endpoint: String,
    token: String,
}

impl ClusterFlags {
    pub fn open(self) -> Result<Project, Failure> {
        let found = || std::env::current_dir().ok().and_then(|folder| ClusterFile::find(&folder));
        let named = self.config.clone().or_else(found);
        let non_empty = |text: &String| !text.is_empty();
        let token = self.hcloud_token.clone().filter(non_empty);
        let dev = if named.is_none() || token.is_none() { self.dev() } else { None };
        let path = named.or_else(|| dev.as_ref().and_then(|dev| dev.config.clone())).ok_or_else(|| {
            Failure::new("there is no k8zner.yaml in this folder or above").hint("name the cluster's file with -c FILE")
        })?;
        let (token, endpoint) = match (token, dev) {
            (Some(token), _) => (token, self.hcloud_endpoint.clone().filter(non_empty)),
            (None, Some(dev)) => (dev.token, Some(dev.endpoint)),
            (None, None) => {
                return Err(Failure::new("HCLOUD_TOKEN is not set").hint("it is a token of the cluster's project"));
            }
        };
        let file = ClusterFile::read(&path)?;
        let endpoint = endpoint.as_deref().unwrap_or(hetzner::ENDPOINT);
        let client = Clients::default().get(endpoint, &Token::new(&token))?;
        Ok(Project { path, file, client })
    }

    #[cfg(feature = "dev")]
    fn dev(&self) -> Option<Dev> {
        let (hcloud, clusters) = crate::dev::clusters(self.dev_dir.clone(), self.state_home.clone())?;
        let config = clusters.into_iter().next().map(|cluster| cluster.config);
        Some(Dev { config, endpoint: hcloud.endpoint, token: hcloud.token })
    }

    #[cfg(not(feature = "dev"))]
    #[expect(clippy::unused_self, reason = "only builds with `strata dev` look for an environment")]
    fn dev(&self) -> Option<Dev> {
        None
    }
}

impl Project {
    pub async fn machine_configuration(&self, node: &str) -> Result<String, Failure> {
        let secrets = read_secrets(&self.path)?;
        let cluster = &self.file.name;
        let server: Server = self.named(node).await?;
        let owner = server.labels.get("k8zner.io/cluster");
        if owner != Some(cluster) {
            let of = owner.map_or_else(|| "of no cluster".to_owned(), |of| format!("of cluster {of}"));
            return Err(Failure::new(format!("server {node} is {of}, not of {cluster}"))
                .hint("name the file of its own cluster with -c FILE"));
        }
        let network: Network = self.named(cluster).await?;
        let balancer: LoadBalancer = self.named(&balancer_name(cluster)).await?;
        let planned = Versions::of_file(&self.file);
        let mut surroundings =
            Surroundings { file: &self.file, network: &network, balancer: &balancer, versions: planned.clone() };
        match versions::observed(&surroundings, &secrets).await {
            Ok(running) => surroundings.versions = running,
            Err(why) => anstream::eprintln!("note: versions are those of {}: {why}", self.path.display()),
        }
        if surroundings.versions != planned {
            let Versions { talos, kubernetes } = &surroundings.versions;
            anstream::eprintln!(
                "note: the control planes run Talos {talos} and Kubernetes {kubernetes}, and so will the node; {} names \
                 {} and {}, which is an upgrade of the cluster",
                self.path.display(),
                planned.talos,
                planned.kubernetes,
            );
        }
        Ok(surroundings.node(&server)?.machine_configuration(&secrets))
    }

    async fn named<R: Resource>(&self, name: &str) -> Result<R, Failure> {
        let kind = R::ONE.replace('_', " ");
        let found = self.client.by_name(name).await?;
        found.ok_or_else(|| {
            let missing = Failure::new(format!("there is no {kind} {name} in the project"));
            missing.hint(format!("`hcloud {} list` shows what there is", kind.replace(' ', "-")))
        })
    }
}
