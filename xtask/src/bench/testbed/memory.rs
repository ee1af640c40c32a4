//! What all processes of the testbed have resident, this one included: the simulators run in it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio_util::task::AbortOnDropHandle;

/// Programs grow for seconds after their start; a peak between two looks is shorter than any of them lives.
const LOOK: Duration = Duration::from_millis(250);
const KIB_PER_GIB: f64 = 1024.0 * 1024.0;

/// Looks until it is dropped.
pub struct Watch {
    most_kib: Arc<AtomicU64>,
    _looking: AbortOnDropHandle<()>,
}

impl Watch {
    pub fn begin() -> Self {
        let most_kib = Arc::new(AtomicU64::new(0));
        let most = most_kib.clone();
        let looking = tokio::spawn(async move {
            loop {
                most.fetch_max(resident_kib(), Ordering::Relaxed);
                tokio::time::sleep(LOOK).await;
            }
        });
        Self { most_kib, _looking: AbortOnDropHandle::new(looking) }
    }

    /// The most that any look found.
    pub fn most_gib(&self) -> f64 {
        let now = resident_kib();
        gib(self.most_kib.fetch_max(now, Ordering::Relaxed).max(now))
    }
}

/// Of all of them, now.
pub fn now_gib() -> f64 {
    gib(resident_kib())
}

#[expect(clippy::cast_precision_loss, reason = "a machine's memory in KiB is far below 2^52")]
fn gib(kib: u64) -> f64 {
    kib as f64 / KIB_PER_GIB
}

/// Pages that several processes share count once for each: the sum is what `ps` would show, and more than is used.
fn resident_kib() -> u64 {
    let Ok(folder) = std::fs::read_dir("/proc") else { return 0 };
    let pids = folder.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let all: BTreeMap<u32, Process> = pids.filter_map(|pid| Some((pid, Process::read(pid)?))).collect();
    let parents: BTreeMap<u32, u32> = all.iter().map(|(pid, process)| (*pid, process.parent)).collect();
    let own = descendants(std::process::id(), &parents);
    all.iter().filter(|(pid, _)| own.contains(pid)).map(|(_, process)| process.resident_kib).sum()
}

struct Process {
    parent: u32,
    resident_kib: u64,
}

impl Process {
    /// `None` for one that has ended meanwhile.
    fn read(pid: u32) -> Option<Self> {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let number = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse::<u64>().ok()
        };
        // A zombie has no memory.
        Some(Self { parent: u32::try_from(number("PPid:")?).ok()?, resident_kib: number("VmRSS:").unwrap_or(0) })
    }
}

/// A process and all that it and its children started.
fn descendants(root: u32, parents: &BTreeMap<u32, u32>) -> BTreeSet<u32> {
    let mut found = BTreeSet::from([root]);
    loop {
        let further = parents.iter().filter(|(pid, parent)| found.contains(parent) && !found.contains(pid));
        let further: Vec<u32> = further.map(|(pid, _)| *pid).collect();
        if further.is_empty() {
            return found;
        }
        found.extend(further);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grandchildren_count_and_others_do_not() {
        let parents = BTreeMap::from([(10, 1), (11, 10), (12, 11), (20, 1), (21, 20)]);
        assert_eq!(descendants(10, &parents), BTreeSet::from([10, 11, 12]));
    }

    #[test]
    fn this_process_has_memory() {
        assert!(resident_kib() > 0);
    }
}
