//! How many evictions of one cluster are under way at once.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::drains::lock;

/// Evictions of one cluster at once. Each is three writes for the server, which does a little over a thousand writes a
/// second: more in flight would only wait there, in the way of others.
const EVICTIONS: usize = 32;
/// Of these for the pods of one namespace: three namespaces whose evictions hang, on a webhook for example, leave room
/// for others. A namespace alone is still quick: at 50 ms each, eight at once are 160 evictions a second, as many as the
/// server did in the benchmark with 32 at once (2000 pods of one namespace in 12 s).
const EVICTIONS_OF_NAMESPACE: usize = 8;

pub struct Slots {
    all: Arc<Semaphore>,
    namespaces: Mutex<HashMap<String, Arc<Semaphore>>>,
}

impl Slots {
    pub fn new() -> Self {
        Self { all: Arc::new(Semaphore::new(EVICTIONS)), namespaces: Mutex::default() }
    }

    /// Waits for the turn of an eviction, which lasts as long as what is returned.
    pub async fn acquire(&self, namespace: &str) -> [OwnedSemaphorePermit; 2] {
        // The turn in its namespace first, so that no namespace waits in the line of all.
        let own = self.of_namespace(namespace).acquire_owned().await.expect("slots are never closed");
        let all = self.all.clone().acquire_owned().await.expect("slots are never closed");
        [own, all]
    }

    /// The slots of a namespace; those that no eviction uses or waits for are forgotten.
    fn of_namespace(&self, namespace: &str) -> Arc<Semaphore> {
        let mut all = lock(&self.namespaces);
        all.retain(|_, slots| Arc::strong_count(slots) > 1);
        all.entry(namespace.to_owned()).or_insert_with(|| Arc::new(Semaphore::new(EVICTIONS_OF_NAMESPACE))).clone()
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn namespaces_whose_evictions_hang_leave_slots_for_another() {
        let slots = Slots::new();
        let mut line = Vec::new();
        for namespace in ["a", "b", "c"] {
            line.extend((0..=EVICTIONS).map(|_| Box::pin(slots.acquire(namespace))));
        }
        let held: Vec<_> = line.iter_mut().filter_map(FutureExt::now_or_never).collect();
        assert_eq!(held.len(), 3 * EVICTIONS_OF_NAMESPACE);
        assert!(slots.acquire("another").now_or_never().is_some());
    }

    #[tokio::test]
    async fn the_slots_of_a_namespace_are_one_line_until_none_is_used() {
        let slots = Slots::new();
        let mut held = Vec::new();
        for _ in 0..EVICTIONS_OF_NAMESPACE {
            held.push(slots.acquire("a").await);
        }
        assert!(slots.acquire("a").now_or_never().is_none());
        held.pop();
        held.push(slots.acquire("a").await);
        assert!(slots.acquire("a").now_or_never().is_none());
        drop(held);
        let _another = slots.acquire("b").await;
        assert_eq!(lock(&slots.namespaces).keys().collect::<Vec<_>>(), ["b"]);
    }
}
