//! How a pool's replicas are distributed over its shards.
//!
//! A pool is never rebalanced by itself: instances would be deleted for the sake of order. An increase fills the
//! smallest shares, a decrease takes from the shards of marked members, then what was asked for and never came, and then
//! from the largest shares. Where nothing exists yet, the shards in the order of their names get equal shares, the first
//! ones one more.
//!
//! A shard that is silent keeps its share: what it should get or give waits for it, and is not moved to others.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// One shard of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// What the shard is asked for now; `None` where it neither has the group nor was ever asked for it.
    pub current: Option<i32>,
    /// Members that are to go before others.
    pub marked: i32,
    /// Instances that it is asked for and that are not there: to give them up costs none.
    pub unmade: i32,
    /// Whether the shard answers.
    pub is_silent: bool,
}

/// What each shard is to have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Distribution {
    pub sizes: BTreeMap<String, i32>,
    /// Shards that keep their share because they are silent.
    pub waits: Vec<Wait>,
}

/// A change that waits for a silent shard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wait {
    pub shard: String,
    pub from: i32,
    pub to: i32,
}

/// The shares of `total` replicas. A total below zero counts as none.
pub fn distribute(total: i32, shards: &BTreeMap<String, Share>) -> Distribution {
    let total = i64::from(total.max(0));
    let current = |share: &Share| i64::from(share.current.unwrap_or_default().max(0));
    let mut sizes: BTreeMap<&str, i64> = shards.iter().map(|(name, share)| (name.as_str(), current(share))).collect();
    let sum: i64 = sizes.values().sum();
    if sum < total {
        fill(&mut sizes, total);
    } else {
        let left = take_marked(&mut sizes, shards, sum - total);
        let left = take_unmade(&mut sizes, shards, left);
        let is_silent = |name: &&str| shards.get(*name).is_some_and(|share| share.is_silent);
        let (mut silent, mut answering): (BTreeMap<_, _>, BTreeMap<_, _>) =
            sizes.into_iter().partition(|(name, _)| is_silent(name));
        let left = take(&mut answering, left);
        take(&mut silent, left);
        sizes = answering.into_iter().chain(silent).collect();
    }
    decided(&sizes, shards)
}

/// Raises the smallest to one level until all sum up to `total`; the first by name get what is left over.
fn fill(sizes: &mut BTreeMap<&str, i64>, total: i64) {
    if sizes.is_empty() {
        return;
    }
    let level = highest(total, |level| sizes.values().map(|size| *size.max(&level)).sum::<i64>() <= total);
    let mut left = total - sizes.values().map(|size| *size.max(&level)).sum::<i64>();
    for size in sizes.values_mut().filter(|size| **size <= level) {
        let more = i64::from(left > 0);
        left -= more;
        *size = level + more;
    }
}

/// Lowers the largest to one level until `count` is taken; the last by name give what is missing then. What could not be
/// taken is left.
fn take(sizes: &mut BTreeMap<&str, i64>, count: i64) -> i64 {
    let sum: i64 = sizes.values().sum();
    let total = (sum - count).max(0);
    let Some(largest) = sizes.values().max().copied() else { return count };
    if count == 0 {
        return 0;
    }
    // The lowest level that leaves enough: one below it, too much would be gone.
    let below = highest(largest, |level| sizes.values().map(|size| *size.min(&level)).sum::<i64>() < total);
    let level = if total == 0 { 0 } else { below + 1 };
    let mut over = sizes.values().map(|size| *size.min(&level)).sum::<i64>() - total;
    for size in sizes.values_mut().rev().filter(|size| **size >= level) {
        let less = i64::from(over > 0);
        over -= less;
        *size = level - less;
    }
    count - (sum - total)
}

/// The highest level up to `most` at which `holds`, which holds at none above the first at which it does not; 0 if none.
fn highest(most: i64, holds: impl Fn(i64) -> bool) -> i64 {
    let (mut low, mut high) = (0, most + 1);
    while low + 1 < high {
        let middle = i64::midpoint(low, high);
        if holds(middle) { low = middle } else { high = middle }
    }
    low
}

/// Takes up to `count` from shards with marked members, of several from the largest; what is left to take.
fn take_marked<'a>(sizes: &mut BTreeMap<&'a str, i64>, shards: &'a BTreeMap<String, Share>, count: i64) -> i64 {
    let mut marked: BTreeMap<&str, i32> = shards
        .iter()
        .filter(|(_, share)| share.marked > 0)
        .map(|(name, share)| (name.as_str(), share.marked))
        .collect();
    for left in (1..=count).rev() {
        let open = marked.iter().filter(|(_, marks)| **marks > 0).map(|(name, _)| *name);
        let largest = open.filter(|name| sizes[name] > 0).max_by_key(|name| sizes[name]);
        let Some(name) = largest else { return left };
        sizes.entry(name).and_modify(|size| *size -= 1);
        marked.entry(name).and_modify(|marks| *marks -= 1);
    }
    0
}

