//! The cache of one kind: what the watch told us, in the compact form that a layer asked to keep.
//!
//! Two rules keep a view from going backwards. A watch delivers a kind's changes in the order of their resource
//! versions, so an event at or below the highest version delivered is a replay and is dropped. And the answer to our
//! own write enters the store at once, so a round never plans on a view older than the last write of its key.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, PoisonError, RwLock},
};

use crate::key::Key;

/// The value kept for an object and the version it was read at.
#[derive(Debug)]
pub struct Versioned<T> {
    pub version: u64,
    pub value: T,
}

#[derive(Debug)]
pub struct Store<T> {
    inner: RwLock<Inner<T>>,
}

#[derive(Debug)]
struct Inner<T> {
    objects: HashMap<Key, Arc<Versioned<T>>>,
    /// Last versions of objects that we deleted ourselves, until the watch tells of something newer: what it still
    /// has to tell about them is the past.
    deleted: HashMap<Key, u64>,
    /// Highest version the present watch delivered.
    delivered: u64,
    /// Keys seen so far in the list that is being read; `None` between lists.
    listing: Option<HashSet<Key>>,
    is_synced: bool,
}

impl<T> Default for Store<T> {
    fn default() -> Self {
        Self {
            inner: RwLock::new(Inner {
                objects: HashMap::new(),
                deleted: HashMap::new(),
                delivered: 0,
                listing: None,
                is_synced: false,
            }),
        }
    }
}

impl<T> Store<T> {
    pub fn get(&self, key: &Key) -> Option<Arc<Versioned<T>>> {
        self.read().objects.get(key).cloned()
    }

    /// True once a whole list has been read; never false again, since a stale view is still a view.
    pub fn is_synced(&self) -> bool {
        self.read().is_synced
    }

    pub fn keys(&self) -> Vec<Key> {
        self.read().objects.keys().cloned().collect()
    }

    /// Calls `visit` for every object. The store is locked meanwhile: for short work only.
    pub fn for_each(&self, mut visit: impl FnMut(&Key, &T)) {
        for (key, entry) in &self.read().objects {
            visit(key, &entry.value);
        }
    }

    /// Takes in one version of an object, from the watch or from the answer to a write. True if it was news.
    pub fn observe(&self, key: Key, version: u64, value: T) -> bool {
        let mut inner = self.write();
        if inner.objects.get(&key).is_some_and(|known| known.version >= version) {
            return false;
        }
        if inner.deleted.get(&key).is_some_and(|last| *last >= version) {
            return false;
        }
        inner.deleted.remove(&key);
        inner.objects.insert(key, Arc::new(Versioned { version, value }));
        true
    }

    /// Forgets an object that we deleted, and will hear of again when the watch has caught up.
    pub fn deleted(&self, key: &Key) {
        let mut inner = self.write();
        if let Some(last) = inner.objects.remove(key) {
            inner.deleted.insert(key.clone(), last.version);
        }
    }

    /// Forgets an object that is known to be absent at `version` or later.
    pub fn forget(&self, key: &Key, version: u64) -> bool {
        let mut inner = self.write();
        inner.deleted.remove(key);
        let is_older = inner.objects.get(key).is_some_and(|known| known.version <= version);
        is_older && inner.objects.remove(key).is_some()
    }

    /// Whether a watch event of `version` is news to this watch; counts it as delivered.
    pub(crate) fn deliver(&self, version: u64) -> bool {
        let mut inner = self.write();
        let is_news = version > inner.delivered;
        inner.delivered = inner.delivered.max(version);
        is_news
    }

    pub(crate) fn begin_list(&self) {
        let mut inner = self.write();
        // A restored etcd counts from a lower version: a new list is a new beginning.
        inner.delivered = 0;
        inner.deleted.clear();
        inner.listing = Some(HashSet::new());
    }

    pub(crate) fn list_item(&self, key: Key, version: u64, value: Option<T>) -> bool {
        let mut inner = self.write();
        inner.delivered = inner.delivered.max(version);
        let Some(value) = value else { return false };
        if let Some(seen) = &mut inner.listing {
            seen.insert(key.clone());
        }
        drop(inner);
        self.observe(key, version, value)
    }

    /// Ends a list: whatever it did not hold is gone. Returns those keys.
    pub(crate) fn end_list(&self) -> Vec<Key> {
        let mut inner = self.write();
        inner.is_synced = true;
        let Some(seen) = inner.listing.take() else { return Vec::new() };
        let gone: Vec<Key> = inner.objects.keys().filter(|key| !seen.contains(*key)).cloned().collect();
        for key in &gone {
            inner.objects.remove(key);
        }
        // The first list sizes the table for its peak; most of that is never needed again.
        inner.objects.shrink_to_fit();
        gone
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, Inner<T>> {
        self.inner.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, Inner<T>> {
        self.inner.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        Key::new("ns", name)
    }

    #[test]
    fn an_older_version_never_replaces_a_newer_one() {
        let store = Store::default();
        assert!(store.observe(key("a"), 7, "new"));
        assert!(!store.observe(key("a"), 7, "same"));
        assert!(!store.observe(key("a"), 5, "old"));
        assert_eq!(store.get(&key("a")).unwrap().value, "new");
    }

    #[test]
    fn a_replayed_event_is_no_news_even_for_a_deleted_object() {
        let store: Store<()> = Store::default();
        assert!(store.deliver(10));
        assert!(store.deliver(12));
        assert!(!store.deliver(10));
        assert!(!store.deliver(12));
    }

    #[test]
    fn a_list_names_what_vanished_while_nobody_watched() {
        let store = Store::default();
        store.observe(key("gone"), 3, 1);
        store.observe(key("stays"), 4, 2);
        store.begin_list();
        store.list_item(key("stays"), 4, Some(2));
        store.list_item(key("new"), 9, Some(3));
        assert!(!store.is_synced());
        assert_eq!(store.end_list(), [key("gone")]);
        assert!(store.is_synced());
        assert!(store.get(&key("new")).is_some());
    }

    #[test]
    fn late_news_does_not_revive_what_we_deleted() {
        let store = Store::default();
        store.observe(key("a"), 7, "ours");
        store.deleted(&key("a"));
        assert!(!store.observe(key("a"), 6, "created"));
        assert!(!store.observe(key("a"), 7, "changed"));
        assert!(store.observe(key("a"), 9, "a namesake"));
        store.deleted(&key("a"));
        store.forget(&key("a"), 10);
        assert!(store.read().deleted.is_empty());
    }

    #[test]
    fn forgetting_spares_a_younger_namesake() {
        let store = Store::default();
        store.observe(key("a"), 20, ());
        assert!(!store.forget(&key("a"), 15));
        assert!(store.forget(&key("a"), 20));
    }
}
