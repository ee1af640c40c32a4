//! Who speaks to the API server, and the kubeconfig that says so.

use k8s_openapi::ByteString;
use kube::config::Kubeconfig;
use serde_json::{Value, json};

use crate::pki::Identity;

/// Someone the API server can tell apart from others, in RBAC and in the audit log.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum User {
    /// A user by client certificate, in at most one group beside `system:authenticated`.
    Named { name: String, group: Option<String> },
    /// An existing ServiceAccount by a real token: `system:serviceaccount:NAMESPACE:NAME`.
    ServiceAccount { namespace: String, name: String },
}

impl User {
    pub fn named(name: impl Into<String>) -> Self {
        Self::Named { name: name.into(), group: None }
    }

    pub fn in_group(name: impl Into<String>, group: impl Into<String>) -> Self {
        Self::Named { name: name.into(), group: Some(group.into()) }
    }

    /// May do everything: group `system:masters`.
    pub fn admin() -> Self {
        Self::in_group("admin", "system:masters")
    }

    pub fn service_account(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self::ServiceAccount { namespace: namespace.into(), name: name.into() }
    }
}

/// How a kubeconfig proves who its bearer is.
pub(crate) enum Proof {
    Certificate(Identity),
    Token(String),
}

/// A kubeconfig with everything embedded, as one JSON value (which is YAML too).
pub(crate) fn kubeconfig(server: &str, authority: &str, proof: &Proof) -> Value {
    let user = match proof {
        Proof::Certificate(identity) => json!({
            "client-certificate-data": encode(&identity.certificate),
            "client-key-data": encode(&identity.key),
        }),
        Proof::Token(token) => json!({ "token": token }),
    };
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{ "name": "strata", "cluster": {
            "server": server,
            "certificate-authority-data": encode(authority),
        }}],
        "users": [{ "name": "user", "user": user }],
        "contexts": [{ "name": "strata", "context": { "cluster": "strata", "user": "user" } }],
        "current-context": "strata",
    })
}

fn encode(pem: &str) -> ByteString {
    ByteString(pem.as_bytes().to_vec())
}

/// A client that is used on the runtime it was made on: its connections must not outlive that runtime.
pub(crate) async fn client(kubeconfig: Value) -> Result<kube::Client, kube::Error> {
    install_crypto();
    let kubeconfig: Kubeconfig = serde_json::from_value(kubeconfig).expect("our own kubeconfig is well-formed");
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &kube::config::KubeConfigOptions::default())
        .await
        .expect("our own kubeconfig embeds all it needs");
    kube::Client::try_from(config)
}

/// Makes aws-lc-rs the process's crypto provider. Another that was there first is left in place.
pub fn install_crypto() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
}
