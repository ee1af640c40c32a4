//! `strata shard validate`.

use std::{io::Read, path::PathBuf, process::ExitCode};

use clap::Args;
use plan::shard::config::{Config, Findings, Problem};
use shard::{config::parse, provider};

use super::{
    hcloud::HcloudFlags,
    status::{dynamic, unknown},
    storage::{StorageFlags, findings, shards},
};
use crate::{Failure, output::print};

#[derive(Debug, Args)]
pub struct Flags {
    /// The file, or - for standard input [default: the configurations of all shards in the storage]
    file: Option<PathBuf>,
    #[command(flatten)]
    hcloud: HcloudFlags,
}

/// Longer is no configuration: no store would take it.
const LONGEST: u64 = shard::store::OBJECT_LIMIT as u64;

pub async fn run(flags: Flags, storage: &StorageFlags) -> Result<ExitCode, Failure> {
    let mut checked = Vec::new();
    if let Some(file) = &flags.file {
        let text = read(file)?;
        let (config, mut found) = parse(&text);
        flags.verify(config.as_ref(), &mut found).await;
        checked.push((file.display().to_string(), found));
    } else {
        let store = storage.open()?;
        for shard in shards(&*store).await? {
            let (config, mut found) = findings(&*store, &shard).await?;
            flags.verify(config.as_ref(), &mut found).await;
            let problem = |message| Problem { field: "groups.jsonc".to_owned(), message };
            match (&config, dynamic(&*store, &shard, config.as_ref()).await?) {
                // Groups of requests that this configuration leaves without what they need.
                (Some(config), Ok(dynamic)) => {
                    found.warnings.extend(unknown(config, &dynamic).into_iter().map(problem));
                }
                (None, Ok(_)) => {}
                // No server leads without them.
                (_, Err(why)) => found.problems.push(problem(why)),
            }
            checked.push((format!("shard {shard}"), found));
        }
    }
    let mut is_fine = true;
    for (what, findings) in &checked {
        is_fine &= findings.problems.is_empty();
        tell(what, findings)?;
    }
    Ok(if is_fine { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Flags {
    /// Adds what the provider's own API says about it.
    async fn verify(&self, config: Option<&Config>, findings: &mut Findings) {
        if let Some(config) = config {
            provider::verify(config, &self.hcloud.environment(), findings).await;
        }
    }
}

fn read(file: &PathBuf) -> Result<String, Failure> {
    let cannot = |error: std::io::Error| Failure::new(format!("cannot read {}: {error}", file.display()));
    let mut text = String::new();
    if file.as_os_str() == "-" {
        std::io::stdin().take(LONGEST).read_to_string(&mut text).map_err(cannot)?;
    } else {
        let opened = std::fs::File::open(file).map_err(cannot)?;
        opened.take(LONGEST).read_to_string(&mut text).map_err(cannot)?;
    }
    Ok(text)
}

/// One line for each finding.
pub fn tell(what: &str, findings: &Findings) -> Result<(), Failure> {
    let line =
        |kind: &'static str| move |found: &Problem| format!("{what}: {kind}: {}: {}\n", found.field, found.message);
    let mut text: String = findings.problems.iter().map(line("error")).collect();
    text.extend(findings.warnings.iter().map(line("warning")));
    if findings.problems.is_empty() {
        text.extend([format!("{what}: valid\n")]);
    }
    print(&text)
}
