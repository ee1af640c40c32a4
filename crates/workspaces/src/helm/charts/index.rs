//! The indexes of http repositories: on disk, shared by all operations, never in our memory.

use std::{
    collections::{BTreeSet, HashMap},
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use process::Clock;
use runtime::{
    Key,
    jobs::{Draw, Ended, Finished, Job, Jobs},
};
use serde::{Deserialize, Serialize};

use super::{
    super::output::{Class, Failure},
    ChartRef,
    age::Checked,
    download::{Answer, BYTES, Download, Downloader, PATIENCE, Validators},
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
    /// It lacks what is wanted, or a user asks for a new look.
    Now,
}

/// All indexes, in the directory in which helm looks for them.
#[derive(Debug)]
pub(super) struct Indexes {
    pub directory: PathBuf,
    pub downloads: Jobs<Downloader>,
    pub time_to_live: Duration,
    pub clock: Clock,
    /// What all of them may take; the least recently asked for go first, one in use never.
    pub cache_bytes: u64,
    pub repositories: Mutex<HashMap<String, Repository>>,
    /// When each was last asked for; of those that this process has looked at.
    pub checked: Mutex<HashMap<String, Checked>>,
}

/// A repository in use.
#[derive(Debug, Default)]
pub(super) struct Repository {
    /// The second that comes finds what the first has fetched.
    lock: Arc<tokio::sync::Mutex<()>>,
    /// Who waits for it, and so in whose turn its index may be downloaded.
    namespaces: BTreeSet<Arc<str>>,
}

/// All of them are looked at whenever one was fetched.
const MAX_INDEXES: usize = 1000;
/// One namespace may use several large indexes at once, for as long as its charts wait to be pulled, and leaves room for
/// others: one share of these, or one index.
const SHARES: u64 = 4;

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
        let asked_at = indexes.clock.instant();
        let _held = lock.lock().await;
        let known = indexes.known(id);
        let is_enough = |index: &Index| {
            let checked = indexes.checked(id, index);
            match freshness {
                Freshness::Recent => checked.is_recent(&indexes.clock, indexes.time_to_live),
                Freshness::Now => checked.is_after(asked_at),
            }
        };
        if let Some(index) = known.as_ref().filter(|index| is_enough(index)) {
            indexes.check_share_of_known(id)?;
            return Ok(index.clone());
        }
        let index = indexes.fetch(chart, id, known).await?;
        let record = serde_json::to_vec(&index).expect("plain data has a JSON form");
        fs::write(indexes.record(id), record).map_err(|error| on_disk(&error))?;
        Ok(index)
    }
}

