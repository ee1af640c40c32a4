//! The secrets of a cluster, in the YAML form of `talosctl gen secrets`. Every node's configuration and every
//! certificate derives from them, so a bundle is checked whole before any part of it is used.

use std::fmt;

use base64::{
    Engine,
    engine::general_purpose::{STANDARD, URL_SAFE},
};
use jiff::Timestamp;
use rcgen::{KeyPair, PKCS_RSA_SHA256, RsaKeySize};
use serde::{Deserialize, Serialize};

use crate::{
    certificate::{Authority, CertificateError, KeyKind, Pair, Subject, read_key},
    random,
};

/// Why a bundle cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SecretsError {
    #[error("the secrets are not a YAML document of Talos' form: {0}; use the file that `talosctl gen secrets` wrote")]
    Yaml(String),
    #[error("the secrets lack {part}; use the whole file that `talosctl gen secrets` wrote")]
    Missing { part: &'static str },
    #[error("{part} of the secrets is not base64 of PEM; use the whole file that `talosctl gen secrets` wrote")]
    Encoding { part: &'static str },
    #[error("{part} of the secrets does not fit: {source}; restore the cluster's own file")]
    Foreign {
        part: &'static str,
        #[source]
        source: CertificateError,
    },
    #[error("new secrets cannot be made")]
    Generate(#[source] CertificateError),
}

/// A whole, checked bundle.
#[derive(Clone, PartialEq, Eq)]
pub struct Secrets {
    pub cluster_id: String,
    pub cluster_secret: String,
    /// With which kubelets ask for their first certificate.
    pub bootstrap_token: String,
    /// Encrypts Secrets in etcd.
    pub secretbox_key: String,
    /// With which workers ask trustd for a certificate.
    pub trustd_token: String,
    pub etcd: Pair,
    pub kubernetes: Pair,
    pub aggregator: Pair,
    /// PEM of the key that signs ServiceAccount tokens.
    pub service_account_key: String,
    pub os: Pair,
}

/// Never prints a secret.
impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secrets").field("cluster_id", &self.cluster_id).finish_non_exhaustive()
    }
}

impl Secrets {
    /// New secrets, as `talosctl gen secrets` makes them.
    pub fn generate(now: Timestamp) -> Result<Self, SecretsError> {
        let authority = |subject: &Subject<'_>, kind| {
            Authority::found(subject, kind, now)
                .map(|authority| authority.pair().clone())
                .map_err(SecretsError::Generate)
        };
        let organization = |organization| Subject { organization: Some(organization), ..Subject::default() };
        let front_proxy = Subject { common_name: Some("front-proxy"), ..Subject::default() };
        // 2048 bits: what kubeadm makes; nothing else is signed with this key than short-lived tokens.
        let service_account = KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_2048)
            .map_err(|error| SecretsError::Generate(CertificateError::Key(error)))?;
        Ok(Self {
            cluster_id: URL_SAFE.encode(random::bytes::<32>()),
            cluster_secret: STANDARD.encode(random::bytes::<32>()),
            bootstrap_token: token(),
            secretbox_key: STANDARD.encode(random::bytes::<32>()),
            trustd_token: token(),
            etcd: authority(&organization("etcd"), KeyKind::EcdsaP256)?,
            kubernetes: authority(&organization("kubernetes"), KeyKind::EcdsaP256)?,
            aggregator: authority(&front_proxy, KeyKind::EcdsaP256)?,
            service_account_key: service_account.serialize_pem(),
            os: authority(&organization("talos"), KeyKind::Ed25519)?,
        })
    }

    /// Reads and checks a bundle: no part is missing, every key belongs to its certificate.
    pub fn from_yaml(text: &str) -> Result<Self, SecretsError> {
        let bundle: Bundle =
            serde_saphyr::from_str(text).map_err(|error| SecretsError::Yaml(first_line(&error.to_string())))?;
        let Bundle { cluster, secrets, trustdinfo, certs } = bundle;
        let certs = certs.ok_or(SecretsError::Missing { part: "certs" })?;
        Ok(Self {
            cluster_id: part(cluster.id, "cluster.id")?,
            cluster_secret: part(cluster.secret, "cluster.secret")?,
            bootstrap_token: part(secrets.bootstraptoken, "secrets.bootstraptoken")?,
            secretbox_key: part(secrets.secretboxencryptionsecret, "secrets.secretboxencryptionsecret")?,
            trustd_token: part(trustdinfo.token, "trustdinfo.token")?,
            etcd: certs.etcd.checked("certs.etcd")?,
            kubernetes: certs.k8s.checked("certs.k8s")?,
            aggregator: certs.k8saggregator.checked("certs.k8saggregator")?,
            service_account_key: certs.k8sserviceaccount.key("certs.k8sserviceaccount")?,
            os: certs.os.checked("certs.os")?,
        })
    }

    /// The form that `talosctl gen config --with-secrets` reads.
    pub fn to_yaml(&self) -> String {
        let some = |text: &str| Some(text.to_owned());
        let bundle = Bundle {
            cluster: ClusterPart { id: some(&self.cluster_id), secret: some(&self.cluster_secret) },
            secrets: SecretsPart {
                bootstraptoken: some(&self.bootstrap_token),
                secretboxencryptionsecret: some(&self.secretbox_key),
            },
            trustdinfo: TrustdPart { token: some(&self.trustd_token) },
            certs: Some(Certs {
                etcd: EncodedPair::of(&self.etcd),
                k8s: EncodedPair::of(&self.kubernetes),
                k8saggregator: EncodedPair::of(&self.aggregator),
                k8sserviceaccount: EncodedPair { crt: None, key: Some(STANDARD.encode(&self.service_account_key)) },
                os: EncodedPair::of(&self.os),
            }),
        };
        serde_saphyr::to_string(&bundle).expect("strings have a YAML form")
    }

    /// Signs for clients and nodes of the machine API.
    pub fn os_authority(&self) -> Result<Authority, CertificateError> {
        Authority::open(self.os.clone())
    }
}

