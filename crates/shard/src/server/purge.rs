//! What storage forgets: the log of certificates that ended long ago, nonces that are refused by themselves, and keys of
//! agents without an instance.

use jiff::Timestamp;
use plan::shard::{
    id::InstanceId,
    sweep::{Owner, is_forgettable},
};

use super::term::{CHUNK, Term, TermError, bounded};
use crate::{
    identity::{LogEntry, nonce_end},
    store::{Lead, layout::OPERATOR_NONCES},
};

impl Term {
    /// Removes entries of certificates that ended long ago, and returns how many. One that cannot be read stays: the log
    /// is for people, who may want to know why.
    pub async fn purge_certificate_log(&self) -> Result<usize, TermError> {
        let end = |body: &[u8]| serde_json::from_slice::<LogEntry>(body).ok().map(|entry| entry.expires_at);
        self.purge(&self.context.layout.certificates(), &self.lead, end).await
    }

    /// Removes the keys of agents whose instances are gone, and returns how many. A key goes with its record; one is left
    /// where the record was removed by hand, and where earlier servers registered an agent whose instance was gone.
    pub async fn purge_agent_keys(&self) -> Result<usize, TermError> {
        let (store, folder) = (&self.context.store, self.context.layout.agent_keys());
        let keys = bounded(&folder, store.list(&folder)).await?;
        let mut removed = 0;
        for key in keys {
            let name = key.strip_prefix(&folder).and_then(|name| name.strip_suffix(".pem"));
            // Another name is no key of an agent: it is none of ours to remove.
            let Some(id) = name.and_then(|name| InstanceId::parse(name).ok()) else { continue };
            if matches!(self.memory().owner(id.as_str()), Owner::None) {
                self.lead.verify().await?;
                bounded(&key, store.delete(&key)).await?;
                removed += 1;
            }
        }
        Ok(removed)
    }

    /// Removes what is stored of operators' nonces that ended long ago, and returns how many. They are the cluster's:
    /// its leader removes them.
    pub async fn purge_operator_nonces(&self, cluster: &Lead) -> Result<usize, TermError> {
        self.purge(OPERATOR_NONCES, cluster, nonce_end).await
    }

    async fn purge(
        &self,
        folder: &str,
        lead: &Lead,
        end: impl Fn(&[u8]) -> Option<Timestamp>,
    ) -> Result<usize, TermError> {
        let store = &self.context.store;
        let keys = bounded(folder, store.list(folder)).await?;
        let mut removed = 0;
        for keys in keys.chunks(CHUNK) {
            let objects = bounded(folder, store.get_many(keys)).await?;
            let now = self.context.clock.now();
            for (key, object) in keys.iter().zip(objects) {
                let end = object.and_then(|object| end(&object.body));
                if end.is_some_and(|end| is_forgettable(end, now)) {
                    lead.verify().await?;
                    bounded(key, store.delete(key)).await?;
                    removed += 1;
                }
            }
        }
        Ok(removed)
    }
}
