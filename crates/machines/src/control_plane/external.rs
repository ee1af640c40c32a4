//! The workload cluster where it is another one: reached by the administrator's kubeconfig, as it is now.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client};
use plan::{
    machines::{
        cluster::noted_workload,
        workload::{Verdict, judge},
    },
    object::digest,
};
use process::explained;
use runtime::{Cluster, Clusters, Key, KubeconfigError, Operator, Queue, Writer, client_of_kubeconfig};
use tokio::sync::watch;

use super::Infrastructures;
use crate::{
    MANAGER,
    secrets::{self, SecretFacts, Secrets},
};

/// Where Cluster API looks for a kubeconfig in its Secret.
const ENTRY: &str = "value";
/// After a read without an answer; the Secret is seldom changed twice within it.
const RETRY: Duration = Duration::from_secs(5);
/// For a cluster to say which it is.
const ASK_LIMIT: Duration = Duration::from_secs(10);
/// No two clusters have one with the same uid, and every cluster has one.
const NAMESPACE: &str = "kube-system";
/// A read has ten seconds.
const STOP_LIMIT: Duration = Duration::from_secs(15);

/// Clones are the same.
#[derive(Clone)]
pub(crate) struct External {
    /// `None` until there was a kubeconfig that can be used. One that is exchanged leaves the cluster what it is.
    pub cluster: watch::Receiver<Option<Cluster>>,
    /// The uid of that cluster, once it said which it is.
    pub identity: watch::Receiver<Option<String>>,
    problem: watch::Receiver<Option<String>>,
    silence: Arc<watch::Sender<Option<String>>>,
    own: Key,
    queue: Arc<Queue>,
}

impl External {
    /// Why the kubeconfig that is there now cannot be used.
    pub fn problem(&self) -> Option<String> {
        self.problem.borrow().clone()
    }

    /// Why the cluster does not answer, if it does not.
    pub fn silence(&self) -> Option<String> {
        self.silence.borrow().clone()
    }

    /// How the cluster is now, as the watch of its Nodes shows.
    pub fn set_silence(&self, silence: Option<String>) {
        let is_silent = silence.is_some();
        let was_silent = self.silence.send_replace(silence).is_some();
        if was_silent != is_silent {
            self.queue.changed(&self.own);
        }
    }
}

/// Follows the Secret; `own` is looked at in `queue` when something is new.
pub(super) fn install(
    operator: &mut Operator,
    (secrets, infrastructures): (&Arc<Secrets>, &Arc<Infrastructures>),
    own: &Key,
    secret: &Key,
    queue: &Arc<Queue>,
) -> External {
    let (cluster, identity, problem) = (watch::Sender::new(None), watch::Sender::new(None), watch::Sender::new(None));
    let external = External {
        cluster: cluster.subscribe(),
        identity: identity.subscribe(),
        problem: problem.subscribe(),
        silence: Arc::new(watch::Sender::new(None)),
        own: own.clone(),
        queue: queue.clone(),
    };
    let follower = Follower {
        clusters: operator.clusters(),
        secrets: secrets.clone(),
        infrastructures: infrastructures.clone(),
        external: external.clone(),
        writer: operator.writer(MANAGER),
        secret: secret.clone(),
        cluster,
        identity,
        problem,
        used: None,
    };
    operator.filled_part("machines workload cluster", STOP_LIMIT, move |stop, pulse| async move {
        stop.run_until_cancelled(pulse.while_waiting(Box::pin(follower.follow()))).await;
    });
    external
}

struct Follower {
    clusters: Clusters,
    secrets: Arc<Secrets>,
    /// Whose annotation says which cluster was reached before.
    infrastructures: Arc<Infrastructures>,
    external: External,
    writer: Writer,
    secret: Key,
    cluster: watch::Sender<Option<Cluster>>,
    identity: watch::Sender<Option<String>>,
    problem: watch::Sender<Option<String>>,
    /// The digest of the kubeconfig whose cluster said which it is.
    used: Option<String>,
}

