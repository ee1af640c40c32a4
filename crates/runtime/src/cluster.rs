//! A cluster as a value: how it is reached, what is watched there, and how it is written to.

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use kube::Client;
use plan::fact::{Class, Fact, Failure};
use process::{Clock, Pulse};
use tokio::sync::watch as signal;

use crate::{
    followers::WatchMetrics,
    hub::{Context, Hub, Subscription},
    kind::{Change, Kind},
    lease::Leadership,
    metrics::Metrics,
    selection::Selection,
    server_clock::ServerClock,
    view::View,
    watch::{ListMode, SLOWEST_RECONNECT},
    writer::Writer,
};

/// How far a cache can be believed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Freshness {
    /// Time since the server last spoke; `None` before the cache was filled.
    pub age: Option<Duration>,
    /// Why nothing arrives now.
    pub interruption: Option<String>,
}

impl Freshness {
    /// What the cache holds, as a plan sees it: `value` is taken from the cache.
    pub fn fact<T>(&self, value: T) -> Fact<T> {
        match (&self.interruption, self.age) {
            (None, Some(age)) => Fact::Known { value, age },
            (why, age) => {
                let message = why.clone().unwrap_or_else(|| "not synced yet".to_owned());
                Fact::Unknown { why: Failure { class: Class::Transient, message }, last: age.map(|age| (value, age)) }
            }
        }
    }

    /// Whether what the cache holds is what the server has, but for what is on its way. Otherwise it is unknown, and
    /// the cache holds what was known last.
    pub fn is_known(&self) -> bool {
        self.age.is_some() && self.interruption.is_none()
    }
}

/// Clones are the same cluster.
#[derive(Clone)]
pub struct Cluster(Arc<Inner>);

struct Inner {
    /// Empty for the cluster that the operator runs for.
    name: Arc<str>,
    clock: Clock,
    server_clock: ServerClock,
    client: RwLock<Client>,
    /// Counts how often the client was exchanged.
    exchanges: signal::Sender<u64>,
    /// What configuration says about lists, and what the server was found to be able to.
    wanted_mode: Option<ListMode>,
    found_mode: tokio::sync::Mutex<Option<(u64, ListMode)>>,
    hub: Arc<Hub>,
    leadership: Leadership,
    timeout: Duration,
    subscriptions: Mutex<Vec<Subscription>>,
    interruptions: AtomicU64,
}

/// A watch that ends when this is dropped.
pub struct Following {
    /// `None` if the kind is watched for another reason.
    _subscription: Option<Subscription>,
}

/// What all clusters of a process have in common.
#[derive(Clone)]
pub(crate) struct Common {
    pub clock: Clock,
    pub leadership: Leadership,
    /// For one request.
    pub timeout: Duration,
    pub list_mode: Option<ListMode>,
    pub watches: WatchMetrics,
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Cluster").field(&self.0.name).finish()
    }
}

impl Cluster {
    pub(crate) fn new(name: impl Into<Arc<str>>, client: Client, common: &Common) -> Self {
        Self(Arc::new(Inner {
            name: name.into(),
            clock: common.clock.clone(),
            server_clock: ServerClock::new(common.clock.clone()),
            client: RwLock::new(client),
            exchanges: signal::Sender::new(0),
            wanted_mode: common.list_mode,
            found_mode: tokio::sync::Mutex::default(),
            hub: Hub::new(common.clock.clone(), common.watches.clone()),
            leadership: common.leadership.clone(),
            timeout: common.timeout,
            subscriptions: Mutex::default(),
            interruptions: AtomicU64::new(0),
        }))
    }

