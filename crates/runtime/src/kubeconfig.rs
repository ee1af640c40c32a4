//! What a kubeconfig says of the API server. The content of one from a Secret is another's, so nothing in it may run a
//! program or read a file here.

use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig, NamedCluster},
};

use crate::client::connect;

/// A Secret holds no more.
const LARGEST: usize = 1 << 20;

/// Why a kubeconfig is not used. Nothing of its content is quoted but names.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KubeconfigError {
    #[error("the kubeconfig is larger than {LARGEST} bytes")]
    TooLarge,
    #[error("the kubeconfig cannot be read: write YAML or JSON as kubectl does")]
    Unreadable,
    #[error("the kubeconfig has {field}, which would {what} in the operator's pod; {remedy}")]
    Refused { field: String, what: &'static str, remedy: &'static str },
    #[error(
        "the kubeconfig has proxy-url, and strata speaks to API servers without a proxy; name a server that can be \
         reached directly and remove proxy-url"
    )]
    Proxied,
    #[error("the kubeconfig cannot be used: {0}")]
    Unusable(String),
}

/// A client of the current context of a kubeconfig from a Secret.
pub async fn client(kubeconfig: &[u8]) -> Result<Client, KubeconfigError> {
    let config = config(read(kubeconfig)?, None).await?;
    connect(config).map_err(|error| KubeconfigError::Unusable(error.to_string()))
}

/// The configuration of a context, by default of the current one. A proxy that the environment names is for downloads:
/// kube would take it for every API server, also for one on this machine, and refuse it with the proxy's password.
pub async fn config(kubeconfig: Kubeconfig, context: Option<&str>) -> Result<Config, KubeconfigError> {
    let proxy = cluster_of(&kubeconfig, context).and_then(|named| named.cluster.as_ref()?.proxy_url.as_deref());
    if proxy.is_some_and(|proxy| !proxy.is_empty()) {
        return Err(KubeconfigError::Proxied);
    }
    let options = KubeConfigOptions { context: context.map(str::to_owned), ..KubeConfigOptions::default() };
    let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
    let mut config = config.map_err(|error| KubeconfigError::Unusable(error.to_string()))?;
    config.proxy_url = None;
    Ok(config)
}

/// The cluster that a context leads to, by default the current one.
pub fn cluster_of<'a>(kubeconfig: &'a Kubeconfig, context: Option<&str>) -> Option<&'a NamedCluster> {
    let name = context.or(kubeconfig.current_context.as_deref())?;
    let context = kubeconfig.contexts.iter().find(|named| named.name == name)?.context.as_ref()?;
    kubeconfig.clusters.iter().find(|named| named.name == context.cluster)
}

fn read(text: &[u8]) -> Result<Kubeconfig, KubeconfigError> {
    if text.len() > LARGEST {
        return Err(KubeconfigError::TooLarge);
    }
    let text = std::str::from_utf8(text).map_err(|_| KubeconfigError::Unreadable)?;
    // What kube says of YAML that it cannot read may quote it.
    let kubeconfig = Kubeconfig::from_yaml(text).map_err(|_| KubeconfigError::Unreadable)?;
    match forbidden(&kubeconfig) {
        Some(refused) => Err(refused),
        None => Ok(kubeconfig),
    }
}

/// The first field that reaches beyond the kubeconfig, in any of its entries.
fn forbidden(kubeconfig: &Kubeconfig) -> Option<KubeconfigError> {
    const EMBED: &str = "embed its content in the field of the same name with -data";
    const TOKEN: &str = "put a token, or client-certificate-data and client-key-data, in its place";
    let refused = |field: String, what, remedy| KubeconfigError::Refused { field, what, remedy };
    let clusters = kubeconfig.clusters.iter().enumerate().filter_map(|(index, named)| {
        named.cluster.as_ref()?.certificate_authority.as_ref()?;
        Some(refused(format!("clusters[{index}].cluster.certificate-authority"), "read a file", EMBED))
    });
    let users = kubeconfig.auth_infos.iter().enumerate().filter_map(|(index, named)| {
        let user = named.auth_info.as_ref()?;
        let (field, what, remedy) = if user.exec.is_some() {
            ("exec", "run a program", TOKEN)
        } else if user.auth_provider.is_some() {
            ("auth-provider", "run a program", TOKEN)
        } else if user.token_file.is_some() {
            ("tokenFile", "read a file", TOKEN)
        } else if user.client_certificate.is_some() {
            ("client-certificate", "read a file", EMBED)
        } else if user.client_key.is_some() {
            ("client-key", "read a file", EMBED)
        } else {
            return None;
        };
        Some(refused(format!("users[{index}].user.{field}"), what, remedy))
    });
    clusters.chain(users).next()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn kubeconfig(cluster: &Value, user: &Value) -> Vec<u8> {
        json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "sound", "user": {"token": "hunter2"}}, {"name": "u", "user": user}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        })
        .to_string()
        .into_bytes()
    }

    #[test]
    fn what_reaches_beyond_the_kubeconfig_is_refused_by_its_field() {
        let server = json!({"server": "http://127.0.0.1:1"});
        let exec = json!({"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "hunter2"}});
        let file = json!({"server": "https://127.0.0.1:1", "certificate-authority": "/hunter2"});
        for (cluster, user, field) in [
            (&server, exec, "users[1].user.exec"),
            (&server, json!({"auth-provider": {"name": "oidc", "config": {}}}), "users[1].user.auth-provider"),
            (&server, json!({"tokenFile": "/hunter2"}), "users[1].user.tokenFile"),
            (&server, json!({"client-certificate": "/hunter2"}), "users[1].user.client-certificate"),
            (&server, json!({"client-key": "/hunter2"}), "users[1].user.client-key"),
            (&file, json!({}), "clusters[0].cluster.certificate-authority"),
        ] {
            let error = read(&kubeconfig(cluster, &user)).unwrap_err();
            assert!(matches!(&error, KubeconfigError::Refused { field: named, .. } if named == field), "{error}");
            let text = error.to_string();
            assert!(text.contains(field) && !text.contains("hunter2"), "{text}");
        }
        assert!(read(&kubeconfig(&server, &json!({"token": "t"}))).is_ok());
    }

    #[tokio::test]
    async fn a_proxy_is_refused_without_its_password() {
        let server = json!({"server": "http://127.0.0.1:1", "proxy-url": "http://u:hunter2@127.0.0.1:2"});
        let error = client(&kubeconfig(&server, &json!({}))).await.map(drop).unwrap_err();
        assert_eq!(error, KubeconfigError::Proxied);
        assert!(error.to_string().contains("proxy-url") && !error.to_string().contains("hunter2"), "{error}");
        let unused = json!({"server": "http://127.0.0.1:1", "proxy-url": ""});
        assert!(client(&kubeconfig(&unused, &json!({}))).await.is_ok());
    }

    #[tokio::test]
    async fn what_is_no_kubeconfig_is_refused_without_a_quotation() {
        for text in ["hunter2", "users: {hunter2: [", "", "users: [{name: hunter2}]"] {
            let error = client(text.as_bytes()).await.map(drop).unwrap_err();
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
        let large = vec![b' '; LARGEST + 1];
        assert_eq!(read(&large).unwrap_err(), KubeconfigError::TooLarge);
    }
}
