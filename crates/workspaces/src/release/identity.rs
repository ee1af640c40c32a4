//! Whom Helm acts as: the operator itself where it may, or a ServiceAccount and nothing else.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use jiff::Timestamp;
use k8s_openapi::api::{
    authentication::v1::{TokenRequest, TokenRequestSpec},
    authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec},
    core::v1::ServiceAccount,
};
use kube::{Api, Client, Config as ClientConfig, api::PostParams, core::Status};
use plan::releases::Identity;
use process::Clock;
use runtime::{Error, Key, ServerClock};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::helm::Private;

/// A token outlasts the operation that it is made for by this, so that it serves the next ones as well.
const LONGEST_WAIT: Duration = Duration::from_hours(1);
/// One that would outlast an operation by less than this is not used again: between the round that checks an operation and
/// its turn lies the wait in line.
const SHORTEST_WAIT: Duration = Duration::from_mins(30);
/// What the runner adds to an operation's own timeout before it kills, and a little for clocks that differ.
const OVERTIME: Duration = Duration::from_mins(2);
/// More the API server refuses to be asked for; it may give less.
const LONGEST_TOKEN: Duration = Duration::from_secs(1 << 32);
/// How long the answer to "may the operator act by itself" is believed. A binding that was just made is seen soon.
const RIGHT_TIME: Duration = Duration::from_secs(30);
/// A request without answer is given up after this; the round is repeated.
const PATIENCE: Duration = Duration::from_secs(10);

/// A namespace's ServiceAccount with its uid; `None` is the operator itself. A token does not outlive its account, so one
/// that was made anew is another.
type Account = Option<(Key, String)>;

/// What is needed to act in the name of a ServiceAccount.
#[derive(Clone)]
pub struct Credentials {
    pub client: Client,
    pub kubeconfig: Private,
    issued_at: Instant,
    lifetime: Duration,
}

impl Credentials {
    /// Until when something that takes this long must be begun.
    pub fn start_by(&self, needed: Duration) -> Instant {
        self.issued_at + wait(self.lifetime, needed)
    }
}

/// How long something may wait that takes as long as `needed`. Where the server gave too little for it, half of what it
/// gave, so that it is begun at all.
fn wait(lifetime: Duration, needed: Duration) -> Duration {
    lifetime.saturating_sub(needed.saturating_add(OVERTIME)).max(lifetime / 2)
}

/// How long a token lives that expires then. The time is the server's, and so is the clock it is compared with; where that
/// is not known, the server is taken to have given what it was asked for.
fn given(expires_at: Timestamp, server: Option<Timestamp>, asked: Duration) -> Duration {
    let given = server.map(|now| Duration::try_from(expires_at.duration_since(now)).unwrap_or_default());
    given.map_or(asked, |given| given.min(asked))
}

/// Accounts whose uid is remembered, some 200 bytes each; who makes and deletes accounts without end fills no memory.
const MOST_UIDS: usize = 10_000;

/// Accounts that are acted as at any one time, by as many clients with connections of their own: many times what runs
/// at once. The token that was issued first goes first; its account gets another when it is needed.
const MOST_CREDENTIALS: usize = 250;

pub struct Identities {
    client: Client,
    config: ClientConfig,
    clock: Clock,
    server_clock: ServerClock,
    known: Mutex<HashMap<Account, Credentials>>,
    /// Of accounts, as they were last checked.
    uids: Mutex<HashMap<Key, String>>,
    /// Whether the operator itself may do anything, as it was last found out.
    may_act: Mutex<Option<(bool, Instant)>>,
}

impl Identities {
    pub fn new(client: Client, config: ClientConfig, clock: Clock, server_clock: ServerClock) -> Self {
        let (known, uids, may_act) = (Mutex::default(), Mutex::default(), Mutex::default());
        Self { client, config, clock, server_clock, known, uids, may_act }
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
                let mut uids = self.uids.lock().unwrap_or_else(PoisonError::into_inner);
                // Without a uid the next use asks for a new token, no more.
                if uids.len() >= MOST_UIDS {
                    uids.clear();
                }
                uids.insert(Key::new(namespace, account), uid);
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
        is_allowed(&self.client, attributes).await
    }

    /// Client and kubeconfig of an identity that was checked, for something that takes as long as `needed`. Never the
    /// operator's own unless it may do anything anyway.
    pub async fn credentials(
        &self,
        namespace: &str,
        account: Option<&str>,
        needed: Duration,
    ) -> Result<Credentials, Error> {
        self.issue(namespace, account, needed)
            .await
            .map_err(|error| Error::of_client("act as", "serviceaccounts", error))
    }

