//! The workspaces layer: what is installed by Helm.

pub mod helm;
