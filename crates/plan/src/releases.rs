//! HelmReleases: which helm operation is next, and what to say of the release.
//!
//! The state of a release is derived each time from Helm's own storage and from digests that status remembers; one
//! operation at a time is started, and its end is an observation like any other.

mod action;
mod age;
mod ask;
mod conditions;
mod decide;
mod dependency;
mod desired;
mod event;
mod memory;
mod observed;
mod replicas;
mod report;
mod revisions;
mod state;
mod unreadable;
mod values;

pub use action::{Action, Former, Operation};
pub use age::Ages;
pub use ask::{Answer, Ask, Note, ObjectRef, Resolved, plan};
pub use decide::decide;
pub use dependency::cycle;
pub use desired::{
    Attempt, Desired, LEAST_MEMORY, Policy, config_digest, may_claim, reference_digest, removable, validate,
};
pub use memory::Memory;
pub use observed::{
    Chart, Dependency, Difference, Drift, Ended, Failure, FailureClass, Identity, Job, Known, MOST_REVISIONS, Observed,
    Replicas, Stored, StoredStatus, Surroundings, Values, is_ready, last_good, too_many_revisions,
};
pub use report::{Round, RoundOf, report, status};
pub use revisions::has_ended;
pub use state::{OutOfSync, State, state};
pub use values::{check_numbers, too_many_values, values};
