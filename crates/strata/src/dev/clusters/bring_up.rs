//! The script that makes a cluster of servers: the same calls, in the same order, as for a real one.

use std::{collections::HashSet, path::Path, time::Duration};

use futures::future::join_all;
use hetzner::{Certificate, Client, Clients, LoadBalancer, Settings, Token};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, api::ListParams, config::Kubeconfig};
use process::Clock;
use serde_json::json;
use talos::{
    Authority, Secrets, Talosconfig,
    certificate::{KeyKind, Subject},
    talosconfig,
};
use testbed::{cloud::Cloud, kwok::is_node_ready, talos::eventually};

use super::{
    CLUSTER_LABEL, ClusterStatus,
    infrastructure::{self, Infrastructure, wanted},
    nodes::{self, Servers},
    status_of,
};
use crate::{
    Failure,
    cluster::{ClusterFile, FILE, SECRETS, Surroundings, Versions, public_address},
    dev::{event::Report, place::Place},
    explained,
};

/// Servers that were there before boot within seconds; a busy machine with five control planes was seen to need ten
/// times that.
const RETURN_PATIENCE: Duration = Duration::from_mins(2);
const POLL: Duration = Duration::from_millis(250);

/// One cluster on its way up.
struct BringUp<'a> {
    place: &'a Place,
    file: &'a ClusterFile,
    client: Client,
    secrets: Secrets,
    report: &'a Report,
    clock: Clock,
}

/// Brings a cluster up, or back: one that was up once is only waited for, whatever became of its servers.
pub async fn bring_up(
    cloud: &Cloud,
    place: &Place,
    file: &ClusterFile,
    report: &Report,
) -> Result<ClusterStatus, Failure> {
    let status = status_of(place, cloud, &file.name);
    let step = format!("cluster {}", file.name);
    let clock = Clock::default();
    // Actions of the simulator take milliseconds.
    let settings = Settings { poll_interval: Duration::from_millis(50), ..Settings::default() };
    let client = Clients::new(settings).get(&cloud.endpoint(), &Token::new(cloud.token()))?;
    let marker = format!("{}-state", file.name);
    if client.by_name::<Certificate>(&marker).await?.is_some() {
        report.step(&step, "its servers boot from their disks");
        match tokio::time::timeout(RETURN_PATIENCE, api_answers(&status.kubeconfig)).await {
            Ok(nodes) => report.done(&step, format!("back with {nodes} Nodes")),
            Err(_) => report.note(format!("{step} does not answer yet: its servers are as they were left")),
        }
        return Ok(status);
    }
    place.make_cluster(&file.name)?;
    let secrets = secrets(place, file, &clock)?;
    let bring_up = BringUp { place, file, client, secrets, report, clock };
    bring_up.write(FILE, &serde_saphyr::to_string(file).map_err(|error| Failure::new(error.to_string()))?)?;
    report.step(&step, "network, load balancer, firewall, image");
    let on = infrastructure::ensure(&bring_up.client, file, &cloud.network().to_string()).await?;
    report.step(&step, "creating its servers");
    let servers = Servers::ensure(&bring_up.client, file, &on).await?;
    // An interrupted start may have left keys; no other one makes servers here.
    bring_up.client.sweep_keys((CLUSTER_LABEL, file.name.as_str()), bring_up.clock.now()).await?;
    let talosconfig = bring_up.start_etcd(&servers, &on).await?;
    let authority = Authority::found(
        &Subject { common_name: Some(&marker), ..Subject::default() },
        KeyKind::EcdsaP256,
        bring_up.clock.now(),
    );
    let pair = authority.map_err(|error| Failure::new(explained(&error)))?.pair().clone();
    let body = json!({ "type": "uploaded", "certificate": pair.certificate, "private_key": pair.key });
    let marker = wanted(&file.name, marker, &[("state", "initialized")], body);
    bring_up.nodes_ready(&servers, &talosconfig, &status.kubeconfig).await?;
    // Last: one that is interrupted before goes on where it was.
    bring_up.client.ensure::<Certificate>(&marker).await?;
    report.done(&step, format!("{} Nodes are ready", servers.count()));
    Ok(status)
}

/// Those of an interrupted start, or new ones.
fn secrets(place: &Place, file: &ClusterFile, clock: &Clock) -> Result<Secrets, Failure> {
    let path = place.cluster(&file.name).join(SECRETS);
    let cannot = |error: &dyn std::error::Error| Failure::new(format!("{}: {}", path.display(), explained(error)));
    if let Ok(text) = std::fs::read_to_string(&path) {
        return Secrets::from_yaml(&text).map_err(|error| cannot(&error));
    }
    let secrets = Secrets::generate(clock.now()).map_err(|error| cannot(&error))?;
    place.write_cluster(&file.name, SECRETS, &secrets.to_yaml())?;
    Ok(secrets)
}

