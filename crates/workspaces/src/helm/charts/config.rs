//! How charts are kept.

use std::time::Duration;

/// How charts are kept.
#[derive(Clone, Debug)]
pub struct ChartsConfig {
    /// How old an answer about a range or an index may be.
    pub time_to_live: Duration,
    /// How soon a failure is tried again.
    pub retry: Duration,
    /// What all archives may take on disk, and all indexes again. The least recently used go first, one in use never:
    /// what then finds no room is refused.
    pub cache_bytes: u64,
    /// A larger index is refused.
    pub index_bytes: u64,
    /// What indexes that are being downloaded may take beside that; one namespace leaves room for an index of others.
    /// Archives on their way are bounded by the number of helm processes and the size of each.
    pub download_bytes: u64,
    /// For helm while it resolves and fetches; it reads the whole index.
    pub memory: Option<u64>,
}

impl Default for ChartsConfig {
    fn default() -> Self {
        Self {
            time_to_live: Duration::from_mins(5),
            retry: Duration::from_secs(30),
            // Some ten thousand usual charts.
            cache_bytes: 512 << 20,
            // Twice the largest public one.
            index_bytes: 64 << 20,
            // Four of that size at once.
            download_bytes: 256 << 20,
            memory: None,
        }
    }
}
