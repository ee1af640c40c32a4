//! Why something that is retried does not work at the moment.

use std::sync::{Arc, Mutex, PoisonError};

/// What stands in the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cause {
    /// For people.
    pub text: String,
    /// The API server does not know the kind.
    pub is_undefined: bool,
}

impl From<String> for Cause {
    fn from(text: String) -> Self {
        Self { text, is_undefined: false }
    }
}

/// Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interruption(Arc<Mutex<Option<Cause>>>);

impl Interruption {
    /// Stores it; true if it is new, so that it is logged once and not with every attempt.
    pub(crate) fn set(&self, cause: Option<Cause>) -> bool {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_news = *known != cause;
        *known = cause;
        is_news
    }

    /// In words.
    pub(crate) fn get(&self) -> Option<String> {
        self.cause().map(|cause| cause.text)
    }

    pub(crate) fn is_undefined(&self) -> bool {
        self.cause().is_some_and(|cause| cause.is_undefined)
    }

    fn cause(&self) -> Option<Cause> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
