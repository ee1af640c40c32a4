//! Connections that have not said what they want: so many, and the oldest goes for the next. An honest client is done in
//! milliseconds, so that idle connections push each other out, and not it.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use tokio_util::sync::CancellationToken;

/// The connections of one port that have begun.
pub struct Pending {
    most: usize,
    begun: Mutex<Numbered>,
}

/// By the order in which they began.
#[derive(Default)]
struct Numbered {
    next: u64,
    all: BTreeMap<u64, CancellationToken>,
}

/// One of them, until it is done or dropped.
pub struct Begun {
    pending: Arc<Pending>,
    number: u64,
    evicted: CancellationToken,
}

impl Pending {
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, begun: Mutex::default() })
    }

    /// One more; the oldest goes if there are too many.
    pub fn begin(self: &Arc<Self>) -> Begun {
        let evicted = CancellationToken::new();
        let mut begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        let number = begun.next;
        begun.next += 1;
        begun.all.insert(number, evicted.clone());
        if begun.all.len() > self.most
            && let Some((_, oldest)) = begun.all.pop_first()
        {
            oldest.cancel();
        }
        Begun { pending: Arc::clone(self), number, evicted }
    }
}

impl Begun {
    /// What the connection does; `None` if it had to go before it was done.
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        self.evicted.run_until_cancelled(work).await
    }

    /// The client has said what it wants: its place is another's, and it stays.
    pub fn done(&self) {
        self.pending.begun.lock().unwrap_or_else(PoisonError::into_inner).all.remove(&self.number);
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        self.done();
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn the_oldest_that_is_not_done_goes_for_the_next() {
        let places = Pending::new(2);
        let (done, silent) = (places.begin(), places.begin());
        done.done();
        let (other, next) = (places.begin(), places.begin());
        assert_eq!(silent.run(pending::<()>()).await, None, "the oldest of three");
        assert!(done.run(pending::<()>()).now_or_never().is_none(), "it stays");
        drop(other);
        let last = places.begin();
        assert_eq!((next.run(ready(1)).await, last.run(ready(2)).await), (Some(1), Some(2)), "there was room");
    }
}
