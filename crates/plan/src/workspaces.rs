//! Workspaces and Users: the objects derived from them, and what to say of them.
//!
//! ```text
//! team::derive(&Workspace, &Surroundings) → the objects that shall be there, or why the spec cannot be had
//! team::plan(&Workspace, &team::Observed) → Plan<Action>
//!   … the executor tries every action; one that is refused stops no other …
//! team::status(&Round, now)               → WorkspaceStatus, whole
//! ```
//!
//! `user` has the same functions for Users. A Workspace writes HelmReleases and Users but nothing of theirs, so that a
//! broken chart or user never keeps it from the rest.

mod derived;
mod ingress;
mod report;
pub mod team;
pub mod user;

pub use derived::{
    Action, Body, Derived, Found, ObjectId, ObjectKind, Objects, Outcome, Wish, fingerprint, is_lacking,
};
pub use report::{Round, events};
