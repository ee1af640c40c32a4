//! What a cluster needs in the project beside its servers.

use std::net::Ipv4Addr;

use hetzner::{
    Client, Command, Firewall, FirewallRule, Image, Labels, LoadBalancer, Network, NetworkAddress, PlacementGroup,
    Server, ServiceWanted, Wanted,
};
use serde_json::{Value, json};

use super::CLUSTER_LABEL;
use crate::{
    Failure,
    cluster::{ClusterFile, balancer_name},
};

/// Where Hetzner's own three regions are.
const NETWORK_ZONE: &str = "eu-central";
/// How large a subnet of one role is: 126 addresses.
const SUBNET_PREFIX: u8 = 25;

/// A network with one subnet per role, a load balancer for the API, a firewall, a placement group and an image.
pub struct Infrastructure {
    pub network: Network,
    pub balancer: LoadBalancer,
    pub image: i64,
    pub placement_group: i64,
    pub control_planes: String,
    pub workers: String,
}

/// A resource of the cluster.
pub fn wanted(cluster: &str, name: String, labels: &[(&str, &str)], body: Value) -> Wanted {
    let common = [("k8zner.io/managed-by", "k8zner"), ("cluster", cluster)];
    let labels = labels.iter().chain(&common).map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    Wanted { name, labels, owner: (CLUSTER_LABEL.to_owned(), cluster.to_owned()), body }
}

/// Makes what is missing. `range` is where the network may be.
pub async fn ensure(client: &Client, file: &ClusterFile, range: &str) -> Result<Infrastructure, Failure> {
    let cluster = &file.name;
    let network: Network =
        client.ensure(&wanted(cluster, cluster.clone(), &[], json!({ "ip_range": range }))).await?.resource;
    // In the order of the plan of addresses: control planes, load balancers, the first pool of workers.
    let [control_planes, balancers, workers] = [0, 1, 2].map(|index| subnet(range, index));
    for subnet in [&control_planes, &balancers, &workers] {
        client.ensure_subnet(network.id, subnet, NETWORK_ZONE).await?;
    }
    ensure_firewall(client, cluster).await?;
    let group = wanted(cluster, format!("{cluster}-cp-pg"), &[], json!({ "type": "spread" }));
    let group: PlacementGroup = client.ensure(&group).await?.resource;
    let balancer = ensure_balancer(client, file, network.id, &balancers).await?;
    let image = ensure_image(client, file).await?;
    let network = client.get(network.id).await?.unwrap_or(network);
    Ok(Infrastructure { network, balancer, image: image.id, placement_group: group.id, control_planes, workers })
}

/// The API of Kubernetes and of the machines, from anywhere.
async fn ensure_firewall(client: &Client, cluster: &str) -> Result<(), Failure> {
    let firewall: Firewall = client.ensure(&wanted(cluster, cluster.to_owned(), &[], json!({}))).await?.resource;
    let rule = |(port, description): (&str, &str)| FirewallRule {
        direction: "in".to_owned(),
        protocol: "tcp".to_owned(),
        port: Some(port.to_owned()),
        source_ips: vec!["0.0.0.0/0".to_owned()],
        destination_ips: Vec::new(),
        description: Some(description.to_owned()),
    };
    let rules = [("6443", "Kubernetes API"), ("50000", "Talos API")].map(rule);
    Ok(client.ensure_rules(firewall.id, &rules, &format!("cluster={cluster}")).await?)
}

/// Forwards both APIs to the control planes that answer.
async fn ensure_balancer(
    client: &Client,
    file: &ClusterFile,
    network: i64,
    subnet: &str,
) -> Result<LoadBalancer, Failure> {
    let cluster = &file.name;
    let body = json!({
        "load_balancer_type": "lb11", "location": file.region, "algorithm": { "type": "round_robin" },
    });
    let role = [("k8zner.io/role", "kube-api"), ("role", "kube-api")];
    let balancer: LoadBalancer = client.ensure(&wanted(cluster, balancer_name(cluster), &role, body)).await?.resource;
    let at = NetworkAddress { network, ip: Some(last_host(subnet)), ip_range: None };
    client.attach_load_balancer(balancer.id, &at).await?;
    // An API server asks everyone for a certificate: 401 is the answer of one that works.
    let version = json!({ "path": "/version", "status_codes": ["401"], "tls": true });
    let kubernetes = json!({
        "protocol": "tcp", "destination_port": 6443,
        "health_check": { "protocol": "http", "port": 6443, "interval": 3, "timeout": 2, "retries": 2, "http": version },
    });
    let machines = json!({
        "protocol": "tcp", "destination_port": talos::PORT,
        "health_check": { "protocol": "tcp", "port": talos::PORT, "interval": 5, "timeout": 3, "retries": 2 },
    });
    for (listen_port, body) in [(6443, kubernetes), (talos::PORT, machines)] {
        client.ensure_service(balancer.id, &ServiceWanted { listen_port, body }).await?;
    }
    client.ensure_target(balancer.id, &format!("cluster={cluster},role=control-plane")).await?;
    Ok(client.get(balancer.id).await?.unwrap_or(balancer))
}

