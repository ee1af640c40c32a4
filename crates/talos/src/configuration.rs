//! The machine configuration of a node: a pure function of the cluster's secrets and the node's spec, so that the CLI
//! and the operator give the same server the same configuration.

use std::net::Ipv4Addr;

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use crate::{Secrets, certificate::Pair};

/// What a node is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    ControlPlane,
    Worker,
}

/// What one node's configuration depends on besides the cluster's secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSpec {
    pub cluster: String,
    /// Name of the server, of the Node and of the etcd member.
    pub hostname: String,
    pub role: Role,
    /// Hetzner's number of the server: how the cloud controller finds the Node.
    pub server_id: u64,
    /// With the leading `v`.
    pub talos_version: String,
    /// Without a leading `v`.
    pub kubernetes_version: String,
    /// Of the Image Factory; the plain installer where `None`.
    pub schematic: Option<String>,
    /// The private address of the API's load balancer.
    pub endpoint: Ipv4Addr,
    /// Further names and addresses under which API server and machine API are called.
    pub certificate_hosts: Vec<String>,
    /// Where nodes have their addresses; kubelet and etcd advertise one of it.
    pub node_cidr: String,
    pub pod_cidr: String,
    pub service_cidr: String,
}

/// The port of the API server, on every control plane and on the load balancer.
const API_PORT: u16 = 6443;
/// The first disk of every server type.
const INSTALL_DISK: &str = "/dev/sda";
/// Where the local balancer of API servers listens; Talos' default.
const KUBE_PRISM_PORT: u16 = 7445;

impl NodeSpec {
    /// YAML documents for `ApplyConfiguration`. The same input gives the same bytes.
    pub fn machine_configuration(&self, secrets: &Secrets) -> String {
        let main = json!({
            "version": "v1alpha1",
            "debug": false,
            "persist": true,
            "machine": self.machine(secrets),
            "cluster": self.cluster(secrets),
        });
        // From Talos 1.12 on the name of a node is a document of its own.
        let hostname = json!({
            "apiVersion": "v1alpha1",
            "kind": "HostnameConfig",
            "hostname": self.hostname,
            "auto": "off",
        });
        let yaml = |document: &Value| serde_saphyr::to_string(document).expect("a JSON value has a YAML form");
        format!("{}---\n{}", yaml(&main), yaml(&hostname))
    }

    /// What a new server installs; also what `Upgrade` takes.
    pub fn installer(&self) -> String {
        let version = &self.talos_version;
        match &self.schematic {
            Some(schematic) => format!("factory.talos.dev/installer/{schematic}:{version}"),
            None => format!("ghcr.io/siderolabs/installer:{version}"),
        }
    }

    fn is_control_plane(&self) -> bool {
        self.role == Role::ControlPlane
    }

    fn machine(&self, secrets: &Secrets) -> Value {
        let mut machine = json!({
            "type": if self.is_control_plane() { "controlplane" } else { "worker" },
            "token": secrets.trustd_token,
            "ca": self.authority(&secrets.os),
            "certSANs": self.hosts(),
            "install": {
                "disk": INSTALL_DISK,
                "image": self.installer(),
                "wipe": false,
                "grubUseUKICmdline": true,
            },
            "nodeLabels": self.labels(),
            // Both interfaces, public and private, have their addresses from DHCP. By selector: their names differ
            // between server types.
            "network": { "interfaces": [{ "deviceSelector": { "physical": true }, "dhcp": true }] },
            "kubelet": self.kubelet(),
            "sysctls": {
                "net.core.somaxconn": "65535",
                "net.core.netdev_max_backlog": "4096",
                "net.ipv6.conf.default.disable_ipv6": "0",
                "net.ipv6.conf.all.disable_ipv6": "0",
            },
            "systemDiskEncryption": { "state": encryption(), "ephemeral": encryption() },
            "features": {
                "diskQuotaSupport": true,
                "kubePrism": { "enabled": true, "port": KUBE_PRISM_PORT },
                "hostDNS": { "enabled": true, "forwardKubeDNSToHost": false, "resolveMemberNames": true },
            },
        });
        if self.is_control_plane() {
            // For backups and health checks that run as pods.
            machine["features"]["kubernetesTalosAPIAccess"] = json!({
                "enabled": true,
                "allowedRoles": ["os:reader", "os:etcd:backup"],
                "allowedKubernetesNamespaces": ["kube-system"],
            });
        }
        machine
    }

    fn labels(&self) -> Value {
        let mut labels = json!({ "nodeid": self.server_id.to_string() });
        if self.is_control_plane() {
            // What Talos' own generator gives control planes: load balancers of Services stay away from them.
            labels["node.kubernetes.io/exclude-from-external-load-balancers"] = json!("");
        }
        labels
    }