impl Indexes {
    /// A chart's repository, for these namespaces.
    pub fn hold(&self, chart: &ChartRef, namespaces: &BTreeSet<Arc<str>>) -> Held<'_> {
        let id = chart.repository_id();
        let lock = self.repositories().entry(id.clone()).or_default().lock.clone();
        for namespace in namespaces {
            self.join(&id, namespace);
        }
        Held { indexes: self, id, lock }
    }

    /// A further namespace waits for a repository that is in use.
    pub fn join(&self, id: &str, namespace: &Arc<str>) {
        let mut repositories = self.repositories();
        if let Some(repository) = repositories.get_mut(id)
            && repository.namespaces.insert(namespace.clone())
        {
            self.downloads.join(&download_key(id), namespace);
        }
    }

    /// When an index on disk was last asked for.
    fn checked(&self, id: &str, index: &Index) -> Checked {
        let mut checked = self.checked.lock().unwrap_or_else(PoisonError::into_inner);
        *checked.entry(id.to_owned()).or_insert_with(|| Checked::read(index.checked_at, &self.clock))
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

    /// What the indexes in use of the one of its namespaces with the fewest would take with this one; `None` if it is
    /// alone.
    fn in_use(&self, repositories: &HashMap<String, Repository>, id: &str, size: u64) -> Option<u64> {
        let namespaces = &repositories.get(id)?.namespaces;
        let of = |namespace: &Arc<str>| {
            let others = repositories.iter().filter(|(other, of)| *other != id && of.namespaces.contains(namespace));
            others.filter_map(|(other, _)| fs::metadata(self.body(other)).ok()).map(|body| body.len()).sum::<u64>()
        };
        namespaces.iter().map(of).min().filter(|others| *others > 0).map(|others| others + size)
    }

    fn check_share(&self, repositories: &HashMap<String, Repository>, id: &str, size: u64) -> Result<(), Failure> {
        let share = self.cache_bytes / SHARES;
        match self.in_use(repositories, id, size).filter(|bytes| *bytes > share) {
            Some(bytes) => Err(full("indexes of repositories of one namespace", bytes, share)),
            None => Ok(()),
        }
    }

    /// Of an index that is on disk and is to be used as it is.
    fn check_share_of_known(&self, id: &str) -> Result<(), Failure> {
        let size = fs::metadata(self.body(id)).map(|body| body.len()).unwrap_or_default();
        self.check_share(&self.repositories(), id, size)
    }

    /// Makes room for an index of this size, in place of the one that is there.
    fn make_room(&self, id: &str, size: u64) -> Result<(), Failure> {
        // Kept, so that no other begins to use what is about to go.
        let repositories = self.repositories();
        self.check_share(&repositories, id, size)?;
        let mut present: Vec<_> = fs::read_dir(&self.directory)
            .into_iter()
            .flatten()
            .filter_map(|entry| {
                let entry = entry.ok()?;
                let other = entry.file_name().to_str()?.strip_suffix(BODY)?.to_owned();
                // Written with every look at the repository.
                let asked_at = fs::metadata(self.record(&other)).and_then(|record| record.modified()).ok();
                Some((asked_at, entry.metadata().ok()?.len(), other))
            })
            .filter(|(_, _, other)| *other != id)
            .collect();
        present.sort_unstable();
        let mut bytes = size + present.iter().map(|(_, bytes, _)| bytes).sum::<u64>();
        let mut count = 1 + present.len();
        for (_, size, other) in present {
            if bytes <= self.cache_bytes && count <= MAX_INDEXES {
                break;
            }
            if !repositories.contains_key(&other) {
                let _ = fs::remove_file(self.record(&other));
                let _ = fs::remove_file(self.body(&other));
                self.checked.lock().unwrap_or_else(PoisonError::into_inner).remove(&other);
                bytes -= size;
                count -= 1;
            }
        }
        let has_room = bytes <= self.cache_bytes && count <= MAX_INDEXES;
        if has_room { Ok(()) } else { Err(full("indexes of repositories", bytes, self.cache_bytes)) }
    }

    fn repositories(&self) -> MutexGuard<'_, HashMap<String, Repository>> {
        self.repositories.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn fetch(&self, chart: &ChartRef, id: &str, known: Option<Index>) -> Result<Index, Failure> {
        let new = self.directory.join(format!("{id}.new"));
        let fetched = match self.download(chart, id, known.as_ref(), new.clone()).await {
            Ok(answer) => self.store(id, known, answer, &new),
            Err(failure) => Err(failure),
        };
        fetched.inspect_err(|_| {
            // What came of it so far.
            let _ = fs::remove_file(&new);
        })
    }

    /// In the turn of any namespace that waits for the repository, and within the budget for downloads.
    async fn download(
        &self,
        chart: &ChartRef,
        id: &str,
        known: Option<&Index>,
        to: PathBuf,
    ) -> Result<Answer, Failure> {
        let task = Download {
            url: index_url(&chart.chart.repo),
            chart: chart.clone(),
            known: known.map(|index| index.validators.clone()).unwrap_or_default(),
            to,
        };
        let cancelled = || Failure::new(Class::Cancelled, "reading the repository's index was cancelled");
        let finished = self.submit(id, task)?.await.ok_or_else(cancelled)?;
        match &finished.ended {
            Ended::Done(answer) => answer.clone(),
            other => Err(Failure::new(Class::Other, format_args!("the download failed: {other:?}"))),
        }
    }

    fn submit(&self, id: &str, task: Download) -> Result<impl Future<Output = Option<Downloaded>> + use<>, Failure> {
        // Held until it is submitted, so that each namespace is counted here or joins later.
        let repositories = self.repositories();
        let namespaces = repositories.get(id).map(|repository| &repository.namespaces).into_iter().flatten();
        let job = Job {
            key: download_key(id),
            namespaces: namespaces.cloned().collect(),
            kind: "index",
            label: id.into(),
            draws: vec![Draw::new(BYTES, self.downloads.executor().limit())],
            // It has its own limit, with the better message.
            time: PATIENCE.saturating_mul(2),
            task,
        };
        self.downloads.run(job).map_err(|refused| Failure::new(Class::Other, refused))
    }

    /// What an answer leaves on disk.
    fn store(&self, id: &str, known: Option<Index>, answer: Answer, new: &Path) -> Result<Index, Failure> {
        let checked = Checked::now(&self.clock);
        let index = match (answer, known) {
            (Answer::Unchanged, Some(index)) => {
                self.check_share_of_known(id)?;
                Index { checked_at: checked.at, ..index }
            }
            (Answer::Unchanged, None) => {
                let message = "the repository says unchanged of what it never sent";
                return Err(Failure::new(Class::Unreachable, message));
            }
            (Answer::Saved { digest, validators }, _) => {
                let size = fs::metadata(new).map_err(|error| on_disk(&error))?.len();
                self.make_room(id, size)?;
                // helm may be reading the old one.
                fs::rename(new, self.body(id)).map_err(|error| on_disk(&error))?;
                Index { digest, validators, checked_at: checked.at }
            }
        };
        self.checked.lock().unwrap_or_else(PoisonError::into_inner).insert(id.to_owned(), checked);
        Ok(index)
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

type Downloaded = Arc<Finished<Result<Answer, Failure>>>;

/// No release is called so.
fn download_key(id: &str) -> Key {
    Key::new("", format!("index/{id}"))
}

/// Nothing can go to make room: all of it is in use.
pub(super) fn full(what: &str, wanted: u64, total: u64) -> Failure {
    let message = format_args!(
        "the chart cache is full: {what} in use would take {wanted} of {total} bytes; it is tried again, and --chart-cache-size makes it larger"
    );
    Failure::new(Class::CacheFull, message)
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
    use runtime::jobs::{self, Budget};

    use super::*;

    fn chart(repo: &str) -> ChartRef {
        let chart = ChartReference { repo: repo.to_owned(), ..ChartReference::default() };
        ChartRef::new(&chart, BTreeMap::new()).unwrap()
    }

    fn downloads() -> Jobs<Downloader> {
        let config = jobs::Config {
            budgets: vec![(BYTES, Budget::of(4, 1))],
            preparation: PATIENCE,
            grace: Duration::ZERO,
            clock: Clock::default(),
            on_change: Box::new(|_| true),
        };
        Jobs::new(Downloader::new(&[], 1), config)
    }

    fn indexes(directory: &tempfile::TempDir, cache_bytes: u64) -> Indexes {
        Indexes {
            directory: directory.path().to_owned(),
            downloads: downloads(),
            time_to_live: Duration::ZERO,
            clock: Clock::default(),
            cache_bytes,
            repositories: Mutex::default(),
            checked: Mutex::default(),
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

    fn hold<'a>(indexes: &'a Indexes, namespace: &str) -> Held<'a> {
        indexes.hold(&chart("http://held"), &[namespace.into()].into())
    }

    #[tokio::test]
    async fn the_longest_unasked_go_first_and_one_in_use_never() {
        let directory = tempfile::tempdir().unwrap();
        let indexes = indexes(&directory, 12);
        let held = hold(&indexes, "a");
        for (id, second) in [("third", 3), (held.id.as_str(), 1), ("second", 2)] {
            put(&indexes, id, second);
        }
        let again = hold(&indexes, "b");
        assert_eq!(indexes.repositories()[&held.id].namespaces.len(), 2, "both wait for it");
        indexes.make_room("new", 4).unwrap();
        let mut expected = ["third", &held.id].map(|id| [format!("{id}-index.yaml"), format!("{id}.json")]).concat();
        expected.sort();
        assert_eq!(left(&indexes), expected);
        indexes.make_room("third", 8).expect("in place of the one that is there");
        let failure = indexes.make_room("new", 12).unwrap_err();
        assert_eq!(failure.class, Class::CacheFull);
        assert!(
            failure.message.contains("16 of 12 bytes") && failure.message.contains("--chart-cache-size"),
            "{failure}"
        );
        drop(again);
        assert_eq!(indexes.repositories().len(), 1, "still in use");
        drop(held);
        assert!(indexes.repositories().is_empty(), "no lock is kept for nothing");
    }

    #[tokio::test]
    async fn one_namespace_leaves_room_for_the_indexes_of_others() {
        let directory = tempfile::tempdir().unwrap();
        let indexes = indexes(&directory, 40);
        let hold = |repo: &str, namespace: &str| indexes.hold(&chart(repo), &[namespace.into()].into());
        let (first, second) = (hold("http://a", "flood"), hold("http://b", "flood"));
        put(&indexes, &first.id, 1);
        indexes.make_room(&second.id, 6).unwrap();
        let failure = indexes.make_room(&second.id, 7).unwrap_err();
        assert!(failure.class == Class::CacheFull && failure.message.contains("11 of 10 bytes"), "{failure}");
        fs::write(indexes.body(&second.id), "sevenab").unwrap();
        assert_eq!(
            indexes.check_share_of_known(&second.id).unwrap_err().class,
            Class::CacheFull,
            "nor one that is there"
        );
        indexes.join(&second.id, &"calm".into());
        indexes.make_room(&second.id, 7).expect("a namespace with room waits for it as well");
        let alone = hold("http://c", "other");
        indexes.make_room(&alone.id, 20).expect("one may take more");
    }

    #[tokio::test]
    async fn their_number_is_bounded_and_a_killed_writer_leaves_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let indexes = indexes(&directory, u64::MAX);
        for number in 0..=MAX_INDEXES as u64 {
            put(&indexes, &number.to_string(), number);
        }
        fs::write(directory.path().join("a.new"), "").unwrap();
        indexes.sweep().unwrap();
        assert_eq!(left(&indexes).len(), 2 * (MAX_INDEXES + 1), "the unfinished one alone went");
        indexes.make_room("new", 4).unwrap();
        assert_eq!(left(&indexes).len(), 2 * (MAX_INDEXES - 1));
        assert!(!indexes.body("0").exists());
    }
}
