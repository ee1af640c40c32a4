//! One drain, from the cordon to its end.

use std::{future, sync::Arc, time::Duration};

use futures::{
    FutureExt, StreamExt,
    future::{BoxFuture, select_all},
    stream::FuturesUnordered,
};
use k8s_openapi::api::core::v1::ObjectReference;
use plan::{
    drain::{Cordon, End, Eviction, Outcome, Plan, retry_after},
    fact::{Fact, Failure, latest},
};
use runtime::{Class, Occurrence};
use tokio::{
    sync::watch as signal,
    time::{Instant, sleep_until},
};

use crate::{
    drains::{Progress, Request, Shared, lock},
    execute,
    follow::Scene,
};

/// After a cordon, before the next one.
const CORDON_AGAIN: Duration = Duration::from_secs(1);

/// What the drain of a node leaves behind when it is dropped, however that comes.
struct Trace {
    shared: Arc<Shared>,
    number: u64,
}

impl Drop for Trace {
    fn drop(&mut self) {
        lock(&self.shared.ledger).forget(self.number);
    }
}

pub(crate) struct Run {
    shared: Arc<Shared>,
    node: String,
    /// Of all drains of the cluster.
    number: u64,
    request: signal::Receiver<Request>,
    report: signal::Sender<Progress>,
    notify: Box<dyn Fn() + Send>,
    /// Why the node is not cordoned, how often in a row that failed, and when it is tried again.
    cordon: Option<(Failure, u32, Instant)>,
    /// For which order the node was cordoned, and when it may be again: what uncordons a node may do so each time.
    cordoned: Option<(String, Instant)>,
}

/// The answer to an eviction: the uid of its pod, and what became of it.
type Answer = (String, Outcome);

impl Run {
    pub fn new(
        shared: Arc<Shared>,
        node: &str,
        request: signal::Receiver<Request>,
        report: signal::Sender<Progress>,
        notify: Box<dyn Fn() + Send>,
    ) -> Self {
        let number = shared.next_number();
        Self { shared, node: node.to_owned(), number, request, report, notify, cordon: None, cordoned: None }
    }

    pub async fn run(mut self) {
        let _trace = Trace { shared: self.shared.clone(), number: self.number };
        let mut scene = Scene::new(self.shared.cluster.clone(), &self.node);
        let mut evicting = FuturesUnordered::<BoxFuture<'static, Answer>>::new();
        loop {
            // Subscribed before the look: what changes after it is not missed.
            let news = scene.news();
            let plan = self.plan(&scene);
            self.publish(&plan);
            if let Some(end) = plan.end {
                self.record(&scene, &plan, end);
                return;
            }
            if let Some(cordon) = plan.cordon.as_ref().filter(|_| self.may_cordon()) {
                // A list from before this cordon may lack what was bound since.
                scene.leave_pods();
                self.cordon(&scene, cordon).await;
                continue;
            }
            if plan.cordon.is_none() {
                self.cordon = None;
            }
            if plan.cordon.is_none() && scene.node.kind.get(&scene.key).is_some() && scene.pods.is_none() {
                let asks = self.request.borrow().order.asks_for_namespaces();
                scene.follow_pods(|| self.shared.budgets(), asks);
                continue;
            }
            if plan.asks_for_volumes && scene.volumes.is_none() {
                scene.follow_volumes();
                continue;
            }
            evicting.extend(plan.evictions.iter().map(|eviction| self.evict(&scene, eviction.clone())));
            self.wait(news, &mut evicting, &plan).await;
        }
    }

    /// Plans, and notes what is about to be sent: drains of other nodes draw from the same budgets.
    fn plan(&self, scene: &Scene) -> Plan {
        let now = self.shared.clock.instant();
        let request = self.request.borrow().clone();
        let time_left = request.deadline.map(|deadline| deadline.saturating_duration_since(now));
        let mut ledger = lock(&self.shared.ledger);
        let has_cordoned = self.cordoned.as_ref().is_some_and(|(order, _)| *order == request.order.id);
        let mut observed = scene.observe(has_cordoned);
        if let Ok(pods) = observed.pods.known() {
            ledger.keep(self.number, pods, now);
        }
        let attempts = latest(&observed.pods).map(|pods| ledger.attempts(pods, now)).unwrap_or_default();
        match &mut observed.budgets {
            Fact::Known { value, .. } | Fact::Unknown { last: Some((value, _)), .. } => ledger.spend(value, now),
            Fact::Unknown { last: None, .. } => {}
        }
        let plan = plan::drain::plan(&request.order, &observed, &attempts, time_left);
        ledger.sent(self.number, &plan.evictions, now);
        plan
    }

