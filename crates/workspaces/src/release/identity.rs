//! Whom Helm acts as: the operator itself where it may, or a ServiceAccount and nothing else.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use k8s_openapi::api::{
    authentication::v1::{TokenRequest, TokenRequestSpec},
    authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec},
    core::v1::ServiceAccount,
};
use kube::{Api, Client, Config as ClientConfig, api::PostParams, core::Status};
use plan::releases::Identity;
use runtime::{Clock, Key};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::helm::Private;

/// Tokens live for an hour and are used for the first half of it, so that one never ends in an operation.
const TOKEN_SECONDS: i64 = 3600;
const TOKEN_USE: Duration = Duration::from_mins(30);
/// How long the answer to "may the operator act by itself" is believed. A binding that was just made is seen soon.
const RIGHT_TIME: Duration = Duration::from_secs(30);
/// A request without answer is given up after this; the round is repeated.
const PATIENCE: Duration = Duration::from_secs(10);

/// A namespace's ServiceAccount with its uid; `None` is the operator itself. A token does not outlive its account, so one
/// that was made anew is another.
type Account = Option<(Key, String)>;

/// What is needed to act in somebody's name.
#[derive(Clone)]
pub struct Credentials {
    pub client: Client,
    pub kubeconfig: Private,
}

pub struct Identities {
    client: Client,
    config: ClientConfig,
    clock: Clock,
    known: Mutex<HashMap<Account, (Credentials, Instant)>>,
    /// Of accounts, as they were last checked.
    uids: Mutex<HashMap<Key, String>>,
    /// Whether the operator itself may do anything, as it was last found out.
    may_act: Mutex<Option<(bool, Instant)>>,
}

impl Identities {
    pub fn new(client: Client, config: ClientConfig, clock: Clock) -> Self {
        Self { client, config, clock, known: Mutex::default(), uids: Mutex::default(), may_act: Mutex::default() }
    }

    /// Whether helm could act for a release of `namespace`.
    pub async fn check(&self, namespace: &str, account: Option<&str>) -> Identity {
        let checked = match account {
            Some(account) => tokio::time::timeout(PATIENCE, self.check_account(namespace, account)).await,
            None => tokio::time::timeout(PATIENCE, self.check_operator()).await,
        };
        checked.unwrap_or_else(|_| Identity::Unknown("the API server does not answer".to_owned()))
    }

