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
    error::Brief,
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
#[derive(Debug)]
pub(crate) struct Reconnect {
    failures: u32,
    slowest: Duration,
}

impl Reconnect {
    pub(crate) fn at_least_every(slowest: Duration) -> Self {
        Self { failures: 0, slowest }
    }
}

/// The server ends a watch after this long, and a connection that is silent for a little longer is given up. A network
/// that swallows packets thus blinds us for a minute at most, at the price of one request per kind and minute.
const WATCH_SECONDS: u32 = 60;
const FIRST_RECONNECT: Duration = Duration::from_millis(100);
pub(crate) const SLOWEST_RECONNECT: Duration = Duration::from_secs(5);

impl Iterator for Reconnect {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let delay = FIRST_RECONNECT * (1 << self.failures.min(10));
        self.failures = self.failures.saturating_add(1);
        Some(delay.min(self.slowest))
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
    reconnect: Reconnect,
    metrics: Arc<Metrics>,
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
    let mut events = pin!(watcher::watcher(api, config).backoff(reconnect));
    loop {
        match events.next().await.expect("a watcher never ends") {
            Ok(event) => {
                kind.trouble.set(None);
                kind.take_event(event);
            }
            Err(error) => {
                metrics.watch_failed(kind.resource);
                let (resource, error) = (kind.resource, describe(&error));
                if kind.trouble.set(Some(error.clone())) {
                    tracing::warn!(resource, error, "watch interrupted; reconnecting");
                } else {
                    tracing::debug!(resource, error, "watch still interrupted");
                }
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

/// What interrupted a watch.
pub(crate) fn describe(error: &watcher::Error) -> String {
    use watcher::Error::{InitialListFailed, NoResourceVersion, WatchError, WatchFailed, WatchStartFailed};
    match error {
        InitialListFailed(error) => format!("list: {}", Brief(error)),
        WatchStartFailed(error) | WatchFailed(error) => format!("watch: {}", Brief(error)),
        WatchError(status) => format!("watch: {} ({})", status.message, status.code),
        NoResourceVersion => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    #[test]
    fn an_interruption_is_told_in_one_sentence_and_once() {
        let status = Status::failure("pods is forbidden", "Forbidden").with_code(403).boxed();
        let error = watcher::Error::InitialListFailed(kube::Error::Api(status));
        assert_eq!(describe(&error), "list: pods is forbidden (403)");

        let refused = std::io::Error::other("connection refused");
        let error = watcher::Error::WatchFailed(kube::Error::ReadEvents(refused));
        assert_eq!(describe(&error).matches("connection refused").count(), 1, "{}", describe(&error));
    }

    #[test]
    fn an_unreadable_answer_is_not_quoted() {
        let error = serde_json::from_str::<u8>(r#""hunter2""#).unwrap_err();
        let error = watcher::Error::WatchFailed(kube::Error::SerdeError(error));
        assert!(!describe(&error).contains("hunter2"), "{}", describe(&error));
    }
}
