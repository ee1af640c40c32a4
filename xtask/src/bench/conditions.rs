//! Where and on what the numbers were taken; without this they mean nothing.

use std::{collections::BTreeMap, path::PathBuf, process::Command};

use anyhow::{Context, Result};
use serde::Serialize;
use testbed::{control_plane::CLIENT_LIMITS, tools::Tool};

use super::{
    build::{self, Program},
    ground::{Ground, WRITERS},
};
use crate::workspace;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Conditions {
    #[serde(flatten)]
    pub host: Host,
    pub operator: Measured,
    pub programs: BTreeMap<String, String>,
    pub etcd_fsync: bool,
    pub audit_log: &'static str,
    pub client_limits: String,
    pub nodes: usize,
    pub count: usize,
    pub writers: usize,
}

/// The machine and the benchmark, for benchmarks without a control plane.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Host {
    pub cpu: String,
    pub cores: usize,
    pub memory_mb: u64,
    pub kernel: String,
    /// Of the minute before: above the number of cores, something else was running.
    pub load_average: f64,
    /// Of this checkout, which the benchmark is built from.
    pub strata: String,
    /// Of the benchmark itself.
    pub benchmark_profile: &'static str,
}

/// The operator's program.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Measured {
    pub program: PathBuf,
    /// As it prints it; it does not name a commit.
    pub version: String,
    pub profile: &'static str,
    /// By `--operator`; otherwise it is built from this checkout.
    pub is_given: bool,
}

impl Host {
    pub fn read() -> Result<Self> {
        let uname = rustix::system::uname();
        Ok(Self {
            cpu: field("/proc/cpuinfo", "model name")?,
            cores: std::thread::available_parallelism()?.get(),
            memory_mb: field("/proc/meminfo", "MemTotal")?.trim_end_matches(" kB").parse::<u64>()? * 1024 / 1_000_000,
            kernel: format!("{} {}", uname.sysname().to_string_lossy(), uname.release().to_string_lossy()),
            load_average: load_average()?,
            strata: format!("{} ({})", env!("CARGO_PKG_VERSION"), commit()),
            benchmark_profile: build::profile(&std::env::current_exe()?),
        })
    }
}

impl Measured {
    fn read(program: &Program) -> Result<Self> {
        let (version, profile) = (program.version()?, build::profile(&program.path));
        Ok(Self { program: program.path.clone(), version, profile, is_given: program.is_given })
    }
}

impl Conditions {
    pub fn read(ground: &Ground, program: &Program) -> Result<Self> {
        let others = ground.tools.iter().map(|&name| name.to_owned());
        let names = ground.control_plane.programs().into_iter().map(|program| program.name).chain(others);
        Ok(Self {
            host: Host::read()?,
            operator: Measured::read(program)?,
            programs: names.filter_map(|name| Some((name.clone(), Tool::named(&name)?.version().to_owned()))).collect(),
            etcd_fsync: ground.options.fsync,
            audit_log: "all users, Metadata, ResponseComplete, blocking",
            client_limits: format!(
                "scheduler and controller-manager {}; operator and benchmark none",
                CLIENT_LIMITS.join(" ")
            ),
            nodes: ground.options.workloads.as_ref().map_or(0, |workloads| workloads.nodes),
            count: ground.count,
            writers: WRITERS,
        })
    }
}

fn field(file: &str, name: &str) -> Result<String> {
    let text = std::fs::read_to_string(file)?;
    let line = text.lines().find(|line| line.starts_with(name)).with_context(|| format!("{file} has no {name}"))?;
    Ok(line.split_once(':').map_or("", |(_, value)| value).trim().to_owned())
}

fn load_average() -> Result<f64> {
    let text = std::fs::read_to_string("/proc/loadavg")?;
    text.split(' ').next().and_then(|minute| minute.parse().ok()).context("/proc/loadavg is not as expected")
}

/// A source archive has no history.
fn commit() -> String {
    let mut git = Command::new("git");
    git.args(["describe", "--always", "--dirty"]).current_dir(workspace::root());
    let output = git.output().ok().filter(|output| output.status.success());
    output
        .map_or_else(|| "unknown commit".to_owned(), |output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
