//! The workload cluster where it is another one: reached by the administrator's kubeconfig, as it is now.

use std::{sync::Arc, time::Duration};

use process::explained;
use runtime::{Cluster, Clusters, Key, Operator, Queue, Writer};
use tokio::sync::watch;

use crate::{
    MANAGER,
    secrets::{self, SecretFacts, Secrets},
};

/// Where Cluster API looks for a kubeconfig in its Secret.
const ENTRY: &str = "value";
/// After a read without an answer; the Secret is seldom changed twice within it.
const RETRY: Duration = Duration::from_secs(5);
/// A read has ten seconds.
const STOP_LIMIT: Duration = Duration::from_secs(15);

/// Clones are the same.
#[derive(Clone)]
pub(crate) struct External {
    /// `None` until there was a kubeconfig that can be used. One that is exchanged leaves the cluster what it is.
    pub cluster: watch::Receiver<Option<Cluster>>,
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
    secrets: &Arc<Secrets>,
    own: &Key,
    secret: &Key,
    queue: &Arc<Queue>,
) -> External {
    let (cluster, problem) = (watch::Sender::new(None), watch::Sender::new(None));
    let external = External {
        cluster: cluster.subscribe(),
        problem: problem.subscribe(),
        silence: Arc::new(watch::Sender::new(None)),
        own: own.clone(),
        queue: queue.clone(),
    };
    let follower = Follower {
        clusters: operator.clusters(),
        secrets: secrets.clone(),
        writer: operator.writer(MANAGER),
        secret: secret.clone(),
        own: own.clone(),
        queue: queue.clone(),
        cluster,
        problem,
    };
    operator.part("machines workload cluster", STOP_LIMIT, move |stop, pulse| async move {
        stop.run_until_cancelled(pulse.while_waiting(Box::pin(follower.follow()))).await;
    });
    external
}

struct Follower {
    clusters: Clusters,
    secrets: Arc<Secrets>,
    writer: Writer,
    secret: Key,
    own: Key,
    queue: Arc<Queue>,
    cluster: watch::Sender<Option<Cluster>>,
    problem: watch::Sender<Option<String>>,
}

impl Follower {
    async fn follow(self) {
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
                tokio::time::sleep(RETRY).await;
            }
        }
    }

    /// Whether there is no need to look again before the Secret changes. One that is gone takes nothing away: the last
    /// kubeconfig serves until there is another.
    async fn look(&self) -> bool {
        let belongs = |found: &SecretFacts| found.cluster.as_deref() == Some(&*self.own.name);
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
        match self.clusters.set(&self.own.name, kubeconfig).await {
            Ok(cluster) => {
                self.cluster.send_if_modified(|current| {
                    let is_first = current.is_none();
                    current.get_or_insert(cluster);
                    is_first
                });
                self.say(None);
            }
            Err(error) => self.say(Some(error.to_string())),
        }
        true
    }

    fn say(&self, problem: Option<String>) {
        let is_new = self.problem.send_if_modified(|current| {
            let is_new = *current != problem;
            *current = problem;
            is_new
        });
        if is_new {
            self.queue.changed(&self.own);
        }
    }
}
