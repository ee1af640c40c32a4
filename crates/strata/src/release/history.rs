//! `strata release history`.

use std::process::ExitCode;

use api::workspace::{HelmRelease, ReleaseRevision};
use jiff::Timestamp;
use serde_json::Value;

use crate::{
    Failure,
    objects::{Objects, decode},
    output::{Format, OutputFlags, Table, lines, print, print_data},
};

/// As many of a digest's digits as distinguish two of them.
const DIGEST_SHOWN: usize = 12;

pub async fn run(releases: &Objects, name: &str, flags: &OutputFlags) -> Result<ExitCode, Failure> {
    let object = releases.get(name).await?;
    let release: HelmRelease = decode(&object)?;
    let history = release.status.unwrap_or_default().history;
    match flags.output.unwrap_or(Format::Table) {
        format @ (Format::Json | Format::Yaml) => {
            let stored = object.data.pointer("/status/history").cloned().unwrap_or_else(|| Value::Array(Vec::new()));
            print_data(&stored, format)?;
        }
        Format::Name => print(&lines(history.iter().map(|one| one.revision.to_string())))?,
        Format::Table | Format::Wide if history.is_empty() => anstream::eprintln!("{name} has no revision yet"),
        Format::Table => print(&table(&history, DIGEST_SHOWN).render(!flags.no_headers))?,
        Format::Wide => print(&table(&history, usize::MAX).render(!flags.no_headers))?,
    }
    Ok(ExitCode::SUCCESS)
}

pub fn table(history: &[ReleaseRevision], digits: usize) -> Table {
    let mut table =
        Table::new(["REVISION", "STATUS", "CHART VERSION", "DIGEST", "FIRST DEPLOYED", "LAST DEPLOYED", "TEST"]);
    let time = |time: Option<Timestamp>| time.map(|time| time.to_string()).unwrap_or_default();
    for revision in history {
        let digest = revision.digest.as_deref().unwrap_or_default();
        table.add([
            revision.revision.to_string(),
            revision.status.clone(),
            revision.chart_version.clone().unwrap_or_default(),
            digest.trim_start_matches("sha256:").chars().take(digits).collect(),
            time(revision.first_deployed),
            time(revision.last_deployed),
            revision.test.map(|test| format!("{test:?}")).unwrap_or_default(),
        ]);
    }
    table
}

pub fn short(history: &[ReleaseRevision]) -> Table {
    table(history, DIGEST_SHOWN)
}
