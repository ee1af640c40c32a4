//! What readiness asks of a kind.

use super::Kind;
use crate::view::View;

/// What readiness asks a cache of any kind.
pub(crate) trait Cache: Send + Sync {
    /// Filled, or why not.
    fn readiness(&self) -> Result<(), String>;
    /// What is wrong with a cache that is filled.
    fn mention(&self) -> Option<String>;
    /// Whether the API server does not know the kind, before the first list or any more.
    fn is_undefined(&self) -> bool;
}

impl<W: View, T: Send + Sync + 'static> Cache for Kind<W, T> {
    fn readiness(&self) -> Result<(), String> {
        if self.store.is_synced() {
            return Ok(());
        }
        Err(self.interruption.get().unwrap_or_else(|| "not synced yet".to_owned()))
    }

    fn mention(&self) -> Option<String> {
        self.interruption.get().filter(|_| self.store.is_synced())
    }

    fn is_undefined(&self) -> bool {
        self.interruption.is_undefined()
    }
}
