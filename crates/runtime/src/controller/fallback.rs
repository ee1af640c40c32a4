//! Which statuses an installed definition refuses, and for how long their fallbacks are written instead.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use tokio::time::Instant;

use crate::key::Key;

/// How long a fallback is written without trying the full status: the definition may be updated any time.
const FALLBACK: Duration = Duration::from_mins(10);
/// A single refusal may be a defect of one status. Where this many objects are refused and none is accepted between
/// them, it is the definition, and the others are not tried one by one.
const OF_DEFINITION: usize = 3;

/// Of the one definition that a controller's objects have.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    /// Objects whose status was refused, and when.
    objects: HashMap<Key, Instant>,
    /// Different objects since a full status was accepted, as many as matter.
    in_a_row: HashSet<Key>,
    definition_at: Option<Instant>,
}

impl Refusals {
    /// A status that has a fallback was refused.
    pub fn refused(&mut self, key: &Key, now: Instant) {
        self.objects.retain(|_, at| is_recent(*at, now));
        self.objects.insert(key.clone(), now);
        if self.in_a_row.len() < OF_DEFINITION {
            self.in_a_row.insert(key.clone());
        }
        if self.in_a_row.len() >= OF_DEFINITION {
            self.definition_at = Some(now);
        }
    }

    /// A status that differs from its fallback was stored: the definition is up to date.
    pub fn accepted(&mut self, key: &Key) {
        self.objects.remove(key);
        self.in_a_row.clear();
        self.definition_at = None;
    }

    pub fn must_fall_back(&self, key: &Key, now: Instant) -> bool {
        let refused_at = [self.definition_at, self.objects.get(key).copied()];
        refused_at.into_iter().flatten().any(|at| is_recent(at, now))
    }
}

fn is_recent(at: Instant, now: Instant) -> bool {
    now.saturating_duration_since(at) <= FALLBACK
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        Key::new("n", name)
    }

    #[tokio::test(start_paused = true)]
    async fn one_objects_refusal_is_its_own_and_several_in_a_row_are_the_definitions() {
        let (mut refusals, now) = (Refusals::default(), Instant::now());
        for _ in 0..5 {
            refusals.refused(&key("odd"), now);
        }
        assert!(refusals.must_fall_back(&key("odd"), now) && !refusals.must_fall_back(&key("other"), now));
        refusals.refused(&key("a"), now);
        refusals.accepted(&key("b"));
        refusals.refused(&key("c"), now);
        assert!(!refusals.must_fall_back(&key("other"), now), "one was accepted between them");
        for name in ["d", "e"] {
            refusals.refused(&key(name), now);
        }
        assert!(refusals.must_fall_back(&key("other"), now));
    }

    #[tokio::test(start_paused = true)]
    async fn the_full_status_is_tried_again_after_a_while_and_one_refusal_then_suffices() {
        let (mut refusals, now) = (Refusals::default(), Instant::now());
        for name in ["a", "b", "c"] {
            refusals.refused(&key(name), now);
        }
        let later = now + FALLBACK + Duration::from_secs(1);
        assert!(!refusals.must_fall_back(&key("a"), later) && !refusals.must_fall_back(&key("d"), later));
        refusals.refused(&key("d"), later);
        assert!(refusals.must_fall_back(&key("a"), later));
        assert_eq!(refusals.objects.len(), 1, "what is past is forgotten");
        refusals.accepted(&key("e"));
        assert!(!refusals.must_fall_back(&key("a"), later));
    }
}