/// `id.secret`, as Kubernetes' bootstrap tokens are.
fn token() -> String {
    format!("{}.{}", random::word(6), random::word(16))
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}

fn part(value: Option<String>, part: &'static str) -> Result<String, SecretsError> {
    value.filter(|value| !value.is_empty()).ok_or(SecretsError::Missing { part })
}

#[derive(Deserialize, Serialize)]
struct Bundle {
    #[serde(default)]
    cluster: ClusterPart,
    #[serde(default)]
    secrets: SecretsPart,
    #[serde(default)]
    trustdinfo: TrustdPart,
    certs: Option<Certs>,
}

#[derive(Default, Deserialize, Serialize)]
struct ClusterPart {
    id: Option<String>,
    secret: Option<String>,
}

#[derive(Default, Deserialize, Serialize)]
struct SecretsPart {
    bootstraptoken: Option<String>,
    secretboxencryptionsecret: Option<String>,
}

#[derive(Default, Deserialize, Serialize)]
struct TrustdPart {
    token: Option<String>,
}

#[derive(Deserialize, Serialize)]
struct Certs {
    #[serde(default)]
    etcd: EncodedPair,
    #[serde(default)]
    k8s: EncodedPair,
    #[serde(default)]
    k8saggregator: EncodedPair,
    #[serde(default)]
    k8sserviceaccount: EncodedPair,
    #[serde(default)]
    os: EncodedPair,
}

#[derive(Default, Deserialize, Serialize)]
struct EncodedPair {
    #[serde(skip_serializing_if = "Option::is_none")]
    crt: Option<String>,
    key: Option<String>,
}

impl EncodedPair {
    fn of(pair: &Pair) -> Self {
        Self { crt: Some(STANDARD.encode(&pair.certificate)), key: Some(STANDARD.encode(&pair.key)) }
    }

    fn checked(self, name: &'static str) -> Result<Pair, SecretsError> {
        let certificate = decode(&part(self.crt, name)?, name)?;
        let key = decode(&part(self.key, name)?, name)?;
        let authority = Authority::open(Pair { certificate, key });
        authority
            .map(|authority| authority.pair().clone())
            .map_err(|source| SecretsError::Foreign { part: name, source })
    }

    fn key(self, name: &'static str) -> Result<String, SecretsError> {
        let key = decode(&part(self.key, name)?, name)?;
        read_key(&key).map_err(|source| SecretsError::Foreign { part: name, source })?;
        Ok(key)
    }
}

fn decode(text: &str, part: &'static str) -> Result<String, SecretsError> {
    let bytes = STANDARD.decode(text.trim()).map_err(|_| SecretsError::Encoding { part })?;
    String::from_utf8(bytes).map_err(|_| SecretsError::Encoding { part })
}

#[cfg(test)]
mod tests;
