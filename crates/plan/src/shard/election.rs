//! Who leads: one lock object per shard and one per cluster, each written only over the content that was seen.
//!
//! No wall clock is compared. A candidate measures on its own monotonic clock how long the lock has not changed; a
//! leader stops on its own clock before any candidate can have waited long enough.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The lock's content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lock {
    /// One run of one server: a restarted server is another holder.
    pub holder: String,
    /// Counts leads. An effect carries the epoch it was decided in.
    pub epoch: u64,
    /// Counts renewals, so that each is another content.
    pub sequence: u64,
    /// Where the holder's election port is.
    pub address: String,
    /// The holder stopped and waits for nothing.
    pub released: bool,
}

/// How patient leaders and candidates are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timing {
    /// Between two renewals, and between two looks of a candidate.
    pub renew: Duration,
    /// A lock that did not change for so long has no holder any more.
    pub timeout: Duration,
}

impl Default for Timing {
    /// The original's: a fail-over takes 11 to 15 s.
    fn default() -> Self {
        Self { renew: Duration::from_secs(5), timeout: Duration::from_secs(15) }
    }
}

impl Timing {
    /// For how long a holder may act after it began a renewal that succeeded: two thirds of what a candidate waits,
    /// so that one renewal may fail and clocks may differ in speed.
    pub fn valid(&self) -> Duration {
        self.timeout * 2 / 3
    }
}

/// What to do about the lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Write this over what was seen; then lead in its epoch.
    Acquire(Lock),
    /// Write this over what was seen; the lead goes on.
    Renew(Lock),
    /// Look again after that time.
    Wait(Duration),
}

/// A candidate, and whether it leads by its own clock.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    pub holder: &'a str,
    pub address: &'a str,
    pub leads: bool,
}

/// Decides. `unchanged` is for how long this candidate has seen the same content.
pub fn step(me: Candidate<'_>, seen: Option<&Lock>, unchanged: Duration, timing: Timing) -> Step {
    let lock = |epoch, sequence| Lock {
        holder: me.holder.to_owned(),
        epoch,
        sequence,
        address: me.address.to_owned(),
        released: false,
    };
    match seen {
        None => Step::Acquire(lock(1, 0)),
        Some(seen) if seen.holder == me.holder && me.leads => Step::Renew(lock(seen.epoch, seen.sequence + 1)),
        // Its own lock after its lead lapsed: what it began in that epoch may be half done, so a new one.
        Some(seen) if seen.released || seen.holder == me.holder => Step::Acquire(lock(seen.epoch + 1, 0)),
        Some(seen) if unchanged >= timing.timeout => Step::Acquire(lock(seen.epoch + 1, 0)),
        Some(_) => Step::Wait(timing.timeout.saturating_sub(unchanged).min(timing.renew)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMING: Timing = Timing { renew: Duration::from_secs(5), timeout: Duration::from_secs(15) };

    fn check(leads: bool, seen: Option<(&str, bool)>, unchanged: u64, expected: &Step) {
        let me = Candidate { holder: "me", address: "a:1", leads };
        let seen = seen.map(|(holder, released)| Lock {
            holder: holder.to_owned(),
            epoch: 4,
            sequence: 9,
            address: "b:1".to_owned(),
            released,
        });
        assert_eq!(step(me, seen.as_ref(), Duration::from_secs(unchanged), TIMING), *expected);
    }

    fn mine(epoch: u64, sequence: u64) -> Lock {
        Lock { holder: "me".to_owned(), epoch, sequence, address: "a:1".to_owned(), released: false }
    }

    #[test]
    fn a_candidate_takes_what_is_free_and_waits_for_what_lives() {
        check(false, None, 0, &Step::Acquire(mine(1, 0)));
        check(false, Some(("other", true)), 0, &Step::Acquire(mine(5, 0)));
        check(false, Some(("other", false)), 0, &Step::Wait(Duration::from_secs(5)));
        check(false, Some(("other", false)), 12, &Step::Wait(Duration::from_secs(3)));
        check(false, Some(("other", false)), 15, &Step::Acquire(mine(5, 0)));
    }

    #[test]
    fn a_leader_renews_and_begins_anew_after_a_lapse() {
        check(true, Some(("me", false)), 0, &Step::Renew(mine(4, 10)));
        check(false, Some(("me", false)), 0, &Step::Acquire(mine(5, 0)));
        check(true, Some(("other", false)), 0, &Step::Wait(Duration::from_secs(5)));
    }

    #[test]
    fn a_leader_stops_before_any_candidate_may_start() {
        assert!(TIMING.valid() < TIMING.timeout);
        assert!(TIMING.valid() > TIMING.renew, "one renewal may fail");
    }
}
