//! Archives on disk by their digest, and what each wanted chart was found to be.

use std::{
    collections::{HashMap, HashSet},
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use jiff::Timestamp;
use process::Clock;
use runtime::child::private_directories;
use serde::{Deserialize, Serialize};

use super::{
    super::output::{Class, Failure},
    Chart,
    age::Checked,
    archive, index,
};

/// What a wanted chart was found to be.
#[derive(Clone, Debug)]
pub(super) struct Record {
    pub chart: Arc<Chart>,
    /// Of its archive; none of a chart outside the store.
    pub bytes: u64,
    /// The index it was found in; a range is the same for as long as that is.
    pub index: Option<String>,
    pub checked: Checked,
}

/// A record's form on disk.
#[derive(Debug, Serialize, Deserialize)]
struct Stored {
    name: String,
    version: String,
    digest: String,
    index: Option<String>,
    checked_at: Timestamp,
}

#[derive(Clone, Debug)]
pub(super) struct Store {
    charts: PathBuf,
    incoming: PathBuf,
}

impl Store {
    pub fn new(cache: &Path) -> io::Result<Self> {
        let store = Self { charts: cache.join("charts"), incoming: cache.join("incoming") };
        private_directories().create(&store.charts)?;
        // What an earlier process did not finish.
        if store.incoming.exists() {
            fs::remove_dir_all(&store.incoming)?;
        }
        private_directories().create(&store.incoming)?;
        Ok(store)
    }

    /// What is known from earlier, the longest ago first; an archive that no record names is removed.
    pub fn load(&self, clock: &Clock) -> io::Result<Vec<(String, Record)>> {
        let mut records = Vec::new();
        let mut archives = Vec::new();
        for entry in fs::read_dir(&self.charts)? {
            let path = entry?.path();
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            if path.extension().is_some_and(|extension| extension == "tgz") {
                archives.push((name, path));
            } else if let Some(record) = self.read(&path, clock) {
                records.push((name, record));
            } else {
                fs::remove_file(&path)?;
            }
        }
        let needed: HashSet<_> = records.iter().map(|(_, record)| &record.chart.digest).collect();
        for (_, path) in archives.iter().filter(|(digest, _)| !needed.contains(digest)) {
            fs::remove_file(path)?;
        }
        records.sort_by_key(|(_, record)| record.checked.at);
        Ok(records)
    }

    fn read(&self, path: &Path, clock: &Clock) -> Option<Record> {
        let Stored { name, version, digest, index, checked_at } = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
        let path = self.archive(&digest);
        let bytes = fs::metadata(&path).ok()?.len();
        let chart = Arc::new(Chart { path, name, version, digest });
        Some(Record { chart, bytes, index, checked: Checked::read(checked_at, clock) })
    }

    pub fn remember(&self, id: &str, record: &Record) {
        let Record { chart, index, checked, .. } = record.clone();
        let Chart { name, version, digest, .. } = (*chart).clone();
        let stored = Stored { name, version, digest, index, checked_at: checked.at };
        let content = serde_json::to_vec(&stored).expect("plain data has a JSON form");
        // Only the next start would miss it, and fetch again.
        if let Err(error) = fs::write(self.record(id), content) {
            tracing::warn!(%error, "cannot write to the chart cache");
        }
    }

    pub fn forget(&self, id: &str) {
        // Of a local chart there is none.
        let _ = fs::remove_file(self.record(id));
    }

    /// Removes an archive that is not needed.
    pub fn remove(&self, digest: &str) {
        // Of a chart directory there is none.
        let _ = fs::remove_file(self.archive(digest));
    }

    /// An empty directory for one download.
    pub fn incoming(&self, id: &str) -> io::Result<PathBuf> {
        self.clear(id);
        let path = self.incoming.join(id);
        fs::create_dir(&path)?;
        Ok(path)
    }

    /// Removes that directory with what is left in it.
    pub fn clear(&self, id: &str) {
        // Of most there is none by now.
        let _ = fs::remove_dir_all(self.incoming.join(id));
    }

    /// The one archive that was downloaded, if its digest is right, and the chart that it is once it lies at its path.
    pub fn inspect(
        &self,
        incoming: &Path,
        verify: impl FnOnce(&str) -> Result<(), Failure>,
    ) -> Result<(PathBuf, Chart), Failure> {
        let downloaded = fs::read_dir(incoming).and_then(|mut entries| entries.next().transpose());
        let downloaded = downloaded.map_err(|error| index::on_disk(&error))?;
        let nothing = || Failure::new(Class::Other, "helm fetched no archive");
        let downloaded = downloaded.ok_or_else(nothing)?.path();
        let digest = archive::file_digest(&downloaded).map_err(|error| index::on_disk(&error))?;
        verify(&digest)?;
        let no_chart = |error: io::Error| Failure::new(Class::Other, format_args!("not a chart: {error}"));
        let archive::Metadata { name, version } = archive::metadata(&downloaded).map_err(no_chart)?;
        Ok((downloaded, Chart { path: self.archive(&digest), name, version, digest }))
    }

    /// Bytes of the archives of these records, each counted once.
    pub fn bytes<'a>(records: impl Iterator<Item = &'a Record>) -> u64 {
        let archives: HashMap<_, _> = records.map(|record| (&record.chart.digest, record.bytes)).collect();
        archives.values().sum()
    }

    fn archive(&self, digest: &str) -> PathBuf {
        self.charts.join(format!("{digest}.tgz"))
    }

    fn record(&self, id: &str) -> PathBuf {
        self.charts.join(format!("{id}.json"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_takes_up_the_oldest_first_and_sweeps_what_was_not_finished() {
        let cache = tempfile::tempdir().unwrap();
        let (store, clock) = (Store::new(cache.path()).unwrap(), Clock::default());
        for (id, second, digest) in [("late", 2, "same"), ("early", 1, "same"), ("lost", 3, "absent")] {
            let chart =
                Chart { path: store.archive(digest), name: "n".into(), version: "1.0.0".into(), digest: digest.into() };
            let checked = Checked::read(Timestamp::from_second(second).unwrap(), &clock);
            store.remember(id, &Record { chart: Arc::new(chart), bytes: 0, index: None, checked });
        }
        for file in ["same.tgz", "unknown.tgz", "broken.json"] {
            fs::write(store.charts.join(file), "four").unwrap();
        }
        fs::write(store.incoming("half").unwrap().join("chart.tgz"), "").unwrap();
        let store = Store::new(cache.path()).unwrap();
        let records = store.load(&clock).unwrap();
        assert_eq!(records.iter().map(|(id, _)| id.as_str()).collect::<Vec<_>>(), ["early", "late"]);
        assert_eq!(Store::bytes(records.iter().map(|(_, record)| record)), 4, "one archive counts once");
        let mut left: Vec<_> = fs::read_dir(&store.charts).unwrap().map(|file| file.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["early.json", "late.json", "same.tgz"]);
        assert_eq!(fs::read_dir(&store.incoming).unwrap().count(), 0);
    }
}
