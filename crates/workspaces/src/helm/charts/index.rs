//! The indexes of http repositories: on disk, shared by all operations, never in our memory.

use std::{
    collections::HashMap,
    fs, io,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
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

/// How helm ends the name of an index.
const BODY: &str = "-index.yaml";

/// How old an index may be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Freshness {
    #[default]
    Recent,
    /// It lacks what is wanted, or somebody knows better.
    Now,
}

/// All indexes, in the directory in which helm looks for them.
#[derive(Debug)]
pub(super) struct Indexes {
    pub directory: PathBuf,
    pub downloader: Downloader,
    pub time_to_live: Duration,
    pub clock: Clock,
    /// What all of them may take; the least recently asked for go first, one in use never.
    pub cache_bytes: u64,
    /// One lock per repository in use: whoever comes second finds what the first has fetched.
    pub repositories: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
}

/// All of them are looked at whenever one was fetched.
const MAX_INDEXES: usize = 1000;

/// A repository in use: its index stays on disk for helm.
pub(super) struct Held<'a> {
    indexes: &'a Indexes,
    id: String,
    lock: Arc<tokio::sync::Mutex<()>>,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let mut repositories = self.indexes.repositories();
        // The map's own and this one.
        if Arc::strong_count(&self.lock) == 2 {
            repositories.remove(&self.id);
        }
    }
}

impl Held<'_> {
    /// The index of the chart's repository, asked for again where it is too old.
    pub async fn current(&self, chart: &ChartRef, freshness: Freshness) -> Result<Index, Failure> {
        let Self { indexes, id, lock } = self;
        let asked_at = indexes.clock.now();
        let _held = lock.lock().await;
        let known = indexes.known(id);
        let is_enough = |index: &Index| match freshness {
            Freshness::Recent => is_recent(index.checked_at, indexes.clock.now(), indexes.time_to_live),
            Freshness::Now => index.checked_at >= asked_at,
        };
        if let Some(index) = known.as_ref().filter(|index| is_enough(index)) {
            return Ok(index.clone());
        }
        let index = indexes.fetch(chart, id, known).await?;
        let record = serde_json::to_vec(&index).expect("plain data has a JSON form");
        fs::write(indexes.record(id), record).map_err(|error| on_disk(&error))?;
        indexes.evict();
        Ok(index)
    }
}

impl Indexes {
    pub fn hold(&self, chart: &ChartRef) -> Held<'_> {
        let id = chart.repository_id();
        let lock = self.repositories().entry(id.clone()).or_default().clone();
        Held { indexes: self, id, lock }
    }

    /// Removes what an earlier process did not finish.
    pub fn sweep(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.directory)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "new") {
                fs::remove_file(path)?;
            }
        }
        Ok(())
    }

    fn evict(&self) {
        // Kept, so that nobody begins to use what is about to go.
        let repositories = self.repositories();
        let mut present: Vec<_> = fs::read_dir(&self.directory)
            .into_iter()
            .flatten()
            .filter_map(|entry| {
                let entry = entry.ok()?;
                let id = entry.file_name().to_str()?.strip_suffix(BODY)?.to_owned();
                // Written with every look at the repository.
                let asked_at = fs::metadata(self.record(&id)).and_then(|record| record.modified()).ok();
                Some((asked_at, entry.metadata().ok()?.len(), id))
            })
            .collect();
        present.sort_unstable();
        let mut bytes: u64 = present.iter().map(|(_, bytes, _)| bytes).sum();
        let mut count = present.len();
        for (_, size, id) in present {
            if bytes <= self.cache_bytes && count <= MAX_INDEXES {
                return;
            }
            if !repositories.contains_key(&id) {
                let _ = fs::remove_file(self.record(&id));
                let _ = fs::remove_file(self.body(&id));
                bytes -= size;
                count -= 1;
            }
        }
    }

    fn repositories(&self) -> MutexGuard<'_, HashMap<String, Arc<tokio::sync::Mutex<()>>>> {
        self.repositories.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn fetch(&self, chart: &ChartRef, id: &str, known: Option<Index>) -> Result<Index, Failure> {
        let url = index_url(&chart.chart.repo);
        let new = self.directory.join(format!("{id}.new"));
        let validators = known.as_ref().map(|index| index.validators.clone()).unwrap_or_default();
        let answer = self.downloader.get(&url, chart, &validators, &new).await.inspect_err(|_| {
            // What came of it so far.
            let _ = fs::remove_file(&new);
        })?;
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
        self.directory.join(format!("{id}{BODY}"))
    }

    fn record(&self, id: &str) -> PathBuf {
        self.directory.join(format!("{id}.json"))
    }
}

