//! Workspaces and Users: the objects derived from them, and what to say of them.
//!
//! ```text
//! workspace::derive(&Workspace, &Surroundings)         → the objects that shall be there, or what is wrong with the spec
//! workspace::plan(&Workspace, &workspace::Observed, &Inputs) → Plan<Action>
//!   … runtime executes every step whose needs are done …
//! workspace::report(&Round, now)                       → WorkspaceStatus, whole, events, and what to remember
//! ```
//!
//! `user` has the same functions for Users. A Workspace writes HelmReleases and Users but nothing of theirs, so that a
//! broken chart or user never keeps it from the rest. The content of Secrets is none of all this: plans name it by
//! digests, see [`Content`].

mod derived;
mod ingress;
mod report;
mod secret;
pub mod user;
pub mod workspace;

pub use derived::{
    Accepted, Action, Body, Derived, Done, Found, ObjectId, ObjectKind, Objects, Wish, fingerprint, is_lacking,
};
pub use secret::{Content, Data, Digested, data_of_config, data_of_password, encoded};
