//! Machines for Pods that ask for one; every decision is in `plan::machines::on_demand`.

mod notices;
mod pods;
mod requests;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use plan::machines::on_demand::{self, Action, Limits, Observed, Plan, Refused, Wish};
use process::{Clock, explained};
use runtime::{Error, Key, Kind, Leadership, Operator, Selection};
use serde_json::Value;
use tokio::{sync::Notify, time::Instant};

use self::{notices::Notices, pods::Pods, requests::Machines};
use crate::{
    MANAGER,
    ground::Workload,
    kinds::{Kinds, accept},
    shards::Shards,
};

/// A write has ten seconds, and is not begun after a stop.
const STOP_LIMIT: Duration = Duration::from_secs(15);

/// What could not be written or read is tried again, a webhook that starts for example.
const RETRY: Duration = Duration::from_secs(2);

/// Everything that is followed says what changed; this is for what was overlooked.
const RESYNC: Duration = Duration::from_mins(2);

/// Nodes whose age is read in one look: each is a request that is waited for before anything is done.
const MOST_READS: usize = 20;

/// Several events come together: a Pod, its Machine and what Cluster API makes of it.
const DEBOUNCE: Duration = Duration::from_millis(50);

struct OnDemand {
    kinds: Arc<Kinds>,
    machines: Arc<Machines>,
    shards: Shards,
    workload: Workload,
    pods: Option<Pods>,
    notices: Notices,
    limits: Limits,
    clock: Clock,
    news: Arc<Notify>,
    /// By the Pod's uid; lost with the process, after which one more attempt is made.
    refusals: HashMap<String, (Wish, Instant)>,
    node_ages: BTreeMap<String, Option<Timestamp>>,
}

/// What was read of the ages of Nodes.
#[derive(Default)]
struct Ages {
    has_learnt: bool,
    /// Others are left.
    is_more: bool,
}

/// What became of a plan.
struct Done {
    /// Every step.
    is_all: bool,
    /// Every event that is new.
    is_said: bool,
}

/// Adds it to an operator.
pub(crate) fn install(
    operator: &mut Operator,
    kinds: &Arc<Kinds>,
    shards: &Shards,
    workload: Workload,
    limits: Limits,
) {
    let news = Arc::new(Notify::new());
    let machines = Kind::new("machines", operator.writer(MANAGER), requests::machine);
    let here = || Selection::in_namespace(&kinds.cluster.namespace);
    let of_machines = news.clone();
    operator.watch_selected(&machines, here(), move |change| {
        if change.before != change.after {
            of_machines.notify_one();
        }
    });
    let of_members = news.clone();
    operator.watch_selected(&kinds.members, here(), move |_| of_members.notify_one());
    let of_cluster = news.clone();
    operator.watch_selected(&kinds.clusters, here(), move |_| of_cluster.notify_one());
    let of_shards = news.clone();
    shards.listen(move |_| of_shards.notify_one());
    let on_demand = OnDemand {
        kinds: kinds.clone(),
        machines,
        shards: shards.clone(),
        workload,
        pods: None,
        notices: Notices::new(operator.events.clone()),
        limits,
        clock: operator.clock.clone(),
        news,
        refusals: HashMap::new(),
        node_ages: BTreeMap::new(),
    };
    let leadership = operator.leadership();
    operator.filled_part("machines on demand", STOP_LIMIT, move |stop, pulse| async move {
        stop.run_until_cancelled(pulse.while_waiting(Box::pin(on_demand.run(leadership)))).await;
    });
}

impl OnDemand {
    async fn run(mut self, leadership: Leadership) {
        let news = self.news.clone();
        let mut workload = self.workload.clone();
        loop {
            leadership.acquired().await;
            let wait = self.look().await;
            let of_pods = async {
                match &mut self.pods {
                    Some(pods) => pods.changed().await,
                    None => std::future::pending().await,
                }
            };
            let of_workload = async {
                // The sender of the operator's own cluster is gone: it stays the same.
                if workload.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            };
            let any = async {
                tokio::select! {
                    () = news.notified() => {}
                    () = of_pods => {}
                    () = of_workload => {}
                }
                tokio::time::sleep(DEBOUNCE).await;
            };
            let _ = tokio::time::timeout(wait, any).await;
        }
    }

    /// Plans and acts; when to do so again without news.
    async fn look(&mut self) -> Duration {
        let kinds = &self.kinds;
        let is_full = self.machines.store().is_synced()
            && kinds.members.store().is_synced()
            && kinds.clusters.store().is_synced();
        if !is_full || !self.reach() {
            return RESYNC;
        }
        if self.is_idle() {
            self.notices.forget();
            return RESYNC;
        }
        let Some(observed) = self.observe() else { return RESYNC };
        let mut plan = on_demand::plan(&observed, &self.limits);
        let ages = self.learn_ages(&plan).await;
        if ages.has_learnt
            && let Some(observed) = self.observe()
        {
            plan = on_demand::plan(&observed, &self.limits);
        }
        let wait = plan.next_look.unwrap_or(RESYNC).min(RESYNC);
        match self.carry_out(plan).await {
            Done { is_all: false, .. } => wait.min(RETRY),
            Done { is_said: false, .. } => Duration::ZERO,
            Done { .. } if ages.is_more => Duration::ZERO,
            Done { .. } => wait,
        }
    }

