//! Watches that come and go while the operator runs, of kinds that are known only then.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use futures::{StreamExt, future::BoxFuture, stream::FuturesUnordered};
use kube::{
    api::{ApiResource, DynamicObject, GroupVersionKind},
    discovery,
};
use process::Pulse;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::{
    error::Brief,
    followers::DYNAMIC,
    interruption::Interruption,
    kind::{Cache, Change, Kind},
    selection::Selection,
    view::Metadata,
    watch::Reconnect,
    writer::Writer,
};

/// A kind that does not exist or may not be read is tried again this often: it may come with an installation that is
/// under way, and one request a minute is no burden.
const SLOWEST_ATTEMPT: Duration = Duration::from_mins(1);

/// What is kept of each object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    pub uid: Box<str>,
    /// Counts changes of the spec, for kinds that have it: the same generation is a change of status or labels.
    pub generation: Option<i64>,
}

impl Trace {
    fn project(object: Metadata<DynamicObject>) -> Option<Self> {
        let metadata = object.metadata;
        Some(Self { uid: metadata.uid?.into(), generation: metadata.generation })
    }
}

type Traced = Kind<Metadata<DynamicObject>, Trace>;
pub(crate) type NotifyTrace = Arc<dyn Fn(&GroupVersionKind, &Change<'_, Trace>) + Send + Sync>;

/// Which kinds are watched; clones share it. Only metadata is followed, in all namespaces. A kind that cannot be watched
/// is tried again, and costs neither the process nor its readiness.
#[derive(Clone, Default)]
pub struct DynamicWatches {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    followed: Mutex<HashMap<GroupVersionKind, Arc<Followed>>>,
    /// New ones are waiting to be started.
    wanted: Notify,
}

#[derive(Default)]
struct Followed {
    is_started: OnceLock<()>,
    stop: CancellationToken,
    interruption: Interruption,
    cache: OnceLock<Arc<Traced>>,
}

impl DynamicWatches {
    /// From now on objects of `kind` are watched, if they were not before.
    pub fn ensure(&self, kind: &GroupVersionKind) {
        self.followed().entry(kind.clone()).or_default();
        self.shared.wanted.notify_one();
    }

    /// From now on they are not.
    pub fn release(&self, kind: &GroupVersionKind) {
        if let Some(followed) = self.followed().remove(kind) {
            followed.stop.cancel();
        }
    }

    /// Whether all is known about the objects of `kind`, or why not.
    pub fn readiness(&self, kind: &GroupVersionKind) -> Result<(), String> {
        let followed = self.followed().get(kind).cloned().ok_or("not watched")?;
        if let Some(interruption) = followed.interruption.get() {
            return Err(interruption);
        }
        followed.cache.get().map_or_else(|| Err("not synced yet".to_owned()), |cache| cache.readiness())
    }

    fn followed(&self) -> MutexGuard<'_, HashMap<GroupVersionKind, Arc<Followed>>> {
        self.shared.followed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps them all, for ever.
    pub(crate) async fn run(self, writer: Writer, notify: NotifyTrace, pulse: Pulse) {
        let mut running = FuturesUnordered::<BoxFuture<'static, ()>>::new();
        loop {
            for (kind, followed) in &*self.followed() {
                if followed.is_started.set(()).is_ok() {
                    let follow = follow(kind.clone(), followed.clone(), writer.clone(), notify.clone());
                    let stop = followed.stop.clone();
                    running.push(Box::pin(async move {
                        stop.run_until_cancelled(follow).await;
                    }));
                }
            }
            tokio::select! {
                () = self.shared.wanted.notified() => {}
                Some(()) = running.next() => {}
                () = pulse.tick() => {}
            }
        }
    }
}

/// Follows one kind for as long as it is wanted.
async fn follow(kind: GroupVersionKind, followed: Arc<Followed>, writer: Writer, notify: NotifyTrace) {
    let resource = discover(&kind, &followed.interruption, &writer).await;
    let cache = Traced::of(resource, DYNAMIC, writer, Trace::project, followed.interruption.clone());
    cache.listen(Box::new(move |change| notify(&kind, change)));
    let _subscription = cache.subscribe(Selection::default(), SLOWEST_ATTEMPT);
    let _ = followed.cache.set(cache);
    std::future::pending::<()>().await;
}

/// Asks the server for the kind until there is one.
async fn discover(kind: &GroupVersionKind, interruption: &Interruption, writer: &Writer) -> ApiResource {
    let delays = Reconnect::at_least_every(SLOWEST_ATTEMPT);
    for delay in delays {
        let client = writer.client();
        let asked = tokio::time::timeout(writer.timeout, discovery::pinned_kind(&client, kind));
        let why = match asked.await {
            Ok(Ok((resource, _))) => {
                interruption.set(None);
                return resource;
            }
            Ok(Err(kube::Error::Api(status))) if status.code == 404 => "the kind does not exist".to_owned(),
            Ok(Err(kube::Error::Discovery(_))) => "the kind does not exist".to_owned(),
            Ok(Err(error)) => Brief(&error).to_string(),
            Err(_) => "no answer".to_owned(),
        };
        if interruption.set(Some(why.clone().into())) {
            tracing::warn!(kind = kind.kind, group = kind.group, version = kind.version, why, "cannot be watched yet");
        }
        tokio::time::sleep(delay).await;
    }
    unreachable!("the delays never end")
}
