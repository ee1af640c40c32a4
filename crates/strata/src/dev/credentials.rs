//! The operator's identity: a short-lived token of its own ServiceAccount, renewed in a file.

use std::{io::Write, path::PathBuf, time::Duration};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{
    authentication::v1::{TokenRequest, TokenRequestSpec},
    core::v1::ServiceAccount,
};
use kube::{Api, api::PostParams, config::Kubeconfig};
use serde_json::json;

use super::{
    cluster::{ACCOUNT, Cluster, NAMESPACE},
    explained,
    place::Place,
};
use crate::Failure;

const TOKEN_FILE: &str = "operator.token";
/// What a pod's own token lives for.
const TOKEN_LIFE: SignedDuration = SignedDuration::from_hours(1);
/// By wall time, because a machine that slept wakes up with an expired token and a timer that stood still.
const CHECK_INTERVAL: Duration = Duration::from_secs(30);

pub struct Credentials {
    /// Kubeconfig of the ServiceAccount; reads its token from a file.
    pub kubeconfig: PathBuf,
    renew_at: Timestamp,
}

/// Issues a token and writes the kubeconfig that uses it.
pub async fn issue(cluster: &Cluster, place: &Place) -> Result<Credentials, Failure> {
    let renew_at = renew(cluster, place).await?;
    let name = "operator.kubeconfig";
    let kubeconfig = operator_kubeconfig(&cluster.kubeconfig, place)?;
    place.write(name, &kubeconfig)?;
    Ok(Credentials { kubeconfig: place.file(name), renew_at })
}

impl Credentials {
    /// Renews the token for as long as it is polled. A failure is tried again: the old token is good for a while.
    pub fn keep(&self, cluster: &Cluster, place: &Place) -> impl Future<Output = ()> + Send + 'static {
        let (mut renew_at, cluster, place) = (self.renew_at, cluster.clone(), place.clone());
        let clock = process::Clock::default();
        async move {
            loop {
                tokio::time::sleep(CHECK_INTERVAL).await;
                if clock.now() < renew_at {
                    continue;
                }
                match renew(&cluster, &place).await {
                    Ok(next) => renew_at = next,
                    Err(error) => {
                        // A line that cannot be written, because the disk is full, must not end the renewal.
                        let _ = writeln!(std::io::stderr(), "the operator's token is not renewed yet: {error}");
                    }
                }
            }
        }
    }
}

async fn renew(cluster: &Cluster, place: &Place) -> Result<Timestamp, Failure> {
    let accounts: Api<ServiceAccount> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    let spec = TokenRequestSpec { expiration_seconds: Some(TOKEN_LIFE.as_secs()), ..TokenRequestSpec::default() };
    let request = TokenRequest { spec, ..TokenRequest::default() };
    let refused = |error: kube::Error| {
        Failure::new(format!("no token for the ServiceAccount {NAMESPACE}/{ACCOUNT}: {}", explained(&error)))
    };
    let answer = accounts.create_token_request(ACCOUNT, &PostParams::default(), &request).await.map_err(refused)?;
    let token = answer.status.expect("a granted token request has a status");
    place.write(TOKEN_FILE, &token.token)?;
    // At half its life, so that several failures in a row do no harm. The server may grant less than was asked.
    let left = token.expiration_timestamp.0.duration_since(process::Clock::default().now());
    Ok(token.expiration_timestamp.0 - left / 2)
}

/// The admin's cluster with the operator's token.
fn operator_kubeconfig(admin: &Kubeconfig, place: &Place) -> Result<String, Failure> {
    let incomplete = || Failure::new("the kubeconfig's current context names no cluster");
    let cluster = runtime::cluster_of(admin, None).ok_or_else(incomplete)?;
    let kubeconfig = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [cluster],
        "users": [{ "name": ACCOUNT, "user": { "tokenFile": place.file(TOKEN_FILE) } }],
        "contexts": [{ "name": "operator", "context": {
            "cluster": cluster.name, "user": ACCOUNT, "namespace": NAMESPACE,
        }}],
        "current-context": "operator",
    });
    Ok(kubeconfig.to_string())
}
