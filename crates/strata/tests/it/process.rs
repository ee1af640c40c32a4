//! The operator as a process of its own.

use std::{
    path::PathBuf,
    sync::atomic::{AtomicU32, Ordering},
};

use anyhow::Result;
use testbed::{
    fault::FaultProxy,
    process::{Child, Program},
};

use crate::scene::Scene;

/// `strata operator` through a proxy, with its log beside those of the control plane.
pub fn operator(scene: &Scene, proxy: &FaultProxy, flags: &[&str]) -> Result<Child> {
    static STARTED: AtomicU32 = AtomicU32::new(0);
    let number = STARTED.fetch_add(1, Ordering::Relaxed);
    let log: PathBuf = scene.control_plane.directory().join(format!("operator-{number}.log"));
    let program = Program::new("strata operator", env!("CARGO_BIN_EXE_strata"), log)
        .args(["operator", "--metrics-bind-address=0", "--health-probe-bind-address=0", "--kubeconfig"])
        .args([proxy.kubeconfig_path()])
        .args(flags);
    Ok(Child::start(program)?)
}
