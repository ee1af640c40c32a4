//! What interrupts a watch.

use std::time::Duration;

use kube::{core::Status, runtime::watcher};

use super::pages::LONGEST_PAGE;
use crate::{
    error::{Brief, undecodable},
    lines::LONGEST_LINE,
};

/// What a server may ask us to wait: longer than this we would be blind for no reason.
const LONGEST_RETRY_AFTER: Duration = Duration::from_mins(1);

/// What interrupted a watch.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WatchError {
    #[error("{verb}: {} ({})", status.message, status.code)]
    Refused { verb: &'static str, status: Box<Status>, retry_after: Option<Duration> },
    #[error("{verb}: {}", Brief(source))]
    Lost { verb: &'static str, source: Box<kube::Error> },
    #[error("{verb}: no answer within {limit:?}")]
    Silent { verb: &'static str, limit: Duration },
    #[error("{verb}: {}", undecodable(source))]
    Undecodable { verb: &'static str, source: serde_json::Error },
    #[error("list: a line of the stream is longer than {LONGEST_LINE} bytes")]
    TooLong,
    #[error("list: a page of one object is longer than {LONGEST_PAGE} bytes")]
    PageTooLong,
    #[error("list: the server does not stream lists")]
    NoStream,
    #[error("list: no resource version")]
    NoVersion,
    #[error("watch: ended at once")]
    EndedAtOnce,
}

impl WatchError {
    pub(super) fn lost(verb: &'static str) -> impl FnOnce(kube::Error) -> Self {
        move |source| Self::Lost { verb, source: Box::new(source) }
    }

    pub(super) fn code(&self) -> Option<u16> {
        match self {
            Self::Refused { status, .. } => Some(status.code),
            _ => None,
        }
    }

    /// Whether the history that was asked for is gone.
    pub(super) fn is_expired(&self) -> bool {
        self.code() == Some(410)
    }

    /// Whether the server does not know the kind: a list or watch has no other reason for this answer.
    pub(super) fn is_undefined(&self) -> bool {
        self.code() == Some(404)
    }

    /// Whether the list can be read in pages instead: the server knows nothing of streams, or refuses them.
    pub(super) fn is_about_streaming(&self) -> bool {
        matches!(self, Self::NoStream) || matches!(self.code(), Some(400 | 405 | 422 | 501))
    }

    pub(super) fn retry_after(&self) -> Duration {
        match self {
            Self::Refused { retry_after: Some(wait), .. } => (*wait).min(LONGEST_RETRY_AFTER),
            _ => Duration::ZERO,
        }
    }
}

pub(super) fn decode<'a, T: serde::Deserialize<'a>>(verb: &'static str, text: &'a [u8]) -> Result<T, WatchError> {
    serde_json::from_slice(text).map_err(|source| WatchError::Undecodable { verb, source })
}

/// An error within a stream.
pub(super) fn refused(verb: &'static str, status: &[u8]) -> WatchError {
    match decode::<Box<Status>>(verb, status) {
        Ok(status) => WatchError::Refused { verb, status, retry_after: None },
        Err(error) => error,
    }
}

/// What interrupted a watch that is kube's.
pub(crate) fn describe(error: &watcher::Error) -> String {
    use watcher::Error::{InitialListFailed, NoResourceVersion, WatchError, WatchFailed, WatchStartFailed};
    match error {
        InitialListFailed(error) => format!("list: {}", Brief(error)),
        WatchStartFailed(error) | WatchFailed(error) => format!("watch: {}", Brief(error)),
        WatchError(status) => format!("watch: {} ({})", status.message, status.code),
        NoResourceVersion => error.to_string(),
    }
}
