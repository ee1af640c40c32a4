//! The cluster that the instances join: the operator's own, or another one that is reached by the administrator's
//! kubeconfig, whose Secret may change while the operator runs.

use std::{sync::Arc, time::Duration};

use process::explained;
use runtime::{Cluster, Clusters, Key, Operator, Selection, Writer};
use tokio::sync::{Notify, watch};

use crate::{
    MANAGER,
    config::{self, Settings},
    secrets::{self, Secrets},
};

/// The entry of a kubeconfig's Secret; Cluster API's.
const ENTRY: &str = "value";

/// Reading a Secret has ten seconds.
const STOP_LIMIT: Duration = Duration::from_secs(15);

/// A Secret that cannot be read or used is looked at again: its change is an event, an API server's return is not.
const RETRY: Duration = Duration::from_secs(10);

/// Changes when another cluster is reached, or none. A kubeconfig that is exchanged is no other cluster.
pub(crate) type Workload = watch::Receiver<Option<Cluster>>;

pub(crate) fn install(operator: &mut Operator, settings: &Settings, secrets: &Arc<Secrets>) -> Workload {
    let (sender, receiver) = watch::channel(None);
    if matches!(settings.workload, config::Workload::Own { .. }) {
        sender.send_replace(Some(operator.cluster()));
        return receiver;
    }
    let key = Key::new(settings.namespace.as_str(), settings.kubeconfig_secret());
    let news = Arc::new(Notify::new());
    let (changed, own) = (news.clone(), key.clone());
    operator.watch_selected(secrets, Selection::in_namespace(&settings.namespace), move |change| {
        if *change.key == own {
            changed.notify_one();
        }
    });
    let external = External {
        name: settings.cluster_name(),
        key,
        writer: operator.writer(MANAGER),
        clusters: operator.clusters(),
        sender,
    };
    operator.part("workload cluster", STOP_LIMIT, move |stop, pulse| async move {
        stop.run_until_cancelled(pulse.while_waiting(external.run(&news))).await;
    });
    receiver
}

struct External {
    name: String,
    key: Key,
    writer: Writer,
    clusters: Clusters,
    sender: watch::Sender<Option<Cluster>>,
}

impl External {
    async fn run(&self, news: &Notify) {
        loop {
            let is_settled = self.look().await;
            tokio::select! {
                () = news.notified() => {}
                () = tokio::time::sleep(RETRY), if !is_settled => {}
            }
        }
    }

    /// Whether there is nothing to try again.
    async fn look(&self) -> bool {
        let data = match secrets::read(&self.writer, &self.key).await {
            Ok(data) => data,
            Err(error) => {
                tracing::warn!(secret = %self.key, why = explained(&error), "the kubeconfig cannot be read; retrying");
                return false;
            }
        };
        let Some(kubeconfig) = data.and_then(|mut data| data.remove(ENTRY)) else {
            self.clusters.remove(&self.name);
            self.sender.send_if_modified(|current| current.take().is_some());
            return true;
        };
        match self.clusters.set(&self.name, &kubeconfig).await {
            Ok(cluster) => {
                self.sender.send_if_modified(|current| current.is_none() && current.replace(cluster).is_none());
                true
            }
            Err(error) => {
                tracing::warn!(secret = %self.key, why = explained(&error), "the kubeconfig cannot be used; correct it");
                true
            }
        }
    }
}
