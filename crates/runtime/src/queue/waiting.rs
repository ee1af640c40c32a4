//! Keys that wait for a round: in which order they are taken, and when a namespace has enough rounds running.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::Arc,
};

use crate::key::Key;

/// Why a key is to run, the least urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Urgency {
    /// The periodic check for drift.
    Resync,
    /// One more attempt after several that failed.
    Retry,
    /// A change, a look that is due, or the first retries after one of them.
    Changed,
    /// A change whose status was put off for the others of its namespace, for as long as it may be.
    Overdue,
}

/// Keys of an urgency go first when this many others ran before them: a stream of changes in one namespace must not keep
/// another's failing objects from their next attempt.
const MOST_PASSES: u32 = 16;

/// Keys of one urgency; their namespaces take turns.
#[derive(Debug, Default)]
struct Turns {
    /// How many keys of other urgencies ran since some of these wait.
    passes: u32,
    order: VecDeque<Arc<str>>,
    waiting: HashMap<Arc<str>, VecDeque<Key>>,
}

impl Turns {
    fn push(&mut self, key: Key, is_first: bool) {
        let namespace = key.namespace.clone();
        let waiting = self.waiting.entry(namespace.clone()).or_default();
        if waiting.is_empty() {
            self.order.push_back(namespace);
        }
        if is_first {
            waiting.push_front(key);
        } else {
            waiting.push_back(key);
        }
    }

    /// The first key of the first namespace that `admits` lets run. A namespace that is passed over keeps its place.
    fn pop(&mut self, admits: impl Fn(&str) -> bool) -> Option<Key> {
        let index = self.order.iter().position(|namespace| admits(namespace))?;
        let namespace = self.order.remove(index)?;
        let waiting = self.waiting.get_mut(&namespace)?;
        let key = waiting.pop_front();
        if waiting.is_empty() {
            self.waiting.remove(&namespace);
        } else {
            self.order.push_back(namespace);
        }
        key
    }

    /// Lets a key go before the others of its namespace, whose own turn stays as it is.
    fn bring_first(&mut self, key: &Key) {
        if let Some(waiting) = self.waiting.get_mut(&key.namespace) {
            waiting.retain(|other| other != key);
            waiting.push_front(key.clone());
        }
    }

    /// Rare (a resync or retry that turns urgent, once for each new object), so a scan of one namespace is fine.
    fn remove(&mut self, key: &Key) {
        if let Some(waiting) = self.waiting.get_mut(&key.namespace) {
            waiting.retain(|other| other != key);
            if waiting.is_empty() {
                self.waiting.remove(&key.namespace);
                self.order.retain(|namespace| *namespace != key.namespace);
            }
        }
    }
}

/// All keys that wait.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    changed: Turns,
    retry: Turns,
    resync: Turns,
    len: usize,
}

impl Waiting {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn push(&mut self, key: Key, urgency: Urgency) {
        self.turns(urgency).push(key, urgency == Urgency::Overdue);
        self.len += 1;
    }

    /// Moves a key that waits already.
    pub(super) fn raise(&mut self, key: &Key, from: Urgency, to: Urgency) {
        if (from, to) == (Urgency::Changed, Urgency::Overdue) {
            return self.changed.bring_first(key);
        }
        self.turns(from).remove(key);
        self.turns(to).push(key.clone(), to == Urgency::Overdue);
    }

    /// The next key to run within `slots` and why, the most urgent first; before these what was passed over too often. Of
    /// the keys that keep failing only one goes before changes at a time: where their rounds hang, the next ones would
    /// take one slot after another.
    pub(super) fn pop(&mut self, slots: &Slots) -> Option<(Key, Urgency)> {
        const ORDER: [Urgency; 3] = [Urgency::Changed, Urgency::Retry, Urgency::Resync];
        let mut order = ORDER.map(|urgency| {
            let is_passed_over = self.turns(urgency).passes >= MOST_PASSES;
            (urgency, is_passed_over && (urgency != Urgency::Retry || slots.retries.is_empty()))
        });
        order.sort_by_key(|(_, is_first)| !is_first);
        let (taken, key) = order.into_iter().find_map(|(urgency, is_first)| {
            let key = self.turns(urgency).pop(|namespace| slots.admits(namespace, urgency, is_first))?;
            Some((urgency, key))
        })?;
        for urgency in ORDER {
            let turns = self.turns(urgency);
            let is_passed = urgency != taken && !turns.order.is_empty();
            turns.passes = if is_passed { turns.passes + 1 } else { 0 };
        }
        self.len -= 1;
        Some((key, taken))
    }

    fn turns(&mut self, urgency: Urgency) -> &mut Turns {
        match urgency {
            Urgency::Changed | Urgency::Overdue => &mut self.changed,
            Urgency::Retry => &mut self.retry,
            Urgency::Resync => &mut self.resync,
        }
    }
}

/// The rounds that may run at once, and those that do.
///
/// A quarter of the slots (at least one, if there are two) is reserved for namespaces that run nothing, one slot for
/// each. So a namespace whose rounds all hang, on a webhook for example, leaves a slot that another namespace gets at
/// once; and while several hang, each slot that becomes free adds to the reserve first. Keys that keep failing do not
/// use the reserve: a hundred namespaces with one hanging key each would fill it as well. One of them may that was passed
/// over too often, if that leaves another slot of it: as many namespaces as there are slots may have changes all the time.
/// The price is that a namespace alone uses three quarters of the slots.
#[derive(Debug)]
pub(super) struct Slots {
    total: usize,
    running: usize,
    by_namespace: HashMap<Arc<str>, usize>,
    /// Those of keys that keep failing.
    retries: HashSet<Key>,
}

impl Default for Slots {
    fn default() -> Self {
        Self { total: usize::MAX, running: 0, by_namespace: HashMap::new(), retries: HashSet::new() }
    }
}

impl Slots {
    pub(super) fn set_total(&mut self, total: usize) {
        self.total = total;
    }

    pub(super) fn total(&self) -> usize {
        self.total
    }

    fn reserved(&self) -> usize {
        if self.total > 1 { (self.total / 4).max(1) } else { 0 }
    }

    /// Whether a key of this namespace may run now; `is_first` if it goes before what is more urgent.
    fn admits(&self, namespace: &str, urgency: Urgency, is_first: bool) -> bool {
        let free = self.total.saturating_sub(self.running);
        let running = self.by_namespace.get(namespace).copied().unwrap_or_default();
        let may_use_reserve = match urgency {
            Urgency::Retry => is_first && self.reserved() > 1 && running < self.total - self.reserved(),
            _ => running == 0,
        };
        free > self.reserved() || (free > 0 && may_use_reserve)
    }

    pub(super) fn take(&mut self, key: &Key, urgency: Urgency) {
        self.running += 1;
        if urgency == Urgency::Retry {
            self.retries.insert(key.clone());
        }
        *self.by_namespace.entry(key.namespace.clone()).or_default() += 1;
    }

    pub(super) fn free(&mut self, key: &Key) {
        let Some(count) = self.by_namespace.get_mut(&key.namespace) else { return };
        self.retries.remove(key);
        self.running -= 1;
        *count -= 1;
        if *count == 0 {
            self.by_namespace.remove(&key.namespace);
        }
    }
}
