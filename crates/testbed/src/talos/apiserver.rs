//! kube-apiserver of a control plane, on its own address under the usual port.

use std::{sync::Arc, time::Duration};

use talos::{Authority, certificate::Subject};

use super::{
    etcd::client_url,
    node::{Node, POLL, on_disk, text},
};
use crate::{
    audit::POLICY,
    process::{Child, RESTART_PAUSE},
    users::{self, Proof},
};

pub(super) const PORT: u16 = 6443;

/// Starting takes 5 s on an idle two-core machine; one with three of them was seen to need ten times that.
const START_LIMIT: Duration = Duration::from_mins(3);

/// Starts it and waits until it is ready.
pub(super) async fn start(node: &Node) -> Result<Arc<Child>, String> {
    let world = node.world.upgrade().ok_or("the testbed has ended")?;
    let program = node
        .program("kube-apiserver", &world.programs.apiserver)
        .args(flags(node)?.into_iter().map(|(name, value)| format!("--{name}={value}")));
    drop(world);
    let child = Arc::new(Child::start(program).map_err(|error| error.to_string())?);
    ready(node, &child).await?;
    Ok(child)
}

async fn ready(node: &Node, child: &Child) -> Result<(), String> {
    let server = format!("https://{}:{PORT}", node.private);
    let client = client(node, &server, "talos").await?;
    let answers = async {
        loop {
            let request = http::Request::get("/readyz").body(Vec::new()).expect("a constant request is well-formed");
            if client.request_text(request).await.is_ok() {
                return Ok(());
            }
            if child.is_running() {
                tokio::time::sleep(POLL).await;
            } else {
                // As a kubelet does: where its storage is late it gives up.
                tokio::time::sleep(RESTART_PAUSE).await;
                child.restart().await.map_err(|error| error.to_string())?;
            }
        }
    };
    let late = || Err(format!("it is not ready:\n{}", child.log_tail()));
    tokio::time::timeout(START_LIMIT, answers).await.unwrap_or_else(|_| late())
}

/// A client of the cluster with an administrator's rights, as the node's own parts have them. A worker gets its
/// certificate from a control plane.
pub(super) async fn client(node: &Node, server: &str, name: &str) -> Result<kube::Client, String> {
    let world = node.world.upgrade().ok_or("the testbed has ended")?;
    let kubernetes = &node.applied.kubernetes;
    let authority = world.authority(kubernetes, |node| &node.applied.kubernetes);
    let authority = authority.ok_or("no control plane signs certificates yet")?;
    let identity = admin(&authority, name)?;
    let kubeconfig = users::kubeconfig(server, &kubernetes.certificate, &Proof::Certificate(identity));
    kube::Client::try_from(users::own_config(kubeconfig).await).map_err(|error| error.to_string())
}

/// A certificate in Kubernetes' group of administrators.
pub(super) fn admin(authority: &Authority, name: &str) -> Result<crate::pki::Identity, String> {
    let subject = Subject { common_name: Some(name), organization: Some("system:masters"), ..Subject::default() };
    let pair = authority.sign(&subject, super::world::now(), super::listener::LEAF_LIFETIME);
    let pair = pair.map_err(|error| error.to_string())?;
    Ok(crate::pki::Identity { certificate: pair.certificate, key: pair.key })
}

fn flags(node: &Node) -> Result<Vec<(&'static str, String)>, String> {
    let keys = node.applied.control_plane.as_ref().ok_or("a worker has no API server")?;
    let open = |pair: &talos::Pair| Authority::open(pair.clone()).map_err(|error| error.to_string());
    let (etcd, kubernetes, aggregator) = (open(&keys.etcd)?, open(&node.applied.kubernetes)?, open(&keys.aggregator)?);
    let mut hosts = node.hosts();
    hosts.extend(["kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost"].map(str::to_owned));
    hosts.extend(endpoint_host(&node.applied.endpoint));
    hosts.extend(first_address(&node.applied.service_cidr));
    let hosts: Vec<&str> = hosts.iter().map(String::as_str).collect();
    let serving = Subject { common_name: Some("kube-apiserver"), hosts: &hosts, ..Subject::default() };
    let user = |name| Subject { common_name: Some(name), organization: Some("system:masters"), ..Subject::default() };
    let [etcd_crt, etcd_key] = node.write_identity("apiserver-etcd", &etcd, &user("kube-apiserver"))?;
    let [crt, key] = node.write_identity("apiserver", &kubernetes, &serving)?;
    let [kubelet_crt, kubelet_key] = node.write_identity("apiserver-kubelet", &kubernetes, &user("apiserver"))?;
    let [proxy_crt, proxy_key] = node.write_identity("front-proxy", &aggregator, &user("front-proxy-client"))?;
    let service_account = text(&node.write("service-account.key", &keys.service_account)?);
    let authority = text(&node.write("ca.crt", kubernetes.certificate())?);
    Ok(vec![
        ("bind-address", node.private.to_string()),
        ("advertise-address", node.private.to_string()),
        ("secure-port", PORT.to_string()),
        // A loopback address is refused as an endpoint of the `kubernetes` Service.
        ("endpoint-reconciler-type", "none".to_owned()),
        // Else a load balancer's check would be answered without a certificate.
        ("anonymous-auth", "false".to_owned()),
        ("service-cluster-ip-range", node.applied.service_cidr.clone()),
        ("etcd-servers", client_url(node.private)),
        ("etcd-cafile", text(&node.write("etcd-ca.crt", etcd.certificate())?)),
        ("etcd-certfile", text(&etcd_crt)),
        ("etcd-keyfile", text(&etcd_key)),
        ("tls-cert-file", text(&crt)),
        ("tls-private-key-file", text(&key)),
        ("client-ca-file", authority),
        ("kubelet-client-certificate", text(&kubelet_crt)),
        ("kubelet-client-key", text(&kubelet_key)),
        ("kubelet-preferred-address-types", "InternalIP".to_owned()),
        ("proxy-client-cert-file", text(&proxy_crt)),
        ("proxy-client-key-file", text(&proxy_key)),
        ("requestheader-client-ca-file", text(&node.write("front-proxy-ca.crt", aggregator.certificate())?)),
        ("requestheader-allowed-names", "front-proxy-client".to_owned()),
        ("requestheader-extra-headers-prefix", "X-Remote-Extra-".to_owned()),
        ("requestheader-group-headers", "X-Remote-Group".to_owned()),
        ("requestheader-username-headers", "X-Remote-User".to_owned()),
        ("service-account-issuer", node.applied.endpoint.clone()),
        ("service-account-key-file", service_account.clone()),
        ("service-account-signing-key-file", service_account),
        ("authorization-mode", "Node,RBAC".to_owned()),
        ("allow-privileged", "true".to_owned()),
        ("audit-policy-file", text(&node.write("audit-policy.json", POLICY)?)),
        ("audit-log-path", on_disk("audit.log")),
        // In megabytes; never rotated, so that the whole history can be read from one file.
        ("audit-log-maxsize", "1000000".to_owned()),
    ])
}

fn endpoint_host(endpoint: &str) -> Option<String> {
    endpoint.parse::<http::Uri>().ok()?.host().map(str::to_owned)
}

/// Of the `kubernetes` Service.
fn first_address(cidr: &str) -> Option<String> {
    let network: std::net::Ipv4Addr = cidr.split('/').next()?.parse().ok()?;
    Some(std::net::Ipv4Addr::from(u32::from(network) + 1).to_string())
}