    async fn check_account(&self, namespace: &str, account: &str) -> Identity {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), namespace);
        match accounts.get_metadata_opt(account).await {
            Ok(Some(found)) => {
                let uid = found.metadata.uid.unwrap_or_default();
                self.uids.lock().unwrap_or_else(PoisonError::into_inner).insert(Key::new(namespace, account), uid);
                Identity::Usable
            }
            Ok(None) => Identity::AccountMissing(account.to_owned()),
            Err(error) => refused("get serviceaccounts", &error),
        }
    }

    async fn check_operator(&self) -> Identity {
        let remembered = *self.may_act.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.clock.instant();
        let may_act = match remembered {
            Some((may_act, at)) if now.saturating_duration_since(at) < RIGHT_TIME => may_act,
            _ => {
                let may_act = match self.may_do_anything().await {
                    Ok(may_act) => may_act,
                    Err(error) => return refused("create selfsubjectaccessreviews", &error),
                };
                *self.may_act.lock().unwrap_or_else(PoisonError::into_inner) = Some((may_act, now));
                may_act
            }
        };
        if may_act { Identity::Usable } else { Identity::AccountRequired }
    }

    /// What the ClusterRole `strata-helm` grants and nothing less does: a chart may hold anything.
    async fn may_do_anything(&self) -> Result<bool, kube::Error> {
        let any = Some("*".to_owned());
        let attributes = ResourceAttributes {
            verb: any.clone(),
            group: any.clone(),
            resource: any,
            ..ResourceAttributes::default()
        };
        let spec = SelfSubjectAccessReviewSpec { resource_attributes: Some(attributes), ..Default::default() };
        let review = SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() };
        let reviews: Api<SelfSubjectAccessReview> = Api::all(self.client.clone());
        let answer = reviews.create(&PostParams::default(), &review).await?;
        Ok(answer.status.is_some_and(|status| status.allowed))
    }

    /// Client and kubeconfig of an identity that was checked. Never the operator's own unless it may do anything anyway.
    pub async fn credentials(&self, namespace: &str, account: Option<&str>) -> Result<Credentials, kube::Error> {
        if account.is_none() && self.check_operator().await != Identity::Usable {
            let status = Status::failure("helm may act only as a ServiceAccount", "Forbidden").with_code(403);
            return Err(kube::Error::Api(status.boxed()));
        }
        let account = account.map(|account| {
            let key = Key::new(namespace, account);
            let uid = self.uids.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
            (key, uid.unwrap_or_default())
        });
        let now = self.clock.instant();
        if let Some((credentials, until)) = self.known().get(&account)
            && now < *until
        {
            return Ok(credentials.clone());
        }
        let user = match &account {
            None => serde_json::to_value(&self.config.auth_info).map_err(kube::Error::SerdeError)?,
            Some((account, _)) => json!({ "token": self.token(account).await? }),
        };
        let kubeconfig = kubeconfig(&self.config, &user);
        let client = match &account {
            None => self.client.clone(),
            Some(_) => self.client_of(&user)?,
        };
        let credentials = Credentials { client, kubeconfig: Private::new(kubeconfig.to_string()) };
        let mut known = self.known();
        known.retain(|_, (_, until)| now < *until);
        known.insert(account, (credentials.clone(), now + TOKEN_USE));
        Ok(credentials)
    }

    async fn token(&self, account: &Key) -> Result<String, kube::Error> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), &account.namespace);
        let spec = TokenRequestSpec { expiration_seconds: Some(TOKEN_SECONDS), ..TokenRequestSpec::default() };
        let request = TokenRequest { spec, ..TokenRequest::default() };
        let answer = accounts.create_token_request(&account.name, &PostParams::default(), &request).await?;
        Ok(answer.status.map(|status| status.token).unwrap_or_default())
    }

    fn client_of(&self, user: &Value) -> Result<Client, kube::Error> {
        let mut config = self.config.clone();
        config.auth_info = serde_json::from_value(user.clone()).map_err(kube::Error::SerdeError)?;
        runtime::connect(config)
    }

    fn known(&self) -> MutexGuard<'_, HashMap<Account, (Credentials, Instant)>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn refused(what: &str, error: &kube::Error) -> Identity {
    match error {
        kube::Error::Api(status) if status.code == 403 => {
            Identity::Forbidden(format!("the operator may not {what}: {}", status.message))
        }
        // The text of other errors is about connections, and never about what was sent.
        other => Identity::Unknown(format!("{what}: {other}")),
    }
}

/// A kubeconfig for the cluster that the operator itself speaks to, with another user.
fn kubeconfig(config: &ClientConfig, user: &Value) -> Value {
    let mut cluster = json!({ "server": config.cluster_url.to_string() });
    if let Some(authorities) = &config.root_cert {
        let pem: String = authorities.iter().map(|der| certificate(der)).collect();
        cluster["certificate-authority-data"] = json!(STANDARD.encode(pem));
    }
    if config.accept_invalid_certs {
        cluster["insecure-skip-tls-verify"] = json!(true);
    }
    if let Some(name) = &config.tls_server_name {
        cluster["tls-server-name"] = json!(name);
    }
    if let Some(proxy) = &config.proxy_url {
        cluster["proxy-url"] = json!(proxy.to_string());
    }
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "strata",
        "clusters": [{ "name": "strata", "cluster": cluster }],
        "users": [{ "name": "strata", "user": user }],
        "contexts": [{ "name": "strata", "context": { "cluster": "strata", "user": "strata" } }],
    })
}

/// One certificate as PEM, in the lines of 64 that some readers insist on.
fn certificate(der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    let lines = text.as_bytes().chunks(64).map(|line| String::from_utf8_lossy(line) + "\n");
    format!("-----BEGIN CERTIFICATE-----\n{}-----END CERTIFICATE-----\n", lines.collect::<String>())
}
