//! Shards come and go by an edit of the file or ConfigMap, without a restart.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use k8s_openapi::api::core::v1::ConfigMap;
use runtime::{Key, Kind, Operator, Selection};
use tokio::sync::watch;

use super::{ConfigError, Settings, ShardSource, Shards, file, parse_shards};
use crate::MANAGER;

/// A file of a mounted ConfigMap is exchanged by the kubelet within a minute; this adds little, and reading a small file
/// costs nothing beside it.
const LOOK: Duration = Duration::from_secs(5);
/// What becomes of the layer before the first list.
const UNREAD: &str = "no pool and no machine is changed until its list of shards was read";
/// It only reads a file.
const STOP_LIMIT: Duration = Duration::from_secs(1);

/// The configured shards as they are now, and what is wrong with the last edit. Clones are the same.
#[derive(Clone)]
pub struct Reload {
    shards: watch::Sender<Arc<Shards>>,
    problem: Arc<Mutex<Option<String>>>,
}

impl Reload {
    pub fn new(shards: Arc<Shards>) -> Self {
        Self { shards: watch::Sender::new(shards), problem: Arc::default() }
    }

    /// Follows the source of the settings for as long as the operator lives.
    pub fn follow(operator: &mut Operator, settings: &Settings) -> watch::Receiver<Arc<Shards>> {
        let reload = Self::new(settings.shards.clone());
        let (informed, list) = (reload.clone(), settings.shard_list());
        operator.health.inform("machines configuration", move || informed.note(&list));
        let receiver = reload.shards.subscribe();
        match &settings.source {
            ShardSource::File(path) => {
                let (path, clock) = (path.clone(), operator.clock.clone());
                operator.part("machines configuration", STOP_LIMIT, move |stop, pulse| async move {
                    let look = reload.look_at(path, clock);
                    stop.run_until_cancelled(pulse.while_waiting(look)).await;
                });
            }
            ShardSource::ConfigMap(name) => {
                let list = settings.shard_list();
                let maps = Kind::new("configmaps", operator.writer(MANAGER), data);
                let selection = Selection::of(&Key::new(settings.namespace.as_str(), name.as_str()));
                operator.watch_selected(&maps, selection, move |change| match change.after {
                    Some(data) => reload.take(parse_shards(data)),
                    // That it was deleted says nothing about the shards.
                    None => reload.refuse(&format!("{list} is gone")),
                });
            }
        }
        receiver
    }

    async fn look_at(self, path: PathBuf, clock: process::Clock) {
        let mut text = None;
        loop {
            match tokio::fs::read_to_string(&path).await {
                Ok(read) => {
                    if text.as_ref() != Some(&read) {
                        self.take(file::parse(&read).and_then(|file| file.shards.ok_or_else(file::no_shards)));
                        text = Some(read);
                    }
                }
                // Between two versions of a mounted ConfigMap there may be none.
                Err(error) => {
                    self.refuse(&format!("{}: {error}", path.display()));
                    // What comes back unchanged is no problem any more.
                    text = None;
                }
            }
            tokio::time::sleep_until(clock.instant() + LOOK).await;
        }
    }

    fn take(&self, shards: Result<Shards, ConfigError>) {
        match shards {
            Ok(shards) => {
                self.set_problem(None);
                let is_changed = self.shards.send_if_modified(|current| {
                    let is_changed = **current != shards;
                    if is_changed {
                        *current = Arc::new(shards);
                    }
                    is_changed
                });
                if is_changed {
                    let shards: Vec<_> = self.shards.borrow().keys().cloned().collect();
                    tracing::info!(?shards, "the configured shards changed");
                }
            }
            Err(error) => self.refuse(&error.to_string()),
        }
    }

    fn refuse(&self, why: &str) {
        let meanwhile =
            if self.shards.borrow().is_empty() { UNREAD } else { "the shards it listed last are still used" };
        self.set_problem(Some(format!("{why}; {meanwhile}")));
    }

    /// Said once, not at every look.
    fn set_problem(&self, problem: Option<String>) {
        let mut current = self.problem.lock().unwrap_or_else(PoisonError::into_inner);
        if *current != problem {
            if let Some(why) = &problem {
                tracing::warn!(%why, "the configuration of the machines layer cannot be read");
            }
            *current = problem;
        }
    }

