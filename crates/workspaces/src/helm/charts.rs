//! Where charts come from, and the cache they are kept in.
//!
//! [`Charts::find`] answers from memory and never blocks; what is not known yet is worked on in the background, once
//! however many ask. A chart of an exact version is fetched once. A range is looked at again when the time to live is
//! over: by a conditional request for the repository's index, and only if that changed by helm. A registry has no
//! index, so there helm itself looks each time.
//!
//! Another set of credentials has another entry: no user gets a chart that only another one may read.

mod age;
pub mod archive;
mod config;
mod download;
mod index;
mod reference;
mod store;

use std::{
    collections::{BTreeSet, HashMap},
    fmt, fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use runtime::{
    Key,
    jobs::{self, Budget, Jobs},
};
use tokio::{sync::Notify, time::Instant};

pub use self::config::ChartsConfig;
pub use self::reference::{ChartRef, Credentials};
use self::{
    age::Checked,
    download::{BYTES, Downloader},
    index::{Freshness, Held, Indexes},
    store::{Record, Store},
};
use super::{
    command::{self, ARCHIVE_BYTES, Operation, OperationKind},
    output::{Class, Failure},
    request::{Contents, Request},
    runner::{Finished, Runner},
};

/// A chart on disk. It stays there for as long as a handle to it lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chart {
    /// The archive, or a chart directory.
    pub path: PathBuf,
    pub name: String,
    /// Exact, from its own Chart.yaml.
    pub version: String,
    /// sha256 of the archive in hex; of a directory, of the names and contents in it.
    pub digest: String,
}

/// What is known of a wanted chart.
#[derive(Clone, Debug)]
pub enum Found {
    Ready(Arc<Chart>),
    /// The last answer, while a newer one is looked for; the asker is enqueued when that is over.
    Aging(Arc<Chart>),
    /// The runner's `on_change` enqueues the asker when there is more.
    Working,
    /// Tried again when asked later than [`ChartsConfig::retry`] after.
    Failed(Failure),
}

/// Many may name one archive, so bytes alone would not bound them; of usual ones about as many fit.
const MAX_RECORDS: usize = 10_000;
/// A local chart is changed by the person in front of it, who looks at once.
const LOCAL_TIME_TO_LIVE: Duration = Duration::from_secs(5);
/// Archives are a few hundred kilobytes; who has not sent one by then will not.
const PULL_TIMEOUT: Duration = Duration::from_mins(2);

/// A handle; clones share one cache.
#[derive(Clone)]
pub struct Charts(Arc<Inner>);

struct Inner {
    runner: Runner,
    config: ChartsConfig,
    indexes: Indexes,
    store: Store,
    table: Mutex<Table>,
    /// An answer was stored.
    settled: Notify,
}

#[derive(Default)]
struct Table {
    entries: HashMap<String, Entry>,
    /// What no entry has: replaced while it was held, or fetched and not yet stored. An archive stays on disk for
    /// as long as it is held or an entry has it.
    loose: Vec<Record>,
    tick: u64,
}

impl Table {
    /// Who waits for an entry.
    fn namespaces(&self, id: &str) -> BTreeSet<Arc<str>> {
        let askers = self.entries.get(id).into_iter().flat_map(|entry| &entry.askers);
        askers.map(|asker| asker.namespace.clone()).collect()
    }

    fn records(&self) -> impl Iterator<Item = &Record> + Clone {
        self.entries.values().filter_map(|entry| entry.record.as_ref()).chain(&self.loose)
    }
}

/// What is to be found out.
#[derive(Clone)]
struct Question {
    id: String,
    wanted: ChartRef,
    freshness: Freshness,
}

#[derive(Default)]
struct Entry {
    record: Option<Record>,
    failure: Option<(Failure, Instant)>,
    /// Keys to be enqueued; a task works on it while there are any.
    askers: Vec<Key>,
    /// How fresh the answer must be that they wait for.
    freshness: Freshness,
    used: u64,
}

