//! The watches of one cluster: one for each resource and selection, however many follow it.

use std::{
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use futures::FutureExt;
use process::{Clock, Health, Pulse, panic};
use tokio::{sync::Notify, task::JoinSet, time::sleep};
use tokio_util::sync::CancellationToken;

use crate::{
    cluster::{Cluster, Freshness},
    followers::{AFTER_PANIC, Followers, Member, Subscriber, WatchMetrics, Wish},
    key::Key,
    metrics::Metrics,
    raw::Raw,
    watch::Watcher,
};

/// The watches of one cluster.
pub(crate) struct Hub {
    watches: Mutex<Vec<Entry>>,
    changed: Notify,
    clock: Clock,
    metrics: WatchMetrics,
}

struct Entry {
    followers: Arc<Followers>,
    stop: CancellationToken,
    /// The name of its task, once it is started.
    task: Option<String>,
}

/// What the watches of a process have in common.
#[derive(Clone)]
pub(crate) struct Context {
    pub health: Health,
    pub metrics: Arc<Metrics>,
}

/// A place among the followers of a watch, given up when dropped.
pub(crate) struct Subscription {
    hub: Weak<Hub>,
    member: Arc<Member>,
}

impl Drop for Subscription {
    fn drop(&mut self) {
        if let Some(hub) = self.hub.upgrade() {
            hub.leave(&self.member);
        }
    }
}

impl Hub {
    pub(crate) fn new(clock: Clock, metrics: WatchMetrics) -> Arc<Self> {
        Arc::new(Self { watches: Mutex::default(), changed: Notify::new(), clock, metrics })
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.watches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on the subscriber is served: by a watch that is open, if one shows all that is wished for.
    pub(crate) fn subscribe(self: &Arc<Self>, subscriber: Arc<dyn Subscriber>, wish: Wish) -> Subscription {
        let target = wish.target.clone();
        let member = Member::new(subscriber, wish, self.clock.instant());
        let mut watches = self.lock();
        if let Some(entry) = watches.iter().find(|entry| entry.followers.target.covers(&target)) {
            entry.followers.join([member.clone()]);
        } else {
            let followers = Arc::new(Followers::new(member.clone(), self.clock.clone(), self.metrics.clone()));
            watches.push(Entry { followers, stop: CancellationToken::new(), task: None });
            self.changed.notify_one();
        }
        Subscription { hub: Arc::downgrade(self), member }
    }

    fn leave(&self, member: &Arc<Member>) {
        self.lock().retain(|entry| {
            let is_followed = entry.followers.leave(member);
            if !is_followed {
                entry.stop.cancel();
            }
            is_followed
        });
    }

    /// Ends all watches for good: what their subscribers hold is dropped.
    pub(crate) fn close(&self) {
        // Listeners are notified below, and may subscribe or leave.
        let watches = std::mem::take(&mut *self.lock());
        for entry in watches {
            entry.stop.cancel();
            entry.followers.members().iter().for_each(|member| member.close());
        }
    }

    /// The oldest age and the first interruption of all watches.
    pub(crate) fn freshness(&self) -> Freshness {
        let now = self.clock.instant();
        let watches = self.lock();
        let contacts = watches.iter().map(|entry| entry.followers.contact());
        // Without contact on one watch, nothing is known of it, however young the others are.
        let oldest = contacts.collect::<Option<Vec<_>>>().and_then(|contacts| contacts.into_iter().min());
        let age = oldest.map(|at| now.saturating_duration_since(at));
        Freshness { age, interruption: watches.iter().find_map(|entry| entry.followers.interruption()) }
    }

    /// From now on the cluster is reached in another way: what is held may be another one's.
    pub(crate) fn exchanged(&self) {
        self.lock().iter().for_each(|entry| entry.followers.exchanged());
    }

    /// All who see objects of `path`, but for the one who knows already.
    fn others(&self, path: &str, knows: *const ()) -> Vec<(Arc<Followers>, Arc<Member>)> {
        let watches = self.lock();
        let entries = watches.iter().filter(|entry| entry.followers.target.path == path);
        let members = entries.flat_map(|entry| {
            let followers = entry.followers.clone();
            entry.followers.members().into_iter().map(move |member| (followers.clone(), member))
        });
        members.filter(|(_, member)| !member.is(knows) && !member.is_lost()).collect()
    }

    /// What a request of one subscriber brought is known to all.
    pub(crate) fn learnt(&self, path: &str, knows: *const (), object: &[u8]) {
        let others = self.others(path, knows);
        if others.is_empty() {
            return;
        }
        let Some(object) = std::str::from_utf8(object).ok().and_then(Raw::read) else { return };
        for (followers, member) in others {
            followers.learnt(&member, &object);
        }
    }

    /// What a request of one subscriber deleted is gone for all.
    pub(crate) fn deleted(&self, path: &str, knows: *const (), key: &Key, version: u64) {
        for (followers, member) in self.others(path, knows) {
            followers.deleted_by_another(&member, key, version);
        }
    }

    /// Runs all watches, until dropped.
    pub(crate) async fn run(self: Arc<Self>, cluster: Cluster, context: Context, pulse: Pulse) {
        let mut running = JoinSet::new();
        loop {
            for (task, followers, stop) in self.start(cluster.name()) {
                running.spawn(run_one(task, cluster.clone(), followers, stop, context.clone()));
            }
            tokio::select! {
                () = self.changed.notified() => {}
                Some(_) = running.join_next() => {}
                () = pulse.tick() => {}
            }
        }
    }

    /// Those that shall run and do not yet. What another watch shows as well needs none of its own: subscribers of
    /// both are asked for before the first watch begins.
    fn start(&self, cluster: &str) -> Vec<(String, Arc<Followers>, CancellationToken)> {
        let mut watches = self.lock();
        let mut index = 0;
        while index < watches.len() {
            let target = &watches[index].followers.target;
            let covers = |(other, entry): (usize, &Entry)| other != index && entry.followers.target.covers(target);
            // Only what is new is compared, with all of the others: there may be thousands.
            let is_new = watches[index].task.is_none();
            let wider = is_new.then(|| watches.iter().enumerate().position(covers)).flatten();
            if let Some(wider) = wider {
                let members = watches[index].followers.members();
                watches[wider].followers.join(members);
                watches.remove(index);
            } else {
                index += 1;
            }
        }
        let of = if cluster.is_empty() { String::new() } else { format!(" of {cluster}") };
        let mut started = Vec::new();
        for index in 0..watches.len() {
            if watches[index].task.is_none() {
                let followers = watches[index].followers.clone();
                let brief = followers.label(true) + &of;
                let is_taken = watches.iter().any(|entry| entry.task.as_ref() == Some(&brief));
                let task = if is_taken { followers.label(false) + &of } else { brief };
                watches[index].task = Some(task.clone());
                started.push((task, followers, watches[index].stop.clone()));
            }
        }
        started
    }
}

/// Doubts arise when an API server lags or was restored, or an object cannot be decoded. Rounds settle those about their
/// own objects at once; what no round settles is read after one or two beats of the watch's task, which wakes for them
/// anyway, and when that fails after growing pauses, to two minutes.
const LONGEST_SETTLE: u32 = 40;

/// Settles the doubts of all who follow a watch, until dropped.
async fn settle(followers: &Followers, pulse: &Pulse) {
    let mut beats = 1;
    loop {
        for _ in 0..beats {
            pulse.tick().await;
        }
        let mut is_settled = true;
        for member in followers.members() {
            is_settled &= AssertUnwindSafe(member.settle()).catch_unwind().await.unwrap_or_else(|panic| {
                tracing::error!(
                    resource = followers.resource,
                    panic = panic::message(&*panic),
                    "panic on a read; retrying"
                );
                false
            });
        }
        beats = if is_settled { 1 } else { (beats * 2).min(LONGEST_SETTLE) };
    }
}

/// Runs one watch until it is stopped. Its own panic is a defect of ours; it begins anew.
async fn run_one(task: String, cluster: Cluster, followers: Arc<Followers>, stop: CancellationToken, context: Context) {
    let passing = context.health.passing_pulse(task);
    let watch = async {
        loop {
            let watcher = Watcher::new(cluster.clone(), followers.clone(), context.metrics.clone());
            if let Err(panic) = AssertUnwindSafe(watcher.run()).catch_unwind().await {
                followers.all_panicked(&panic::message(&*panic));
            }
            sleep(AFTER_PANIC).await;
        }
    };
    let both = async { tokio::join!(Box::pin(watch), settle(&followers, &passing.pulse)) };
    stop.run_until_cancelled(passing.pulse.while_waiting(both)).await;
}

#[cfg(test)]
mod tests;
