//! The clocks that waits are measured by. No wall clock of ours is among them: one that is behind would stretch every
//! wait, one that is stepped forward would end all of them at once.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// What the clocks show in a round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clocks {
    /// What the API server's clock shows, if it is known.
    pub server: Option<Timestamp>,
    /// How long this process has run, by its monotonic clock.
    pub uptime: Duration,
}

impl Clocks {
    /// The age by the server's clock: none where the time is not known or lies ahead.
    pub fn since(self, time: Option<Timestamp>) -> Duration {
        let age = self.server.zip(time).map(|(now, since)| now.duration_since(since));
        age.and_then(|age| Duration::try_from(age).ok()).unwrap_or_default()
    }
}
