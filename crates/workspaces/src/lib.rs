//! The workspaces layer: what is installed by Helm, and teams' environments made of it.

pub mod helm;
pub mod rights;
pub mod teams;

/// Field manager of everything this layer writes.
pub const MANAGER: &str = "strata-workspaces";
