//! What is in the way of something that is tried again and again.

use std::sync::{Arc, Mutex, PoisonError};

/// Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trouble(Arc<Mutex<Option<String>>>);

impl Trouble {
    /// Notes it; true if it is news, so that it is told once and not with every attempt.
    pub(crate) fn set(&self, trouble: Option<String>) -> bool {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_news = *known != trouble;
        *known = trouble;
        is_news
    }

    pub(crate) fn get(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
