//! Who speaks to the API server, and the kubeconfig that says so.

use k8s_openapi::{ByteString, api::authorization::v1::SubjectAccessReview};
use kube::{
    Api, Client,
    api::PostParams,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::{Value, json};

use crate::{
    Looks,
    control_plane::{Error, READY_PATIENCE},
    pki::Identity,
};

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

/// Whether a user may do this: the `resourceAttributes` of a review, which an administrator's client asks for. The API
/// server's authorizer learns of roles, of bindings and of their end by watches, so a moment later.
pub async fn may(client: &Client, user: &User, what: &Value) -> Result<bool, kube::Error> {
    let (name, groups) = match user {
        User::Named { name, group } => (name.clone(), group.iter().collect::<Vec<_>>()),
        User::ServiceAccount { namespace, name } => (format!("system:serviceaccount:{namespace}:{name}"), Vec::new()),
    };
    let review = json!({ "spec": { "user": name, "groups": groups, "resourceAttributes": what } });
    let review: SubjectAccessReview = serde_json::from_value(review).expect("tests ask in the form of a review");
    let answer = Api::all(client.clone()).create(&PostParams::default(), &review).await?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}

/// Waits until a user may do this; `resource` may have a subresource, and the namespace is `""` for the whole cluster.
///
/// The authorizer learns of each kind of role and binding in the order in which they were made: a right of the last of
/// them shows that it knows those before it too.
pub async fn until_allowed(
    client: &Client,
    user: &User,
    verb: &str,
    group: &str,
    resource: &str,
    namespace: &str,
) -> Result<(), Error> {
    let (plural, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    let what = json!({
        "verb": verb, "group": group, "resource": plural, "subresource": subresource, "namespace": namespace,
    });
    let asking = async {
        let mut looks = Looks::default();
        while !may(client, user, &what).await? {
            looks.next().await;
        }
        Ok::<_, Error>(())
    };
    let late = || Error::NotReady { what: format!("{user:?} may {verb} {resource}"), waited: READY_PATIENCE };
    tokio::time::timeout(READY_PATIENCE, asking).await.unwrap_or_else(|_| Err(late()))
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

/// Of a kubeconfig that [`kubeconfig`] made, for a client that tries once.
pub(crate) async fn own_config(kubeconfig: Value) -> kube::Config {
    install_crypto();
    let kubeconfig: Kubeconfig = serde_json::from_value(kubeconfig).expect("our own kubeconfig is well-formed");
    let mut config = config(kubeconfig).await.expect("our own kubeconfig embeds all it needs");
    config.default_retry = false;
    config
}

/// Directly to the server: kube would take a proxy of the environment even for a server on this machine.
pub(crate) async fn config(kubeconfig: Kubeconfig) -> Result<kube::Config, kube::config::KubeconfigError> {
    let mut config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    config.proxy_url = None;
    Ok(config)
}

/// Makes aws-lc-rs the process's crypto provider. Another that was there first is left in place.
pub fn install_crypto() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
}