/// A time in the future is one of a clock that was set back: not to be trusted.
pub(super) fn is_recent(then: Timestamp, now: Timestamp, time_to_live: Duration) -> bool {
    Duration::try_from(now.duration_since(then)).is_ok_and(|age| age < time_to_live)
}

pub(super) fn on_disk(error: &io::Error) -> Failure {
    Failure::new(Class::Other, format_args!("cannot write to the chart cache: {error}"))
}

fn index_url(repo: &str) -> String {
    let (base, query) = repo.split_once('?').map_or((repo, String::new()), |(base, query)| (base, format!("?{query}")));
    format!("{}/index.yaml{query}", base.trim_end_matches('/'))
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, time::SystemTime};

    use api::workspace::ChartReference;

    use super::*;

    fn chart(repo: &str) -> ChartRef {
        let chart = ChartReference { repo: repo.to_owned(), ..ChartReference::default() };
        ChartRef::new(&chart, BTreeMap::new()).unwrap()
    }

    fn indexes(directory: &tempfile::TempDir, cache_bytes: u64) -> Indexes {
        Indexes {
            directory: directory.path().to_owned(),
            downloader: Downloader::new(&[], 0),
            time_to_live: Duration::ZERO,
            clock: Clock::default(),
            cache_bytes,
            repositories: Mutex::default(),
        }
    }

    /// An index of four bytes that was last asked for so many seconds after the beginning of time.
    fn put(indexes: &Indexes, id: &str, second: u64) {
        fs::write(indexes.body(id), "four").unwrap();
        let record = fs::File::create(indexes.record(id)).unwrap();
        record.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(second)).unwrap();
    }

    fn left(indexes: &Indexes) -> Vec<String> {
        let names = fs::read_dir(&indexes.directory).unwrap().map(|file| file.unwrap().file_name());
        let mut names: Vec<_> = names.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn the_longest_unasked_go_first_and_one_in_use_never() {
        let directory = tempfile::tempdir().unwrap();
        let indexes = indexes(&directory, 8);
        let held = indexes.hold(&chart("http://held"));
        for (id, second) in [("third", 3), (held.id.as_str(), 1), ("second", 2)] {
            put(&indexes, id, second);
        }
        let again = indexes.hold(&chart("http://held"));
        indexes.evict();
        let mut expected = ["third", &held.id].map(|id| [format!("{id}-index.yaml"), format!("{id}.json")]).concat();
        expected.sort();
        assert_eq!(left(&indexes), expected);
        drop(again);
        assert_eq!(indexes.repositories().len(), 1, "still in use");
        drop(held);
        assert!(indexes.repositories().is_empty(), "no lock is kept for nobody");
    }

    #[test]
    fn their_number_is_bounded_and_a_killed_writer_leaves_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let indexes = indexes(&directory, u64::MAX);
        for number in 0..=MAX_INDEXES as u64 {
            put(&indexes, &number.to_string(), number);
        }
        fs::write(directory.path().join("a.new"), "").unwrap();
        indexes.sweep().unwrap();
        assert_eq!(left(&indexes).len(), 2 * (MAX_INDEXES + 1), "the unfinished one alone went");
        indexes.evict();
        assert_eq!(left(&indexes).len(), 2 * MAX_INDEXES);
        assert!(!indexes.body("0").exists());
    }
}
