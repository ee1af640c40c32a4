//! A whole simulated cluster, brought up through the clients as an operator would do it.

use std::{
    future::Future,
    net::Ipv4Addr,
    sync::Arc,
    time::{Duration, Instant},
};

use talos::{
    Client, Credentials, Maintenance, NodeSpec, Role, Secrets, SecretsError, Talosconfig,
    client::Stage,
    talosconfig::{self, TalosconfigError},
};

use super::{Error, Machine, MachineOptions, World, node::POLL, world::now};

/// Three control planes on two busy cores were seen to need half of it.
const PATIENCE: Duration = Duration::from_mins(5);

/// Why a cluster did not come up.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    #[error(transparent)]
    World(#[from] Error),
    #[error(transparent)]
    Secrets(#[from] SecretsError),
    #[error(transparent)]
    Talosconfig(#[from] TalosconfigError),
    #[error(transparent)]
    Talos(#[from] talos::Error),
    #[error("controller-manager and scheduler cannot start: {0}")]
    Controllers(String),
    #[error("not reached within {} s: {what}; last: {last}", PATIENCE.as_secs())]
    Late { what: String, last: String },
}

/// A running cluster and what it takes to speak with it.
pub struct Cluster {
    pub world: World,
    pub name: String,
    pub secrets: Secrets,
    /// Of an administrator.
    pub talosconfig: Talosconfig,
    /// Where the API server answers.
    pub endpoint: Ipv4Addr,
    pub control_planes: Vec<Arc<Machine>>,
}

impl Cluster {
    /// One control plane after another, each a voting member and a ready Node before the next begins.
    pub async fn start(world: World, name: &str, control_planes: usize) -> Result<Self, ClusterError> {
        Self::start_with(world, name, control_planes, |_| {}).await
    }

    /// The same with a first server that was `prepared`, such as by faults, before anything asks it.
    pub async fn start_with(
        world: World,
        name: &str,
        control_planes: usize,
        prepared: impl FnOnce(&Machine),
    ) -> Result<Self, ClusterError> {
        let secrets = Secrets::generate(now())?;
        let os = secrets.os_authority().map_err(TalosconfigError::from)?;
        let first = world.create(&format!("{name}-cp-00000"), MachineOptions::default()).await?;
        prepared(&first);
        let endpoints = vec![first.public().to_string()];
        let talosconfig = Talosconfig::issue(name, &os, talosconfig::Role::Admin, endpoints, now())?;
        let endpoint = first.private();
        let mut cluster =
            Self { world, name: name.to_owned(), secrets, talosconfig, endpoint, control_planes: Vec::new() };
        cluster.configure(&first, Role::ControlPlane).await?;
        let client = cluster.client(&first)?;
        eventually("Bootstrap", || client.ensure_bootstrapped()).await?;
        cluster.joined(&first).await?;
        cluster.control_planes.push(first);
        for number in 1..control_planes {
            cluster.add_control_plane(&format!("{name}-cp-{number:05}")).await?;
        }
        Ok(cluster)
    }

    /// Adds one control plane and waits until it votes and its Node is registered.
    pub async fn add_control_plane(&mut self, server: &str) -> Result<Arc<Machine>, ClusterError> {
        let machine = self.world.create(server, MachineOptions::default()).await?;
        self.configure(&machine, Role::ControlPlane).await?;
        self.joined(&machine).await?;
        self.control_planes.push(machine.clone());
        Ok(machine)
    }

    /// Adds one worker and waits until its kubelet runs.
    pub async fn add_worker(&self, server: &str) -> Result<Arc<Machine>, ClusterError> {
        let machine = self.world.create(server, MachineOptions::default()).await?;
        self.configure(&machine, Role::Worker).await?;
        self.kubelet_runs(&machine).await?;
        Ok(machine)
    }

    /// The configuration that a server of this cluster gets.
    pub fn configuration(&self, machine: &Machine, role: Role) -> String {
        let spec = NodeSpec {
            cluster: self.name.clone(),
            hostname: machine.name().to_owned(),
            role,
            server_id: machine.id(),
            // What the testbed's etcd and talosctl belong to, and the newest Kubernetes it supports.
            talos_version: "v1.12.1".to_owned(),
            kubernetes_version: "1.35.0".to_owned(),
            schematic: None,
            endpoint: self.endpoint,
            certificate_hosts: Vec::new(),
            node_cidr: self.world.node_cidr(),
            pod_cidr: "10.0.128.0/17".to_owned(),
            service_cidr: "10.96.0.0/12".to_owned(),
        };
        spec.machine_configuration(&self.secrets)
    }

    /// A client of one server with the administrator's certificate.
    pub fn client(&self, machine: &Machine) -> Result<Client, talos::Error> {
        Ok(Client::new(machine.endpoint(), &Credentials::from_talosconfig(&self.talosconfig)?))
    }

    async fn configure(&self, machine: &Machine, role: Role) -> Result<(), ClusterError> {
        let maintenance = Maintenance::new(machine.endpoint());
        maintenance.apply(&self.configuration(machine, role)).await?;
        let client = self.client(machine)?;
        eventually("Version after the first reboot", || client.version()).await?;
        Ok(())
    }

    async fn joined(&self, machine: &Machine) -> Result<(), ClusterError> {
        let client = self.client(machine)?;
        let votes = || async {
            let status = client.etcd_status().await.map_err(|error| error.to_string())?;
            if status.leader != 0 && !status.is_learner { Ok(()) } else { Err(format!("{status:?}")) }
        };
        eventually("a voting member", votes).await?;
        self.kubelet_runs(machine).await
    }

    async fn kubelet_runs(&self, machine: &Machine) -> Result<(), ClusterError> {
        let client = self.client(machine)?;
        let runs = || async {
            let services = client.services().await.map_err(|error| error.to_string())?;
            let kubelet = services.iter().find(|service| service.id == "kubelet");
            match kubelet {
                Some(kubelet) if kubelet.state == "Running" => Ok(()),
                other => Err(format!("{other:?}")),
            }
        };
        eventually("a running kubelet", runs).await
    }
}

/// Whether a server without certificate finds the stage it expects; for scripts that wait.
pub async fn reaches_stage(machine: &Machine, stage: &Stage) -> Result<(), ClusterError> {
    let reaches = || async {
        // A new connector each time: a reboot changes the certificate.
        let found = Maintenance::new(machine.endpoint()).stage().await.map_err(|error| error.to_string())?;
        if found == *stage { Ok(()) } else { Err(format!("{found:?}")) }
    };
    eventually(&format!("{stage:?}"), reaches).await
}

/// Asks until the answer is good; the last bad one explains a failure.
pub async fn eventually<T, E, F>(what: &str, ask: impl Fn() -> F) -> Result<T, ClusterError>
where
    F: Future<Output = Result<T, E>>,
    E: std::fmt::Display,
{
    let started = Instant::now();
    loop {
        match ask().await {
            Ok(answer) => return Ok(answer),
            Err(last) if started.elapsed() > PATIENCE => {
                return Err(ClusterError::Late { what: what.to_owned(), last: last.to_string() });
            }
            Err(_) => tokio::time::sleep(POLL).await,
        }
    }
}