/// Takes up to `count` of what is not there, of several shards from those that lack most; what is left to take.
fn take_unmade<'a>(sizes: &mut BTreeMap<&'a str, i64>, shards: &'a BTreeMap<String, Share>, count: i64) -> i64 {
    let lacking = |(name, size): (&&'a str, &i64)| {
        // What a silent one lacks by now is not known.
        let share = shards.get(*name).filter(|share| !share.is_silent);
        (*name, (*size).min(i64::from(share.map_or(0, |share| share.unmade.max(0)))))
    };
    let before: BTreeMap<&str, i64> = sizes.iter().map(lacking).collect();
    let mut after = before.clone();
    let left = take(&mut after, count);
    for (name, size) in sizes.iter_mut() {
        *size -= before[name] - after[name];
    }
    left
}

fn decided(sizes: &BTreeMap<&str, i64>, shards: &BTreeMap<String, Share>) -> Distribution {
    let mut distribution = Distribution::default();
    for (name, share) in shards {
        let target = sizes.get(name.as_str()).copied().unwrap_or_default();
        let target = i32::try_from(target).unwrap_or(i32::MAX);
        // A shard that was never asked for the group has nothing to keep.
        let kept = share.current.filter(|current| share.is_silent && *current != target);
        distribution.waits.extend(kept.map(|from| Wait { shard: name.clone(), from, to: target }));
        distribution.sizes.insert(name.clone(), kept.unwrap_or(target));
    }
    distribution
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn share(current: i32) -> Share {
        Share { current: Some(current), ..Share::default() }
    }

    fn shards<const N: usize>(shares: [Share; N]) -> BTreeMap<String, Share> {
        ["a", "b", "c", "d"].iter().map(|name| (*name).to_owned()).zip(shares).collect()
    }

    fn sizes(total: i32, shards: &BTreeMap<String, Share>) -> Vec<i32> {
        distribute(total, shards).sizes.into_values().collect()
    }

    #[test]
    fn a22_where_nothing_exists_shares_are_equal_and_the_first_get_one_more() {
        let fresh = shards([Share::default(), Share::default(), Share::default()]);
        for (total, expected) in [(10, [4, 3, 3]), (1, [1, 0, 0]), (0, [0, 0, 0]), (-1, [0, 0, 0]), (9, [3, 3, 3])] {
            assert_eq!(sizes(total, &fresh), expected, "{total}");
        }
        assert_eq!(sizes(i32::MAX, &shards([Share::default()])), [i32::MAX]);
        assert_eq!(distribute(3, &BTreeMap::new()), Distribution::default());
    }

    #[test]
    fn an_uneven_pool_is_left_as_it_is() {
        assert_eq!(sizes(5, &shards([share(1), share(4)])), [1, 4]);
    }

    #[test]
    fn an_increase_fills_the_smallest_and_a_decrease_takes_from_the_largest() {
        for (total, before, after) in [
            (6, [1, 4, 0], [1, 4, 1]),
            (8, [1, 4, 0], [2, 4, 2]),
            (9, [1, 4, 0], [3, 4, 2]),
            (14, [1, 4, 0], [5, 5, 4]),
            (4, [1, 4, 0], [1, 3, 0]),
            (1, [1, 4, 0], [1, 0, 0]),
            (0, [1, 4, 0], [0, 0, 0]),
            (10, [4, 4, 3], [4, 3, 3]),
            (11, [4, 3, 3], [4, 4, 3]),
        ] {
            assert_eq!(sizes(total, &shards(before.map(share))), after, "{total} from {before:?}");
        }
    }

    #[test]
    fn a_shard_that_is_new_to_the_pool_is_the_smallest() {
        assert_eq!(sizes(7, &shards([share(3), share(3), Share::default()])), [3, 3, 1]);
    }

    #[test]
    fn a95_a_decrease_takes_from_the_shards_of_marked_members_first() {
        let marked = |current, marked| Share { marked, ..share(current) };
        assert_eq!(sizes(5, &shards([marked(1, 1), share(5)])), [0, 5]);
        assert_eq!(sizes(4, &shards([marked(1, 1), share(5)])), [0, 4], "then from the largest");
        assert_eq!(sizes(6, &shards([marked(1, 1), share(5)])), [1, 5], "a mark alone removes nothing");
        assert_eq!(sizes(7, &shards([marked(2, 2), marked(3, 2), share(4)])), [2, 1, 4], "of the marked, the largest");
        assert_eq!(sizes(0, &shards([marked(1, 9), share(1)])), [0, 0], "no more than there are");
    }

    #[test]
    fn a96_a_decrease_gives_up_what_never_came_before_any_that_is_there() {
        let lacking = |current, unmade| Share { unmade, ..share(current) };
        assert_eq!(sizes(2, &shards([share(2), lacking(1, 1)])), [2, 0], "not from the largest");
        assert_eq!(sizes(1, &shards([share(2), lacking(1, 1)])), [1, 0], "then from the largest");
        assert_eq!(sizes(6, &shards([lacking(4, 1), lacking(5, 3)])), [4, 2], "from the one that lacks most");
        assert_eq!(sizes(3, &shards([lacking(4, 0), lacking(1, 9)])), [3, 0], "no more than it is asked for");
        let marked = Share { marked: 1, ..share(2) };
        assert_eq!(sizes(2, &shards([marked, lacking(1, 1)])), [1, 1], "the marked one goes first");
        let most = i32::MAX;
        assert_eq!(sizes(0, &shards([lacking(most, most), lacking(most, most)])), [0, 0]);
    }

    #[test]
    fn a41_a_silent_shard_keeps_its_share_and_what_waits_is_named() {
        let silent = |current| Share { is_silent: true, ..share(current) };
        let more = distribute(10, &shards([share(4), silent(3)]));
        assert_eq!(more.sizes.into_values().collect::<Vec<_>>(), [5, 3], "the other one gets no more than its own");
        assert_eq!(more.waits, [Wait { shard: "b".to_owned(), from: 3, to: 5 }]);

        let less = distribute(4, &shards([share(4), silent(3)]));
        assert_eq!((less.sizes["a"], less.sizes["b"]), (1, 3), "those that answer give");
        assert_eq!(less.waits, []);
        let least = distribute(1, &shards([share(4), silent(3)]));
        assert_eq!((least.sizes["a"], least.sizes["b"]), (0, 3));
        assert_eq!(least.waits, [Wait { shard: "b".to_owned(), from: 3, to: 1 }]);

        let marked = distribute(6, &shards([share(4), Share { marked: 1, ..silent(3) }]));
        assert_eq!((marked.sizes["a"], marked.sizes["b"]), (4, 3), "no other member goes instead of the marked one");
        assert_eq!(marked.waits, [Wait { shard: "b".to_owned(), from: 3, to: 2 }]);

        let fresh = distribute(2, &shards([Share { is_silent: true, ..Share::default() }, Share::default()]));
        assert_eq!((fresh.sizes["a"], fresh.sizes["b"]), (1, 1), "it has nothing to keep yet");
    }

    fn any_shards(silent: bool) -> impl Strategy<Value = BTreeMap<String, Share>> {
        let share = (0..50, 0..5, 0..5, any::<bool>()).prop_map(move |(size, marked, unmade, mute)| Share {
            current: Some(size),
            marked,
            unmade,
            is_silent: mute && silent,
        });
        proptest::collection::btree_map("[a-z]{1,3}", share, 1..8)
    }

    proptest! {
        #[test]
        fn shares_sum_up_and_nothing_is_moved(total in 0..400, shards in any_shards(false)) {
            let found = distribute(total, &shards);
            prop_assert_eq!(found.sizes.values().sum::<i32>(), total);
            let sum: i32 = shards.values().filter_map(|share| share.current).sum();
            for (name, size) in &found.sizes {
                let before = shards[name].current.unwrap_or_default();
                prop_assert!(if total >= sum { *size >= before } else { *size <= before }, "{} moved", name);
            }
            prop_assert_eq!(found.waits, []);
        }

        #[test]
        fn distributing_again_changes_nothing(total in 0..400, shards in any_shards(true)) {
            let first = distribute(total, &shards);
            let mut after = shards.clone();
            for (name, size) in &first.sizes {
                let share = after.get_mut(name).unwrap();
                // Who goes is marked no more, and what is given up is not missing any more.
                let given = (share.current.unwrap() - size).max(0);
                let marked = given.min(share.marked);
                share.marked -= marked;
                share.unmade -= (given - marked).min(share.unmade);
                share.current = Some(*size);
            }
            prop_assert_eq!(distribute(total, &after), first);
        }

        #[test]
        fn silent_shards_keep_their_share(total in 0..400, shards in any_shards(true)) {
            let found = distribute(total, &shards);
            for (name, share) in shards.iter().filter(|(_, share)| share.is_silent) {
                prop_assert_eq!(Some(found.sizes[name]), share.current);
            }
        }
    }
}
