//! A node's specification, from what its cluster is and where it is.

use std::net::Ipv4Addr;

use hetzner::{LoadBalancer, Network, Server};
use talos::{NodeSpec, Role};

use super::{
    ClusterFile,
    versions::{Versions, public_address},
};
use crate::Failure;

/// Says what a server is for.
pub const ROLE_LABEL: &str = "k8zner.io/role";

/// Where pods and Services have their addresses, in every cluster.
const POD_CIDR: &str = "10.0.128.0/17";
const SERVICE_CIDR: &str = "10.96.0.0/12";
/// Nodes have the first half of a network of the usual size.
const NODE_PREFIX: u8 = 17;

/// What the configurations of all nodes of a cluster depend on.
pub struct Surroundings<'a> {
    pub file: &'a ClusterFile,
    pub network: &'a Network,
    /// Of the API.
    pub balancer: &'a LoadBalancer,
    pub versions: Versions,
}

impl Surroundings<'_> {
    /// The same for every command, so that a server has one configuration.
    pub fn node(&self, server: &Server) -> Result<NodeSpec, Failure> {
        let role = match server.labels.get(ROLE_LABEL).map(String::as_str) {
            Some("control-plane") => Role::ControlPlane,
            Some("worker") => Role::Worker,
            other => {
                let found = other.map_or_else(|| "is missing".to_owned(), |found| format!("is {found:?}"));
                return Err(Failure::new(format!("the label {ROLE_LABEL} of server {} {found}", server.name))
                    .hint("it is control-plane or worker on the nodes of a cluster"));
            }
        };
        let public = public_address(self.balancer);
        Ok(NodeSpec {
            cluster: self.file.name.clone(),
            hostname: server.name.clone(),
            role,
            server_id: u64::try_from(server.id).unwrap_or_default(),
            talos_version: self.versions.talos.clone(),
            kubernetes_version: self.versions.kubernetes.clone(),
            schematic: None,
            endpoint: self.endpoint()?,
            certificate_hosts: public.map(|address| address.to_string()).into_iter().collect(),
            node_cidr: node_cidr(&self.network.ip_range),
            pod_cidr: POD_CIDR.to_owned(),
            service_cidr: SERVICE_CIDR.to_owned(),
        })
    }

    /// The load balancer's address in the cluster's network.
    pub fn endpoint(&self) -> Result<Ipv4Addr, Failure> {
        let own = self.balancer.private_net.iter().find(|net| net.network == self.network.id);
        own.and_then(|net| net.ip).ok_or_else(|| {
            let (balancer, network) = (&self.balancer.name, &self.network.name);
            Failure::new(format!("load balancer {balancer} has no address in network {network}"))
                .hint("attach it: hcloud load-balancer attach-to-network")
        })
    }

    /// A kubeconfig that Talos gave out, for use from outside: the machines know the load balancer by its private address.
    pub fn through_public(&self, kubeconfig: &str) -> Result<String, Failure> {
        let private = self.endpoint()?;
        let public = public_address(self.balancer).unwrap_or(private);
        Ok(kubeconfig.replace(&format!("https://{private}:"), &format!("https://{public}:")))
    }
}

fn node_cidr(network: &str) -> String {
    match network.split_once('/').and_then(|(first, prefix)| Some((first, prefix.parse::<u8>().ok()?))) {
        Some((first, prefix)) if prefix < NODE_PREFIX => format!("{first}/{NODE_PREFIX}"),
        _ => network.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_have_half_of_a_large_network_and_all_of_a_small_one() {
        assert_eq!(node_cidr("10.0.0.0/16"), "10.0.0.0/17");
        assert_eq!(node_cidr("127.40.128.0/17"), "127.40.128.0/17");
        assert_eq!(node_cidr("10.0.0.0/24"), "10.0.0.0/24");
    }
}
