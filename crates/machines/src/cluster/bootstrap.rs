//! Makes the Cluster and what it refers to, where they are missing.

use std::{sync::Arc, time::Duration};

use api::machine::{ControlPlaneEndpoint, NstanceCluster, NstanceControlPlane};
use plan::machines::cluster::{Make, Trio, missing};
use process::explained;
use runtime::{Error, Key, Kind, Leadership, Operator, Parts};
use serde_json::json;

use super::Clusters;

/// What refuses an object, a webhook that starts for example, is there soon.
const RETRY: Duration = Duration::from_secs(2);
/// A write has ten seconds.
const STOP_LIMIT: Duration = Duration::from_secs(15);

/// The three objects of one name.
pub(super) struct Objects {
    pub key: Key,
    pub endpoint: ControlPlaneEndpoint,
    pub clusters: Arc<Clusters>,
    pub infrastructures: Arc<Kind<Parts<NstanceCluster>, NstanceCluster>>,
    pub control_planes: Arc<Kind<Parts<NstanceControlPlane>, NstanceControlPlane>>,
}

pub(super) fn install(operator: &mut Operator, objects: Objects) {
    let leadership = operator.leadership();
    operator.part("machines cluster", STOP_LIMIT, move |stop, pulse| async move {
        stop.run_until_cancelled(pulse.while_waiting(objects.keep(&leadership))).await;
    });
}

impl Objects {
    /// Looks whenever one of them changes, and when this process begins to lead.
    async fn keep(self, leadership: &Leadership) {
        let mut news = (self.clusters.news(), self.infrastructures.news(), self.control_planes.news());
        let mut complained = None;
        loop {
            leadership.acquired().await;
            news.0.mark_unchanged();
            news.1.mark_unchanged();
            news.2.mark_unchanged();
            let problem = self.look().await.err().map(|error| explained(&error));
            let wait = if problem.is_some() { RETRY } else { Duration::from_hours(1) };
            if problem != complained
                && let Some(why) = &problem
            {
                tracing::warn!(cluster = %self.key, %why, "the Cluster cannot be made; retrying");
            }
            complained = problem;
            tokio::select! {
                _ = news.0.changed() => {}
                _ = news.1.changed() => {}
                _ = news.2.changed() => {}
                () = leadership.lost(Duration::ZERO) => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    async fn look(&self) -> Result<(), Error> {
        let are_full = self.clusters.store().is_synced()
            && self.infrastructures.store().is_synced()
            && self.control_planes.store().is_synced();
        if !are_full {
            return Ok(());
        }
        self.clusters.settle(&self.key).await?;
        self.infrastructures.settle(&self.key).await?;
        self.control_planes.settle(&self.key).await?;
        let trio = Trio {
            namespace: self.key.namespace.to_string(),
            name: self.key.name.to_string(),
            endpoint: self.endpoint.clone(),
            cluster: self.clusters.get(&self.key).map(|found| found.value.clone()),
            has_infrastructure: self.infrastructures.get(&self.key).is_some(),
            has_control_plane: self.control_planes.get(&self.key).is_some(),
        };
        for make in missing(&trio) {
            self.make(make).await?;
        }
        Ok(())
    }

    async fn make(&self, make: Make) -> Result<(), Error> {
        let key = &self.key;
        let made = match make {
            Make::Infrastructure(object) => self.infrastructures.create(key, &object).await,
            Make::ControlPlane(object) => self.control_planes.create(key, &object).await,
            Make::Cluster(object) => self.clusters.create(key, &object).await,
            Make::Refer { uid, resource_version, mut patch } => {
                patch["metadata"] = json!({ "uid": uid, "resourceVersion": resource_version });
                self.clusters.patch(key, None, &patch).await
            }
        };
        match made {
            // Another hand was quicker.
            Err(error) if error.is_already_exists() => Ok(()),
            made => made.map(drop),
        }
    }
}