    /// For `/readyz`: what is wrong with the list, also that there is none.
    fn note(&self, list: &str) -> Option<String> {
        let missing = || self.shards.borrow().is_empty().then(|| format!("{list} was not found; create it; {UNREAD}"));
        self.problem().or_else(missing)
    }

    fn problem(&self) -> Option<String> {
        self.problem.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[expect(clippy::unnecessary_wraps, reason = "the form that every kind's filter has")]
fn data(map: ConfigMap) -> Option<BTreeMap<String, String>> {
    Some(map.data.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shards(text: &str) -> Shards {
        file::parse(text).unwrap().shards.unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a14_an_edited_file_changes_the_shards_and_a_bad_one_changes_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config.yaml");
        let first = "shards: {a: 'h:8993'}";
        std::fs::write(&path, first).unwrap();
        let reload = Reload::new(Arc::new(shards(first)));
        let mut receiver = reload.shards.subscribe();
        let looking = tokio::spawn(reload.clone().look_at(path.clone(), process::Clock::default()));
        std::fs::write(&path, "shards: {a: 'h:8993', b: 'i:8993'}").unwrap();
        receiver.changed().await.unwrap();
        assert_eq!(receiver.borrow_and_update().keys().collect::<Vec<_>>(), ["a", "b"]);
        std::fs::write(&path, "shards: {a: 'h'}").unwrap();
        let problem = async {
            loop {
                tokio::time::sleep(LOOK).await;
                if let Some(problem) = reload.problem() {
                    return problem;
                }
            }
        };
        let problem = problem.await;
        assert!(problem.starts_with("shards.a: \"h\": the port is missing; write host:port"), "{problem}");
        assert!(!receiver.has_changed().unwrap(), "the last good list is kept");
        std::fs::remove_file(&path).unwrap();
        tokio::time::sleep(LOOK * 2).await;
        assert!(!receiver.has_changed().unwrap() && reload.problem().unwrap().contains("still used"));
        std::fs::write(&path, "shards: {b: 'i:8993'}").unwrap();
        receiver.changed().await.unwrap();
        assert_eq!(receiver.borrow_and_update().keys().collect::<Vec<_>>(), ["b"]);
        assert_eq!(reload.problem(), None);
        looking.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn a_file_that_was_away_for_a_moment_is_no_problem_once_it_is_back() {
        let directory = tempfile::tempdir().unwrap();
        let (path, text) = (directory.path().join("config.yaml"), "shards: {a: 'h:8993'}");
        std::fs::write(&path, text).unwrap();
        let reload = Reload::new(Arc::new(shards(text)));
        let looking = tokio::spawn(reload.clone().look_at(path.clone(), process::Clock::default()));
        tokio::time::sleep(LOOK * 2).await;
        std::fs::remove_file(&path).unwrap();
        tokio::time::sleep(LOOK * 2).await;
        assert!(reload.problem().is_some());
        std::fs::write(&path, text).unwrap();
        tokio::time::sleep(LOOK * 2).await;
        assert_eq!(reload.problem(), None);
        looking.abort();
    }

    #[test]
    fn a_list_that_was_never_read_is_not_said_to_be_used() {
        let reload = Reload::new(Arc::default());
        let note = reload.note("ConfigMap n/shards").unwrap();
        assert!(note.starts_with("ConfigMap n/shards was not found; create it") && note.ends_with(UNREAD), "{note}");
        let bad = BTreeMap::from([("a".to_owned(), "h".to_owned())]);
        reload.take(parse_shards(&bad));
        let note = reload.note("ConfigMap n/shards").unwrap();
        assert!(note.contains("the port is missing") && note.ends_with(UNREAD), "{note}");
        reload.take(Ok(shards("shards: {a: 'h:8993'}")));
        assert_eq!(reload.note("ConfigMap n/shards"), None);
        reload.take(parse_shards(&bad));
        assert!(reload.note("ConfigMap n/shards").unwrap().ends_with("still used"));
    }
}