impl Follower {
    async fn follow(mut self) {
        let mut news = self.secrets.news();
        let mut seen = None;
        loop {
            news.mark_unchanged();
            let version = self.secrets.store().version(&self.secret);
            let is_read = version == seen || self.look().await;
            if is_read {
                seen = version;
                let _ = news.changed().await;
            } else {
                let _ = tokio::time::timeout(RETRY, news.changed()).await;
            }
        }
    }

    /// Whether there is no need to look again before the Secret changes. One that is gone takes nothing away: the last
    /// kubeconfig serves until there is another.
    async fn look(&mut self) -> bool {
        let name = self.external.own.name.clone();
        let belongs = |found: &SecretFacts| found.cluster.as_deref() == Some(&*name);
        if !self.secrets.get(&self.secret).is_some_and(|found| belongs(&found.value)) {
            self.say(None);
            return true;
        }
        let data = match secrets::read(&self.writer, &self.secret).await {
            Ok(data) => data,
            Err(error) => {
                tracing::warn!(secret = %self.secret, why = explained(&error), "the kubeconfig cannot be read; retrying");
                return false;
            }
        };
        let Some(data) = data else {
            self.say(None);
            return true;
        };
        let Some(kubeconfig) = data.get(ENTRY) else {
            self.say(Some(format!("it has no key {ENTRY}")));
            return true;
        };
        let digest = digest(&String::from_utf8_lossy(kubeconfig).into());
        if self.used.as_ref() == Some(&digest) {
            self.say(None);
            return true;
        }
        let found = match client_of_kubeconfig(kubeconfig).await {
            Ok(client) => identify(client).await,
            Err(error) => {
                self.say(Some(error.to_string()));
                return true;
            }
        };
        let answer = found.as_ref().map(Option::as_deref).map_err(String::as_str);
        let own = &self.external.own;
        match judge(self.known().as_deref(), answer, (&own.namespace, &own.name)) {
            Verdict::Use => match self.reach(&name, kubeconfig).await {
                Ok(()) => self.say(None),
                Err(error) => {
                    self.say(Some(error.to_string()));
                    return true;
                }
            },
            Verdict::Wait(why) if self.cluster.borrow().is_none() => {
                self.say(None);
                self.external.set_silence(Some(why));
            }
            Verdict::Wait(why) | Verdict::Refuse(why) => {
                self.say(Some(why));
                return false;
            }
        }
        let Ok(uid) = found else { return false };
        self.used = Some(digest);
        if uid.is_some() {
            self.identity.send_replace(uid);
        }
        true
    }

    /// The cluster that was reached before, by another process or by this one.
    fn known(&self) -> Option<String> {
        let noted = self.infrastructures.get(&self.external.own);
        let noted = noted.and_then(|cluster| noted_workload(&cluster.value).map(str::to_owned));
        noted.or_else(|| self.identity.borrow().clone())
    }

    async fn reach(&self, name: &str, kubeconfig: &[u8]) -> Result<(), KubeconfigError> {
        let cluster = self.clusters.set(name, kubeconfig).await?;
        self.cluster.send_if_modified(|current| {
            let is_first = current.is_none();
            current.get_or_insert(cluster);
            is_first
        });
        Ok(())
    }

    fn say(&self, problem: Option<String>) {
        let is_new = self.problem.send_if_modified(|current| {
            let is_new = *current != problem;
            *current = problem;
            is_new
        });
        if is_new {
            self.external.queue.changed(&self.external.own);
        }
    }
}

/// The uid of the cluster that is reached; `None` where its user may not ask for it. An error says why it does not answer.
async fn identify(client: Client) -> Result<Option<String>, String> {
    let namespaces = Api::<Namespace>::all(client);
    let asked = tokio::time::timeout(ASK_LIMIT, namespaces.get_metadata_opt(NAMESPACE)).await;
    match asked.map_err(|_| format!("no answer within {ASK_LIMIT:?}"))? {
        Ok(found) => Ok(found.and_then(|found| found.metadata.uid)),
        Err(kube::Error::Api(status)) if status.code == 403 => Ok(None),
        Err(error) => Err(explained(&error)),
    }
}
