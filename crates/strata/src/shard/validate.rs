//! `strata shard validate`.

use std::{io::Read, path::PathBuf, process::ExitCode};

use clap::Args;
use plan::shard::config::{Config, Findings};
use shard::{config::parse, provider};

use super::{
    hcloud::HcloudFlags,
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
        checked.push((file.display().to_string(), flags.verified(parse(&text)).await));
    } else {
        let store = storage.open()?;
        for shard in shards(&*store).await? {
            let found = flags.verified(findings(&*store, &shard).await?).await;
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
    /// With what the provider's own API says about it.
    async fn verified(&self, (config, mut findings): (Option<Config>, Findings)) -> Findings {
        if let Some(config) = config {
            provider::verify(&config, &self.hcloud.environment(), &mut findings).await;
        }
        findings
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
    let line = |kind: &'static str| {
        move |found: &plan::shard::config::Problem| format!("{what}: {kind}: {}: {}\n", found.field, found.message)
    };
    let mut text: String = findings.problems.iter().map(line("error")).collect();
    text.extend(findings.warnings.iter().map(line("warning")));
    if findings.problems.is_empty() {
        text.extend([format!("{what}: valid\n")]);
    }
    print(&text)
}
