//! The watches of one cluster, and who follows them: one watch for each resource and selection, however many follow it.

use std::{
    any::Any,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::FutureExt;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::counter::ConstCounter,
};
use tokio::{
    sync::Notify,
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;

use crate::{
    clock::Clock,
    cluster::{Cluster, Freshness},
    health::{Health, Pulse},
    metrics::Metrics,
    raw::Raw,
    selection::Requirements,
    trouble::Trouble,
    watch::{Target, Watcher},
};

/// Who follows a watch: a projection of its objects with its own store. Calls for one subscriber come one after the
/// other. A panic in one costs this subscriber its place until it is filled anew, and no other anything.
pub(crate) trait Subscriber: Send + Sync {
    /// A list begins. With `is_repeated`, the subscriber has lost its way, and wants to hear everything again.
    fn begin_list(&self, is_repeated: bool);
    fn listed(&self, object: &Raw<'_>) -> Result<(), Unreadable>;
    fn end_list(&self, version: u64);
    fn applied(&self, object: &Raw<'_>) -> Result<(), Unreadable>;
    fn deleted(&self, object: &Raw<'_>);
    /// Changed, and not among those that the subscriber asked for, or no more.
    fn unselected(&self, object: &Raw<'_>);
    /// What another's request found, past the watch.
    fn learnt(&self, object: &Raw<'_>) -> Result<(), Unreadable>;
    /// What another's request deleted: an object that was last seen at this version.
    fn deleted_by_another(&self, key: &crate::key::Key, version: u64);
    /// The server spoke.
    fn in_touch(&self, at: Instant);
    /// Why nothing is heard, or that it is again.
    fn interrupted(&self, why: Option<String>);
}

/// An object that cannot be decoded; where, without what stands there.
#[derive(Debug)]
pub(crate) struct Unreadable(pub String);

/// How a subscriber wants to be served.
pub(crate) struct Wish {
    /// For metrics, messages and readiness.
    pub resource: &'static str,
    pub target: Target,
    /// How long at most until the next attempt after a failure.
    pub slowest: Duration,
}

/// The resource in metrics of all kinds that turn up while the process runs: any number, by names that users choose.
pub(crate) const DYNAMIC: &str = "dynamic";

/// The first attempt after a panic, and the longest wait: every attempt costs a whole list.
const AFTER_PANIC: Duration = Duration::from_secs(1);
const LONGEST_AFTER_PANIC: Duration = Duration::from_mins(1);
/// A panic after this long is a new one.
const PANIC_FORGOTTEN: Duration = Duration::from_mins(5);

enum State {
    /// Waits for a list since then or until then.
    Waiting(Instant),
    Listing,
    Live,
}

struct Member {
    subscriber: Arc<dyn Subscriber>,
    wish: Wish,
    requirements: Option<Requirements>,
    /// Only one task changes it: that of the watch.
    standing: Mutex<Standing>,
}

struct Standing {
    state: State,
    /// Since a panic, until it is filled anew: it may have missed something.
    is_lost: bool,
    panics: u32,
    panicked_at: Option<Instant>,
}

impl Member {
    fn new(subscriber: Arc<dyn Subscriber>, wish: Wish, now: Instant) -> Arc<Self> {
        let standing = Standing { state: State::Waiting(now), is_lost: false, panics: 0, panicked_at: None };
        let requirements = wish.target.selection.requirements();
        Arc::new(Self { subscriber, wish, requirements, standing: Mutex::new(standing) })
    }

    fn standing(&self) -> MutexGuard<'_, Standing> {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether an object is one that the subscriber asked for; `None` if only the server can say.
    fn selects(&self, object: &Raw<'_>) -> Option<bool> {
        self.requirements.as_ref()?.select(&object.key, || object.labels())
    }
}

/// All who follow one watch.
pub(crate) struct Followers {
    pub resource: &'static str,
    pub target: Target,
    members: Mutex<Vec<Arc<Member>>>,
    joined: Notify,
    trouble: Trouble,
    /// When the server last spoke.
    contact: Mutex<Option<Instant>>,
    clock: Clock,
    metrics: WatchMetrics,
}

/// What is counted beside interruptions, for all watches of the process.
#[derive(Clone, Debug, Default)]
pub(crate) struct WatchMetrics {
    panics: Arc<AtomicU64>,
}

impl Followers {
    fn members(&self) -> Vec<Arc<Member>> {
        self.lock().clone()
    }

    /// What the task of this watch is called, briefly or so that no other is called the same.
    fn label(&self, is_brief: bool) -> String {
        let Target { path, is_metadata, selection } = &self.target;
        if is_brief && self.resource != DYNAMIC {
            return format!("watch {}", self.resource);
        }
        let selectors = [&selection.labels, &selection.fields].into_iter().flatten();
        let metadata = is_metadata.then_some("metadata").into_iter();
        let apart: Vec<&str> = metadata.chain(selectors.map(String::as_str)).collect();
        format!("watch {path} ({})", apart.join("; "))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Member>>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long at most between attempts: as the most impatient wants it.
    pub(crate) fn slowest(&self) -> Duration {
        self.lock().iter().map(|member| member.wish.slowest).min().unwrap_or(LONGEST_AFTER_PANIC)
    }

    /// Waits until a subscriber wants a list: it is new, or its time after a panic has passed.
    pub(crate) async fn want_list(&self) {
        loop {
            let waits_until = |member: &Arc<Member>| match member.standing().state {
                State::Waiting(at) => Some(at),
                State::Listing | State::Live => None,
            };
            let due = self.lock().iter().filter_map(waits_until).min();
            match due {
                Some(at) if at <= self.clock.instant() => return,
                Some(at) => tokio::select! {
                    () = sleep_until(at) => {}
                    () = self.joined.notified() => {}
                },
                None => self.joined.notified().await,
            }
        }
    }

    /// Calls the subscribers that are part of the present list, or that are up to date.
    fn each(&self, is_listing: bool, call: impl Fn(&Member) -> Result<(), Unreadable>) {
        for member in self.members() {
            let is_served = match member.standing().state {
                State::Waiting(_) => false,
                State::Listing => is_listing,
                State::Live => !is_listing,
            };
            if is_served {
                self.guarded(&member, || call(&member));
            }
        }
    }

    /// A panic is the subscriber's alone.
    fn guarded(&self, member: &Member, call: impl FnOnce() -> Result<(), Unreadable>) {
        match catch_unwind(AssertUnwindSafe(call)) {
            Ok(Ok(())) => {}
            Ok(Err(Unreadable(place))) => {
                tracing::warn!(
                    resource = self.resource,
                    place,
                    "an object cannot be decoded; it is read before it is planned for"
                );
            }
            Err(panic) => self.panicked(member, &panic_message(&*panic)),
        }
    }

    fn panicked(&self, member: &Member, message: &str) {
        let now = self.clock.instant();
        let mut standing = member.standing();
        let is_old = |at| now.saturating_duration_since(at) > PANIC_FORGOTTEN;
        if standing.panicked_at.is_some_and(is_old) {
            standing.panics = 0;
        }
        let delay = (AFTER_PANIC * (1 << standing.panics.min(10))).min(LONGEST_AFTER_PANIC);
        standing.panics += 1;
        standing.is_lost = true;
        standing.panicked_at = Some(now);
        standing.state = State::Waiting(now + delay);
        drop(standing);
        self.joined.notify_one();
        self.metrics.panics.fetch_add(1, Ordering::Relaxed);
        tracing::error!(
            resource = self.resource,
            panic = message,
            ?delay,
            "panic on a watch event; the cache is filled again"
        );
        member.subscriber.interrupted(Some(format!("panic: {message}")));
    }

    pub(crate) fn begin_list(&self) {
        let now = self.clock.instant();
        for member in self.members() {
            let mut standing = member.standing();
            if matches!(standing.state, State::Waiting(until) if until > now) {
                continue;
            }
            standing.state = State::Listing;
            let is_repeated = standing.is_lost;
            drop(standing);
            member.subscriber.begin_list(is_repeated);
        }
    }

    pub(crate) fn listed(&self, object: &Raw<'_>) {
        self.each(true, |member| if self.is_for(member, object) { member.subscriber.listed(object) } else { Ok(()) });
    }

    pub(crate) fn end_list(&self, version: u64) {
        self.each(true, |member| {
            member.subscriber.end_list(version);
            let mut standing = member.standing();
            (standing.state, standing.is_lost) = (State::Live, false);
            Ok(())
        });
    }

    pub(crate) fn applied(&self, object: &Raw<'_>) {
        self.each(false, |member| {
            if self.is_for(member, object) {
                return member.subscriber.applied(object);
            }
            member.subscriber.unselected(object);
            Ok(())
        });
    }

    /// From the watch, or within a list that streams.
    pub(crate) fn deleted(&self, object: &Raw<'_>) {
        for is_listing in [true, false] {
            self.each(is_listing, |member| {
                member.subscriber.deleted(object);
                Ok(())
            });
        }
    }

    /// The server has selected for the widest; those who want less are served by their own requirements.
    fn is_for(&self, member: &Member, object: &Raw<'_>) -> bool {
        member.wish.target.selection == self.target.selection || member.selects(object) == Some(true)
    }

    pub(crate) fn in_touch(&self, at: Instant) {
        *self.contact.lock().unwrap_or_else(PoisonError::into_inner) = Some(at);
        self.members().iter().for_each(|member| member.subscriber.in_touch(at));
    }

    /// The watch runs.
    pub(crate) fn connected(&self, at: Instant) {
        self.trouble.set(None);
        self.in_touch(at);
        for member in self.members() {
            if matches!(member.standing().state, State::Live) {
                member.subscriber.interrupted(None);
            }
        }
    }

    /// The watch does not run; true if that is news.
    pub(crate) fn interrupted(&self, why: &str) -> bool {
        for member in self.members() {
            // The panic says more.
            if !member.standing().is_lost {
                member.subscriber.interrupted(Some(why.to_owned()));
            }
        }
        self.trouble.set(Some(why.to_owned()))
    }
}

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
        let (resource, target) = (wish.resource, wish.target.clone());
        let member = Member::new(subscriber, wish, self.clock.instant());
        let mut watches = self.lock();
        if let Some(entry) = watches.iter().find(|entry| entry.followers.target.covers(&target)) {
            entry.followers.lock().push(member.clone());
            entry.followers.joined.notify_one();
        } else {
            let followers = Arc::new(Followers {
                resource,
                target,
                members: Mutex::new(vec![member.clone()]),
                joined: Notify::new(),
                trouble: Trouble::default(),
                contact: Mutex::default(),
                clock: self.clock.clone(),
                metrics: self.metrics.clone(),
            });
            watches.push(Entry { followers, stop: CancellationToken::new(), task: None });
            self.changed.notify_one();
        }
        Subscription { hub: Arc::downgrade(self), member }
    }

    fn leave(&self, member: &Arc<Member>) {
        self.lock().retain(|entry| {
            let mut members = entry.followers.lock();
            members.retain(|other| !Arc::ptr_eq(other, member));
            if members.is_empty() {
                entry.stop.cancel();
            }
            !members.is_empty()
        });
    }

    /// The oldest age and the first trouble of all watches.
    pub(crate) fn freshness(&self) -> Freshness {
        let now = self.clock.instant();
        let watches = self.lock();
        let ages = watches.iter().map(|entry| {
            let contact = *entry.followers.contact.lock().unwrap_or_else(PoisonError::into_inner);
            contact.map(|at| now.saturating_duration_since(at))
        });
        // Without contact on one watch, nothing is known of it, however young the others are.
        let age = ages.collect::<Option<Vec<_>>>().and_then(|ages| ages.into_iter().max());
        Freshness { age, trouble: watches.iter().find_map(|entry| entry.followers.trouble.get()) }
    }

    /// All who see objects of `path`, but for the one who knows already.
    fn others(&self, path: &str, knows: *const ()) -> Vec<(Arc<Followers>, Arc<Member>)> {
        let watches = self.lock();
        let entries = watches.iter().filter(|entry| entry.followers.target.path == path);
        let members = entries.flat_map(|entry| {
            let followers = entry.followers.clone();
            entry.followers.members().into_iter().map(move |member| (followers.clone(), member))
        });
        let is_other = |member: &Member| !std::ptr::addr_eq(Arc::as_ptr(&member.subscriber), knows);
        members.filter(|(_, member)| is_other(member) && !member.standing().is_lost).collect()
    }

    /// What a request of one subscriber brought is known to all.
    pub(crate) fn learnt(&self, path: &str, knows: *const (), object: &[u8]) {
        let others = self.others(path, knows);
        if others.is_empty() {
            return;
        }
        let Some(object) = std::str::from_utf8(object).ok().and_then(Raw::read) else { return };
        for (followers, member) in others {
            // Where only the server can say whether it is selected, the watch says so a moment later.
            let Some(is_selected) = member.selects(&object) else { continue };
            followers.guarded(&member, || {
                if is_selected {
                    return member.subscriber.learnt(&object);
                }
                member.subscriber.deleted_by_another(&object.key, object.version);
                Ok(())
            });
        }
    }

    /// What a request of one subscriber deleted is gone for all.
    pub(crate) fn deleted(&self, path: &str, knows: *const (), key: &crate::key::Key, version: u64) {
        for (followers, member) in self.others(path, knows) {
            followers.guarded(&member, || {
                member.subscriber.deleted_by_another(key, version);
                Ok(())
            });
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
            let wider = watches.iter().enumerate().position(covers).filter(|_| watches[index].task.is_none());
            if let Some(wider) = wider {
                let members = watches[index].followers.members();
                watches[wider].followers.lock().extend(members);
                watches[wider].followers.joined.notify_one();
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

/// Runs one watch until it is stopped. Its own panic is a defect of ours; it begins anew.
async fn run_one(task: String, cluster: Cluster, followers: Arc<Followers>, stop: CancellationToken, context: Context) {
    let passing = context.health.passing_pulse(task);
    let watch = async {
        loop {
            let watcher =
                Watcher::new(cluster.clone(), followers.clone(), context.metrics.clone(), followers.clock.clone());
            if let Err(panic) = AssertUnwindSafe(watcher.run()).catch_unwind().await {
                followers.metrics.panics.fetch_add(1, Ordering::Relaxed);
                let panic = panic_message(&*panic);
                followers.interrupted(&format!("panic: {panic}"));
                tracing::error!(resource = followers.resource, panic, "panic in a watch; it begins anew");
            }
            sleep(AFTER_PANIC).await;
        }
    };
    stop.run_until_cancelled(passing.pulse.while_waiting(watch)).await;
}

pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "unknown".to_owned())
}

impl Collector for WatchMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let panics = ConstCounter::new(self.panics.load(Ordering::Relaxed));
        let help = "Panics on watch events; each fills one cache anew";
        panics.encode(encoder.encode_descriptor("strata_watch_panics", help, None, panics.metric_type())?)
    }
}

#[cfg(test)]
mod tests;
