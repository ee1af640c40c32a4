//! The machines of a shard that are processes of this host.

use std::path::{Path, PathBuf};

use plan::shard::config::Config;
use shard::{
    clock::Clock,
    provider::{PROCESS, Process, ProcessSettings},
};

/// Where machines have their folders, if the configuration names no other place.
const MACHINES: &str = "/var/lib/strata/machines";

pub fn directory(shard: &str) -> PathBuf {
    Path::new(MACHINES).join(shard)
}

/// Those of a shard, if they are on this host.
pub fn local(shard: &str, config: Option<&Config>) -> Option<Process> {
    let provider = Some(&config?.shard.provider).filter(|provider| provider.kind == PROCESS)?;
    let settings = ProcessSettings::read(provider).ok()?;
    let directory = settings.directory.unwrap_or_else(|| directory(shard));
    // To open it would make it, and this host may have nothing to do with the shard.
    directory.is_dir().then(|| Process::open(&directory, Clock::default()).ok())?
}
