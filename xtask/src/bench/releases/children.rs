//! The memory of the helm processes, as the kernel counts it.

use std::{collections::HashSet, path::Path, time::Duration};

use anyhow::Result;
use api::workspace::HelmRelease;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde::Serialize;
use serde_json::json;

use super::{PARALLEL, load::is_ready};
use crate::bench::{crowd::all_ready, follow::Follower, ground::Ground, operator::Operator};

/// Upgraded under observation, after the clock of the other measurements has stopped: looking costs CPU.
const WATCHED: usize = 2 * PARALLEL;
/// An upgrade takes a few hundred milliseconds, and its memory only grows.
const LOOK: Duration = Duration::from_millis(10);

#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Children {
    pub seen: usize,
    /// The most that one helm process had resident.
    pub helm_peak_mb: f64,
    pub guard_peak_mb: f64,
    /// Of the operator, ever since its start.
    pub operator_peak_mb: f64,
}

pub async fn measure(ground: &Ground, operator: &Operator, namespace: &str) -> Result<Children> {
    let api: Api<HelmRelease> = Api::namespaced(ground.client.clone(), namespace);
    let names: Vec<String> = (0..WATCHED.min(ground.count)).map(|number| format!("bench-{number:04}")).collect();
    for name in &names {
        let patch = json!({ "spec": { "values": { "note": "watched" } } });
        api.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await?;
    }
    let mut releases = Follower::open(api).await?;
    let is_upgraded = |release: &HelmRelease| is_ready(release) && release.metadata.generation > Some(1);
    let ready = releases.until(ground.patience(), "the watched upgrades", all_ready(names.len(), is_upgraded));
    let directory = ground.control_plane.directory().join("helm");
    let mut children = Children::default();
    let mut seen = HashSet::new();
    let looking = async {
        loop {
            children.look(&directory, &mut seen);
            tokio::time::sleep(LOOK).await;
        }
    };
    tokio::select! {
        ready = ready => drop(ready?),
        () = looking => {}
    }
    ground.settled().await?;
    Ok(Children { seen: seen.len(), operator_peak_mb: operator.usage()?.peak_mb, ..children })
}

impl Children {
    fn look(&mut self, directory: &Path, seen: &mut HashSet<String>) {
        for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
            let path = entry.path();
            if !std::fs::read_link(path.join("cwd")).is_ok_and(|at| at.starts_with(directory)) {
                continue;
            }
            // It may end at any moment.
            let Ok(status) = std::fs::read_to_string(path.join("status")) else { continue };
            let field =
                |name| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim).unwrap_or_default();
            let peak = field("VmHWM:").trim_end_matches(" kB").parse::<f64>().unwrap_or(0.0) * 1024.0 / 1e6;
            // With its version behind the name.
            if field("Name:").starts_with("helm") {
                self.helm_peak_mb = self.helm_peak_mb.max(peak);
                seen.insert(field("Pid:").to_owned());
            } else {
                self.guard_peak_mb = self.guard_peak_mb.max(peak);
            }
        }
    }
}
