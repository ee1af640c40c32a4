//! The servers of a cluster, from their creation to nodes that are ready.

use std::{
    hash::{BuildHasher, Hasher},
    net::SocketAddr,
};

use futures::future::try_join_all;
use hetzner::{Client, Command, NetworkAddress, Server, Since};
use serde_json::json;
use talos::{Credentials, Maintenance, Secrets, Talosconfig, client::Stage};
use testbed::talos::eventually;
use tokio::time::Instant;

use super::{
    CLUSTER_LABEL,
    infrastructure::{Infrastructure, wanted},
};
use crate::{
    Failure,
    cluster::{ClusterFile, Mode, ROLE_LABEL, Surroundings},
};

/// The two sorts of servers: label, part of the name, label of the pool.
const ROLES: [(&str, &str, &str); 2] = [("control-plane", "cp", "control-plane"), ("worker", "w", "workers")];
/// Letters of a server's own name.
const NAME_LENGTH: usize = 5;

/// All servers of a cluster.
pub struct Servers {
    pub control_planes: Vec<Server>,
    pub workers: Vec<Server>,
}

impl Servers {
    /// Finds what an interrupted start left, makes what is missing, and turns all of them on.
    pub async fn ensure(client: &Client, file: &ClusterFile, on: &Infrastructure) -> Result<Self, Failure> {
        let look = client.look::<Server>(Since::At(Instant::now())).await?;
        let control_planes = match file.mode {
            Mode::Dev => 1,
            Mode::Ha => 3,
            Mode::Ha5 => 5,
        };
        let counts = [control_planes, usize::try_from(file.workers.count).unwrap_or_default()];
        let mut all = Vec::new();
        for ((role, part, pool), count) in ROLES.into_iter().zip(counts) {
            let is_own = |server: &&Server| {
                let is = |label: &str, value: &str| server.labels.get(label).is_some_and(|is| is == value);
                is(CLUSTER_LABEL, &file.name) && is(ROLE_LABEL, role)
            };
            let mut names: Vec<String> = look.items.iter().filter(is_own).map(|server| server.name.clone()).collect();
            while names.len() < count {
                names.push(format!("{}-{part}-{}", file.name, random_name()));
            }
            all.push(try_join_all(names.into_iter().map(|name| make(client, file, on, name, role, pool))).await?);
        }
        let (workers, control_planes) = (all.pop().unwrap_or_default(), all.pop().unwrap_or_default());
        Ok(Self { control_planes, workers })
    }

    pub fn all(&self) -> impl Iterator<Item = &Server> {
        self.control_planes.iter().chain(&self.workers)
    }

    pub fn count(&self) -> usize {
        self.all().count()
    }
}

/// One server, in its network and turned on.
async fn make(
    client: &Client,
    file: &ClusterFile,
    on: &Infrastructure,
    name: String,
    role: &str,
    pool: &str,
) -> Result<Server, Failure> {
    let is_control_plane = role == "control-plane";
    let size = file.control_plane.as_ref().filter(|_| is_control_plane).map(|of| &of.size);
    let mut body = json!({
        "server_type": size.unwrap_or(&file.workers.size), "image": on.image, "location": file.region,
        "start_after_create": false,
    });
    if is_control_plane {
        body["placement_group"] = json!(on.placement_group);
    }
    let labels = [(ROLE_LABEL, role), ("k8zner.io/pool", pool), ("role", role), ("pool", pool)];
    // Only so that no root password is made; nothing ever uses it.
    let body_of_key = json!({ "public_key": hetzner::throwaway_key() });
    let key = wanted(&file.name, format!("ephemeral-{name}"), &[], body_of_key);
    let server = wanted(&file.name, name, &labels, body);
    let server = client.ensure_server_with_key(&server, &key).await?.resource;
    let subnet = if is_control_plane { &on.control_planes } else { &on.workers };
    let to = NetworkAddress { network: on.network.id, ip: None, ip_range: Some(subnet.clone()) };
    client.attach_server(server.id, &to).await?;
    client.command(server.id, Command::PowerOn).await?;
    let gone = || Failure::new(format!("server {} is gone", server.name));
    client.get(server.id).await?.ok_or_else(gone)
}

fn random_name() -> String {
    const LETTERS: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";
    let mut number = std::hash::RandomState::new().build_hasher().finish();
    let mut letter = || {
        let letter = LETTERS[usize::try_from(number % 36).unwrap_or_default()];
        number /= 36;
        char::from(letter)
    };
    std::iter::repeat_with(&mut letter).take(NAME_LENGTH).collect()
}

/// Where the machine API of a server answers.
pub fn machine_api(server: &Server) -> Result<SocketAddr, Failure> {
    let address = server.public_net.ipv4.as_ref().map(|ipv4| ipv4.ip);
    let address = address.ok_or_else(|| Failure::new(format!("server {} has no public address", server.name)))?;
    Ok((address, talos::PORT).into())
}

/// A client of one node.
pub fn client_of(server: &Server, talosconfig: &Talosconfig) -> Result<talos::Client, Failure> {
    Ok(talos::Client::new(machine_api(server)?, &Credentials::from_talosconfig(talosconfig)?))
}

/// A server whose Node is not ready, and what its kubelet says.
pub async fn kubelet_of(server: &Server, talosconfig: &Talosconfig) -> String {
    let said = async {
        let services = client_of(server, talosconfig)?.services().await?;
        let kubelet = services.into_iter().find(|service| service.id == "kubelet");
        let kubelet = kubelet.ok_or_else(|| Failure::new("no kubelet"))?;
        let last = kubelet.events.and_then(|events| events.events.into_iter().next_back()).map(|event| event.msg);
        Ok::<_, Failure>(format!("kubelet {}: {}", kubelet.state, last.unwrap_or_default()))
    };
    let said = said.await.unwrap_or_else(|failure| failure.message);
    format!("{} ({said})", server.name)
}

/// Gives a node its configuration, unless it has one.
pub async fn configure(server: &Server, on: &Surroundings<'_>, secrets: &Secrets) -> Result<(), Failure> {
    let configuration = on.node(server)?.machine_configuration(secrets);
    let address = machine_api(server)?;
    let applied = || async {
        // A new connector each time: a reboot changes the certificate.
        let maintenance = Maintenance::new(address);
        match maintenance.stage().await? {
            Stage::Maintenance { .. } => maintenance.apply(&configuration).await.map(drop),
            Stage::Configured => Ok(()),
        }
    };
    Ok(eventually(&format!("configuration of {}", server.name), applied).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_and_differ() {
        let (one, other) = (random_name(), random_name());
        assert_ne!(one, other);
        assert!(one.len() == NAME_LENGTH && one.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit()), "{one}");
    }
}