impl Charts {
    /// Takes up what the cache holds from earlier.
    pub fn open(config: ChartsConfig, runner: Runner) -> io::Result<Self> {
        let store = Store::new(runner.cache())?;
        let downloads = jobs::Config {
            budgets: vec![(BYTES, Budget::of(config.download_bytes.max(config.index_bytes), config.index_bytes))],
            // There is nothing to prepare, and nothing to wait for at the end.
            preparation: PULL_TIMEOUT,
            grace: Duration::ZERO,
            clock: runner.clock().clone(),
            on_change: Box::new(|_| true),
        };
        let indexes = Indexes {
            directory: command::index_directory(runner.cache()),
            downloads: Jobs::new(Downloader::new(runner.environment(), config.index_bytes), downloads),
            time_to_live: config.time_to_live,
            clock: runner.clock().clone(),
            cache_bytes: config.cache_bytes,
            repositories: Mutex::default(),
            checked: Mutex::default(),
        };
        indexes.sweep()?;
        let mut table = Table::default();
        for (id, record) in store.load(runner.clock())? {
            table.tick += 1;
            table.entries.insert(id, Entry { record: Some(record), used: table.tick, ..Entry::default() });
        }
        Ok(Self(Arc::new(Inner { runner, config, indexes, store, table: Mutex::new(table), settled: Notify::new() })))
    }

    /// What is known of this chart now. An older answer stands while a newer one is worked on, and when there is none
    /// to be had. To be called on a runtime, where the work is then done.
    pub fn find(&self, asker: &Key, wanted: &ChartRef) -> Found {
        self.look(asker, wanted, Freshness::Recent)
    }

    /// Waits for the answer; `is_new`: the source is asked again, however young the last one is. When a newer answer
    /// cannot be found, an older one stands.
    pub async fn get(&self, asker: &Key, wanted: &ChartRef, is_new: bool) -> Result<Arc<Chart>, Failure> {
        let mut freshness = if is_new { Freshness::Now } else { Freshness::Recent };
        loop {
            let settled = self.0.settled.notified();
            match self.look(asker, wanted, freshness) {
                Found::Ready(chart) => return Ok(chart),
                Found::Failed(failure) => return Err(failure),
                Found::Aging(_) | Found::Working => settled.await,
            }
            // Asked for once is enough.
            freshness = Freshness::Recent;
        }
    }

    fn look(&self, asker: &Key, wanted: &ChartRef, freshness: Freshness) -> Found {
        let inner = &self.0;
        let clock = inner.runner.clock();
        let id = wanted.id();
        let mut table = inner.lock();
        let Table { entries, loose, tick } = &mut *table;
        *tick += 1;
        let entry = entries.entry(id.clone()).or_default();
        entry.used = *tick;
        // The disk was cleared: it is fetched again.
        loose.extend(entry.record.take_if(|record| !record.chart.path.exists()));
        let is_new = freshness == Freshness::Now;
        let is_known = entry.record.as_ref().is_some_and(|record| {
            let is_recent = record.checked.is_recent(clock, inner.time_to_live(wanted));
            wanted.is_settled() || (is_recent && !is_new && entry.freshness == Freshness::Recent)
        });
        entry.failure.take_if(|(_, at)| is_new || clock.instant() - *at >= inner.config.retry);
        let found = match (&entry.record, &entry.failure) {
            (Some(record), failure) if is_known || failure.is_some() => return Found::Ready(record.chart.clone()),
            (None, Some((failure, _))) => return Found::Failed(failure.clone()),
            (Some(record), _) => Found::Aging(record.chart.clone()),
            (None, None) => Found::Working,
        };
        let is_worked_on = !entry.askers.is_empty();
        if !entry.askers.contains(asker) {
            entry.askers.push(asker.clone());
            // Its turn may come before that of the one who asked first.
            inner.runner.join(&pull_key(&id), &asker.namespace);
            inner.indexes.join(&wanted.repository_id(), &asker.namespace);
        }
        if is_new {
            entry.freshness = freshness;
        }
        if !is_worked_on {
            let wanted = wanted.clone();
            tokio::spawn(inner.clone().work(Question { id, wanted, freshness }));
        }
        found
    }
}

