//! The workspaces layer on a real API server.

#![allow(clippy::needless_pass_by_value, reason = "tests hand over JSON literals")]

mod teams;
