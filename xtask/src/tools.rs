//! The real programs that dev and tests run.

use std::path::PathBuf;

use anyhow::{Context, Result};
use testbed::tools;

/// Builds every program that is missing.
pub fn build_all() -> Result<()> {
    let names: Vec<&str> = tools::CATALOG.iter().map(|tool| tool.name).collect();
    block_on(tools::ensure(&names, &tools::Plain::default()))?;
    Ok(())
}

/// The path of one program, built first where it is missing.
pub fn path(name: &str) -> Result<PathBuf> {
    block_on(tools::path(name))
}

fn block_on<T>(work: impl Future<Output = Result<T, tools::Error>>) -> Result<T> {
    let runtime = tokio::runtime::Runtime::new().context("cannot start the async runtime")?;
    Ok(runtime.block_on(work)?)
}
