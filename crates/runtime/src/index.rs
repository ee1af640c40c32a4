//! Which objects speak of which things.

use std::{
    collections::{BTreeSet, HashMap, hash_map::Entry},
    hash::Hash,
    sync::{Mutex, PoisonError},
};

use crate::key::Key;

/// For the way back: from a Secret to the objects that name it. The listener of an object's changes maintains it.
#[derive(Debug)]
pub struct Index<R>(Mutex<Inner<R>>);

#[derive(Debug)]
struct Inner<R> {
    things: HashMap<Key, Vec<R>>,
    keys: HashMap<R, BTreeSet<Key>>,
}

impl<R> Default for Index<R> {
    fn default() -> Self {
        Self(Mutex::new(Inner { things: HashMap::new(), keys: HashMap::new() }))
    }
}

impl<R: Clone + Eq + Hash> Index<R> {
    /// From now on the object of `key` speaks of these things and no others; an object that is gone speaks of none.
    pub fn set(&self, key: &Key, things: impl IntoIterator<Item = R>) {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for thing in inner.things.remove(key).unwrap_or_default() {
            if let Entry::Occupied(mut keys) = inner.keys.entry(thing) {
                keys.get_mut().remove(key);
                if keys.get().is_empty() {
                    keys.remove();
                }
            }
        }
        let things: Vec<R> = things.into_iter().collect();
        for thing in &things {
            inner.keys.entry(thing.clone()).or_default().insert(key.clone());
        }
        if !things.is_empty() {
            inner.things.insert(key.clone(), things);
        }
    }

    /// What the object of `key` speaks of.
    pub fn things(&self, key: &Key) -> Vec<R> {
        let inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        inner.things.get(key).cloned().unwrap_or_default()
    }

    /// Every object that speaks of anything.
    pub fn all(&self) -> Vec<Key> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).things.keys().cloned().collect()
    }

    /// The objects that speak of `thing`.
    pub fn keys(&self, thing: &R) -> Vec<Key> {
        self.keys_up_to(thing, usize::MAX, |_| true)
    }

    /// The first of those that speak of `thing` and are chosen, where any number may.
    pub fn keys_up_to(&self, thing: &R, most: usize, is_chosen: impl Fn(&Key) -> bool) -> Vec<Key> {
        let inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let all = inner.keys.get(thing).into_iter().flatten();
        all.filter(|key| is_chosen(key)).take(most).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_back_follows_what_is_said_now_and_leaves_nothing_behind() {
        let (index, a, b) = (Index::default(), Key::new("n", "a"), Key::new("n", "b"));
        index.set(&a, ["x", "y", "x"]);
        index.set(&b, ["y"]);
        assert_eq!(index.keys(&"y"), [a.clone(), b.clone()]);
        assert_eq!(index.keys_up_to(&"y", 1, |_| true), std::slice::from_ref(&a));
        assert_eq!(index.keys_up_to(&"y", 1, |key| *key == b), std::slice::from_ref(&b));
        index.set(&a, ["z"]);
        assert_eq!((index.keys(&"x"), index.keys(&"y"), index.keys(&"z")), (vec![], vec![b.clone()], vec![a.clone()]));
        index.set(&a, []);
        index.set(&b, []);
        let inner = index.0.lock().unwrap();
        assert!(inner.things.is_empty() && inner.keys.is_empty());
    }
}