    async fn issue(
        &self,
        namespace: &str,
        account: Option<&str>,
        needed: Duration,
    ) -> Result<Credentials, kube::Error> {
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
        if let Some(credentials) = self.known().get(&account)
            && now + SHORTEST_WAIT <= credentials.start_by(needed)
        {
            return Ok(credentials.clone());
        }
        let mut lifetime = needed.saturating_add(OVERTIME + LONGEST_WAIT).min(LONGEST_TOKEN);
        let user = match &account {
            None => serde_json::to_value(&self.config.auth_info).map_err(kube::Error::SerdeError)?,
            Some((account, _)) => {
                let token;
                (token, lifetime) = self.token(account, lifetime).await?;
                json!({ "token": token })
            }
        };
        let kubeconfig = kubeconfig(&self.config, &user);
        let client = match &account {
            None => self.client.clone(),
            Some(_) => self.client_of(&user)?,
        };
        let kubeconfig = Private::new(kubeconfig.to_string());
        let credentials = Credentials { client, kubeconfig, issued_at: now, lifetime };
        let mut known = self.known();
        known.retain(|_, credentials| now < credentials.start_by(Duration::ZERO));
        known.insert(account, credentials.clone());
        forget_first(&mut known, MOST_CREDENTIALS, |credentials| credentials.issued_at);
        Ok(credentials)
    }

    /// A token, and how long it lives.
    async fn token(&self, account: &Key, lifetime: Duration) -> Result<(String, Duration), kube::Error> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), &account.namespace);
        let seconds = i64::try_from(lifetime.as_secs()).ok();
        let spec = TokenRequestSpec { expiration_seconds: seconds, ..TokenRequestSpec::default() };
        let request = TokenRequest { spec, ..TokenRequest::default() };
        let answer = accounts.create_token_request(&account.name, &PostParams::default(), &request).await?;
        let Some(status) = answer.status else { return Ok((String::new(), Duration::ZERO)) };
        Ok((status.token, given(status.expiration_timestamp.0, self.server_clock.now(), lifetime)))
    }

    fn client_of(&self, user: &Value) -> Result<Client, kube::Error> {
        let mut config = self.config.clone();
        config.auth_info = serde_json::from_value(user.clone()).map_err(kube::Error::SerdeError)?;
        runtime::connect(config)
    }

    fn known(&self) -> MutexGuard<'_, HashMap<Account, Credentials>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Forgets what came first, until no more than `most` are left.
fn forget_first<T>(known: &mut HashMap<Account, T>, most: usize, came_at: impl Fn(&T) -> Instant) {
    while known.len() > most {
        let first = known.iter().min_by_key(|(_, value)| came_at(value)).map(|(account, _)| account.clone());
        let Some(first) = first else { return };
        known.remove(&first);
    }
}

/// Whether the client's own identity may do this.
pub async fn is_allowed(client: &Client, attributes: ResourceAttributes) -> Result<bool, kube::Error> {
    let spec = SelfSubjectAccessReviewSpec { resource_attributes: Some(attributes), ..Default::default() };
    let review = SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() };
    let reviews: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let answer = reviews.create(&PostParams::default(), &review).await?;
    Ok(answer.status.is_some_and(|status| status.allowed))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_token_is_for_is_begun_in_time_to_end_before_it() {
        let minutes = Duration::from_mins;
        for (lifetime, needed, expected) in [
            (minutes(67), minutes(5), minutes(60)),
            (minutes(67), minutes(20), minutes(45)),
            // The server gave less than was asked for.
            (minutes(60), minutes(120), minutes(30)),
            (minutes(60), Duration::MAX, minutes(30)),
        ] {
            assert_eq!(wait(lifetime, needed), expected, "{lifetime:?} {needed:?}");
        }
    }

    #[test]
    fn accounts_without_end_leave_a_bounded_number_of_clients() {
        let begin = Instant::now();
        let mut known = HashMap::new();
        for number in 0..10_u64 {
            let account = Some((Key::new("team", number.to_string()), "uid".to_owned()));
            known.insert(account, begin + Duration::from_secs(number));
            forget_first(&mut known, 3, |at| *at);
        }
        let mut left: Vec<_> = known.values().map(|at| (*at - begin).as_secs()).collect();
        left.sort_unstable();
        assert_eq!(left, [7, 8, 9]);
    }

    #[test]
    fn a_token_lives_as_long_as_the_servers_clock_says() {
        let (hour, now) = (Duration::from_hours(1), Timestamp::UNIX_EPOCH);
        assert_eq!(given(now + hour, Some(now), hour * 2), hour, "the server gave less");
        assert_eq!(given(now + hour * 3, Some(now), hour * 2), hour * 2, "and counts on no more than was asked for");
        assert_eq!(given(now + hour, None, hour), hour, "whatever our own clock shows");
    }
}
