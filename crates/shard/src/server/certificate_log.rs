//! The certificate log forgets what ended long ago.

use plan::shard::sweep::is_forgettable;

use super::term::{CHUNK, Term, TermError, bounded};
use crate::identity::LogEntry;

impl Term {
    /// Removes entries of certificates that ended long ago, and returns how many. One that cannot be read stays: the log
    /// is for people, who may want to know why.
    pub async fn purge_certificate_log(&self) -> Result<usize, TermError> {
        let (store, folder) = (&self.context.store, self.context.layout.certificates());
        let keys = bounded(&folder, store.list(&folder)).await?;
        let mut removed = 0;
        for keys in keys.chunks(CHUNK) {
            let objects = bounded(&folder, store.get_many(keys)).await?;
            let now = self.context.clock.now();
            for (key, object) in keys.iter().zip(objects) {
                let entry = object.and_then(|object| serde_json::from_slice::<LogEntry>(&object.body).ok());
                if entry.is_some_and(|entry| is_forgettable(entry.expires_at, now)) {
                    self.lead.verify().await?;
                    bounded(key, store.delete(key)).await?;
                    removed += 1;
                }
            }
        }
        Ok(removed)
    }
}