    /// Empty for the cluster that the operator runs for.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    pub(crate) fn is_own(&self) -> bool {
        self.0.name.is_empty()
    }

    /// As it is now; it may be exchanged any time.
    pub fn client(&self) -> Client {
        self.0.client.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Writes of one layer carry its field manager. The right to write is that of the operator, wherever it writes.
    pub fn writer(&self, manager: &'static str) -> Writer {
        Writer { cluster: self.clone(), leadership: self.0.leadership.clone(), manager, timeout: self.0.timeout }
    }

    /// Keeps `kind` filled with the selected objects, for as long as the cluster is known, and notifies of its changes.
    /// The kind is one of this cluster.
    pub fn watch<W: View, T: Send + Sync + 'static>(
        &self,
        kind: &Arc<Kind<W, T>>,
        selection: Selection,
        notify: impl Fn(&Change<'_, T>) + Send + Sync + 'static,
    ) {
        if let Some(subscription) = self.subscribe(kind, selection, notify) {
            self.subscriptions().push(subscription);
        }
    }

    /// As `watch`, for as long as the answer is held: for objects that are of interest for a while.
    #[must_use = "nothing is watched once it is dropped"]
    pub fn follow<W: View, T: Send + Sync + 'static>(
        &self,
        kind: &Arc<Kind<W, T>>,
        selection: Selection,
        notify: impl Fn(&Change<'_, T>) + Send + Sync + 'static,
    ) -> Following {
        Following { _subscription: self.subscribe(kind, selection, notify) }
    }

    fn subscribe<W: View, T: Send + Sync + 'static>(
        &self,
        kind: &Arc<Kind<W, T>>,
        selection: Selection,
        notify: impl Fn(&Change<'_, T>) + Send + Sync + 'static,
    ) -> Option<Subscription> {
        assert!(Arc::ptr_eq(&self.0, &kind.cluster().0), "a kind is watched where it is written");
        kind.listen(Box::new(notify));
        kind.subscribe(selection, SLOWEST_RECONNECT)
    }

    pub(crate) fn hub(&self) -> &Arc<Hub> {
        &self.0.hub
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.0.clock
    }

    /// What its API server's clock shows.
    pub fn server_clock(&self) -> &ServerClock {
        &self.0.server_clock
    }

    /// From now on the cluster is reached in another way; all watches begin anew, and until they have listed what the
    /// server there has, it is unknown.
    pub(crate) fn exchange(&self, client: Client) {
        *self.0.client.write().unwrap_or_else(PoisonError::into_inner) = client;
        self.0.hub.exchanged();
        self.0.exchanges.send_modify(|exchanges| *exchanges += 1);
    }

    /// Ends all watches. What its kinds hold is dropped: it is unknown from now on.
    pub(crate) fn close(&self) {
        self.0.hub.close();
        // Dropped outside the lock, since each leaves the hub.
        let subscriptions = std::mem::take(&mut *self.subscriptions());
        drop(subscriptions);
    }

    fn subscriptions(&self) -> MutexGuard<'_, Vec<Subscription>> {
        self.0.subscriptions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How far what is watched there can be believed, by the watch that is worst off.
    pub fn freshness(&self) -> Freshness {
        self.0.hub.freshness()
    }

    pub(crate) fn interruptions(&self) -> u64 {
        self.0.interruptions.load(Ordering::Relaxed)
    }

    /// Changes when the client was exchanged.
    pub(crate) fn exchanged(&self) -> signal::Receiver<u64> {
        self.0.exchanges.subscribe()
    }

    /// Runs the watches until dropped.
    pub(crate) async fn run(self, context: Context, pulse: Pulse) {
        self.0.hub.clone().run(self, context, pulse).await;
    }

    pub(crate) fn count_interruption(&self, metrics: &Metrics, resource: &'static str) {
        self.0.interruptions.fetch_add(1, Ordering::Relaxed);
        // Another cluster's interruption is not that of the operator's own API server.
        if self.is_own() {
            metrics.watch_failed(resource);
        }
    }

    /// Streaming lists from Kubernetes 1.34 on; the server is asked once.
    pub(crate) async fn list_mode(&self, client: &Client) -> kube::Result<ListMode> {
        if let Some(mode) = self.0.wanted_mode {
            return Ok(mode);
        }
        let mut found = self.0.found_mode.lock().await;
        let exchanges = *self.0.exchanges.borrow();
        if let Some((_, mode)) = found.filter(|(asked, _)| *asked == exchanges) {
            return Ok(mode);
        }
        let info = client.apiserver_version().await?;
        let minor: String = info.minor.chars().take_while(char::is_ascii_digit).collect();
        let can_stream = (info.major.as_str(), minor.parse::<u32>().unwrap_or(0)) >= ("1", 34);
        let mode = if can_stream { ListMode::Streaming } else { ListMode::Paged };
        *found = Some((exchanges, mode));
        Ok(mode)
    }
}
