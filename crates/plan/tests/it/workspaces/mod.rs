//! Workspaces and Users: spec in, objects, actions and status out.

mod config;
mod network;
mod user;
mod workspace;
mod world;
