//! Who may talk to whom. Policies only ever add to what is allowed, so the first one closes everything and each of the
//! others opens one thing. A list that would be empty means "all" to Kubernetes: then there is no policy at all.

use api::workspace::{Network, WorkspaceSpec};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::workspaces::derived::{Derived, ObjectKind, Owner};

/// Carries the namespace's own name on every namespace; Kubernetes sets it.
const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";
/// Where ingress-nginx installs itself.
const INGRESS_NAMESPACE: &str = "ingress-nginx";

/// Addresses that are not the internet: private networks, and link-local ones, where clouds keep their credentials.
const NOT_INTERNET: [(&str, &[&str]); 2] = [
    ("0.0.0.0/0", &["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16"]),
    ("::/0", &["fc00::/7", "fe80::/10"]),
];

/// Where the API server answers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Endpoint {
    pub address: String,
    pub port: i32,
}

pub(super) fn is_isolated(spec: &WorkspaceSpec) -> bool {
    spec.network.as_ref().and_then(|network| network.isolation) != Some(false)
}

pub(super) fn policies(owner: &Owner, spec: &WorkspaceSpec, api_server: &[Endpoint]) -> Vec<Derived> {
    if !is_isolated(spec) {
        return Vec::new();
    }
    let default = Network::default();
    let network = spec.network.as_ref().unwrap_or(&default);
    let has_internet = network.internet != Some(false);
    let own_pods = || json!({ "podSelector": {} });
    let ingress_controller = namespace(network.ingress_namespace.as_deref().unwrap_or(INGRESS_NAMESPACE));
    // Name, what may come in, what may go out.
    let openings = [
        ("dns", vec![], vec![dns()]),
        ("inside", vec![json!({ "from": [own_pods()] })], vec![json!({ "to": [own_pods()] })]),
        ("internet", vec![], has_internet.then(internet).into_iter().collect()),
        ("api-server", vec![], api_server.iter().map(endpoint).collect()),
        ("ingress-controller", vec![json!({ "from": [ingress_controller] })], vec![]),
        ("allowed-egress", vec![], network.allowed_egress.iter().filter_map(allowed).collect()),
    ];
    let deny = policy(owner, "default-deny", &["Ingress", "Egress"], &[], &[]);
    let open = openings.iter().filter_map(|(name, ingress, egress)| {
        let types: &[&str] = match (ingress.is_empty(), egress.is_empty()) {
            (true, true) => return None,
            (false, true) => &["Ingress"],
            (true, false) => &["Egress"],
            (false, false) => &["Ingress", "Egress"],
        };
        Some(policy(owner, name, types, ingress, egress))
    });
    std::iter::once(deny).chain(open).collect()
}

/// Both lists are always stated: one that a user fills by hand is then seen to differ.
fn policy(owner: &Owner, name: &str, types: &[&str], ingress: &[Value], egress: &[Value]) -> Derived {
    let spec = json!({ "podSelector": {}, "policyTypes": types, "ingress": ingress, "egress": egress });
    owner.derive(ObjectKind::NetworkPolicy, format!("{}-{name}", owner.name), json!({ "spec": spec }))
}

fn dns() -> Value {
    let pods = json!({
        "namespaceSelector": { "matchLabels": { NAMESPACE_NAME: "kube-system" } },
        "podSelector": { "matchLabels": { "k8s-app": "kube-dns" } },
    });
    // Answers that do not fit into one packet come by TCP.
    json!({ "to": [pods], "ports": [port("UDP", 53), port("TCP", 53)] })
}

fn internet() -> Value {
    let block = |(cidr, except): (&str, &[&str])| json!({ "ipBlock": { "cidr": cidr, "except": except } });
    json!({ "to": NOT_INTERNET.map(block) })
}

fn namespace(name: &str) -> Value {
    json!({ "namespaceSelector": { "matchLabels": { NAMESPACE_NAME: name } } })
}

fn endpoint(endpoint: &Endpoint) -> Value {
    let bits = if endpoint.address.contains(':') { 128 } else { 32 };
    let block = json!({ "ipBlock": { "cidr": format!("{}/{bits}", endpoint.address) } });
    json!({ "to": [block], "ports": [port("TCP", endpoint.port)] })
}

/// Nothing for an entry without ports: to Kubernetes it would mean all of them.
fn allowed(egress: &api::workspace::Egress) -> Option<Value> {
    let protocol = egress.protocol.as_deref().unwrap_or("TCP");
    let ports: Vec<_> = egress.ports.iter().map(|number| port(protocol, *number)).collect();
    (!ports.is_empty()).then(|| json!({ "to": [{ "ipBlock": { "cidr": egress.cidr } }], "ports": ports }))
}

fn port(protocol: &str, number: i32) -> Value {
    json!({ "protocol": protocol, "port": number })
}
