//! The indexes of http repositories: on disk, shared by all operations, never in our memory.

use std::{
    collections::HashMap,
    fs,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use runtime::Clock;
use serde::{Deserialize, Serialize};

use super::{
    super::output::{Class, Failure},
    ChartRef,
    download::{Answer, Downloader, Validators},
};

/// What is known of the index on disk.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Index {
    pub digest: String,
    validators: Validators,
    checked_at: Timestamp,
}

/// How old an index may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Freshness {
    Recent,
    /// It lacks what is wanted.
    Now,
}

/// All indexes, in the directory in which helm looks for them.
#[derive(Debug)]
pub(super) struct Indexes {
    pub directory: PathBuf,
    pub downloader: Downloader,
    pub time_to_live: Duration,
    pub clock: Clock,
    /// One lock per repository: whoever comes second finds what the first has fetched.
    pub repositories: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
}

impl Indexes {
    /// The index of the chart's repository, asked for again where it is too old.
    pub async fn current(&self, chart: &ChartRef, freshness: Freshness) -> Result<Index, Failure> {
        let id = chart.repository_id();
        let lock = self.lock_of(&id);
        let asked_at = self.clock.now();
        let _held = lock.lock().await;
        let known = self.known(&id);
        let is_enough = |index: &Index| match freshness {
            Freshness::Recent => is_recent(index.checked_at, self.clock.now(), self.time_to_live),
            Freshness::Now => index.checked_at >= asked_at,
        };
        if let Some(index) = known.as_ref().filter(|index| is_enough(index)) {
            return Ok(index.clone());
        }
        let index = self.fetch(chart, &id, known).await?;
        let record = serde_json::to_vec(&index).expect("plain data has a JSON form");
        fs::write(self.record(&id), record).map_err(|error| on_disk(&error))?;
        Ok(index)
    }

    async fn fetch(&self, chart: &ChartRef, id: &str, known: Option<Index>) -> Result<Index, Failure> {
        let url = index_url(&chart.repo);
        let new = self.directory.join(format!("{id}.new"));
        let validators = known.as_ref().map(|index| index.validators.clone()).unwrap_or_default();
        let answer = self.downloader.get(&url, chart, &validators, &new).await?;
        let checked_at = self.clock.now();
        match (answer, known) {
            (Answer::Unchanged, Some(index)) => Ok(Index { checked_at, ..index }),
            (Answer::Unchanged, None) => {
                Err(Failure::new(Class::Unreachable, "the repository says unchanged of what it never sent"))
            }
            (Answer::Saved { digest, validators }, _) => {
                // helm may be reading the old one.
                fs::rename(&new, self.body(id)).map_err(|error| on_disk(&error))?;
                Ok(Index { digest, validators, checked_at })
            }
        }
    }

    fn known(&self, id: &str) -> Option<Index> {
        let record = fs::read(self.record(id)).ok().filter(|_| self.body(id).exists())?;
        serde_json::from_slice(&record).ok()
    }

    /// The name under which helm looks for the index of the repository that we call by its id.
    fn body(&self, id: &str) -> PathBuf {
        self.directory.join(format!("{id}-index.yaml"))
    }

    fn record(&self, id: &str) -> PathBuf {
        self.directory.join(format!("{id}.json"))
    }

    fn lock_of(&self, id: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut repositories = self.repositories.lock().unwrap_or_else(PoisonError::into_inner);
        repositories.entry(id.to_owned()).or_default().clone()
    }
}

/// A time in the future is one of a clock that was set back: not to be trusted.
pub(super) fn is_recent(then: Timestamp, now: Timestamp, time_to_live: Duration) -> bool {
    Duration::try_from(now.duration_since(then)).is_ok_and(|age| age < time_to_live)
}

pub(super) fn on_disk(error: &std::io::Error) -> Failure {
    Failure::new(Class::Other, format_args!("cannot write to the chart cache: {error}"))
}

fn index_url(repo: &str) -> String {
    let (base, query) = repo.split_once('?').map_or((repo, String::new()), |(base, query)| (base, format!("?{query}")));
    format!("{}/index.yaml{query}", base.trim_end_matches('/'))
}