impl BringUp<'_> {
    fn write(&self, name: &str, text: &str) -> Result<(), Failure> {
        self.place.write_cluster(&self.file.name, name, text)
    }

    fn step(&self, detail: impl Into<String>) {
        self.report.step(format!("cluster {}", self.file.name), detail);
    }

    /// Configures all servers, bootstraps etcd on the first and waits until every control plane votes.
    async fn start_etcd(&self, servers: &Servers, on: &Infrastructure) -> Result<Talosconfig, Failure> {
        let versions = Versions::of_file(self.file);
        let surroundings = Surroundings { file: self.file, network: &on.network, balancer: &on.balancer, versions };
        let talosconfig = self.write_credentials(servers, &on.balancer)?;
        let [first, others @ ..] = &servers.control_planes[..] else {
            return Err(Failure::new("a cluster has a control plane"));
        };
        self.step("the first control plane starts etcd");
        nodes::configure(first, &surroundings, &self.secrets).await?;
        let talos = nodes::client_of(first, &talosconfig)?;
        eventually("bootstrap of etcd", || talos.ensure_bootstrapped()).await?;
        let rest = others.iter().chain(&servers.workers);
        let rest = rest.map(|server| nodes::configure(server, &surroundings, &self.secrets));
        futures::future::try_join_all(rest).await?;
        let count = servers.control_planes.len();
        let votes = || async {
            let members = talos.etcd_members().await.map_err(|error| error.to_string())?;
            let voters = members.iter().filter(|member| !member.is_learner).count();
            self.step(format!("{voters} of {count} control planes vote in etcd"));
            if voters == count { Ok(()) } else { Err(format!("{voters} of {count} vote")) }
        };
        eventually("etcd members that vote", votes).await?;
        let kubeconfig = eventually("the administrator's kubeconfig", || talos.kubeconfig()).await?;
        self.write("kubeconfig", &surroundings.through_public(&kubeconfig)?)?;
        Ok(talosconfig)
    }

    async fn nodes_ready(
        &self,
        servers: &Servers,
        talosconfig: &Talosconfig,
        kubeconfig: &Path,
    ) -> Result<(), Failure> {
        let count = servers.count();
        let ready = || async {
            let ready = ready_nodes(kubeconfig).await?;
            let late = servers.all().filter(|server| !ready.contains(&server.name));
            let late = join_all(late.map(|server| nodes::kubelet_of(server, talosconfig))).await;
            if late.is_empty() {
                return Ok(());
            }
            let detail = format!("{} of {count} Nodes are ready; not so: {}", count - late.len(), late.join(", "));
            self.step(&detail);
            Err(detail)
        };
        Ok(eventually("Nodes that are ready", ready).await?)
    }

    /// For talosctl and etcdctl.
    fn write_credentials(&self, servers: &Servers, balancer: &LoadBalancer) -> Result<Talosconfig, Failure> {
        let cannot = |error: &dyn std::error::Error| Failure::new(explained(error));
        let now = self.clock.now();
        let os = self.secrets.os_authority().map_err(|error| cannot(&error))?;
        let endpoints = public_address(balancer).map(|address| address.to_string()).into_iter().collect();
        let issued = Talosconfig::issue(&self.file.name, &os, talosconfig::Role::Admin, endpoints, now);
        let mut talosconfig = issued.map_err(|error| cannot(&error))?;
        let first = servers.control_planes.first().and_then(|server| server.private_net.first());
        if let Some(context) = talosconfig.contexts.get_mut(&self.file.name) {
            // Calls without -n are about the first control plane.
            context.nodes = first.map(|net| net.ip.to_string()).into_iter().collect();
        }
        self.write("talosconfig", &talosconfig.to_yaml())?;
        let etcd = Authority::open(self.secrets.etcd.clone()).map_err(|error| cannot(&error))?;
        let subject = Subject { common_name: Some("etcdctl"), ..Subject::default() };
        let pair = etcd.sign(&subject, now, talosconfig::LIFETIME).map_err(|error| cannot(&error))?;
        for (name, text) in
            [("etcd-ca.crt", etcd.certificate()), ("etcd.crt", &pair.certificate), ("etcd.key", &pair.key)]
        {
            self.write(name, text)?;
        }
        Ok(talosconfig)
    }
}

async fn api_answers(kubeconfig: &Path) -> usize {
    loop {
        match ready_nodes(kubeconfig).await {
            Ok(nodes) if !nodes.is_empty() => return nodes.len(),
            _ => tokio::time::sleep(POLL).await,
        }
    }
}

/// Their names.
async fn ready_nodes(kubeconfig: &Path) -> Result<HashSet<String>, String> {
    let text = |error: &dyn std::error::Error| explained(error);
    let kubeconfig = Kubeconfig::read_from(kubeconfig).map_err(|error| text(&error))?;
    let config = runtime::config_of_kubeconfig(kubeconfig, None).await;
    let client = kube::Client::try_from(config.map_err(|error| text(&error))?).map_err(|error| text(&error))?;
    let nodes = Api::<Node>::all(client).list(&ListParams::default()).await.map_err(|error| text(&error))?;
    let ready = nodes.items.into_iter().filter(|node| is_node_ready(Some(node)));
    Ok(ready.filter_map(|node| node.metadata.name).collect())
}
