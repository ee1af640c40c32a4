//! Feeds a kind's store from the API server and tells the queue which keys to look at.

use std::{pin::pin, sync::Arc, time::Duration};

use futures::StreamExt;
use kube::{
    Api,
    runtime::{
        WatchStreamExt,
        utils::Backoff,
        watcher::{self, Event},
    },
};

use crate::{
    health::Pulse,
    key::Key,
    kind::{Kind, View, identity},
    metrics::Metrics,
    queue::Queue,
};

/// Whether the first list comes as a stream. Kubernetes 1.34 and newer can; older servers answer 422.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListMode {
    Streaming,
    Paged,
}

/// Delay between attempts to reach the server. It stays short, because every second of it is a second in which the
/// operator is blind after an API server came back.
#[derive(Debug, Default)]
struct Reconnect {
    failures: u32,
}

const FIRST_RECONNECT: Duration = Duration::from_millis(100);
const SLOWEST_RECONNECT: Duration = Duration::from_secs(5);

impl Iterator for Reconnect {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let delay = FIRST_RECONNECT * (1 << self.failures.min(10));
        self.failures += 1;
        Some(delay.min(SLOWEST_RECONNECT))
    }
}

impl Backoff for Reconnect {
    fn reset(&mut self) {
        self.failures = 0;
    }
}

/// Watches a kind in all namespaces, for ever. `concerns` gives the key to look at when an object changes.
pub(crate) async fn watch<W: View, T: Send + Sync + 'static>(
    kind: Arc<Kind<W, T>>,
    client: kube::Client,
    mode: ListMode,
    concerns: fn(&Key) -> Option<Key>,
    queue: Arc<Queue>,
    metrics: Arc<Metrics>,
    pulse: Pulse,
) {
    let config = match mode {
        ListMode::Streaming => watcher::Config::default().streaming_lists(),
        ListMode::Paged => watcher::Config::default(),
    };
    let mut events = pin!(watcher::watcher(Api::<W>::all(client), config).backoff(Reconnect::default()));
    let look = |key: &Key| {
        if let Some(key) = concerns(key) {
            queue.changed(&key);
        }
    };
    loop {
        let event = tokio::select! {
            event = events.next() => event.expect("a watcher never ends"),
            () = pulse.tick() => continue,
        };
        pulse.beat();
        match event {
            Ok(event) => {
                kind.watch_interrupted(None);
                kind.take_event(event, look);
            }
            Err(error) => {
                metrics.watch_failed(kind.resource);
                let error = Chain(&error).to_string();
                tracing::warn!(resource = kind.resource, error, "watch interrupted; reconnecting");
                kind.watch_interrupted(Some(error));
            }
        }
    }
}

impl<W: View, T: Send + Sync + 'static> Kind<W, T> {
    fn take_event(&self, event: Event<W>, mut look: impl FnMut(&Key)) {
        match event {
            Event::Init => self.store.begin_list(),
            Event::InitApply(object) => {
                let Some((key, version)) = identity(object.meta()) else { return };
                if self.store.list_item(key.clone(), version, (self.keep)(object)) {
                    look(&key);
                }
            }
            Event::InitDone => self.store.end_list().iter().for_each(look),
            Event::Apply(object) => {
                let Some((key, version)) = identity(object.meta()) else { return };
                if self.store.deliver(version) && self.take_in(object) {
                    look(&key);
                }
            }
            Event::Delete(object) => {
                let Some((key, version)) = identity(object.meta()) else { return };
                if self.store.deliver(version) && self.store.forget(&key, version) {
                    look(&key);
                }
            }
        }
    }
}

/// An error with its sources on one line.
pub(crate) struct Chain<'a>(pub &'a dyn std::error::Error);

impl std::fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)?;
        let mut source = self.0.source();
        while let Some(error) = source {
            write!(f, ": {error}")?;
            source = error.source();
        }
        Ok(())
    }
}
