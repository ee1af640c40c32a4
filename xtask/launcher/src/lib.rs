//! The first program of a fresh clone: small enough to be there within seconds, so that the long builds after it start
//! with what is already compiled, and beside each other.

pub mod dependencies;
pub mod programs;

use std::path::PathBuf;

/// Where everything is kept that outlives a clone: `${XDG_CACHE_HOME:-~/.cache}/strata`.
pub fn cache() -> PathBuf {
    let named = |variable| std::env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from);
    let home = || named("HOME").unwrap_or_else(std::env::temp_dir).join(".cache");
    named("XDG_CACHE_HOME").unwrap_or_else(home).join("strata")
}
