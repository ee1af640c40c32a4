//! Events that wait to be written: bounded, and namespaces take turns; another cluster takes its turns as one of them.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use tokio::time::Instant;

use super::Occurrence;
use crate::cluster::Cluster;

/// Enough for a burst of every object of a large cluster; beyond it events are dropped and counted, because a slow
/// API server must not make the operator's memory grow.
const MOST: usize = 8192;
/// Of these for one namespace: eight namespaces that flood at once leave every other its place.
const MOST_OF_NAMESPACE: usize = 1024;
/// What could not be written for this long is of no use to a user who looks for what happens now.
const LONGEST_WAIT: Duration = Duration::from_mins(5);

/// An event and when it occurred.
#[derive(Debug)]
pub(super) struct Item {
    pub occurrence: Occurrence,
    /// `None` for the cluster that the operator runs for.
    pub cluster: Option<Cluster>,
    /// For users.
    pub at: Timestamp,
    /// By the monotonic clock.
    pub since: Instant,
    pub attempts: u8,
}

impl Item {
    /// Whose turn it takes. Another cluster may be silent as a whole, so all of its namespaces have one turn; no namespace
    /// has such a name.
    fn namespace(&self) -> Arc<str> {
        match &self.cluster {
            Some(cluster) => format!("/{}", cluster.name()).into(),
            None => self.occurrence.regarding.namespace.as_deref().unwrap_or_default().into(),
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Waiting {
    /// In their order; no namespace without any.
    namespaces: HashMap<Arc<str>, VecDeque<Item>>,
    /// Namespaces with a waiting event and no write under way, the next first.
    turns: VecDeque<Arc<str>>,
    /// Namespaces with a write under way.
    writing: HashSet<Arc<str>>,
    count: usize,
    /// How many were dropped, until the publisher counts them.
    pub dropped: u64,
    /// No recorder is left.
    pub is_closed: bool,
}

impl Waiting {
    /// Adds an event. Where there is no room, the oldest goes that is no warning, if there is one: of its own namespace if
    /// that has its full share, else of the namespace with the most. No warning goes for other news of its own namespace.
    pub fn push(&mut self, item: Item) {
        let namespace = item.namespace();
        let has_full_share = self.namespaces.get(&namespace).is_some_and(|items| items.len() >= MOST_OF_NAMESPACE);
        let full = if has_full_share { Some(namespace.clone()) } else { self.fullest() };
        if let Some(full) = full {
            self.dropped += 1;
            if !self.make_room(&full, item.occurrence.is_warning || full != namespace) {
                return;
            }
        }
        let items = self.namespaces.entry(namespace.clone()).or_default();
        if items.is_empty() && !self.writing.contains(&namespace) {
            self.turns.push_back(namespace);
        }
        items.push_back(item);
        self.count += 1;
    }

    /// Adds one whose write got no answer, unless others would have to go for it.
    pub fn push_again(&mut self, item: Item) {
        let held = self.namespaces.get(&item.namespace()).map_or(0, VecDeque::len);
        if held < MOST_OF_NAMESPACE && self.count < MOST {
            self.push(item);
        } else {
            self.dropped += 1;
        }
    }

    /// The event whose turn it is; its namespace has no other turn until [`Waiting::written`].
    pub fn take(&mut self, now: Instant) -> Option<(Arc<str>, Item)> {
        loop {
            let namespace = self.turns.pop_front()?;
            while let Some(item) = self.pop(&namespace) {
                if now.saturating_duration_since(item.since) <= LONGEST_WAIT {
                    self.writing.insert(namespace.clone());
                    return Some((namespace, item));
                }
                self.dropped += 1;
            }
        }
    }

    /// The write of a namespace's event has ended.
    pub fn written(&mut self, namespace: Arc<str>) {
        self.writing.remove(&namespace);
        if self.namespaces.contains_key(&namespace) {
            self.turns.push_back(namespace);
        }
    }

    /// Since when the oldest of those that have a turn waits.
    pub fn oldest(&self) -> Option<Instant> {
        self.turns.iter().filter_map(|namespace| Some(self.namespaces.get(namespace)?.front()?.since)).min()
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Drops all.
    pub fn clear(&mut self) {
        self.dropped += u64::try_from(self.count).unwrap_or(u64::MAX);
        self.namespaces.clear();
        self.turns.clear();
        self.count = 0;
    }

    /// The namespace with the most, if there is no room at all.
    fn fullest(&self) -> Option<Arc<str>> {
        let is_full = self.count >= MOST;
        let fullest = is_full.then(|| self.namespaces.iter().max_by_key(|(_, items)| items.len())).flatten();
        fullest.map(|(namespace, _)| namespace.clone())
    }

    /// Drops an event of a namespace; `false` if all are warnings and none `may_be_warning`.
    fn make_room(&mut self, namespace: &Arc<str>, may_be_warning: bool) -> bool {
        let Some(items) = self.namespaces.get_mut(namespace) else { return false };
        let oldest = items.iter().position(|item| !item.occurrence.is_warning);
        let Some(oldest) = oldest.or(may_be_warning.then_some(0)) else { return false };
        items.remove(oldest);
        self.count -= 1;
        if items.is_empty() {
            self.namespaces.remove(namespace);
            self.turns.retain(|other| other != namespace);
        }
        true
    }

    fn pop(&mut self, namespace: &Arc<str>) -> Option<Item> {
        let items = self.namespaces.get_mut(namespace)?;
        let item = items.pop_front();
        self.count -= usize::from(item.is_some());
        if items.is_empty() {
            self.namespaces.remove(namespace);
        }
        item
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::tests::occurrence_in;

    fn item(namespace: &str, note: usize, since: Instant) -> Item {
        let occurrence = occurrence_in(namespace, &note.to_string());
        Item { occurrence, cluster: None, at: Timestamp::UNIX_EPOCH, since, attempts: 0 }
    }

    fn taken(waiting: &mut Waiting, now: Instant) -> Option<String> {
        let (namespace, item) = waiting.take(now)?;
        let taken = format!("{namespace} {}", item.occurrence.note);
        waiting.written(namespace);
        Some(taken)
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_costs_its_own_namespace_its_oldest_and_others_one_turn() {
        let (mut waiting, now) = (Waiting::default(), Instant::now());
        (0..3000).for_each(|number| waiting.push(item("flood", number, now)));
        (0..2).for_each(|number| waiting.push(item("calm", number, now)));
        assert_eq!(waiting.dropped, 3000 - 1024);
        let order: Vec<_> = (0..5).filter_map(|_| taken(&mut waiting, now)).collect();
        assert_eq!(order, ["flood 1976", "calm 0", "flood 1977", "calm 1", "flood 1978"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_of_good_news_costs_no_warning() {
        let (mut waiting, now) = (Waiting::default(), Instant::now());
        let mut warning = item("flood", 0, now);
        warning.occurrence.is_warning = true;
        waiting.push(warning);
        (1..3000).for_each(|number| waiting.push(item("flood", number, now)));
        let order: Vec<_> = (0..2).filter_map(|_| taken(&mut waiting, now)).collect();
        assert_eq!((order, waiting.dropped), (vec!["flood 0".to_owned(), "flood 1977".to_owned()], 3000 - 1024));
    }

    #[tokio::test(start_paused = true)]
    async fn good_news_costs_no_warning_of_its_namespace_and_warnings_keep_no_room_from_others() {
        let (mut waiting, now) = (Waiting::default(), Instant::now());
        let warning = |namespace: &str, number: usize| {
            let mut item = item(namespace, number, now);
            item.occurrence.is_warning = true;
            item
        };
        for namespace in 0..8 {
            (0..1024).for_each(|number| waiting.push(warning(&format!("flood-{namespace}"), number)));
        }
        waiting.push(item("flood-0", 1024, now));
        assert_eq!(taken(&mut waiting, now).as_deref(), Some("flood-0 0"), "the oldest warning is there");
        waiting.push(warning("flood-0", 1025));
        waiting.push(item("calm", 0, now));
        let calm = (0..9).filter_map(|_| taken(&mut waiting, now)).find(|taken| taken == "calm 0");
        assert_eq!((calm.is_some(), waiting.dropped), (true, 2));
    }

    #[tokio::test(start_paused = true)]
    async fn many_floods_leave_room_for_another_namespace() {
        let (mut waiting, now) = (Waiting::default(), Instant::now());
        for namespace in 0..20 {
            (0..1000).for_each(|number| waiting.push(item(&format!("flood-{namespace}"), number, now)));
        }
        assert_eq!((waiting.count, waiting.dropped), (MOST, 20 * 1000 - 8192));
        waiting.push(item("calm", 0, now));
        let calm = (0..21).filter_map(|_| taken(&mut waiting, now)).find(|taken| taken == "calm 0");
        assert_eq!((calm.is_some(), waiting.dropped), (true, 20 * 1000 - 8191));
    }

    #[tokio::test(start_paused = true)]
    async fn a_namespace_has_one_write_under_way_and_what_is_too_old_is_dropped() {
        let (mut waiting, now) = (Waiting::default(), Instant::now());
        (0..2).for_each(|number| waiting.push(item("a", number, now)));
        waiting.push(item("b", 0, now));
        let (first, _) = waiting.take(now).unwrap();
        assert_eq!((&*first, &*waiting.take(now).unwrap().0), ("a", "b"));
        assert!(waiting.take(now).is_none() && waiting.oldest().is_none());
        waiting.written(first);
        assert_eq!(waiting.oldest(), Some(now));
        assert!(waiting.take(now + LONGEST_WAIT + Duration::from_secs(1)).is_none());
        assert_eq!((waiting.dropped, waiting.is_empty()), (1, true));
    }
}