/// The snapshot that nodes boot from, made as for a real project: from a server that is deleted then.
async fn ensure_image(client: &Client, file: &ClusterFile) -> Result<Image, Failure> {
    let versions = [("talos-version", file.talos_version.as_str()), ("k8s-version", file.kubernetes_version.as_str())];
    let labels = versions.into_iter().chain([("os", "talos"), ("arch", "amd64")]);
    let labels: Labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    let description = format!("talos-{}-k8s-{}-amd64", file.talos_version, file.kubernetes_version);
    let name = format!("build-{}", description.replace('.', "-"));
    let found = client.snapshot(&labels).await?;
    // An interrupted start left its server: the snapshot may not be ready, and the server is still to go.
    let is_under_way = client.by_name::<Server>(&name).await?.is_some();
    if let Some(image) = found.filter(|_| !is_under_way) {
        return Ok(image);
    }
    let body = json!({ "server_type": "cx23", "image": "debian-13", "location": file.region });
    let builder: Server = client.ensure(&wanted(&file.name, name, &[], body)).await?.resource;
    client.command(builder.id, Command::PowerOff).await?;
    let image = client.ensure_snapshot(builder.id, &description, &labels).await?;
    client.delete::<Server>(builder.id).await?;
    Ok(image)
}

/// The part of a network that is for one role.
fn subnet(range: &str, index: u32) -> String {
    let first: Ipv4Addr = first_of(range);
    let size = 1 << (32 - u32::from(SUBNET_PREFIX));
    format!("{}/{SUBNET_PREFIX}", Ipv4Addr::from(u32::from(first) + index * size))
}

/// The last address that a host may have, which is the API's.
fn last_host(subnet: &str) -> Ipv4Addr {
    let size = 1 << (32 - u32::from(SUBNET_PREFIX));
    Ipv4Addr::from(u32::from(first_of(subnet)) + size - 2)
}

fn first_of(range: &str) -> Ipv4Addr {
    let first = range.split('/').next().and_then(|first| first.parse().ok());
    first.expect("the simulator's ranges are well-formed")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The start ends after each of its changes, and the next one goes on.
    #[tokio::test]
    async fn an_interrupted_image_leaves_no_server() {
        let options = testbed::hetzner::Options::new(vec![testbed::hetzner::Access::new("token", "dev")]);
        let simulator = testbed::hetzner::Simulator::start(options).await.unwrap();
        let settings = hetzner::Settings { attempts: 1, ..hetzner::Settings::default() };
        let clients = hetzner::Clients::new(settings);
        let client = clients.get(&simulator.endpoint(), &hetzner::Token::new("token")).unwrap();
        let file = super::super::cluster_file(crate::cluster::Mode::Dev);
        let changes = ["POST /servers", "POST /servers/*/actions/poweroff", "POST /servers/*/actions/create_image"];
        for change in changes.into_iter().chain(["DELETE /servers/*"]) {
            simulator.faults().add(change, "cut".parse().unwrap(), Some(1)).unwrap();
            ensure_image(&client, &file).await.unwrap_err();
        }
        let image = ensure_image(&client, &file).await.unwrap();
        assert_eq!(image.status, hetzner::ImageStatus::Available);
        assert_eq!(client.by_name::<Server>("build-talos-v1-12-1-k8s-1-35-0-amd64").await.unwrap(), None);
        assert_eq!(ensure_image(&client, &file).await.unwrap().id, image.id, "it is made once");
    }

    #[test]
    fn addresses_follow_the_plan() {
        assert_eq!(
            [0, 1, 2].map(|index| subnet("10.0.0.0/16", index)),
            ["10.0.0.0/25", "10.0.0.128/25", "10.0.1.0/25"]
        );
        assert_eq!(last_host("10.0.0.128/25"), Ipv4Addr::new(10, 0, 0, 254));
    }
}
