//! Our sample charts: carried in the binary, packaged once per process.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use futures::future::try_join_all;
use tokio::sync::OnceCell;

use super::{Archive, Error, package};
use crate::process::RemovedAtEnd;

struct Sample {
    name: &'static str,
    versions: &'static [&'static str],
    files: &'static [(&'static str, &'static str)],
}

macro_rules! sample {
    ($name:literal, $versions:expr, [$($file:literal),*]) => {
        Sample {
            name: $name,
            versions: &$versions,
            files: &[$(($file, include_str!(concat!("../../charts/", $name, "/", $file)))),*],
        }
    };
}

const SAMPLES: [Sample; 5] = [
    sample!("four", ["1.0.0", "1.1.0", "2.0.0"], ["Chart.yaml", "values.yaml", "templates/four.yaml"]),
    sample!("web", ["1.0.0", "1.1.0"], ["Chart.yaml", "values.yaml", "templates/web.yaml", "templates/test.yaml"]),
    sample!("db", ["1.0.0"], ["Chart.yaml", "values.yaml", "templates/db.yaml"]),
    sample!("broken", ["1.0.0"], ["Chart.yaml", "values.yaml", "templates/broken.yaml", "templates/hook.yaml"]),
    sample!("gauge", ["1.0.0"], ["Chart.yaml", "values.yaml", "crds/gauge.yaml", "templates/gauge.yaml"]),
];

/// 2026-01-01: helm keeps the files' times, so that one source gives one digest, whenever it is packaged.
const WRITTEN: Duration = Duration::from_hours(20_454 * 24);

struct Packaged {
    archives: Vec<Archive>,
    /// Statics are never dropped.
    _removed: RemovedAtEnd,
}

/// All versions of all sample charts.
pub async fn samples() -> Result<&'static [Archive], Error> {
    static PACKAGED: OnceCell<Packaged> = OnceCell::const_new();
    Ok(&PACKAGED.get_or_try_init(package_all).await?.archives)
}

/// One of them.
pub async fn sample(name: &str, version: &str) -> Result<&'static Archive, Error> {
    let is_wanted = |archive: &&Archive| archive.name == name && archive.version == version;
    samples().await?.iter().find(is_wanted).ok_or_else(|| Error::NoSample(format!("{name} {version}")))
}

/// Writes the source of a sample chart into a new directory of its name below `parent`, to be changed and packaged.
pub fn write_source(name: &str, parent: &Path) -> Result<PathBuf, Error> {
    let sample = SAMPLES.iter().find(|sample| sample.name == name);
    sample.ok_or_else(|| Error::NoSample(name.to_owned()))?.write(parent)
}

impl Sample {
    fn write(&self, parent: &Path) -> Result<PathBuf, Error> {
        let directory = parent.join(self.name);
        for (file, text) in self.files {
            let path = directory.join(file);
            fs::create_dir_all(path.parent().expect("a file is in a directory"))?;
            fs::write(&path, text)?;
            File::options().write(true).open(&path)?.set_modified(SystemTime::UNIX_EPOCH + WRITTEN)?;
        }
        Ok(directory)
    }
}

async fn package_all() -> Result<Packaged, Error> {
    let directory = tempfile::Builder::new().prefix("strata-charts-").tempdir()?.keep();
    let removed = RemovedAtEnd::new(&directory)?;
    let mut work = Vec::new();
    for sample in &SAMPLES {
        let source = sample.write(&directory)?;
        work.extend(sample.versions.iter().map(|version| (source.clone(), version)));
    }
    let directory = &directory;
    let archives = work.into_iter().map(async |(source, version)| package(&source, version, directory).await);
    Ok(Packaged { archives: try_join_all(archives).await?, _removed: removed })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_of_every_chart_is_carried() {
        let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/charts"));
        let carried =
            SAMPLES.iter().flat_map(|sample| sample.files.iter().map(|(file, _)| root.join(sample.name).join(file)));
        let mut carried: Vec<_> = carried.collect();
        carried.sort();
        let mut present = Vec::new();
        let mut directories = vec![root.to_owned()];
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() { directories.push(path) } else { present.push(path) }
            }
        }
        present.sort();
        assert_eq!(carried, present);
    }
}
