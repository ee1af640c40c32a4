//! How long to wait before the next attempt.

use std::time::Duration;

/// A shard that restarts is back within seconds.
const FIRST: Duration = Duration::from_secs(1);

/// A shard that is gone costs two attempts a minute.
const LONGEST: Duration = Duration::from_secs(30);

/// Doubles from 1 s to 30 s; each wait is spread over its upper half, so that clients that lost the same shard do not
/// return together.
#[derive(Clone, Debug)]
pub struct Backoff {
    attempts: u32,
    seed: u64,
}

impl Backoff {
    /// The spread follows from the seed: a client's own, so that clients differ and a test repeats.
    pub fn new(seed: u64) -> Self {
        Self { attempts: 0, seed }
    }

    /// After a success.
    pub fn reset(&mut self) {
        self.attempts = 0;
    }

    /// After a failure.
    pub fn wait(&mut self) -> Duration {
        let whole = FIRST.saturating_mul(1 << self.attempts.min(5)).min(LONGEST);
        self.attempts = self.attempts.saturating_add(1);
        self.seed = mix(self.seed);
        let permille = u32::try_from(self.seed % 501).unwrap_or(0);
        (whole * (1000 - permille) / 1000).max(FIRST)
    }
}

/// SplitMix64: neighbouring seeds give unrelated values.
fn mix(seed: u64) -> u64 {
    let mut x = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a43_waits_grow_from_one_to_thirty_seconds_and_differ() {
        let mut last = Vec::new();
        for seed in 0..200 {
            let mut backoff = Backoff::new(seed);
            let waits: Vec<_> = (0..12).map(|_| backoff.wait()).collect();
            for (attempt, wait) in waits.iter().enumerate() {
                let whole = Duration::from_secs(1 << attempt.min(5)).min(LONGEST);
                assert!(*wait >= (whole / 2).max(FIRST) && *wait <= whole, "{attempt}: {wait:?}");
            }
            last.push(waits[11]);
            backoff.reset();
            assert_eq!(backoff.wait(), FIRST);
        }
        last.sort();
        last.dedup();
        assert!(last.len() > 100, "waits are spread");
    }
}
