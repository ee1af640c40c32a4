//! Who follows one watch: projections of its objects, each with its own store and its own faults.

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::future::BoxFuture;
use process::{Clock, panic};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric},
    metrics::{
        counter::{ConstCounter, Counter},
        family::Family,
    },
};
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

use crate::{
    interruption::{Cause, Interruption},
    key::Key,
    raw::Raw,
    selection::Requirements,
    watch::Target,
};

/// Who follows a watch: a projection of its objects with its own store. Calls for one subscriber come one after the
/// other. A panic in one costs this subscriber its place until it is filled anew, and no other anything.
pub(crate) trait Subscriber: Send + Sync {
    /// The server's versions went back: etcd was restored from a backup.
    fn restored(&self);
    /// A list begins. With `is_repeated`, the subscriber may have missed changes, and is notified of everything again.
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
    fn deleted_by_another(&self, key: &Key, version: u64);
    /// The server spoke.
    fn in_touch(&self, at: Instant);
    /// The cluster is not followed any more: nothing that was said about it is known.
    fn closed(&self);
    /// Why nothing arrives, or that it does again.
    fn interrupted(&self, why: Option<Cause>);
    /// Reads what is in doubt; false if something still is.
    fn settle(&self) -> BoxFuture<'_, bool>;
}

/// An object that cannot be decoded: which, and where in it, without what stands there.
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
pub(crate) const AFTER_PANIC: Duration = Duration::from_secs(1);
const LONGEST_AFTER_PANIC: Duration = Duration::from_mins(1);
/// A panic after this long is a new one.
const PANIC_FORGOTTEN: Duration = Duration::from_mins(5);

/// How often a watch warns of objects that cannot be decoded: one that changes all the time must not fill the log. All
/// are counted.
const WARN_AGAIN: Duration = Duration::from_mins(1);

enum State {
    /// Waits for a list since then or until then.
    Waiting(Instant),
    Listing,
    Live,
}

pub(crate) struct Member {
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
    pub(crate) fn new(subscriber: Arc<dyn Subscriber>, wish: Wish, now: Instant) -> Arc<Self> {
        let standing = Standing { state: State::Waiting(now), is_lost: false, panics: 0, panicked_at: None };
        let requirements = wish.target.selection.requirements();
        Arc::new(Self { subscriber, wish, requirements, standing: Mutex::new(standing) })
    }

    fn standing(&self) -> MutexGuard<'_, Standing> {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this is the subscriber at that address.
    pub(crate) fn is(&self, subscriber: *const ()) -> bool {
        std::ptr::addr_eq(Arc::as_ptr(&self.subscriber), subscriber)
    }

    /// Whether it panicked and is not filled again yet.
    pub(crate) fn is_lost(&self) -> bool {
        self.standing().is_lost
    }

    /// What it holds is dropped for good.
    pub(crate) fn close(&self) {
        self.subscriber.closed();
    }

    /// Reads what is in doubt; false if something still is.
    pub(crate) async fn settle(&self) -> bool {
        self.subscriber.settle().await
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
    interruption: Interruption,
    /// When the server last spoke.
    contact: Mutex<Option<Instant>>,
    /// When it last warned of an object that cannot be decoded.
    warned_at: Mutex<Option<Instant>>,
    clock: Clock,
    metrics: WatchMetrics,
}

/// What is counted beside interruptions, for all watches of the process.
#[derive(Clone, Debug, Default)]
pub(crate) struct WatchMetrics {
    panics: Arc<AtomicU64>,
    undecodable: Family<Resource, Counter>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Resource {
    resource: &'static str,
}

impl Followers {
    /// Of a watch for the first who wants it.
    pub(crate) fn new(first: Arc<Member>, clock: Clock, metrics: WatchMetrics) -> Self {
        Self {
            resource: first.wish.resource,
            target: first.wish.target.clone(),
            members: Mutex::new(vec![first]),
            joined: Notify::new(),
            interruption: Interruption::default(),
            contact: Mutex::default(),
            warned_at: Mutex::default(),
            clock,
            metrics,
        }
    }

    pub(crate) fn join(&self, members: impl IntoIterator<Item = Arc<Member>>) {
        self.lock().extend(members);
        self.joined.notify_one();
    }

    /// True if anyone still follows.
    pub(crate) fn leave(&self, member: &Arc<Member>) -> bool {
        let mut members = self.lock();
        members.retain(|other| !Arc::ptr_eq(other, member));
        !members.is_empty()
    }

