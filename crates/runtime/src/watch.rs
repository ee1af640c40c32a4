//! Feeds a kind's store from the API server.

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
    kind::{Kind, identity},
    metrics::Metrics,
    store::{Changed, Listed},
    view::View,
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

/// The server ends a watch after this long, and a connection that is silent for a little longer is given up. A network
/// that swallows packets thus blinds us for a minute at most, at the price of one request per kind and minute.
const WATCH_SECONDS: u32 = 60;
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

/// Which objects of a kind are watched. What a layer keeps must not depend on more than this and the object itself:
/// an object that is read after a conflict is not asked for its selectors.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    pub labels: Option<String>,
    pub fields: Option<String>,
}

/// Watches a kind in all namespaces, for ever.
pub(crate) async fn watch<W: View, T: Send + Sync + 'static>(
    kind: Arc<Kind<W, T>>,
    client: kube::Client,
    selection: Selection,
    mode: ListMode,
    metrics: Arc<Metrics>,
    pulse: Pulse,
) {
    let config = match mode {
        ListMode::Streaming => watcher::Config::default().streaming_lists(),
        ListMode::Paged => watcher::Config::default(),
    };
    let config = watcher::Config {
        label_selector: selection.labels,
        field_selector: selection.fields,
        ..config.timeout(WATCH_SECONDS)
    };
    let api = Api::<W>::all_with(client, &kind.types);
    let mut events = pin!(watcher::watcher(api, config).backoff(Reconnect::default()));
    loop {
        let event = tokio::select! {
            event = events.next() => event.expect("a watcher never ends"),
            () = pulse.tick() => continue,
        };
        pulse.beat();
        match event {
            Ok(event) => {
                kind.watch_interrupted(None);
                kind.take_event(event);
            }
            Err(error) => {
                metrics.watch_failed(kind.resource);
                let error = describe(&error);
                tracing::warn!(resource = kind.resource, error, "watch interrupted; reconnecting");
                kind.watch_interrupted(Some(error));
            }
        }
    }
}

impl<W: View, T: Send + Sync + 'static> Kind<W, T> {
    fn take_event(&self, event: Event<W>) {
        match event {
            Event::Init => self.store.begin_list(),
            Event::InitApply(object) => {
                let Some((key, version)) = identity(object.meta()) else { return };
                let value = (self.keep)(object);
                self.change(&key, true, |store| match store.list_item(key.clone(), version, value) {
                    Listed::News(changed) => Some(changed),
                    Listed::Known => None,
                    Listed::Doubtful => Some(self.doubted(&key)),
                });
            }
            Event::InitDone => {
                let telling = self.telling();
                let missing = self.store.end_list();
                for (key, changed) in missing.gone {
                    telling.tell(&key, true, &changed);
                }
                for key in missing.doubtful {
                    telling.tell(&key, true, &self.doubted(&key));
                }
            }
            Event::Apply(object) => {
                let Some((_, version)) = identity(object.meta()) else { return };
                if self.store.deliver(version) {
                    self.take_in(object, true);
                }
            }
            Event::Delete(object) => {
                let Some((key, version)) = identity(object.meta()) else { return };
                if self.store.deliver(version) {
                    self.change(&key, true, |store| store.forget(&key, version));
                }
            }
        }
    }

    /// Nothing is believed before it is read; whom it concerns has to look.
    fn doubted(&self, key: &Key) -> Changed<T> {
        self.doubt(key.clone());
        Changed { before: self.get(key), after: self.get(key) }
    }
}

/// What interrupted a watch. A decoding error quotes the value it stumbled over, which may be anybody's secret.
fn describe(error: &watcher::Error) -> String {
    use watcher::Error::{InitialListFailed, WatchFailed, WatchStartFailed};
    match error {
        InitialListFailed(kube::Error::SerdeError(error))
        | WatchStartFailed(kube::Error::SerdeError(error))
        | WatchFailed(kube::Error::SerdeError(error)) => undecodable(error),
        other => Chain(other).to_string(),
    }
}

/// Where an answer could not be decoded, without what stands there.
pub(crate) fn undecodable(error: &serde_json::Error) -> String {
    format!("the answer is not of the expected form (line {}, column {})", error.line(), error.column())
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
