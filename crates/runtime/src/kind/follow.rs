//! What a kind makes of the events of its watch.

use std::sync::{PoisonError, atomic::Ordering};

use futures::future::BoxFuture;
use tokio::time::Instant;

use super::Kind;
use crate::{
    error::undecodable,
    followers::{Subscriber, Unreadable},
    interruption::Cause,
    key::Key,
    raw::Raw,
    store::{Changed, Listed},
    view::View,
};

impl<W: View, T: Send + Sync + 'static> Kind<W, T> {
    /// What is to be kept of an object. What cannot be decoded is not believed to be absent: it is read before it is
    /// planned for, and whom it concerns has to look.
    fn project(&self, object: &Raw<'_>) -> Result<Option<T>, Unreadable> {
        object.decode::<W>().map(self.project).map_err(|error| {
            self.change(&object.key, true, |_| Some(self.doubted(&object.key)));
            Unreadable(format!("{}: {}", object.key, undecodable(&error)))
        })
    }

    /// An object that the watch brought.
    fn put(&self, key: &Key, version: u64, value: Option<T>) {
        self.change(key, true, |store| match value {
            Some(value) => store.observe(key.clone(), version, value),
            None => store.forget(key, version),
        });
    }

    /// Nothing is believed before it is read; whom it concerns has to look.
    fn doubted(&self, key: &Key) -> Changed<T> {
        self.doubt(key.clone());
        Changed { before: self.get(key), after: self.get(key) }
    }
}

impl<W: View, T: Send + Sync + 'static> Subscriber for Kind<W, T> {
    fn restored(&self) {
        self.store.restored();
    }

    fn begin_list(&self, is_repeated: bool) {
        self.store.begin_list(is_repeated);
    }

    fn listed(&self, object: &Raw<'_>) -> Result<(), Unreadable> {
        let (key, version) = (&object.key, object.version);
        if self.store.is_listed_as_known(key, version) {
            return Ok(());
        }
        let value = self.project(object).inspect_err(|_| self.store.list_unreadable(key))?;
        self.change(key, true, |store| match store.list_item(key.clone(), version, value) {
            Listed::News(changed) => Some(changed),
            Listed::Known => None,
            Listed::Doubtful => Some(self.doubted(key)),
        });
        Ok(())
    }

    fn end_list(&self, version: u64) {
        let notifier = self.notifier();
        if self.is_closed() {
            return;
        }
        let missing = self.store.end_list(version);
        for (key, changed) in missing.gone {
            self.strangers().remove(&key);
            notifier.notify(&key, true, &changed);
        }
        for key in missing.doubtful {
            notifier.notify(&key, true, &self.doubted(&key));
        }
        self.news.send_modify(|news| *news += 1);
    }

    fn applied(&self, object: &Raw<'_>) -> Result<(), Unreadable> {
        let (key, version) = (&object.key, object.version);
        // What is held already is the echo of a write of ours: nothing of it need be decoded.
        if !self.store.deliver(version) || self.store.version(key) == Some(version) {
            return Ok(());
        }
        let value = self.project(object)?;
        self.strangers().remove(key);
        self.put(key, version, value);
        Ok(())
    }

    fn deleted(&self, object: &Raw<'_>) {
        let (key, version) = (&object.key, object.version);
        if self.store.deliver(version) {
            self.change(key, true, |store| store.forget(key, version));
        }
    }

    fn unselected(&self, object: &Raw<'_>) {
        if !self.strangers().contains(&object.key) {
            self.deleted(object);
        }
    }

    fn learnt(&self, object: &Raw<'_>) -> Result<(), Unreadable> {
        let (key, version) = (&object.key, object.version);
        if self.store.version(key) != Some(version) {
            let value = self.project(object)?;
            self.strangers().remove(key);
            self.put_answer(key, version, value, true);
        }
        Ok(())
    }

    fn deleted_by_another(&self, key: &Key, version: u64) {
        self.change(key, true, |store| match store.version(key) {
            Some(held) if held <= version => store.deleted(key, Some(held)),
            _ => None,
        });
    }

    fn in_touch(&self, at: Instant) {
        *self.contact.lock().unwrap_or_else(PoisonError::into_inner) = Some(at);
    }

    fn closed(&self) {
        let notifier = self.notifier();
        self.is_closed.store(true, Ordering::SeqCst);
        self.strangers().clear();
        self.doubtful().clear();
        for (key, changed) in self.store.clear() {
            notifier.notify(&key, true, &changed);
        }
        self.news.send_modify(|news| *news += 1);
    }

    fn interrupted(&self, why: Option<Cause>) {
        if self.interruption.set(why) {
            self.news.send_modify(|news| *news += 1);
        }
    }

    fn settle(&self) -> BoxFuture<'_, bool> {
        Box::pin(self.settle_all())
    }
}