    /// When the server last spoke.
    pub(crate) fn contact(&self) -> Option<Instant> {
        *self.contact.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why the watch does not run.
    pub(crate) fn interruption(&self) -> Option<String> {
        self.interruption.get()
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    pub(crate) fn members(&self) -> Vec<Arc<Member>> {
        self.lock().clone()
    }

    /// What the task of this watch is called, briefly or so that no other is called the same.
    pub(crate) fn label(&self, is_brief: bool) -> String {
        let Target { is_metadata, selection, .. } = &self.target;
        if is_brief && self.resource != DYNAMIC {
            return format!("watch {}", self.resource);
        }
        let selectors = [&selection.labels, &selection.fields].into_iter().flatten();
        let metadata = is_metadata.then_some("metadata").into_iter();
        let apart: Vec<&str> = metadata.chain(selectors.map(String::as_str)).collect();
        format!("watch {} ({})", self.target.place(), apart.join("; "))
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
            Ok(Err(Unreadable(place))) => self.unreadable(&place),
            Err(panic) => self.panicked(member, &panic::message(&*panic)),
        }
    }

    fn unreadable(&self, place: &str) {
        self.metrics.undecodable.get_or_create(&Resource { resource: self.resource }).inc();
        let now = self.clock.instant();
        let mut warned_at = self.warned_at.lock().unwrap_or_else(PoisonError::into_inner);
        let resource = self.resource;
        if warned_at.is_none_or(|at| now.saturating_duration_since(at) >= WARN_AGAIN) {
            *warned_at = Some(now);
            tracing::warn!(resource, place, "an object cannot be decoded; reading it again before planning");
        } else {
            tracing::debug!(resource, place, "another object cannot be decoded");
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
            "panic on a watch event; the cache lists again"
        );
        member.subscriber.interrupted(Some(format!("panic: {message}").into()));
    }

    /// The watch itself panicked: a defect that is no subscriber's.
    pub(crate) fn all_panicked(&self, message: &str) {
        self.metrics.panics.fetch_add(1, Ordering::Relaxed);
        self.interrupted(&format!("panic: {message}").into());
        tracing::error!(resource = self.resource, panic = message, "panic in a watch; restarting it");
    }

    /// What another's request brought.
    pub(crate) fn learnt(&self, member: &Member, object: &Raw<'_>) {
        // Where only the server can say whether it is selected, the watch says so a moment later.
        let Some(is_selected) = member.selects(object) else { return };
        if is_selected {
            self.guarded(member, || member.subscriber.learnt(object));
        } else {
            self.deleted_by_another(member, &object.key, object.version);
        }
    }

    /// What another's request deleted, or took out of the selection.
    pub(crate) fn deleted_by_another(&self, member: &Member, key: &Key, version: u64) {
        self.guarded(member, || {
            member.subscriber.deleted_by_another(key, version);
            Ok(())
        });
    }

    pub(crate) fn restored(&self) {
        self.members().iter().for_each(|member| member.subscriber.restored());
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
        self.interruption.set(None);
        self.in_touch(at);
        for member in self.members() {
            if matches!(member.standing().state, State::Live) {
                member.subscriber.interrupted(None);
            }
        }
    }

    /// The cluster is reached in another way: until it is listed anew, nothing is known of it.
    pub(crate) fn exchanged(&self) {
        self.interrupted(&"not listed since the kubeconfig changed".to_owned().into());
    }

    /// The watch does not run; true if that is news.
    pub(crate) fn interrupted(&self, why: &Cause) -> bool {
        for member in self.members() {
            // The panic says more.
            if !member.standing().is_lost {
                member.subscriber.interrupted(Some(why.clone()));
            }
        }
        self.interruption.set(Some(why.clone()))
    }
}

impl Collector for WatchMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let panics = ConstCounter::new(self.panics.load(Ordering::Relaxed));
        let help = "Panics on watch events; each makes one cache list again";
        panics.encode(encoder.encode_descriptor("strata_watch_panics", help, None, panics.metric_type())?)?;
        let help = "Objects in watches and lists that could not be decoded, by resource";
        let (name, kind) = ("strata_watch_undecodable_objects", self.undecodable.metric_type());
        self.undecodable.encode(encoder.encode_descriptor(name, help, None, kind)?)
    }
}
