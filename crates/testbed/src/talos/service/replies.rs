//! Messages of replies that are not another program's answer.

use std::io::{self, Write};

use base64::{Engine, engine::general_purpose::STANDARD};
use jiff::SignedDuration;
use talos::{
    Talosconfig,
    certificate::Subject,
    protocol::{common::Metadata, machine as api},
    talosconfig::Context,
};
use tonic::Status;

use super::{Message, node_of};
use crate::{
    talos::{apiserver, machine::Machine, node::Node, world::now},
    users::{self, Proof},
};

macro_rules! messages {
    ($($name:ident),+ $(,)?) => {
        $(impl Message for api::$name {
            fn set_metadata(&mut self, metadata: Metadata) {
                self.metadata = Some(metadata);
            }
        })+
    };
}

messages!(
    ApplyConfiguration,
    Bootstrap,
    EtcdAlarm,
    EtcdAlarmDisarm,
    EtcdDefragment,
    EtcdForfeitLeadership,
    EtcdLeaveCluster,
    EtcdMembers,
    EtcdRecover,
    EtcdRemoveMemberById,
    EtcdStatus,
    GenerateClientConfiguration,
    Hostname,
    Reboot,
    Reset,
    ServiceList,
    Shutdown,
    Upgrade,
    Version,
);

/// Versions are those of the configuration, whatever the programs are; without one, of the image it booted from.
pub(super) fn version(machine: &Machine) -> api::Version {
    let node = machine.node();
    let tag = node.as_ref().map_or_else(|| "v1.13.6".to_owned(), |node| node.talos_version.clone());
    api::Version {
        metadata: None,
        version: Some(api::VersionInfo {
            tag,
            os: "linux".to_owned(),
            arch: "amd64".to_owned(),
            ..api::VersionInfo::default()
        }),
        platform: Some(api::PlatformInfo { name: "hcloud".to_owned(), mode: "cloud".to_owned() }),
        features: Some(api::FeaturesInfo { rbac: true }),
    }
}

/// A gzipped tar with the administrator's kubeconfig in it.
pub(super) fn kubeconfig(node: &Node) -> Result<Vec<u8>, Status> {
    if !node.is_control_plane() {
        return Err(Status::unimplemented("kubeconfig is only available on control plane nodes"));
    }
    let authority = talos::Authority::open(node.applied.kubernetes.clone());
    let authority = authority.map_err(|error| Status::internal(error.to_string()))?;
    let identity = apiserver::admin(&authority, "admin").map_err(Status::internal)?;
    let server = &node.applied.endpoint;
    let mut kubeconfig = users::kubeconfig(server, authority.certificate(), &Proof::Certificate(identity));
    name_kubeconfig(&mut kubeconfig, &node.applied.cluster_name);
    let text = serde_saphyr::to_string(&kubeconfig).expect("a JSON value has a YAML form");
    archive(text.as_bytes()).map_err(|error| Status::internal(error.to_string()))
}

/// As Talos names cluster, user and context.
fn name_kubeconfig(kubeconfig: &mut serde_json::Value, cluster: &str) {
    let user = format!("admin@{cluster}");
    kubeconfig["clusters"][0]["name"] = cluster.into();
    kubeconfig["users"][0]["name"] = user.clone().into();
    kubeconfig["contexts"][0]["name"] = user.clone().into();
    kubeconfig["contexts"][0]["context"] =
        serde_json::json!({ "cluster": cluster, "user": user, "namespace": "default" });
    kubeconfig["current-context"] = user.into();
}

fn archive(content: &[u8]) -> io::Result<Vec<u8>> {
    let mut tar = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(content.len() as u64);
    header.set_mode(0o600);
    header.set_cksum();
    tar.append_data(&mut header, "kubeconfig", content)?;
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(&tar.into_inner()?)?;
    gzip.finish()
}

/// A new client certificate.
pub(super) fn client_configuration(
    machine: &Machine,
    request: &api::GenerateClientConfigurationRequest,
) -> Result<api::GenerateClientConfiguration, Status> {
    let node = node_of(machine)?;
    if !node.is_control_plane() {
        let why = "client configuration (talosconfig) can't be generated on worker nodes";
        return Err(Status::failed_precondition(why));
    }
    let seconds = request.crt_ttl.as_ref().map_or(0, |lifetime| lifetime.seconds);
    if seconds <= 0 {
        return Err(Status::invalid_argument("crt_ttl should be positive"));
    }
    let [role] = request.roles.as_slice() else {
        return Err(Status::unimplemented("a simulated node signs for one role at a time"));
    };
    let internal = |error: talos::certificate::CertificateError| Status::internal(error.to_string());
    let authority = talos::Authority::open(node.applied.os.clone()).map_err(internal)?;
    let subject = Subject { organization: Some(role), ..Subject::default() };
    let pair = authority.sign(&subject, now(), SignedDuration::from_secs(seconds)).map_err(internal)?;
    let context = Context {
        endpoints: vec![node.public.to_string()],
        nodes: Vec::new(),
        ca: STANDARD.encode(authority.certificate()),
        crt: STANDARD.encode(&pair.certificate),
        key: STANDARD.encode(&pair.key),
    };
    let name = node.applied.cluster_name.clone();
    let config = Talosconfig { context: name.clone(), contexts: [(name, context)].into() };
    Ok(api::GenerateClientConfiguration {
        metadata: None,
        ca: authority.certificate().as_bytes().to_vec(),
        crt: pair.certificate.into_bytes(),
        key: pair.key.into_bytes(),
        talosconfig: config.to_yaml().into_bytes(),
    })
}