impl fmt::Debug for Charts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Charts({} known)", self.0.lock().entries.len())
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, Table> {
        // Nothing panics between two changes that belong together.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn time_to_live(&self, wanted: &ChartRef) -> Duration {
        if wanted.local().is_some() { LOCAL_TIME_TO_LIVE } else { self.config.time_to_live }
    }

    async fn work(self: Arc<Self>, mut question: Question) {
        let askers = loop {
            let resolving = tokio::spawn(self.clone().resolve(question.clone()));
            // A panic costs one answer, not the entry.
            let resolved = resolving.await.unwrap_or_else(|panic| Err(Failure::new(Class::Other, panic)));
            let resolved = resolved.map_err(|failure| question.wanted.advise(failure));
            // Of a download that failed, whatever came of it.
            self.store.clear(&question.id);
            if let Some(askers) = self.settle(&question, resolved) {
                break askers;
            }
            question.freshness = Freshness::Now;
        };
        self.settled.notify_waiters();
        for asker in &askers {
            self.runner.changed(asker);
        }
    }

    /// Stores an answer and returns who wants to know of it; none if a fresher one was asked for meanwhile.
    fn settle(&self, question: &Question, resolved: Result<Record, Failure>) -> Option<Vec<Key>> {
        let Question { id, wanted, freshness, .. } = question;
        let now = self.runner.clock().instant();
        let mut table = self.lock();
        let Table { entries, loose, .. } = &mut *table;
        let Some(entry) = entries.get_mut(id) else { return Some(Vec::new()) };
        let is_final = resolved.is_ok() && wanted.is_settled();
        let is_enough = is_final || entry.freshness == *freshness;
        match resolved {
            Ok(record) => {
                if wanted.local().is_none() {
                    self.store.remember(id, &record);
                }
                loose.extend(entry.record.take());
                loose.retain(|other| !Arc::ptr_eq(&other.chart, &record.chart));
                entry.record = Some(record);
                entry.failure = None;
            }
            Err(_) if !is_enough => {}
            Err(failure) => {
                tracing::info!(repo = %wanted.shown_repo(), chart = wanted.chart.name, %failure, "chart not found");
                entry.failure = Some((failure, now));
            }
        }
        let askers = is_enough.then(|| {
            entry.freshness = Freshness::Recent;
            std::mem::take(&mut entry.askers)
        });
        self.evict(&mut table, id);
        askers
    }

    /// Forgets the least recently used until the rest fits, and every failure that is over; never the newest, whose
    /// askers are about to be enqueued.
    fn evict(&self, table: &mut Table, newest: &str) {
        let retry = self.config.retry;
        let now = self.runner.clock().instant();
        table.entries.retain(|_, entry| {
            let has_failed = entry.failure.as_ref().is_some_and(|(_, at)| now - *at < retry);
            entry.record.is_some() || has_failed || !entry.askers.is_empty()
        });
        self.sweep(table);
        while is_too_much(table.records(), self.config.cache_bytes) && self.forget_oldest(table, newest) {}
    }

    /// Makes room for an archive, or says that all of the cache is in use.
    fn make_room(&self, table: &mut Table, new: &Record) -> Result<(), Failure> {
        let total = self.config.cache_bytes;
        self.sweep(table);
        while is_too_much(table.records().chain([new]), total) {
            if !self.forget_oldest(table, "") {
                return Err(index::full("charts", Store::bytes(table.records().chain([new])), total));
            }
        }
        Ok(())
    }

    /// Forgets the least recently used of those that are not in use, but not `newest`. False if there is none.
    fn forget_oldest(&self, table: &mut Table, newest: &str) -> bool {
        let is_free = |id: &str, entry: &Entry| {
            let record = entry.record.as_ref();
            let is_held = record.is_none_or(|record| Arc::strong_count(&record.chart) > 1);
            id != newest && entry.askers.is_empty() && !is_held
        };
        let free = table.entries.iter().filter(|(id, entry)| is_free(id, entry));
        let Some(id) = free.min_by_key(|(_, entry)| entry.used).map(|(id, _)| id.clone()) else { return false };
        self.store.forget(&id);
        let entry = table.entries.remove(&id);
        table.loose.extend(entry.and_then(|entry| entry.record));
        self.sweep(table);
        true
    }

    /// Removes the archives that no entry has and that are not held any more.
    fn sweep(&self, table: &mut Table) {
        let is_held = |record: &Record| Arc::strong_count(&record.chart) > 1;
        let (held, free): (Vec<_>, Vec<_>) = std::mem::take(&mut table.loose).into_iter().partition(is_held);
        table.loose = held;
        for Record { chart, .. } in free {
            if !table.records().any(|other| other.chart.digest == chart.digest) {
                self.store.remove(&chart.digest);
            }
        }
    }

    async fn resolve(self: Arc<Self>, question: Question) -> Result<Record, Failure> {
        let Question { id, wanted, freshness } = question;
        if let Some(path) = wanted.local() {
            return self.read_local(path, &wanted).await;
        }
        if wanted.is_oci() {
            return self.pull(&id, &wanted, None).await;
        }
        let repository = self.hold(&id, &wanted);
        let index = repository.current(&wanted, freshness).await?;
        let previous = self.lock().entries.get(&id).and_then(|entry| entry.record.clone());
        if let Some(previous) = previous.filter(|record| record.index.as_ref() == Some(&index.digest)) {
            return Ok(Record { checked: Checked::now(self.runner.clock()), ..previous });
        }
        let pulled = self.pull(&id, &wanted, Some(index.digest.clone())).await;
        if !pulled.as_ref().is_err_and(|failure| failure.class == Class::ChartNotFound) {
            return pulled;
        }
        // It may have been published since. One more look and not one until the index stays the same: there are
        // repositories that write it anew for every request.
        let newer = repository.current(&wanted, Freshness::Now).await?;
        if newer.digest == index.digest {
            return pulled;
        }
        self.pull(&id, &wanted, Some(newer.digest)).await
    }

    fn hold(&self, id: &str, wanted: &ChartRef) -> Held<'_> {
        // Held until then, so that each asker is counted here or joins later.
        let table = self.lock();
        self.indexes.hold(wanted, &table.namespaces(id))
    }

    /// Lets helm resolve the version and fetch the archive.
    async fn pull(&self, id: &str, wanted: &ChartRef, index: Option<String>) -> Result<Record, Failure> {
        let incoming = self.store.incoming(id).map_err(|error| index::on_disk(&error))?;
        let ended = self.submit_pull(id, wanted, incoming.clone())?;
        let cancelled = || Failure::new(Class::Cancelled, "fetching the chart was cancelled");
        let finished = ended.await.ok_or_else(cancelled)?;
        finished.result.as_ref().map_err(|failure| wanted.explain(failure))?;
        self.admit(incoming, wanted, finished.stdout, index).await
    }

    /// In the turn of any namespace that waits for the chart.
    fn submit_pull(
        &self,
        id: &str,
        wanted: &ChartRef,
        incoming: PathBuf,
    ) -> Result<impl Future<Output = Option<Finished>> + use<>, Failure> {
        // Held until it is submitted, so that each asker is counted here or joins later.
        let table = self.lock();
        let chart = wanted.clone();
        let request = Request {
            key: pull_key(id),
            namespaces: table.namespaces(id).into_iter().collect(),
            operation: OperationKind::Pull,
            label: wanted.version().into(),
            timeout: PULL_TIMEOUT,
            time: None,
            memory: self.config.memory,
            contents: Box::new(move || {
                // In helm's own working directory.
                let place = Path::new("");
                let operation = Operation::Pull(chart.pull(place, incoming));
                let (files, secrets) = (chart.files(place), chart.secrets());
                Box::pin(async { Ok(Contents { files, secrets, ..Contents::new(operation) }) })
            }),
        };
        self.runner.run(request).map_err(|refused| Failure::new(Class::Other, refused))
    }

    async fn read_local(&self, path: &Path, wanted: &ChartRef) -> Result<Record, Failure> {
        let unreadable = |error: io::Error| {
            let class = if error.kind() == io::ErrorKind::NotFound { Class::ChartNotFound } else { Class::Other };
            Failure::new(class, format_args!("cannot read the chart at {}: {error}", path.display()))
        };
        let metadata = fs::metadata(path).map_err(unreadable)?;
        if metadata.is_file() && metadata.len() > ARCHIVE_BYTES {
            return Err(wanted.explain(&Failure::new(Class::TooLarge, "")));
        }
        if metadata.is_file() {
            let incoming = self.store.incoming(&wanted.id()).map_err(|error| index::on_disk(&error))?;
            fs::copy(path, incoming.join("chart.tgz")).map_err(unreadable)?;
            return self.admit(incoming, wanted, String::new(), None).await;
        }
        let owned = path.to_owned();
        let read = move || -> io::Result<Chart> {
            let archive::Metadata { name, version } = archive::metadata(&owned)?;
            Ok(Chart { digest: archive::directory_digest(&owned)?, path: owned, name, version })
        };
        let chart = tokio::task::spawn_blocking(read).await.map_err(|panic| Failure::new(Class::Other, panic))?;
        let chart = chart.map_err(unreadable)?;
        wanted.verify("", &chart.digest)?;
        Ok(self.record(chart, 0, None))
    }

    /// Takes the one archive of a directory into the store, after helm said this.
    async fn admit(
        &self,
        incoming: PathBuf,
        wanted: &ChartRef,
        said: String,
        index: Option<String>,
    ) -> Result<Record, Failure> {
        let (store, wanted) = (self.store.clone(), wanted.clone());
        let inspect = move || store.inspect(&incoming, |digest| wanted.verify(&said, digest));
        let inspected = tokio::task::spawn_blocking(inspect).await;
        let (downloaded, chart) = inspected.map_err(|panic| Failure::new(Class::Other, panic))??;
        let bytes = fs::metadata(&downloaded).map_err(|error| index::on_disk(&error))?.len();
        let record = self.record(chart, bytes, index);
        // At once, lest the same archive of another entry goes and takes this one along.
        let mut table = self.lock();
        self.make_room(&mut table, &record)?;
        fs::rename(downloaded, &record.chart.path).map_err(|error| index::on_disk(&error))?;
        table.loose.push(record.clone());
        Ok(record)
    }

    fn record(&self, chart: Chart, bytes: u64, index: Option<String>) -> Record {
        Record { chart: Arc::new(chart), bytes, index, checked: Checked::now(self.runner.clock()) }
    }
}

