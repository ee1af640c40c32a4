//! Requests of one sort that are under way at once, shared among namespaces.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// So many at once, and fewer of them for one namespace: one whose requests hang leaves room for others.
#[derive(Debug)]
pub struct Slots {
    all: Arc<Semaphore>,
    of_namespace: usize,
    namespaces: Mutex<HashMap<String, Arc<Semaphore>>>,
}

impl Slots {
    pub fn new(total: usize, of_namespace: usize) -> Self {
        Self { all: Arc::new(Semaphore::new(total)), of_namespace, namespaces: Mutex::default() }
    }

    /// Waits for the turn of a request, which lasts as long as what is returned.
    pub async fn acquire(&self, namespace: &str) -> [OwnedSemaphorePermit; 2] {
        // The turn in its namespace first, so that no namespace waits in the line of all.
        let own = self.of_namespace(namespace).acquire_owned().await.expect("slots are never closed");
        let all = self.all.clone().acquire_owned().await.expect("slots are never closed");
        [own, all]
    }

    /// The slots of a namespace; those that no request uses or waits for are forgotten.
    fn of_namespace(&self, namespace: &str) -> Arc<Semaphore> {
        let mut all = self.namespaces.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, slots| Arc::strong_count(slots) > 1);
        all.entry(namespace.to_owned()).or_insert_with(|| Arc::new(Semaphore::new(self.of_namespace))).clone()
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    const TOTAL: usize = 32;
    const OF_NAMESPACE: usize = 8;

    #[tokio::test]
    async fn namespaces_whose_requests_hang_leave_slots_for_another() {
        let slots = Slots::new(TOTAL, OF_NAMESPACE);
        let mut line = Vec::new();
        for namespace in ["a", "b", "c"] {
            line.extend((0..=TOTAL).map(|_| Box::pin(slots.acquire(namespace))));
        }
        let held: Vec<_> = line.iter_mut().filter_map(FutureExt::now_or_never).collect();
        assert_eq!(held.len(), 3 * OF_NAMESPACE);
        assert!(slots.acquire("another").now_or_never().is_some());
    }

    #[tokio::test]
    async fn the_slots_of_a_namespace_are_one_line_until_none_is_used() {
        let slots = Slots::new(TOTAL, OF_NAMESPACE);
        let mut held = Vec::new();
        for _ in 0..OF_NAMESPACE {
            held.push(slots.acquire("a").await);
        }
        assert!(slots.acquire("a").now_or_never().is_none());
        held.pop();
        held.push(slots.acquire("a").await);
        assert!(slots.acquire("a").now_or_never().is_none());
        drop(held);
        let _another = slots.acquire("b").await;
        assert_eq!(slots.namespaces.lock().unwrap().keys().collect::<Vec<_>>(), ["b"]);
    }
}
