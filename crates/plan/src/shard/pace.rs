//! How fast: retries of provider calls, and creations.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

/// A provider that refused once is asked again soon, one that keeps refusing twice in five minutes.
const FIRST_RETRY: Duration = Duration::from_secs(5);
const LAST_RETRY: Duration = Duration::from_mins(2);

/// No round makes more: others take turns, and a wrong size is noticed early.
const MOST_AT_ONCE: usize = 50;

/// When to call the provider again after `failures` in a row (at least one). Spread by up to a quarter, derived from
/// `seed`, so that calls that failed together do not return together.
pub fn retry_at(failures: u32, seed: u64, now: Timestamp) -> Timestamp {
    let whole = FIRST_RETRY.saturating_mul(1 << failures.saturating_sub(1).min(5)).min(LAST_RETRY);
    let permille = u32::try_from(seed % 251).unwrap_or(0);
    now.saturating_add(whole * (1000 + permille) / 1000).unwrap_or(Timestamp::MAX)
}

/// How many instances may be made now: `limit` per minute, of which `recent` are the last ones.
pub fn create_budget(limit: Option<u32>, recent: &[Timestamp], now: Timestamp) -> usize {
    let Some(limit) = limit else { return MOST_AT_ONCE };
    let since = now.saturating_sub(SignedDuration::from_mins(1)).unwrap_or(Timestamp::MIN);
    let used = recent.iter().filter(|at| **at > since).count();
    usize::try_from(limit).unwrap_or(usize::MAX).saturating_sub(used).min(MOST_AT_ONCE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_slow_down_to_two_minutes_and_are_spread() {
        let now = Timestamp::UNIX_EPOCH;
        let wait = |failures, seed| retry_at(failures, seed, now).duration_since(now).as_millis();
        assert_eq!([1, 2, 3, 4, 5, 6, 60].map(|n| wait(n, 0)), [5, 10, 20, 40, 80, 120, 120].map(|s| s * 1000));
        assert_eq!((wait(1, 250), wait(6, 250)), (6250, 150_000));
    }

    #[test]
    fn a_limit_counts_the_last_minute() {
        let now = Timestamp::UNIX_EPOCH + SignedDuration::from_hours(1);
        let ago = |seconds| now - SignedDuration::from_secs(seconds);
        assert_eq!(create_budget(None, &[now; 99], now), MOST_AT_ONCE);
        assert_eq!(create_budget(Some(3), &[ago(61), ago(60), ago(59), ago(1)], now), 1);
        assert_eq!(create_budget(Some(1), &[ago(1), ago(2)], now), 0);
        assert_eq!(create_budget(Some(1000), &[], now), MOST_AT_ONCE);
    }
}
