//! Makes pools for groups that only shards have; every decision is in `plan::machines::import`.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use api::machine::{API_VERSION, NstanceMachinePool};
use k8s_openapi::api::core::v1::ObjectReference;
use plan::{
    fact::Class,
    machines::import::{Import, Imports, Observed, import},
};
use process::explained;
use runtime::{Error, Key, Leadership, Occurrence, Operator, Recorder};
use serde_json::Value;
use tokio::sync::Notify;

use crate::{
    kinds::{Kinds, accept},
    shards::Shards,
};

/// Two writes have ten seconds each.
const STOP_LIMIT: Duration = Duration::from_secs(25);

/// What refuses an object, a webhook that starts for example, is there soon.
const RETRY: Duration = Duration::from_secs(2);

/// Pools and shards say what changed; this is for what was overlooked.
const RESYNC: Duration = Duration::from_mins(2);

/// Several events come together: all shards answer at the start.
const DEBOUNCE: Duration = Duration::from_millis(100);

struct Importer {
    kinds: Arc<Kinds>,
    shards: Shards,
    news: Arc<Notify>,
    events: Recorder,
    /// Groups that a complaint was written about.
    complained: BTreeSet<String>,
    /// Shards that the log says are waited for.
    silent: Vec<String>,
}

/// Adds it to an operator.
pub(crate) fn install(operator: &mut Operator, kinds: &Arc<Kinds>, shards: &Shards) {
    let news = Arc::new(Notify::new());
    let of_shards = news.clone();
    shards.listen(move |_| of_shards.notify_one());
    let of_pools = news.clone();
    let here = || runtime::Selection::in_namespace(&kinds.cluster.namespace);
    operator.watch_selected(&kinds.pools, here(), move |change| {
        if change.before.is_some() != change.after.is_some() {
            of_pools.notify_one();
        }
    });
    let importer = Importer {
        kinds: kinds.clone(),
        shards: shards.clone(),
        news,
        events: operator.events.clone(),
        complained: BTreeSet::new(),
        silent: Vec::new(),
    };
    let leadership = operator.leadership();
    operator.filled_part("machines import", STOP_LIMIT, move |stop, pulse| async move {
        stop.run_until_cancelled(pulse.while_waiting(importer.run(leadership))).await;
    });
}

impl Importer {
    async fn run(mut self, leadership: Leadership) {
        loop {
            leadership.acquired().await;
            let wait = match self.look().await {
                Ok(()) => RESYNC,
                Err(error) => {
                    tracing::warn!(why = explained(&error), "a pool cannot be made for a group; retrying");
                    RETRY
                }
            };
            tokio::select! {
                () = self.news.notified() => tokio::time::sleep(DEBOUNCE).await,
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    async fn look(&mut self) -> Result<(), Error> {
        let kinds = &self.kinds;
        let is_full = kinds.pools.store().is_synced()
            && kinds.machine_pools.store().is_synced()
            && kinds.clusters.store().is_synced();
        if !is_full || kinds.is_cluster_paused() || kinds.is_cluster_going() {
            return Ok(());
        }
        let Imports { pools, taken, silent } = import(&self.observe());
        if silent != self.silent {
            match silent.as_slice() {
                [] => tracing::info!("every shard has answered; groups without a pool are imported"),
                names => tracing::warn!(
                    shards = names.join(","),
                    "no group is imported as a pool until these shards have answered; check their servers, or remove them from the configuration"
                ),
            }
            self.silent = silent;
        }
        for group in taken {
            if self.complained.insert(group.clone()) {
                tracing::warn!(
                    group,
                    "shards have a group of this name, which a pool of another group has; rename one"
                );
            }
        }
        let mut failed = None;
        for pool in pools {
            let group = pool.group.clone();
            match self.make(pool).await {
                Ok(()) => {}
                // Wrong in itself: it waits for another group, and holds up no other.
                Err(error) if error.class() == Class::Terminal => {
                    if self.complained.insert(group.clone()) {
                        tracing::warn!(
                            group,
                            why = explained(&error),
                            "no pool can be made for this group of the shards; rename or correct it there"
                        );
                    }
                }
                Err(error) => failed = Some(error),
            }
        }
        failed.map_or(Ok(()), Err)
    }

    fn observe(&self) -> Observed {
        let kinds = &self.kinds;
        let mut groups = BTreeSet::new();
        let mut names: BTreeSet<String> = BTreeSet::new();
        kinds.pools.store().for_each(|key, pool| {
            names.insert(key.name.to_string());
            groups.extend(pool.spec.as_ref().map(|spec| spec.group.clone()));
        });
        kinds.machine_pools.store().for_each(|key, _| {
            names.insert(key.name.to_string());
        });
        // Of a pool that is gone, what it leaves on its shards goes after it.
        kinds
            .shard_groups
            .store()
            .for_each(|_, group| groups.extend(group.spec.as_ref().map(|spec| spec.group.clone())));
        Observed {
            namespace: kinds.cluster.namespace.to_string(),
            cluster: kinds.cluster.name.to_string(),
            shards: self.shards.groups(),
            groups,
            names,
        }
    }

    /// The pool first: for one that has no MachinePool its own rounds make one.
    async fn make(&self, pool: Import) -> Result<(), Error> {
        let key = |body: &Value| {
            let name = body["metadata"]["name"].as_str().unwrap_or_default();
            Key::new(self.kinds.cluster.namespace.clone(), name)
        };
        let created = key(&pool.pool);
        accept(self.kinds.pools.create(&created, &pool.pool).await)?;
        tracing::info!(group = pool.group, "a group of the shards is imported as a pool");
        self.report_differences(&created, &pool.differing);
        accept(self.kinds.machine_pools.create(&key(&pool.machine_pool), &pool.machine_pool).await)
    }

    /// The user decides which of the values is right.
    fn report_differences(&self, key: &Key, fields: &[&str]) {
        let Some(pool) = self.kinds.pools.get(key).filter(|_| !fields.is_empty()) else { return };
        let uid = pool.value.metadata.uid.clone();
        let fields: Vec<_> = fields.iter().map(|field| format!("spec.{field}")).collect();
        self.events.record(Occurrence {
            discriminator: uid.clone().unwrap_or_default(),
            regarding: ObjectReference {
                api_version: Some(API_VERSION.into()),
                kind: Some(NstanceMachinePool::KIND.into()),
                name: Some(key.name.to_string()),
                namespace: Some(key.namespace.to_string()),
                uid,
                ..ObjectReference::default()
            },
            is_warning: true,
            reason: "ShardsDiffer".to_owned(),
            action: "Import".to_owned(),
            note: format!(
                "the shards have different values of {}, which the pool leaves to each of them; set the field to give all shards the same, which replaces instances of those that differ",
                fields.join(", ")
            ),
        });
    }
}
