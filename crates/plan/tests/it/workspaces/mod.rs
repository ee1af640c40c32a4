//! Workspaces and Users: spec in, objects, actions and status out.

mod config;
mod network;
mod team;
mod user;
mod world;
