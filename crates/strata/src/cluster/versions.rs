//! The versions that nodes get. In a cluster that runs they are those of its control planes, whatever its file says
//! meanwhile: a changed file is an upgrade that waits, and a single node must not begin it.

use std::time::Duration;

use hetzner::LoadBalancer;
use k8s_openapi::api::core::v1::Node;
use kube::{Api, api::ListParams, config::Kubeconfig};
use process::Clock;
use talos::{Client, Credentials, Secrets, Talosconfig, talosconfig::Role};

use super::{ClusterFile, Surroundings};
use crate::explained;

/// Of a cluster that is there both calls take a second; one that is not there is not waited for.
const LIMIT: Duration = Duration::from_secs(15);
const CONTROL_PLANES: &str = "node-role.kubernetes.io/control-plane";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Versions {
    /// With a leading `v`.
    pub talos: String,
    /// Without.
    pub kubernetes: String,
}

impl Versions {
    /// What a new cluster begins with.
    pub fn of_file(file: &ClusterFile) -> Self {
        Self { talos: file.talos_version.clone(), kubernetes: file.kubernetes_version.clone() }
    }

    /// What a Node says of itself.
    fn of_node(node: &Node) -> Option<Self> {
        let info = node.status.as_ref()?.node_info.as_ref()?;
        // `Talos (v1.12.1)`.
        let talos = info.os_image.split_once('(')?.1.strip_suffix(')')?;
        Some(Self { talos: talos.to_owned(), kubernetes: info.kubelet_version.strip_prefix('v')?.to_owned() })
    }

    /// The oldest of each: while control planes are being upgraded, a newer kubelet than an API server is not supported.
    fn oldest(nodes: &[Node]) -> Option<Self> {
        let all: Vec<Self> = nodes.iter().filter_map(Self::of_node).collect();
        let talos = all.iter().map(|one| &one.talos).min_by_key(|version| numbers(version))?;
        let kubernetes = all.iter().map(|one| &one.kubernetes).min_by_key(|version| numbers(version))?;
        Some(Self { talos: talos.clone(), kubernetes: kubernetes.clone() })
    }
}

fn numbers(version: &str) -> Vec<u64> {
    let parts = version.trim_start_matches('v').split(|c: char| !c.is_ascii_digit());
    parts.map_while(|part| part.parse().ok()).collect()
}

/// What the control planes run. The error says why it is not known.
pub async fn observed(on: &Surroundings<'_>, secrets: &Secrets) -> Result<Versions, String> {
    let asked = tokio::time::timeout(LIMIT, ask(on, secrets)).await;
    asked.unwrap_or_else(|_| Err(format!("no answer within {} s", LIMIT.as_secs())))
}

async fn ask(on: &Surroundings<'_>, secrets: &Secrets) -> Result<Versions, String> {
    let text = |error: &dyn std::error::Error| explained(error);
    let address = public_address(on.balancer).ok_or("the load balancer has no public address")?;
    let authority = secrets.os_authority().map_err(|error| text(&error))?;
    let now = Clock::default().now();
    let talosconfig = Talosconfig::issue(&on.file.name, &authority, Role::Admin, Vec::new(), now);
    let credentials = Credentials::from_talosconfig(&talosconfig.map_err(|error| text(&error))?);
    let talos = Client::new((address, talos::PORT).into(), &credentials.map_err(|error| text(&error))?);
    let kubeconfig = talos.kubeconfig().await.map_err(|error| text(&error))?;
    let kubeconfig = on.through_public(&kubeconfig).map_err(|error| text(&error))?;
    let kubeconfig = Kubeconfig::from_yaml(&kubeconfig).map_err(|error| text(&error))?;
    let config = runtime::config_of_kubeconfig(kubeconfig, None).await;
    let client = kube::Client::try_from(config.map_err(|error| text(&error))?).map_err(|error| text(&error))?;
    let nodes = Api::<Node>::all(client).list(&ListParams::default().labels(CONTROL_PLANES)).await;
    let nodes = nodes.map_err(|error| text(&error))?;
    Versions::oldest(&nodes.items).ok_or_else(|| "no control plane says which versions it runs".to_owned())
}

pub fn public_address(balancer: &LoadBalancer) -> Option<std::net::Ipv4Addr> {
    balancer.public_net.ipv4.as_ref().and_then(|ipv4| ipv4.ip)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(image: &str, kubelet: &str) -> Node {
        let mut node = json!({ "metadata": {}, "status": { "nodeInfo": {
            "architecture": "", "bootID": "", "containerRuntimeVersion": "", "kernelVersion": "", "kubeProxyVersion": "",
            "machineID": "", "operatingSystem": "", "systemUUID": "",
        } } });
        node["status"]["nodeInfo"]["osImage"] = json!(image);
        node["status"]["nodeInfo"]["kubeletVersion"] = json!(kubelet);
        serde_json::from_value(node).unwrap()
    }

    #[test]
    fn a_cluster_between_two_versions_has_the_older() {
        let nodes = [
            node("Talos (v1.12.10)", "v1.35.0"),
            node("Talos (v1.12.9)", "v1.36.0"),
            node("Debian GNU/Linux 13", "v1.20.0"),
        ];
        let oldest = Versions { talos: "v1.12.9".to_owned(), kubernetes: "1.35.0".to_owned() };
        assert_eq!(Versions::oldest(&nodes), Some(oldest));
        assert_eq!(Versions::oldest(&nodes[2..]), None, "unknown");
    }
}
