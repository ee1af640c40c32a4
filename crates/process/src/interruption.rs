//! Why something that is retried does not work at the moment.

use std::sync::{Arc, Mutex, PoisonError};

/// Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Interruption(Arc<Mutex<Option<String>>>);

impl Interruption {
    /// Stores it; true if it is new, so that it is logged once and not with every attempt.
    pub fn set(&self, interruption: Option<String>) -> bool {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_news = *known != interruption;
        *known = interruption;
        is_news
    }

    pub fn get(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
