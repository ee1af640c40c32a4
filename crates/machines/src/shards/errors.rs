//! What shards report as failed, until it is recorded as events.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Of one group between two rounds. A provider that refuses every creation says so again and again.
const MOST: usize = 8;

/// Groups that no pool has are never recorded.
const MOST_GROUPS: usize = 1000;

/// In the shards' words, by shard and group.
#[derive(Debug, Default)]
pub(super) struct Errors(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    last: u64,
    groups: BTreeMap<(String, String), VecDeque<String>>,
}

impl Errors {
    /// Adds one and returns its number. The same words again are one until they are recorded.
    pub fn add(&self, shard: &str, group: &str, message: String) -> u64 {
        let mut inner = self.lock();
        inner.last += 1;
        let number = inner.last;
        if inner.groups.len() >= MOST_GROUPS {
            inner.groups.pop_first();
        }
        let known = inner.groups.entry((shard.to_owned(), group.to_owned())).or_default();
        known.retain(|reported| *reported != message);
        known.push_back(message);
        if known.len() > MOST {
            known.pop_front();
        }
        number
    }

    pub fn of(&self, shard: &str, group: &str) -> Vec<String> {
        let inner = self.lock();
        inner.groups.get(&(shard.to_owned(), group.to_owned())).into_iter().flatten().cloned().collect()
    }

    pub fn forget(&self, shard: &str, group: &str, recorded: &[String]) {
        let mut inner = self.lock();
        let key = (shard.to_owned(), group.to_owned());
        if let Some(known) = inner.groups.get_mut(&key) {
            known.retain(|message| !recorded.contains(message));
            if known.is_empty() {
                inner.groups.remove(&key);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_recorded_is_forgotten_and_what_came_since_is_not() {
        let errors = Errors::default();
        let first = errors.add("a", "web", "no quota".to_owned());
        let again = errors.add("a", "web", "no quota".to_owned());
        assert!(first < again);
        let recorded = errors.of("a", "web");
        assert_eq!(recorded, ["no quota"]);
        errors.add("a", "web", "no subnet".to_owned());
        errors.forget("a", "web", &recorded);
        assert_eq!(errors.of("a", "web"), ["no subnet"]);
        assert!(errors.of("b", "web").is_empty());
        errors.forget("a", "web", &["no subnet".to_owned()]);
        assert!(errors.lock().groups.is_empty());
        for number in 0..20 {
            errors.add("a", "web", number.to_string());
        }
        assert_eq!(errors.of("a", "web").len(), MOST);
    }
}