    fn kubelet(&self) -> Value {
        // A control plane's own programs need more of the processor than a worker's.
        let cpu = if self.is_control_plane() { "250m" } else { "100m" };
        let reserved = |memory| json!({ "cpu": cpu, "memory": memory, "ephemeral-storage": "1Gi" });
        json!({
            "image": self.image("ghcr.io/siderolabs/kubelet"),
            "defaultRuntimeSeccompProfileEnabled": true,
            "disableManifestsDirectory": true,
            "extraArgs": {
                "cloud-provider": "external",
                "provider-id": format!("hcloud://{}", self.server_id),
            },
            "extraConfig": {
                "shutdownGracePeriod": "90s",
                "shutdownGracePeriodCriticalPods": "15s",
                "systemReserved": reserved("300Mi"),
                "kubeReserved": reserved("350Mi"),
            },
            "nodeIP": { "validSubnets": [self.node_cidr] },
        })
    }

    fn cluster(&self, secrets: &Secrets) -> Value {
        let mut cluster = json!({
            "id": secrets.cluster_id,
            "secret": secrets.cluster_secret,
            "clusterName": self.cluster,
            "controlPlane": { "endpoint": format!("https://{}:{API_PORT}", self.endpoint) },
            "network": {
                "cni": { "name": "none" },
                "dnsDomain": "cluster.local",
                "podSubnets": [self.pod_cidr],
                "serviceSubnets": [self.service_cidr],
            },
            "token": secrets.bootstrap_token,
            "ca": self.authority(&secrets.kubernetes),
            "proxy": { "disabled": true },
            // Nodes find each other by the cluster's own service; Kubernetes' registry does not work with its
            // restricted node rights.
            "discovery": {
                "enabled": true,
                "registries": { "kubernetes": { "disabled": true }, "service": { "disabled": false } },
            },
            "coreDNS": { "disabled": false },
        });
        if self.is_control_plane()
            && let (Value::Object(cluster), Value::Object(own)) = (&mut cluster, self.control_plane(secrets))
        {
            cluster.extend(own);
        }
        cluster
    }

    /// What only control planes have in their `cluster` part.
    fn control_plane(&self, secrets: &Secrets) -> Value {
        json!({
            "secretboxEncryptionSecret": secrets.secretbox_key,
            "aggregatorCA": self.authority(&secrets.aggregator),
            "serviceAccount": { "key": STANDARD.encode(&secrets.service_account_key) },
            "allowSchedulingOnControlPlanes": false,
            "apiServer": {
                "image": self.image("registry.k8s.io/kube-apiserver"),
                "certSANs": self.hosts(),
                "extraArgs": { "enable-aggregator-routing": "true" },
                "admissionControl": [pod_security()],
                "auditPolicy": { "apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": [{ "level": "Metadata" }] },
            },
            "controllerManager": {
                "image": self.image("registry.k8s.io/kube-controller-manager"),
                "extraArgs": { "cloud-provider": "external", "bind-address": "0.0.0.0" },
            },
            "scheduler": {
                "image": self.image("registry.k8s.io/kube-scheduler"),
                "extraArgs": { "bind-address": "0.0.0.0" },
            },
            "etcd": {
                "ca": self.authority(&secrets.etcd),
                "advertisedSubnets": [self.node_cidr],
                "extraArgs": { "listen-metrics-urls": "http://0.0.0.0:2381" },
            },
            // The kubeconfig outlives any rotation interval: the operator fetches a new one when it needs one.
            "adminKubeconfig": { "certLifetime": "87600h" },
            "externalCloudProvider": { "enabled": true },
        })
    }

    /// Only control planes can sign; a worker's certificate comes from them.
    fn authority(&self, pair: &Pair) -> Value {
        let key = if self.is_control_plane() { STANDARD.encode(&pair.key) } else { String::new() };
        json!({ "crt": STANDARD.encode(&pair.certificate), "key": key })
    }

    fn hosts(&self) -> Vec<String> {
        let mut hosts = vec![self.endpoint.to_string()];
        for host in &self.certificate_hosts {
            if !hosts.contains(host) {
                hosts.push(host.clone());
            }
        }
        hosts
    }

    fn image(&self, name: &str) -> String {
        format!("{name}:v{}", self.kubernetes_version)
    }
}

/// The key derives from the machine's own identity: a disk that leaves its server cannot be read.
fn encryption() -> Value {
    json!({
        "provider": "luks2",
        "options": ["no_read_workqueue", "no_write_workqueue"],
        "keys": [{ "nodeID": {}, "slot": 0 }],
    })
}

/// Talos' own default.
fn pod_security() -> Value {
    json!({
        "name": "PodSecurity",
        "configuration": {
            "apiVersion": "pod-security.admission.config.k8s.io/v1alpha1",
            "kind": "PodSecurityConfiguration",
            "defaults": {
                "enforce": "baseline",
                "enforce-version": "latest",
                "audit": "restricted",
                "audit-version": "latest",
                "warn": "restricted",
                "warn-version": "latest",
            },
            "exemptions": { "usernames": [], "runtimeClasses": [], "namespaces": ["kube-system"] },
        },
    })
}

#[cfg(test)]
mod tests;
