//! The cache of one kind: what the watch brought, in the projection that a layer asked for.
//!
//! Two rules keep a view from going backwards. A watch delivers a kind's changes in the order of their resource
//! versions, so an event at or below the highest version delivered is a replay and is dropped. And the answer to our
//! own write enters the store at once, so a round never plans on a view older than the last write of its key; unless
//! the watch was quicker, and has passed that version without leaving the object here: then it is gone again. A list
//! may be older than both (a lagging API server) or begin anew at lower versions (a restored etcd); what speaks against
//! the store in it is not believed but named as doubtful, and a read of that object decides.

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

/// What became of one object in the store.
#[derive(Debug)]
pub struct Changed<T> {
    pub before: Option<Arc<Versioned<T>>>,
    pub after: Option<Arc<Versioned<T>>>,
}

#[derive(Debug)]
pub struct Store<T> {
    inner: RwLock<Inner<T>>,
}

#[derive(Debug)]
struct Inner<T> {
    objects: HashMap<Key, Arc<Versioned<T>>>,
    /// Last versions of objects that we deleted ourselves, until the watch brings something newer: what it still
    /// has to report about them is the past.
    deleted: HashMap<Key, u64>,
    /// Objects whose versions are of before etcd was restored: the server counts from a lower one again, so they say
    /// nothing about what comes.
    former: HashSet<Key>,
    /// Highest version the present watch delivered.
    delivered: u64,
    /// The list that is being read; `None` between lists.
    listing: Option<Listing>,
    is_synced: bool,
}

#[derive(Debug)]
struct Listing {
    /// Keys seen so far.
    seen: HashSet<Key>,
    /// Whether objects that are known as they are listed count as news.
    is_repeated: bool,
}

impl<T> Default for Store<T> {
    fn default() -> Self {
        Self { inner: RwLock::default() }
    }
}

impl<T> Default for Inner<T> {
    fn default() -> Self {
        let (objects, deleted) = (HashMap::new(), HashMap::new());
        Self { objects, deleted, former: HashSet::new(), delivered: 0, listing: None, is_synced: false }
    }
}

impl<T> Store<T> {
    pub fn get(&self, key: &Key) -> Option<Arc<Versioned<T>>> {
        self.read().objects.get(key).cloned()
    }

    /// True once a whole list has been read; false again only when all is forgotten, since a stale view is still a view.
    pub fn is_synced(&self) -> bool {
        self.read().is_synced
    }