/// No release is called so, and no namespace: the pull of a chart is one, however many wait for it.
fn pull_key(id: &str) -> Key {
    Key::new("", format!("chart/{id}"))
}

fn is_too_much<'a>(records: impl Iterator<Item = &'a Record> + Clone, cache_bytes: u64) -> bool {
    records.clone().count() > MAX_RECORDS || Store::bytes(records) > cache_bytes
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use api::workspace::ChartReference;

    use super::{
        super::{Guard, runner},
        *,
    };

    #[tokio::test]
    async fn an_archive_on_its_way_stays_when_the_same_one_of_another_entry_goes() {
        let directory = tempfile::tempdir().unwrap();
        let [private, cache] = ["private", "cache"].map(|name| directory.path().join(name));
        // Nothing is run.
        let guard = Guard { program: PathBuf::new(), arguments: Vec::new() };
        let runner = Runner::start(runner::Config::new(PathBuf::new(), guard, private, cache)).unwrap();
        let charts = Charts::open(ChartsConfig::default(), runner).unwrap();
        let inner = &charts.0;
        let wanted = ChartRef::new(&ChartReference::default(), BTreeMap::new()).unwrap();
        let packed = archive::tests::packed(&archive::tests::directory(directory.path()));
        let fetch = async |id: &str| {
            let incoming = inner.store.incoming(id).unwrap();
            fs::copy(&packed, incoming.join("chart.tgz")).unwrap();
            inner.admit(incoming, &wanted, String::new(), None).await.unwrap()
        };
        let (stored, on_its_way) = (fetch("stored").await, fetch("on its way").await);
        let path = stored.chart.path.clone();
        assert_eq!(path, on_its_way.chart.path);
        inner.lock().entries.insert("stored".into(), Entry::default());
        let freshness = Freshness::Recent;
        let question = Question { id: "stored".into(), wanted: wanted.clone(), freshness };
        inner.settle(&question, Ok(stored)).unwrap();
        assert!(inner.forget_oldest(&mut inner.lock(), "another"));
        assert!(inner.lock().entries.is_empty() && path.exists());
        drop(on_its_way);
        inner.evict(&mut inner.lock(), "another");
        assert!(inner.lock().loose.is_empty() && !path.exists());
    }
}
