//! The machine configuration as a simulated node reads it from its disk.

use base64::{Engine, engine::general_purpose::STANDARD};
use serde::Deserialize;
use serde_json::Value;
use talos::{Pair, configuration::Role};

/// The parts of a configuration that a simulated node acts on.
#[derive(Clone, Debug)]
pub(super) struct Applied {
    pub hostname: Option<String>,
    pub role: Role,
    /// Without the leading `v`.
    pub kubernetes_version: String,
    /// With the leading `v`.
    pub talos_version: String,
    pub cluster_id: String,
    pub cluster_name: String,
    /// `https://…:6443`.
    pub endpoint: String,
    pub certificate_hosts: Vec<String>,
    pub labels: Vec<(String, String)>,
    pub provider_id: Option<String>,
    pub service_cidr: String,
    /// The key is empty on workers.
    pub os: Pair,
    pub kubernetes: Pair,
    /// What only control planes have.
    pub control_plane: Option<ControlPlaneKeys>,
}

#[derive(Clone, Debug)]
pub(super) struct ControlPlaneKeys {
    pub etcd: Pair,
    pub aggregator: Pair,
    /// PEM.
    pub service_account: String,
}

#[derive(Deserialize)]
struct Machine {
    #[serde(rename = "type")]
    kind: String,
    ca: EncodedPair,
    #[serde(default, rename = "certSANs")]
    cert_sans: Vec<String>,
    #[serde(default)]
    install: Value,
    #[serde(default)]
    kubelet: Value,
    #[serde(default)]
    network: Value,
    #[serde(default, rename = "nodeLabels")]
    node_labels: std::collections::BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Cluster {
    id: String,
    #[serde(default, rename = "clusterName")]
    name: String,
    control_plane: Endpoint,
    #[serde(default)]
    network: Value,
    ca: EncodedPair,
    #[serde(rename = "aggregatorCA")]
    aggregator_ca: Option<EncodedPair>,
    service_account: Option<EncodedPair>,
    etcd: Option<Etcd>,
}

#[derive(Deserialize)]
struct Endpoint {
    endpoint: String,
}

#[derive(Deserialize)]
struct Etcd {
    ca: EncodedPair,
}

#[derive(Default, Deserialize)]
struct EncodedPair {
    #[serde(default)]
    crt: String,
    #[serde(default)]
    key: String,
}

impl Applied {
    /// Reads all documents; the message says what the vendor's validation would complain about.
    pub(super) fn read(data: &[u8]) -> Result<Self, String> {
        let text = std::str::from_utf8(data).map_err(|_| "it is not text".to_owned())?;
        let documents: Vec<Value> = serde_saphyr::from_multiple(text)
            .map_err(|error| error.to_string().lines().next().unwrap_or("").to_owned())?;
        let main = documents.iter().find(|document| document.get("machine").is_some());
        let main = main.ok_or("the applied machine configuration doesn't contain v1alpha1 config")?;
        let machine: Machine = part(main, "machine")?;
        let cluster: Cluster = part(main, "cluster")?;
        let role = match machine.kind.as_str() {
            "controlplane" | "init" => Role::ControlPlane,
            "worker" => Role::Worker,
            other => return Err(format!("unknown machine type {other:?}")),
        };
        let text_at = |value: &Value, path: &str| value.pointer(path).and_then(Value::as_str).map(str::to_owned);
        let hostname = documents.iter().find(|document| document["kind"] == "HostnameConfig");
        let hostname = hostname.and_then(|document| text_at(document, "/hostname"));
        Ok(Self {
            hostname: hostname.or_else(|| text_at(&machine.network, "/hostname")),
            role,
            kubernetes_version: tag(&machine.kubelet, "/image").unwrap_or_else(|| "v1.35.0".to_owned())[1..].to_owned(),
            talos_version: tag(&machine.install, "/image").unwrap_or_else(|| "v1.12.1".to_owned()),
            cluster_id: cluster.id,
            cluster_name: cluster.name,
            endpoint: cluster.control_plane.endpoint,
            certificate_hosts: machine.cert_sans,
            labels: machine.node_labels.into_iter().collect(),
            provider_id: text_at(&machine.kubelet, "/extraArgs/provider-id"),
            service_cidr: text_at(&cluster.network, "/serviceSubnets/0").unwrap_or_else(|| "10.96.0.0/12".to_owned()),
            os: machine.ca.pair("machine.ca")?,
            kubernetes: cluster.ca.pair("cluster.ca")?,
            control_plane: match role {
                Role::Worker => None,
                Role::ControlPlane => Some(ControlPlaneKeys {
                    etcd: cluster.etcd.map(|etcd| etcd.ca).unwrap_or_default().pair("cluster.etcd.ca")?,
                    aggregator: cluster.aggregator_ca.unwrap_or_default().pair("cluster.aggregatorCA")?,
                    service_account: cluster.service_account.unwrap_or_default().pair("cluster.serviceAccount")?.key,
                }),
            },
        })
    }
}

fn part<T: serde::de::DeserializeOwned>(document: &Value, name: &str) -> Result<T, String> {
    serde_json::from_value(document[name].clone()).map_err(|error| format!("{name}: {error}"))
}

/// The tag of an image, which is a version with its leading `v`.
fn tag(value: &Value, path: &str) -> Option<String> {
    let (_, tag) = value.pointer(path)?.as_str()?.rsplit_once(':')?;
    tag.starts_with('v').then(|| tag.to_owned())
}

impl EncodedPair {
    fn pair(&self, name: &str) -> Result<Pair, String> {
        let decode = |text: &str| {
            let bytes = STANDARD.decode(text).map_err(|error| format!("{name}: {error}"))?;
            String::from_utf8(bytes).map_err(|_| format!("{name}: not PEM"))
        };
        Ok(Pair { certificate: decode(&self.crt)?, key: decode(&self.key)? })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_bytes_make_the_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = Applied::read(&bytes);
        }

        #[test]
        fn no_half_configuration_makes_the_reader_panic(kind in ".{0,12}", crt in ".{0,20}", image in ".{0,20}") {
            let text = |value: &str| serde_json::to_string(value).unwrap();
            let machine = format!("type: {}\n  ca: {{crt: {}}}\n  install: {{image: {}}}", text(&kind), text(&crt), text(&image));
            let cluster = "id: x\n  ca: {}\n  controlPlane: {endpoint: y}";
            let _ = Applied::read(format!("machine:\n  {machine}\ncluster:\n  {cluster}\n").as_bytes());
        }
    }

    #[test]
    fn what_is_missing_is_named() {
        assert_eq!(
            Applied::read(b"a: 1").unwrap_err(),
            "the applied machine configuration doesn't contain v1alpha1 config"
        );
        let error = Applied::read(b"machine: {type: worker}\ncluster: {}").unwrap_err();
        assert!(error.starts_with("machine: missing field"), "{error}");
    }
}
