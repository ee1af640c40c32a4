//! Streams to watchers: one per tenant and kind.

use std::{
    collections::{HashMap, VecDeque},
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use futures::Stream;
use tokio::sync::mpsc;
use tonic::Status;

/// Sends events of one kind to the watchers of each tenant. A newer watcher replaces the older one, whose stream stays
/// open and silent: a stock operator whose stream ended would reconnect and replace the newer one in turn.
pub struct Hub<T> {
    slots: Mutex<HashMap<String, Slot<T>>>,
    /// A watcher that is so far behind is better served by a new snapshot.
    behind: usize,
    weigh: fn(&T) -> usize,
}

/// Bytes of events that wait for one watcher: one of a group has all its instances, and a watcher may never read.
const BYTES_BEHIND: usize = 8 * 1024 * 1024;

/// What its watcher has not taken yet. A watcher that was replaced holds none of it: it may never read, and there may
/// be many.
type Snapshot<T> = Arc<Mutex<VecDeque<T>>>;

struct Slot<T> {
    sender: mpsc::Sender<T>,
    snapshot: Snapshot<T>,
    behind: Arc<AtomicBool>,
    waiting: Arc<AtomicUsize>,
}

/// What a watcher receives: the snapshot, then events.
pub struct Watched<T> {
    snapshot: Snapshot<T>,
    events: mpsc::Receiver<T>,
    behind: Arc<AtomicBool>,
    /// Bytes of `events`.
    waiting: Arc<AtomicUsize>,
    weigh: fn(&T) -> usize,
}

impl<T> Hub<T> {
    /// `behind` events wait for a watcher at most, and no more than some bytes, as `weigh` counts them.
    pub fn new(behind: usize, weigh: fn(&T) -> usize) -> Self {
        Self { slots: Mutex::default(), behind, weigh }
    }

    /// Adds a watcher. The caller makes snapshot and registration one step, by a lock, so that no event is lost or sent
    /// before the snapshot.
    pub fn watch(&self, tenant: &str, snapshot: Vec<T>) -> Watched<T> {
        let (sender, events) = mpsc::channel(self.behind);
        let (behind, snapshot) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(snapshot.into())));
        let (waiting, weigh) = (Arc::<AtomicUsize>::default(), self.weigh);
        let (kept, full) = (Arc::clone(&snapshot), Arc::clone(&behind));
        let slot = Slot { sender, snapshot: kept, behind: full, waiting: Arc::clone(&waiting) };
        let replaced = self.slots.lock().unwrap_or_else(PoisonError::into_inner).insert(tenant.to_owned(), slot);
        if let Some(replaced) = replaced {
            *replaced.snapshot.lock().unwrap_or_else(PoisonError::into_inner) = VecDeque::new();
        }
        Watched { snapshot, events, behind, waiting, weigh }
    }

    /// Sends an event to the tenant's watcher, if there is one.
    pub fn send(&self, tenant: &str, event: T) {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(slot) = slots.get(tenant) else { return };
        let weight = (self.weigh)(&event);
        let fits = slot.waiting.fetch_add(weight, Ordering::Relaxed) + weight <= BYTES_BEHIND;
        let sent = if fits { slot.sender.try_send(event) } else { Err(mpsc::error::TrySendError::Full(event)) };
        match sent {
            Ok(()) => return,
            Err(mpsc::error::TrySendError::Full(_)) => slot.behind.store(true, Ordering::Relaxed),
            Err(mpsc::error::TrySendError::Closed(_)) => {}
        }
        slots.remove(tenant);
    }
}

impl<T: Unpin> Stream for Watched<T> {
    type Item = Result<T, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next = self.snapshot.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        if let Some(event) = next {
            return Poll::Ready(Some(Ok(event)));
        }
        match self.events.poll_recv(context) {
            Poll::Ready(Some(event)) => {
                self.waiting.fetch_sub((self.weigh)(&event), Ordering::Relaxed);
                Poll::Ready(Some(Ok(event)))
            }
            Poll::Ready(None) if self.behind.swap(false, Ordering::Relaxed) => {
                let text = "the watcher fell behind; watch again for a snapshot";
                Poll::Ready(Some(Err(Status::resource_exhausted(text))))
            }
            // Replaced by a newer watcher: open and silent, until the connection or the lead ends.
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt, StreamExt};

    use super::*;

    #[tokio::test]
    async fn a72_a_newer_watcher_replaces_the_older_which_stays_open_and_silent() {
        let hub = Hub::new(8, |_| 1);
        let mut old = hub.watch("a", vec![1, 2]);
        hub.send("a", 3);
        hub.send("b", 9);
        for expected in [1, 2, 3] {
            assert_eq!(old.next().await.unwrap().unwrap(), expected);
        }
        let mut new = hub.watch("a", vec![]);
        hub.send("a", 4);
        assert_eq!(new.next().await.unwrap().unwrap(), 4);
        assert!(old.next().now_or_never().is_none());
        drop(new);
        hub.send("a", 5);
    }

    #[tokio::test]
    async fn a_watcher_that_was_replaced_holds_nothing_however_little_it_read() {
        let (hub, item) = (Hub::new(8, |_| 1), Arc::new(()));
        let snapshot = || vec![Arc::clone(&item); 100];
        let mut all: Vec<_> = (0..50).map(|_| hub.watch("a", snapshot())).collect();
        assert_eq!(Arc::strong_count(&item), 101, "the newest one's, and ours");
        let mut newest = all.pop().unwrap();
        for mut old in all {
            assert!(old.next().now_or_never().is_none());
        }
        for _ in 0..100 {
            assert!(newest.next().await.unwrap().is_ok());
        }
        assert_eq!(Arc::strong_count(&item), 1);
    }

    #[tokio::test]
    async fn a_watcher_that_falls_behind_is_ended_and_others_are_not_disturbed() {
        const BEHIND: usize = 64;
        let hub = Hub::new(BEHIND, |_| 1);
        let (mut slow, mut quick) = (hub.watch("slow", vec![]), hub.watch("quick", vec![]));
        for number in 0..=BEHIND {
            hub.send("slow", number);
            hub.send("quick", number);
            assert_eq!(quick.next().await.unwrap().unwrap(), number);
        }
        for _ in 0..BEHIND {
            assert!(slow.next().await.unwrap().is_ok());
        }
        assert_eq!(slow.next().await.unwrap().unwrap_err().code(), tonic::Code::ResourceExhausted);
    }

    #[tokio::test]
    async fn events_that_are_not_read_are_bounded_by_their_bytes() {
        let hub = Hub::new(64, |event: &Vec<u8>| event.len());
        let (mut slow, third) = (hub.watch("a", vec![]), vec![0; BYTES_BEHIND / 3]);
        for _ in 0..3 {
            hub.send("a", third.clone());
        }
        assert!(slow.next().await.unwrap().is_ok(), "what was read makes room");
        for _ in 0..2 {
            hub.send("a", third.clone());
        }
        for _ in 0..3 {
            assert!(slow.next().await.unwrap().is_ok());
        }
        assert_eq!(slow.next().await.unwrap().unwrap_err().code(), tonic::Code::ResourceExhausted);
    }
}
