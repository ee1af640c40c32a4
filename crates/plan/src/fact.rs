//! Facts that cost a call: how a plan asks for them, and in which state it gets them.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What kind of failure it is decides what happens next; the text is for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Class {
    /// The same call may succeed later: retried with growing delay.
    Transient,
    /// The view was old and has been read afresh, or this process may not act now: retried with growing delay.
    Conflict,
    /// Refused as it stands (quota, admission): retried with growing delay, since others can lift the refusal.
    Invalid,
    /// Wrong in itself: waits for a change of the object or the next resync.
    Terminal,
}

impl Class {
    pub const fn label(self) -> &'static str {
        match self {
            Self::Transient => "transient",
            Self::Conflict => "conflict",
            Self::Invalid => "invalid",
            Self::Terminal => "terminal",
        }
    }
}

/// Why a fact is not known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    pub class: Class,
    pub message: String,
}

/// A fact with its age by the monotonic clock. Unknown is never absent, and keeps what was last known.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Fact<T> {
    Known { value: T, age: Duration },
    Unknown { why: Failure, last: Option<(T, Duration)> },
}

impl<T> Fact<T> {
    pub fn known(&self) -> Result<&T, &Failure> {
        match self {
            Self::Known { value, .. } => Ok(value),
            Self::Unknown { why, .. } => Err(why),
        }
    }
}

/// What is known, or was known last.
pub fn latest<T>(fact: &Fact<T>) -> Option<&T> {
    match fact {
        Fact::Known { value, .. } => Some(value),
        Fact::Unknown { last, .. } => last.as_ref().map(|(value, _)| value),
    }
}

/// A fact that a plan needs, and the age that suffices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Want<Q> {
    pub ask: Q,
    pub max_age: Duration,
}

/// The facts that a plan is made on: those of its former wants that are young enough. A list, because asks are few and
/// must survive being written to a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Facts<Q, F>(Vec<(Q, Fact<F>)>);

impl<Q, F> Default for Facts<Q, F> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<Q: PartialEq, F> Facts<Q, F> {
    pub fn get(&self, ask: &Q) -> Option<&Fact<F>> {
        self.0.iter().find(|(known, _)| known == ask).map(|(_, fact)| fact)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Fact<F>> {
        self.0.iter().map(|(_, fact)| fact)
    }

    /// Replaces an earlier fact of the same ask.
    pub fn insert(&mut self, ask: Q, fact: Fact<F>) {
        self.0.retain(|(known, _)| *known != ask);
        self.0.push((ask, fact));
    }
}

/// For controllers that ask for nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Never {}