    fn publish(&self, plan: &Plan) {
        let cordon_failure = self.cordon.as_ref().map(|(failure, ..)| failure.clone());
        let progress = Progress { plan: plan.clone(), cordon_failure };
        let is_news = self.report.send_if_modified(|known| {
            // When the next look is due is no progress.
            let is_news = Plan { next_look: None, ..known.plan.clone() } != Plan { next_look: None, ..plan.clone() }
                || known.cordon_failure != progress.cordon_failure;
            *known = progress;
            is_news
        });
        if is_news {
            (self.notify)();
        }
    }

    fn may_cordon(&self) -> bool {
        self.cordon_at().is_none_or(|at| at <= self.shared.clock.instant())
    }

    /// Not before.
    fn cordon_at(&self) -> Option<Instant> {
        let failed = self.cordon.as_ref().map(|(_, _, again_at)| *again_at);
        failed.max(self.cordoned.as_ref().map(|(_, again_at)| *again_at))
    }

    async fn cordon(&mut self, scene: &Scene, cordon: &Cordon) {
        let failed = execute::cordon(&scene.node.kind, &scene.key, cordon).await.err();
        // After no answer, what there is now decides.
        let settled = scene.node.kind.settle(&scene.key).await.err();
        if failed.is_none() {
            self.cordoned = Some((cordon.drain.clone(), self.shared.clock.instant() + CORDON_AGAIN));
        }
        self.cordon = failed.or(settled).map(|error| {
            let failures = self.cordon.as_ref().map_or(0, |(_, failures, _)| *failures);
            let failure = Failure { class: error.class(), message: error.to_string() };
            tracing::debug!(node = self.node, error = failure.message, "could not cordon");
            // A node changes all the time, and what it is now has been read already.
            let wait = if failure.class == Class::Conflict && failures == 0 {
                Duration::ZERO
            } else {
                let outcome = Outcome::Failed { message: String::new(), is_forbidden: false };
                retry_after(&outcome, failures)
            };
            (failure, failures + 1, self.shared.clock.instant() + wait)
        });
    }

    fn evict(&self, scene: &Scene, eviction: Eviction) -> BoxFuture<'static, Answer> {
        let shared = self.shared.clone();
        let pods = scene.pods.as_ref().map(|pods| pods.kind.clone());
        let evict = async move {
            let _slot = shared.evictions.acquire(&eviction.pod.namespace).await;
            let pods = pods.expect("a pod is evicted that was followed");
            (eviction.uid.clone(), execute::evict(&pods, &eviction).await)
        };
        evict.boxed()
    }

    /// Until something may be different.
    async fn wait(
        &mut self,
        news: Vec<signal::Receiver<u64>>,
        evicting: &mut FuturesUnordered<BoxFuture<'static, Answer>>,
        plan: &Plan,
    ) {
        let look_at = plan.next_look.and_then(|wait| self.shared.clock.instant().checked_add(wait));
        let cordon_at = plan.cordon.as_ref().and_then(|_| self.cordon_at());
        let look_at = look_at.into_iter().chain(cordon_at).min();
        let look = async {
            match look_at {
                Some(at) => sleep_until(at).await,
                None => future::pending().await,
            }
        };
        tokio::select! {
            () = changed(news) => {}
            _ = self.request.changed() => {}
            Some(answer) = evicting.next() => {
                self.answered(answer);
                // Those that are there already need no plan of their own.
                while let Some(Some(answer)) = evicting.next().now_or_never() {
                    self.answered(answer);
                }
            }
            () = look => {}
        }
    }

    fn answered(&self, (uid, outcome): Answer) {
        lock(&self.shared.ledger).answered(&uid, outcome, self.shared.clock.instant());
    }

    /// What was left when the time was up is an event of the node, once for each drain.
    fn record(&self, scene: &Scene, plan: &Plan, end: End) {
        tracing::info!(node = self.node, ?end, left = plan.leftovers(), "drain ended");
        let Some(note) = plan.warning() else { return };
        let node = scene.node.kind.get(&scene.key);
        let regarding = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Node".to_owned()),
            name: Some(self.node.clone()),
            uid: node.map(|node| node.value.uid.clone()),
            ..ObjectReference::default()
        };
        self.shared.recorder.record(Occurrence {
            regarding,
            is_warning: true,
            reason: "DrainTimedOut".to_owned(),
            action: "Drain".to_owned(),
            note,
            discriminator: self.request.borrow().order.id.clone(),
        });
    }
}

/// Returns when one of them has changed.
pub(crate) async fn changed(mut news: Vec<signal::Receiver<u64>>) {
    let changes = news.iter_mut().map(|news| Box::pin(news.changed()));
    let _ = select_all(changes).await;
}