    /// Follows Pods where they are; false while that is not known.
    fn reach(&mut self) -> bool {
        let has_changed = self.workload.has_changed().unwrap_or(false);
        if self.pods.is_none() || has_changed {
            let cluster = self.workload.borrow_and_update().clone();
            self.pods = cluster.map(Pods::new);
            self.node_ages.clear();
        }
        let Some(pods) = &mut self.pods else { return false };
        let mut keys = HashSet::new();
        self.machines.store().for_each(|_, machine| keys.extend(machine.pod_key()));
        pods.follow(&keys);
        pods.looked();
        true
    }

    /// Whether no Pod asks for anything, and nothing was made for one: news of shards and pools need no plan.
    fn is_idle(&self) -> bool {
        self.pods.as_ref().is_some_and(Pods::is_idle)
    }

    fn observe(&mut self) -> Option<Observed> {
        let pods = self.pods.as_ref()?;
        // Else a Pod's event would say that there is no such shard.
        self.shards.check_listed().ok()?;
        let now = self.clock.instant();
        self.refusals.retain(|_, (_, at)| now.saturating_duration_since(*at) < self.limits.retry);
        let refused =
            |(wish, at): &(Wish, Instant)| Refused { wish: wish.clone(), age: now.saturating_duration_since(*at) };
        let seen = requests::see(&self.machines, &self.kinds, pods);
        Some(Observed {
            namespace: self.kinds.cluster.namespace.to_string(),
            cluster: self.kinds.cluster.name.to_string(),
            is_paused: self.kinds.is_cluster_paused(),
            pods: pods.unbound(),
            requests: seen.requests,
            taken: seen.taken,
            nodes: seen.nodes,
            node_ages: self.node_ages.clone(),
            shards: self.shards.group_keys(),
            refusals: self.refusals.iter().map(|(uid, known)| (uid.clone(), refused(known))).collect(),
            server_time: pods.cluster.server_clock().now(),
        })
    }

    /// Reads when the Nodes were made on which a plan depends, a few at a time.
    async fn learn_ages(&mut self, plan: &Plan) -> Ages {
        self.node_ages.retain(|node, _| plan.wanted.contains(node));
        let mut ages = Ages::default();
        let Some(pods) = &self.pods else { return ages };
        let (fresh, missing): (Vec<&String>, Vec<&String>) =
            plan.wanted.iter().partition(|node| !self.node_ages.contains_key(*node));
        // One that did not exist may have come; those that were never looked for go first.
        let missing = missing.into_iter().filter(|node| self.node_ages[*node].is_none());
        ages.is_more = fresh.len() > MOST_READS;
        for node in fresh.into_iter().chain(missing).take(MOST_READS).cloned().collect::<Vec<_>>() {
            match pods.node_age(&node).await {
                Ok(age) => ages.has_learnt |= self.node_ages.insert(node, age) != Some(age),
                Err(error) => {
                    tracing::debug!(node, why = explained(&error), "the age of a Node is not known");
                    ages.is_more = false;
                    break;
                }
            }
        }
        ages
    }

    async fn carry_out(&mut self, plan: Plan) -> Done {
        let mut done = Done { is_all: true, is_said: true };
        let Some(cluster) = self.pods.as_ref().map(|pods| pods.cluster.clone()) else { return done };
        let now = self.clock.instant();
        for (uid, wish) in plan.refused {
            self.refusals.insert(uid, (wish, now));
        }
        for step in plan.steps {
            match self.execute(&step.action).await {
                Ok(()) => self.notices.record(step.done, &cluster),
                Err(error) => {
                    tracing::warn!(why = explained(&error), action = ?kind_of(&step.action), "a machine for a Pod: retrying");
                    done.is_all = false;
                }
            }
        }
        done.is_said = self.notices.keep(plan.notices, &cluster);
        done
    }

    async fn execute(&self, action: &Action) -> Result<(), Error> {
        let at = |name: &str| Key::new(self.kinds.cluster.namespace.clone(), name);
        let named = |body: &Value| at(body["metadata"]["name"].as_str().unwrap_or_default());
        match action {
            Action::CreateMachine(body) => accept(self.machines.create(&named(body), body).await),
            Action::CreateInfrastructure(body) => accept(self.kinds.members.create(&named(body), body).await),
            Action::DeleteMachine { name, uid, resource_version } => {
                self.machines.delete(&at(name), uid, resource_version).await.map(drop)
            }
        }
    }
}

fn kind_of(action: &Action) -> &'static str {
    match action {
        Action::CreateMachine(_) => "create Machine",
        Action::CreateInfrastructure(_) => "create NstanceMachine",
        Action::DeleteMachine { .. } => "delete Machine",
    }
}