    /// The version held for a key.
    pub fn version(&self, key: &Key) -> Option<u64> {
        self.read().objects.get(key).map(|known| known.version)
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

    /// Ingests one version of an object from the watch; `None` if it was no news.
    pub fn observe(&self, key: Key, version: u64, value: T) -> Option<Changed<T>> {
        self.write().observe(key, version, value)
    }

    /// Ingests the answer to a write of an object that the watch speaks of; `None` if it was no news.
    pub fn answered(&self, key: Key, version: u64, value: T) -> Option<Changed<T>> {
        let mut inner = self.write();
        if inner.has_passed(&key, version) { None } else { inner.observe(key, version, value) }
    }

    /// What is held of a key before it is read.
    pub(crate) fn standing(&self, key: &Key) -> Standing {
        let inner = self.read();
        Standing { version: inner.objects.get(key).map(|known| known.version), delivered: inner.delivered }
    }

    /// Forgets an object that is gone since we held it at `version`, and that the watch will bring again when it has caught
    /// up. A namesake that arrived meanwhile stays.
    pub fn deleted(&self, key: &Key, version: Option<u64>) -> Option<Changed<T>> {
        let mut inner = self.write();
        let held = inner.objects.get(key).map(|known| known.version);
        let (Some(version), true) = (version, held == version) else { return None };
        // The watch of a restored server has nothing to report about it, and a namesake has a lower version.
        if !inner.former.contains(key) {
            inner.deleted.insert(key.clone(), version);
        }
        inner.remove(key)
    }

    /// Ingests what a read of the server found; `before` is what was held when the read was sent. Nothing received
    /// meanwhile: the read is right, whatever the versions say. Otherwise the newer of the two is. Of what is not watched
    /// nothing is received.
    pub(crate) fn correct(
        &self,
        key: &Key,
        before: Standing,
        is_watched: bool,
        found: Option<(u64, T)>,
    ) -> Option<Changed<T>> {
        let mut inner = self.write();
        let held = inner.objects.get(key).map(|known| known.version);
        match found {
            Some((version, _)) if held == Some(version) => None,
            // It went while it was read, and may have come in that time as well.
            Some((version, _))
                if is_watched
                    && (held != before.version || before.delivered < version)
                    && inner.has_passed(key, version) =>
            {
                None
            }
            Some((version, value)) if held == before.version => Some(inner.insert(key.clone(), version, value)),
            Some((version, value)) => inner.observe(key.clone(), version, value),
            None => {
                drop(inner);
                self.deleted(key, before.version)
            }
        }
    }

    /// Forgets an object that is known to be absent at `version` or later.
    pub fn forget(&self, key: &Key, version: u64) -> Option<Changed<T>> {
        let mut inner = self.write();
        if inner.deleted.get(key).is_some_and(|deleted| *deleted <= version) {
            inner.deleted.remove(key);
        }
        if let Some(listing) = &mut inner.listing {
            listing.seen.remove(key);
        }
        let is_older = inner.objects.get(key).is_some_and(|known| known.version <= version);
        if is_older { inner.remove(key) } else { None }
    }

    /// Whether a watch event of `version` is news to this watch; counts it as delivered.
    pub(crate) fn deliver(&self, version: u64) -> bool {
        let mut inner = self.write();
        let is_news = version > inner.delivered;
        inner.delivered = inner.delivered.max(version);
        is_news
    }

    /// The server's versions went back: etcd was restored from a backup.
    pub(crate) fn restored(&self) {
        let mut inner = self.write();
        inner.deleted.clear();
        inner.former = inner.objects.keys().cloned().collect();
    }

    /// With `is_repeated`, every object of the list is news: a listener that was notified of changes may have lost
    /// some.
    pub(crate) fn begin_list(&self, is_repeated: bool) {
        let mut inner = self.write();
        // A restored etcd counts from a lower version: a new list is a new beginning.
        inner.delivered = 0;
        inner.listing = Some(Listing { seen: HashSet::new(), is_repeated });
    }

    /// Notes that the list holds this version of an object; true if it is held already, so that it need not be decoded.
    pub(crate) fn is_listed_as_known(&self, key: &Key, version: u64) -> bool {
        let mut inner = self.write();
        inner.delivered = inner.delivered.max(version);
        let is_held = inner.objects.get(key).is_some_and(|known| known.version == version);
        if is_held {
            inner.former.remove(key);
        }
        match &mut inner.listing {
            Some(listing) if is_held => {
                listing.seen.insert(key.clone());
                !listing.is_repeated
            }
            _ => false,
        }
    }

    /// Ingests an object of a list; without a value it is not to be kept.
    pub(crate) fn list_item(&self, key: Key, version: u64, value: Option<T>) -> Listed<T> {
        let mut inner = self.write();
        inner.delivered = inner.delivered.max(version);
        let Some(value) = value else { return Listed::Known };
        let is_repeated = inner.listing.as_ref().is_some_and(|listing| listing.is_repeated);
        inner.see(&key);
        match inner.objects.get(&key).map(|known| known.version).max(inner.deleted.get(&key).copied()) {
            Some(held) if held > version => Listed::Doubtful,
            Some(held) if held == version && inner.objects.contains_key(&key) && !is_repeated => Listed::Known,
            Some(held) if held == version && !inner.objects.contains_key(&key) => Listed::Doubtful,
            _ => Listed::News(inner.insert(key, version, value)),
        }
    }

    /// Notes that the list holds an object that cannot be read: what is held of it stays.
    pub(crate) fn list_unreadable(&self, key: &Key) {
        self.write().see(key);
    }

    /// Ends a list of this version: what it did not hold is gone, except what is newer than the list; that is doubtful.
    pub(crate) fn end_list(&self, version: u64) -> Missing<T> {
        let mut inner = self.write();
        inner.is_synced = true;
        let mut missing = Missing::default();
        let Some(listing) = inner.listing.take() else { return missing };
        inner.delivered = inner.delivered.max(version);
        let delivered = inner.delivered;
        // The watch goes on behind the list: it says nothing more about what was deleted before.
        inner.deleted.retain(|_, deleted| *deleted > delivered);
        for (key, known) in inner.objects.iter().filter(|(key, _)| !listing.seen.contains(*key)) {
            if known.version > delivered {
                missing.doubtful.push(key.clone());
            } else {
                missing.gone.push((key.clone(), Changed { before: Some(known.clone()), after: None }));
            }
        }
        for (key, _) in &missing.gone {
            inner.remove(key);
        }
        // The first list sizes the table for its peak; most of that is never needed again.
        inner.objects.shrink_to_fit();
        missing
    }

    /// Forgets everything.
    pub(crate) fn clear(&self) -> Vec<(Key, Changed<T>)> {
        let former = std::mem::take(&mut *self.write());
        let gone = former.objects.into_iter();
        gone.map(|(key, before)| (key, Changed { before: Some(before), after: None })).collect()
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, Inner<T>> {
        self.inner.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, Inner<T>> {
        self.inner.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a store held of a key at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Standing {
    version: Option<u64>,
    delivered: u64,
}

/// What a list says about one object, beside the store.
#[derive(Debug)]
pub(crate) enum Listed<T> {
    News(Changed<T>),
    Known,
    /// Older than what we hold or deleted.
    Doubtful,
}

/// What a whole list did not hold.
#[derive(Debug)]
pub(crate) struct Missing<T> {
    pub gone: Vec<(Key, Changed<T>)>,
    pub doubtful: Vec<Key>,
}

impl<T> Default for Missing<T> {
    fn default() -> Self {
        Self { gone: Vec::new(), doubtful: Vec::new() }
    }
}

impl<T> Inner<T> {
    fn observe(&mut self, key: Key, version: u64, value: T) -> Option<Changed<T>> {
        let held = self.objects.get(&key).map(|known| known.version).max(self.deleted.get(&key).copied());
        if held.is_some_and(|held| held >= version) { None } else { Some(self.insert(key, version, value)) }
    }

    /// Whether the watch has delivered all about a key up to this version and later ones, and it is not there. The event
    /// of the highest version may still be on its way in.
    fn has_passed(&self, key: &Key, version: u64) -> bool {
        self.listing.is_none() && version < self.delivered && !self.objects.contains_key(key)
    }

    fn see(&mut self, key: &Key) {
        if let Some(listing) = &mut self.listing {
            listing.seen.insert(key.clone());
        }
    }

    fn insert(&mut self, key: Key, version: u64, value: T) -> Changed<T> {
        self.deleted.remove(&key);
        self.former.remove(&key);
        let after = Arc::new(Versioned { version, value });
        Changed { before: self.objects.insert(key, after.clone()), after: Some(after) }
    }

    fn remove(&mut self, key: &Key) -> Option<Changed<T>> {
        self.former.remove(key);
        self.objects.remove(key).map(|before| Changed { before: Some(before), after: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        Key::new("ns", name)
    }

    /// Held at this version while the watch said nothing.
    fn at(version: Option<u64>) -> Standing {
        Standing { version, delivered: 0 }
    }

    #[test]
    fn what_came_and_went_before_the_answer_to_our_write_is_gone() {
        let store = Store::default();
        // Made by others, deleted by us at 6 and removed by its node at 7 and 8, before the answer to our deletion.
        for version in [5, 6, 7] {
            assert!(store.deliver(version));
            store.observe(key("a"), version, "there");
        }
        assert!(store.deliver(8) && store.forget(&key("a"), 8).is_some());
        assert!(store.answered(key("a"), 6, "terminating").is_none());
        assert!(store.get(&key("a")).is_none(), "no event would ever remove it");
        assert!(store.answered(key("b"), 8, "ours").is_some(), "its event may be on its way in");
        assert!(store.answered(key("c"), 9, "ours").is_some(), "the watch has not come to it yet");
        // The next list says what is there.
        store.begin_list(false);
        assert!(store.answered(key("d"), 3, "ours").is_some(), "it may stand further on in the list");
    }

    #[test]
    fn what_came_and_went_while_it_was_read_is_gone() {
        let store = Store::default();
        assert!(store.deliver(5));
        let before = store.standing(&key("a"));
        assert!(store.deliver(6) && store.observe(key("a"), 6, "there").is_some());
        assert!(store.deliver(8) && store.forget(&key("a"), 8).is_some());
        assert!(store.correct(&key("a"), before, true, Some((6, "there"))).is_none());
        // The same of what was there before.
        assert!(store.observe(key("c"), 4, "there").is_some());
        let before = store.standing(&key("c"));
        assert!(store.deliver(9) && store.forget(&key("c"), 9).is_some());
        assert!(store.correct(&key("c"), before, true, Some((4, "there"))).is_none());
        // What is not watched was not seen to go.
        let before = store.standing(&key("d"));
        assert!(store.deliver(12));
        assert!(store.correct(&key("d"), before, false, Some((11, "a stranger"))).is_some());
        // What the watch should have brought before the read began, and did not, is there all the same.
        let before = store.standing(&key("b"));
        assert!(store.correct(&key("b"), before, true, Some((4, "missed"))).is_some());
    }

    /// What a list did not hold: gone and doubtful.
    fn missing<T>(store: &Store<T>, version: u64) -> (Vec<Key>, Vec<Key>) {
        let missing = store.end_list(version);
        (missing.gone.into_iter().map(|(key, _)| key).collect(), missing.doubtful)
    }

    #[test]
    fn a_change_shows_what_was_and_what_is() {
        let store = Store::default();
        let values = |changed: Option<Changed<i32>>| {
            let value = |version: Option<Arc<Versioned<i32>>>| version.map(|version| version.value);
            changed.map(|changed| (value(changed.before), value(changed.after)))
        };
        assert_eq!(values(store.observe(key("a"), 1, 10)), Some((None, Some(10))));
        assert_eq!(values(store.observe(key("a"), 2, 20)), Some((Some(10), Some(20))));
        assert_eq!(values(store.correct(&key("a"), at(Some(2)), true, Some((2, 20)))), None);
        assert_eq!(values(store.correct(&key("a"), at(Some(2)), true, Some((3, 30)))), Some((Some(20), Some(30))));
        assert_eq!(values(store.deleted(&key("a"), Some(3))), Some((Some(30), None)));
        assert_eq!(values(store.forget(&key("a"), 4)), None);
    }

    #[test]
    fn an_older_version_never_replaces_a_newer_one() {
        let store = Store::default();
        assert!(store.observe(key("a"), 7, "new").is_some());
        assert!(store.observe(key("a"), 7, "same").is_none());
        assert!(store.observe(key("a"), 5, "old").is_none());
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
    fn a_list_names_what_vanished_while_no_watch_was_open() {
        let store = Store::default();
        store.observe(key("gone"), 3, 1);
        store.observe(key("stays"), 4, 2);
        store.begin_list(false);
        store.list_item(key("stays"), 4, Some(2));
        store.list_item(key("new"), 9, Some(3));
        assert!(!store.is_synced());
        assert_eq!(missing(&store, 9), (vec![key("gone")], vec![]));
        assert!(store.is_synced());
        assert!(store.get(&key("new")).is_some());
    }

    #[test]
    fn late_news_does_not_revive_what_we_deleted() {
        let store = Store::default();
        store.observe(key("a"), 7, "ours");
        store.deleted(&key("a"), Some(7));
        assert!(store.observe(key("a"), 6, "created").is_none());
        assert!(store.observe(key("a"), 7, "changed").is_none());
        assert!(store.observe(key("a"), 9, "a namesake").is_some());
        store.deleted(&key("a"), Some(9));
        store.forget(&key("a"), 10);
        assert!(store.read().deleted.is_empty());
    }

    #[test]
    fn forgetting_spares_a_younger_namesake() {
        let store = Store::default();
        store.observe(key("a"), 20, ());
        assert!(store.forget(&key("a"), 15).is_none());
        assert!(store.forget(&key("a"), 20).is_some());
    }

    #[test]
    fn a_list_from_the_past_is_doubted_not_believed() {
        let store = Store::default();
        store.observe(key("listed"), 3, 0);
        store.observe(key("new"), 12, 0);
        store.observe(key("changed"), 11, 0);
        store.observe(key("removed"), 10, 0);
        store.deleted(&key("removed"), Some(10));
        store.begin_list(false);
        assert!(matches!(store.list_item(key("listed"), 3, Some(0)), Listed::Known));
        assert!(matches!(store.list_item(key("changed"), 4, Some(0)), Listed::Doubtful));
        assert!(matches!(store.list_item(key("removed"), 9, Some(0)), Listed::Doubtful));
        assert_eq!(missing(&store, 9), (vec![], vec![key("new")]));
        assert_eq!(store.version(&key("changed")), Some(11));
        assert_eq!(store.version(&key("removed")), None);
    }

    #[test]
    fn a_namesake_of_what_a_restored_etcd_lacks_is_seen() {
        let store = Store::default();
        store.observe(key("late"), 100, "before");
        store.observe(key("gone"), 101, "before");
        store.observe(key("stays"), 9, "before");
        store.deleted(&key("gone"), Some(101));
        store.restored();
        store.begin_list(false);
        assert!(store.is_listed_as_known(&key("stays"), 9));
        assert_eq!(missing(&store, 50), (vec![], vec![key("late")]));
        assert!(store.correct(&key("late"), at(Some(100)), true, None).is_some());
        for name in ["late", "gone"] {
            assert!(store.deliver(if name == "late" { 51 } else { 52 }));
            assert!(store.observe(key(name), 52, "again").is_some(), "{name}");
        }
        assert!(store.read().former.is_empty());
        store.deleted(&key("late"), Some(52));
        assert!(store.observe(key("late"), 52, "the past").is_none());
    }

    #[test]
    fn a_restored_etcd_is_believed_after_a_read() {
        let store = Store::default();
        store.observe(key("a"), 100, "before");
        store.begin_list(false);
        assert!(matches!(store.list_item(key("a"), 5, Some("restored")), Listed::Doubtful));
        store.end_list(5);
        store.correct(&key("a"), at(Some(100)), true, Some((5, "restored")));
        assert_eq!(store.get(&key("a")).unwrap().value, "restored");
        assert!(store.deliver(6) && store.observe(key("a"), 6, "goes on").is_some());
    }

    #[test]
    fn a_list_clears_what_was_noted_of_deletions_before_it() {
        let store = Store::default();
        for (name, version) in [("swallowed", 7), ("later", 20)] {
            store.observe(key(name), version, ());
            store.deleted(&key(name), Some(version));
        }
        // The watch broke before it said that both are gone.
        store.begin_list(false);
        assert_eq!(missing(&store, 10), (vec![], vec![]));
        assert_eq!(store.read().deleted.keys().collect::<Vec<_>>(), [&key("later")]);
        store.begin_list(false);
        store.end_list(20);
        assert!(store.read().deleted.is_empty());
    }

    #[test]
    fn an_object_that_goes_while_it_is_listed_is_gone() {
        let store = Store::default();
        store.begin_list(false);
        store.list_item(key("a"), 3, Some(0));
        assert!(store.forget(&key("a"), 5).is_some());
        store.list_item(key("b"), 4, Some(0));
        assert_eq!(missing(&store, 6), (vec![], vec![]));
        assert_eq!(store.keys(), [key("b")]);
    }

    #[test]
    fn a_repeated_list_notifies_of_everything_and_an_ordinary_one_only_of_news() {
        let store = Store::default();
        store.observe(key("a"), 3, 0);
        store.begin_list(false);
        assert!(store.is_listed_as_known(&key("a"), 3));
        assert_eq!(missing(&store, 3), (vec![], vec![]));
        store.begin_list(true);
        assert!(!store.is_listed_as_known(&key("a"), 3));
        assert!(matches!(store.list_item(key("a"), 3, Some(0)), Listed::News(Changed { before: Some(_), .. })));
        assert_eq!(missing(&store, 3), (vec![], vec![]));
    }

    #[test]
    fn an_object_that_cannot_be_read_is_not_gone() {
        let store = Store::default();
        store.observe(key("a"), 3, 0);
        store.begin_list(false);
        store.list_unreadable(&key("a"));
        assert_eq!(missing(&store, 9), (vec![], vec![]));
        assert_eq!(store.version(&key("a")), Some(3));
    }

    #[test]
    fn a_read_never_hides_what_arrived_meanwhile() {
        let store = Store::default();
        store.observe(key("a"), 7, "seven");
        store.observe(key("a"), 9, "nine");
        store.correct(&key("a"), at(Some(7)), true, Some((8, "eight")));
        assert_eq!(store.version(&key("a")), Some(9));
        store.correct(&key("a"), at(Some(7)), true, None);
        assert_eq!(store.version(&key("a")), Some(9));
        store.correct(&key("a"), at(Some(9)), true, None);
        assert_eq!(store.version(&key("a")), None);
    }
}
