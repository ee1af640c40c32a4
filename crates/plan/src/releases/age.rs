//! How long what a release waits for has lasted, by no wall clock of ours.
//!
//! An age begins when this process first sees what it is about, and grows by the monotonic clock from there on. What came
//! before is treated by what an error would cost:
//!
//! - An attempt's end counts from the time in status, by the API server's clock. If that is wrong, an attempt comes one
//!   pause too early, once, or one pause late.
//! - A lock of another client counts from its first sight alone. API servers whose clocks differ, or one that is stepped,
//!   would otherwise end the patience early and destroy the work of a helm that is alive. After a restart the patience
//!   begins again.

use std::time::Duration;

use api::workspace::HelmReleaseStatus;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Known, Stored};
use crate::Clocks;

/// The ages of what is waited for, as one round saw them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ages {
    /// In that round.
    clocks: Clocks,
    /// Since the newest revision last changed, for one that is unfinished.
    lock: Option<Lasting<Record>>,
    /// Since the end of the last attempt.
    attempt: Option<Lasting<Timestamp>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Lasting<T> {
    of: T,
    age: Duration,
}

/// A storage Secret in one version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    uid: String,
    resource_version: String,
}

impl Ages {
    /// The ages now; `former` are those of the process's last round for the same release.
    pub fn of(status: Option<&HelmReleaseStatus>, storage: &Known<Vec<Stored>>, former: &Self, clocks: Clocks) -> Self {
        let passed = clocks.uptime.saturating_sub(former.clocks.uptime);
        let lock = match storage {
            Known::Yes(stored) => stored.last().filter(|newest| newest.status.is_unfinished()).map(|newest| {
                let of = Record { uid: newest.uid.clone(), resource_version: newest.resource_version.clone() };
                let known = former.lock.as_ref().filter(|known| known.of == of);
                Lasting { of, age: known.map_or(Duration::ZERO, |known| known.age.saturating_add(passed)) }
            }),
            // A look that is under way or failed says nothing against what was seen before.
            Known::No(_) => {
                former.lock.clone().map(|known| Lasting { age: known.age.saturating_add(passed), of: known.of })
            }
        };
        let attempt = status.and_then(|status| status.last_attempted_at).map(|of| {
            let known = former.attempt.as_ref().filter(|known| known.of == of);
            Lasting { of, age: known.map_or_else(|| clocks.since(Some(of)), |known| known.age.saturating_add(passed)) }
        });
        Self { clocks, lock, attempt }
    }

    /// What the next round begins with. An attempt that this round found ended has ended now, whatever time was written.
    #[must_use]
    pub fn after(&self, status: &HelmReleaseStatus) -> Self {
        let is_known = |ended: &Timestamp| self.attempt.as_ref().is_some_and(|known| known.of == *ended);
        let ended = status.last_attempted_at.filter(|ended| !is_known(ended));
        let attempt = ended.map(|of| Lasting { of, age: Duration::ZERO }).or_else(|| self.attempt.clone());
        Self { attempt, ..self.clone() }
    }

    /// The time to write down for other replicas, who compare it with the server's.
    pub(super) fn server_time(&self) -> Option<Timestamp> {
        self.clocks.server
    }

    pub(super) fn uptime(&self) -> Duration {
        self.clocks.uptime
    }

    /// How long the unfinished revision has not changed; what was never seen begins now.
    pub(super) fn of_lock(&self) -> Duration {
        self.lock.as_ref().map_or(Duration::ZERO, |known| known.age)
    }

    /// How long ago the last attempt ended, if there was one.
    pub(super) fn of_attempt(&self) -> Option<Duration> {
        self.attempt.as_ref().map(|known| known.age)
    }
}
