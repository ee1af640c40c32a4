//! How fast: retries of provider calls, and creations.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

/// A provider that refused once is asked again soon, one that keeps refusing twice in five minutes.
const FIRST_RETRY: Duration = Duration::from_secs(5);
const LAST_RETRY: Duration = Duration::from_mins(2);

/// A provider that asks for more is asked again all the same: what it says may be wrong, and a group waits.
const LONGEST_RETRY: Duration = Duration::from_hours(1);

/// No round makes more: others take turns, and a wrong size is noticed early.
const MOST_AT_ONCE: usize = 50;

/// Seconds between looks at a machine whose agent hung up: soon, because it may have gone down, then for two and a half
/// minutes in which an agent that restarts comes back. Later the looks at all machines find it.
const FOLLOW_UPS: [u64; 8] = [3, 6, 12, 24, 30, 30, 30, 30];

/// When to look again at a machine whose agent hung up, after `looks` that found it running or learned nothing. `None`
/// when the looks at all machines suffice. Spread as retries are.
pub fn follow_up_at(looks: usize, seed: u64, now: Timestamp) -> Option<Timestamp> {
    let wait = Duration::from_secs(*FOLLOW_UPS.get(looks)?);
    Some(spread(wait, seed, now))
}

/// When to call the provider again after `failures` in a row (at least one), and not before `retry_after` where it says
/// so itself. Spread by up to a quarter, derived from `seed`, so that calls that failed together do not return together.
pub fn retry_at(failures: u32, retry_after: Option<Duration>, seed: u64, now: Timestamp) -> Timestamp {
    let whole = FIRST_RETRY.saturating_mul(1 << failures.saturating_sub(1).min(5)).min(LAST_RETRY);
    spread(retry_after.map_or(whole, |asked| whole.max(asked.min(LONGEST_RETRY))), seed, now)
}

fn spread(wait: Duration, seed: u64, now: Timestamp) -> Timestamp {
    let permille = u32::try_from(seed % 251).unwrap_or(0);
    now.saturating_add(wait * (1000 + permille) / 1000).unwrap_or(Timestamp::MAX)
}

/// Whether an instance that was made then counts in the limit per minute.
pub fn counts(made: Timestamp, now: Timestamp) -> bool {
    made > now.saturating_sub(SignedDuration::from_mins(1)).unwrap_or(Timestamp::MIN)
}

/// How many instances may be made now: `limit` per minute, of which `recent` are the last ones.
pub fn create_budget(limit: Option<u32>, recent: &[Timestamp], now: Timestamp) -> usize {
    let Some(limit) = limit else { return MOST_AT_ONCE };
    let used = recent.iter().filter(|at| counts(**at, now)).count();
    usize::try_from(limit).unwrap_or(usize::MAX).saturating_sub(used).min(MOST_AT_ONCE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_slow_down_to_two_minutes_and_are_spread() {
        let now = Timestamp::UNIX_EPOCH;
        let wait = |failures, seed| retry_at(failures, None, seed, now).duration_since(now).as_millis();
        assert_eq!([1, 2, 3, 4, 5, 6, 60].map(|n| wait(n, 0)), [5, 10, 20, 40, 80, 120, 120].map(|s| s * 1000));
        assert_eq!((wait(1, 250), wait(6, 250)), (6250, 150_000));
        let asked = |seconds| retry_at(1, Some(Duration::from_secs(seconds)), 0, now).duration_since(now).as_secs();
        assert_eq!([1, 300, 1 << 40].map(asked), [5, 300, 3600], "not before the provider wants to be asked");
    }

    #[test]
    fn a_machine_whose_agent_hung_up_is_looked_at_eight_times() {
        let now = Timestamp::UNIX_EPOCH;
        let wait = |looks, seed| Some(follow_up_at(looks, seed, now)?.duration_since(now).as_millis());
        let seconds: Vec<_> = (0..9).map(|looks| wait(looks, 0)).collect();
        let expected = [3, 6, 12, 24, 30, 30, 30, 30].map(|seconds: i128| Some(seconds * 1000));
        assert_eq!(seconds, [&expected[..], &[None]].concat());
        assert_eq!(wait(0, 250), Some(3750));
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
