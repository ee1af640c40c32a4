//! The kubeconfig of the operator's own cluster, with a token that lives an hour.

use api::{
    condition::Reason,
    machine::{API_VERSION, CLUSTER_LABEL, NstanceControlPlane},
};
use base64::{Engine, engine::general_purpose::STANDARD};
use k8s_openapi::api::{
    authentication::v1::{TokenRequest, TokenRequestSpec},
    core::v1::ServiceAccount,
};
use plan::{object::digest, round::Why};
use runtime::{Error, Key};
use serde_json::{Value, json};

use super::ControlPlaneController;
use crate::secrets::{self, API_SERVER_ANNOTATION, EXPIRY_ANNOTATION};

/// The shortest life that every API server grants; the original's.
const TOKEN_SECONDS: i64 = 3600;
/// By this name every Pod reaches the API server of its cluster, whatever its Service's address.
const IN_CLUSTER: &str = "https://kubernetes.default.svc:443";
/// What Cluster API calls its Secrets.
const SECRET_TYPE: &str = "cluster.x-k8s.io/secret";

/// How the operator's own API server is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiServer {
    pub host: String,
    pub port: u16,
    /// What a kubeconfig says.
    pub server: String,
    /// Its authority, in PEM; `None` where the system knows it.
    pub authority: Option<String>,
}

impl ApiServer {
    /// `service` is `KUBERNETES_SERVICE_HOST`: where it is the API server's address, the operator runs in the cluster.
    pub fn of(config: &kube::Config, service: Option<&str>) -> Self {
        let uri = &config.cluster_url;
        let default = if uri.scheme_str() == Some("http") { 80 } else { 443 };
        let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']').to_owned();
        let is_inside = host == "kubernetes.default.svc" || service == Some(host.as_str());
        let server = if is_inside { IN_CLUSTER.to_owned() } else { uri.to_string().trim_end_matches('/').to_owned() };
        let authority = config.root_cert.as_ref().map(|chain| chain.iter().map(|der| pem(der)).collect());
        Self { port: uri.port_u16().unwrap_or(default), host, server, authority }
    }

    /// Of what a kubeconfig says about it.
    pub(super) fn digest(&self) -> String {
        digest(&json!([self.server, self.authority]))
    }
}

fn pem(der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    // The form wants lines of 64 characters; base 64 is ASCII.
    let lines: Vec<&str> =
        text.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).unwrap_or_default()).collect();
    format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", lines.join("\n"))
}

impl ControlPlaneController {
    /// `uid` is the NstanceControlPlane's, with which the Secret goes.
    pub(super) async fn store_kubeconfig(&self, uid: &str) -> Result<(), Error> {
        let account = self.account.as_deref().unwrap_or_default();
        let spec = TokenRequestSpec { expiration_seconds: Some(TOKEN_SECONDS), ..TokenRequestSpec::default() };
        let request = TokenRequest { spec, ..TokenRequest::default() };
        let key = Key::new(self.secret.namespace.clone(), account);
        let granted: TokenRequest =
            self.writer.ask::<ServiceAccount, _>("serviceaccounts/token", &key, "token", &request).await?;
        let Some(status) = granted.status else {
            let message = "the API server answered without a token".to_owned();
            return Err(Error::Refused(Why { reason: Reason::TokenRefused, message }));
        };
        let name = &*self.own.name;
        let mut metadata = json!({
            "labels": { CLUSTER_LABEL: name },
            "annotations": {
                EXPIRY_ANNOTATION: status.expiration_timestamp.0.to_string(),
                API_SERVER_ANNOTATION: self.api_server.digest(),
            },
        });
        if self.secrets.get(&self.secret).is_none() {
            let kind = NstanceControlPlane::KIND;
            metadata["ownerReferences"] =
                json!([{ "apiVersion": API_VERSION, "kind": kind, "name": name, "uid": uid }]);
        }
        let text = serde_saphyr::to_string(&kubeconfig(name, &self.api_server, &status.token)).unwrap_or_default();
        secrets::store(&self.secrets, &self.secret, SECRET_TYPE, metadata, json!({ "value": text })).await
    }
}

/// Everything in it is named after the Cluster.
fn kubeconfig(name: &str, api_server: &ApiServer, token: &str) -> Value {
    let mut cluster = json!({ "server": api_server.server });
    if let Some(authority) = &api_server.authority {
        cluster["certificate-authority-data"] = json!(STANDARD.encode(authority));
    }
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{ "name": name, "cluster": cluster }],
        "users": [{ "name": name, "user": { "token": token } }],
        "contexts": [{ "name": name, "context": { "cluster": name, "user": name } }],
        "current-context": name,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(url: &str, service: Option<&str>) -> ApiServer {
        let mut config = kube::Config::new(url.parse().unwrap());
        config.root_cert = Some(vec![vec![7; 100]]);
        ApiServer::of(&config, service)
    }

    #[test]
    fn a65_inside_the_cluster_the_kubeconfig_names_the_service_and_outside_the_operators_url() {
        let inside = of("https://10.96.0.1:443/", Some("10.96.0.1"));
        assert_eq!((inside.host.as_str(), inside.port, inside.server.as_str()), ("10.96.0.1", 443, IN_CLUSTER));
        assert_eq!(of("https://kubernetes.default.svc/", None).server, IN_CLUSTER);
        let outside = of("https://127.0.0.1:6443/", Some("10.96.0.1"));
        assert_eq!((outside.port, outside.server.as_str()), (6443, "https://127.0.0.1:6443"));
        assert_eq!((of("http://[::1]/", None).host.as_str(), of("http://[::1]/", None).port), ("::1", 80));
    }

    #[test]
    fn a_kubeconfig_holds_the_authority_and_the_token() {
        let server = of("https://127.0.0.1:6443/", None);
        let config = kubeconfig("c--t", &server, "secret");
        assert_eq!(config["users"][0]["user"]["token"], "secret");
        assert_eq!(config["current-context"], "c--t");
        let data = config["clusters"][0]["cluster"]["certificate-authority-data"].as_str().unwrap();
        let pem = String::from_utf8(STANDARD.decode(data).unwrap()).unwrap();
        assert!(pem.starts_with("-----BEGIN CERTIFICATE-----\n") && pem.ends_with("-----END CERTIFICATE-----\n"));
        assert!(pem.lines().all(|line| line.len() <= 64), "{pem}");
        assert_eq!(
            kubeconfig("c", &ApiServer { authority: None, ..server }, "t")["clusters"][0]["cluster"],
            json!({"server": "https://127.0.0.1:6443"})
        );
    }
}
