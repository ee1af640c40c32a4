//! The evictions that this process sent, of all drains of a cluster: budgets are shared by its nodes.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    time::Duration,
};

use plan::drain::{Attempt, Budget, Eviction, Name, Outcome, Pod, Spends, retry_after};
use tokio::time::Instant;

/// The server writes a budget before it deletes the pod, so the budget's watch shows an eviction within moments. This
/// long it is waited for, should that event be lost in a new list.
const SHOWN_WITHIN: Duration = Duration::from_secs(2);

#[derive(Debug, Default)]
pub struct Ledger {
    entries: HashMap<String, Entry>,
}

#[derive(Debug)]
struct Entry {
    run: u64,
    pod: Name,
    spends: Option<Spends>,
    outcome: Outcome,
    /// When the outcome was known.
    at: Instant,
    /// Attempts that failed in a row.
    failures: u32,
    /// The budget's number is without this pod.
    is_shown: bool,
}

impl Ledger {
    /// Evictions that a drain sends now.
    pub fn sent(&mut self, run: u64, evictions: &[Eviction], now: Instant) {
        for Eviction { pod, uid, spends } in evictions {
            let failures = self.entries.get(uid).map_or(0, |entry| entry.failures);
            let entry = Entry {
                run,
                pod: pod.clone(),
                spends: spends.clone(),
                outcome: Outcome::Sent,
                at: now,
                failures,
                is_shown: false,
            };
            self.entries.insert(uid.clone(), entry);
        }
    }

    pub fn answered(&mut self, uid: &str, outcome: Outcome, now: Instant) {
        if let Some(entry) = self.entries.get_mut(uid) {
            let has_failed = matches!(outcome, Outcome::Failed { .. });
            entry.failures = if has_failed { entry.failures.saturating_add(1) } else { 0 };
            (entry.outcome, entry.at) = (outcome, now);
        }
    }

    /// A budget lists pods whose eviction its number shows.
    pub fn shown(&mut self, budget: &Name, pods: &BTreeSet<String>) {
        for entry in self.entries.values_mut() {
            let is_of = entry.spends.as_ref().is_some_and(|spends| spends.budget == *budget);
            if is_of && pods.contains(&entry.pod.name) {
                entry.is_shown = true;
            }
        }
    }

    /// What is known of evictions of these pods.
    pub fn attempts(&self, pods: &[Pod], now: Instant) -> BTreeMap<String, Attempt> {
        let entries = pods.iter().filter_map(|pod| Some((pod.uid.clone(), self.entries.get(&pod.uid)?.attempt(now))));
        entries.collect()
    }

    /// A drain has these pods and no others: what is kept of others is of use only while a budget does not show it.
    pub fn keep(&mut self, run: u64, pods: &[Pod], now: Instant) {
        let there: HashSet<&str> = pods.iter().map(|pod| pod.uid.as_str()).collect();
        self.entries.retain(|uid, entry| entry.run != run || entry.is_spent(now) || there.contains(uid.as_str()));
    }

    /// Adds to each budget what its number does not show yet.
    pub fn spend(&self, budgets: &mut [Budget], now: Instant) {
        for budget in budgets {
            let of_budget = |entry: &&Entry| entry.spends.as_ref().is_some_and(|spends| spends.budget == budget.name);
            let spent = self.entries.values().filter(of_budget).filter(|entry| entry.is_spent(now));
            budget.spent = u32::try_from(spent.count()).unwrap_or(u32::MAX);
        }
    }

    /// A drain ended; what it still had under way is found out by the next one.
    pub fn forget(&mut self, run: u64) {
        self.entries.retain(|_, entry| entry.run != run);
    }
}

impl Entry {
    fn attempt(&self, now: Instant) -> Attempt {
        let wait = retry_after(&self.outcome, self.failures.saturating_sub(1));
        let wait = wait.saturating_sub(now.saturating_duration_since(self.at));
        Attempt { outcome: self.outcome.clone(), wait, spends: self.spends.clone() }
    }

    /// Whether it may have lowered its budget's number without having been seen there.
    fn is_spent(&self, now: Instant) -> bool {
        let is_recent = now.saturating_duration_since(self.at) < SHOWN_WITHIN;
        let may_be = match self.outcome {
            Outcome::Sent => true,
            Outcome::Accepted | Outcome::Failed { .. } => is_recent,
            Outcome::Refused(_) => false,
        };
        self.spends.is_some() && !self.is_shown && may_be
    }
}

#[cfg(test)]
mod tests {
    use process::Clock;

    use super::*;

    const RUN: u64 = 1;

    fn eviction(name: &str) -> Eviction {
        let spends = Some(Spends { budget: Name::new("n", "budget"), version: 1 });
        Eviction { pod: Name::new("n", name), uid: name.to_owned(), spends }
    }

    fn pod(name: &str) -> Pod {
        Pod { name: Name::new("n", name), uid: name.to_owned(), ..Pod::default() }
    }

    fn spent(ledger: &Ledger, now: Instant) -> u32 {
        let name = Name::new("n", "budget");
        let mut budgets = [Budget {
            name,
            version: 1,
            selector: None,
            allowed: 9,
            spent: 0,
            healthy: 0,
            desired: 0,
            releases_unready: false,
            is_current: true,
        }];
        ledger.spend(&mut budgets, now);
        budgets[0].spent
    }

    #[tokio::test(start_paused = true)]
    async fn an_eviction_is_spent_until_its_budget_shows_it() {
        let (mut ledger, now) = (Ledger::default(), Clock::default().instant());
        ledger.sent(RUN, &["a", "b", "c", "d"].map(eviction), now);
        assert_eq!(spent(&ledger, now + Duration::from_hours(1)), 4, "a request ends by its own limit");
        ledger.answered("a", Outcome::Accepted, now);
        ledger.answered("b", Outcome::Refused(String::new()), now);
        ledger.answered("c", Outcome::Failed { message: String::new(), is_forbidden: false }, now);
        assert_eq!(spent(&ledger, now), 3, "what was refused spent nothing, what has no answer may have");
        ledger.shown(&Name::new("n", "budget"), &["a".to_owned()].into());
        ledger.shown(&Name::new("n", "another"), &["d".to_owned()].into());
        assert_eq!(spent(&ledger, now), 2);
        assert_eq!(spent(&ledger, now + SHOWN_WITHIN), 1);
        // A pod that is gone may still be missing in its budget.
        ledger.keep(RUN, &[], now);
        assert_eq!(spent(&ledger, now), 2);
        ledger.keep(RUN, &[], now + SHOWN_WITHIN);
        ledger.keep(2, &[], now);
        assert_eq!(spent(&ledger, now), 1);
        ledger.forget(RUN);
        assert_eq!(spent(&ledger, now), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn attempts_that_fail_in_a_row_wait_longer() {
        let (mut ledger, now) = (Ledger::default(), Clock::default().instant());
        let mut waits = Vec::new();
        for _ in 0..3 {
            ledger.sent(RUN, &[eviction("a")], now);
            ledger.answered("a", Outcome::Failed { message: String::new(), is_forbidden: false }, now);
            waits.push(ledger.attempts(&[pod("a")], now)["a"].wait.as_secs());
        }
        assert_eq!(waits, [1, 2, 4]);
        assert_eq!(ledger.attempts(&[pod("a")], now + Duration::from_secs(4))["a"].wait, Duration::ZERO);
        assert!(ledger.attempts(&[pod("b")], now).is_empty());
    }
}
