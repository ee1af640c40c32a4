//! How fast: retries of provider calls, and creations.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

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

/// A creation that counts in the limit per minute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Made {
    pub tenant: String,
    /// By a request for one instance, which the limit does not hold up.
    pub on_demand: bool,
    pub at: Timestamp,
}

/// What counts when tenants share a limit.
#[derive(Clone, Copy, Debug)]
pub struct Demand<'a> {
    /// The last creations.
    pub made: &'a [Made],
    /// Groups, by tenant and key, that want more than they were given, and since when they were given nothing.
    pub waiting: &'a BTreeMap<(String, String), Timestamp>,
}

/// How many instances a group may be given now: `limit` per minute for all of them. Tenants that want instances share it
/// evenly, and where it is too small for that, one that waits longer is first: however much one tenant asks for, another
/// gets its share.
pub fn create_budget(limit: Option<u32>, demand: Demand<'_>, (tenant, key): (&str, &str), now: Timestamp) -> usize {
    let Some(limit) = limit else { return MOST_AT_ONCE };
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let mut others: BTreeMap<&str, Timestamp> = BTreeMap::new();
    for ((other, _), since) in demand.waiting.iter().filter(|((other, _), _)| other != tenant) {
        others.entry(other).and_modify(|first| *first = (*first).min(*since)).or_insert(*since);
    }
    let since = demand.waiting.get(&(tenant.to_owned(), key.to_owned())).copied().unwrap_or(now);
    let ahead = others.values().filter(|other| **other < since).count();
    let mut sharing: BTreeSet<&str> = others.into_keys().chain([tenant]).collect();
    let mut used: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for made in demand.made.iter().filter(|made| counts(made.at, now)) {
        let (all, of_groups) = used.entry(&made.tenant).or_default();
        *all += 1;
        *of_groups += usize::from(!made.on_demand);
        sharing.extend(made.on_demand.then_some(&*made.tenant));
    }
    let share = limit.div_ceil(sharing.len());
    // What a tenant makes by requests takes from its own share alone: they are not held up, and would leave none to others.
    let taken: usize = used.values().map(|(all, of_groups)| (*of_groups).max((*all).min(share))).sum();
    let own = used.get(tenant).map_or(0, |(all, _)| *all);
    limit.saturating_sub(taken).saturating_sub(ahead).min(share.saturating_sub(own)).min(MOST_AT_ONCE)
}

/// When the next creation falls out of the limit: a group that it holds up looks again then.
pub fn room_at(made: &[Made], now: Timestamp) -> Option<Timestamp> {
    let first = made.iter().map(|made| made.at).filter(|at| counts(*at, now)).min()?;
    Some(first.saturating_add(SignedDuration::from_mins(1)).unwrap_or(Timestamp::MAX))
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

    fn made(tenant: &str, on_demand: bool, at: Timestamp, count: usize) -> Vec<Made> {
        vec![Made { tenant: tenant.to_owned(), on_demand, at }; count]
    }

    fn budget(limit: u32, made: &[Made], waiting: &[(&str, Timestamp)], tenant: &str, now: Timestamp) -> usize {
        let waiting = waiting.iter().map(|(tenant, since)| (((*tenant).to_owned(), "g".to_owned()), *since)).collect();
        create_budget(Some(limit), Demand { made, waiting: &waiting }, (tenant, "g"), now)
    }

    #[test]
    fn a_limit_counts_the_last_minute() {
        let now = Timestamp::UNIX_EPOCH + SignedDuration::from_hours(1);
        let ago = |seconds| now - SignedDuration::from_secs(seconds);
        let recent: Vec<Made> = [61, 60, 59, 1].into_iter().flat_map(|at| made("a", false, ago(at), 1)).collect();
        let none = BTreeMap::new();
        assert_eq!(create_budget(None, Demand { made: &recent, waiting: &none }, ("a", "g"), now), MOST_AT_ONCE);
        assert_eq!(budget(3, &recent, &[], "a", now), 1);
        assert_eq!(budget(1, &recent, &[], "b", now), 0);
        assert_eq!(budget(1000, &[], &[], "a", now), MOST_AT_ONCE);
        assert_eq!((room_at(&recent, now), room_at(&[], now)), (Some(now + SignedDuration::from_secs(1)), None));
    }

    #[test]
    fn tenants_share_a_limit_and_the_one_that_waits_longer_is_first() {
        let now = Timestamp::UNIX_EPOCH + SignedDuration::from_hours(1);
        let ago = |seconds| now - SignedDuration::from_secs(seconds);
        let waiting = [("a", ago(10)), ("b", ago(20))];
        assert_eq!(["a", "b"].map(|tenant| budget(10, &[], &waiting, tenant, now)), [5, 5]);
        assert_eq!(budget(10, &made("a", false, ago(5), 5), &waiting, "a", now), 0, "the rest is the other's");
        assert_eq!(budget(10, &made("a", false, ago(5), 10), &waiting, "b", now), 0, "the limit is one for all");
        assert_eq!(["a", "b"].map(|tenant| budget(1, &[], &waiting, tenant, now)), [0, 1]);
        assert_eq!(budget(1, &[], &waiting, "c", now), 0, "who comes later waits");
        // Requests for single instances are not held up, and take nothing from others.
        let flood = made("a", true, ago(5), 1000);
        assert_eq!(["a", "b"].map(|tenant| budget(10, &flood, &waiting, tenant, now)), [0, 5]);
        assert_eq!(budget(10, &flood, &[], "b", now), 5);
    }
}
