//! A store in memory: for tests and benchmarks. Clones share the objects, as servers share a bucket.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use async_trait::async_trait;

use super::{Etag, Expect, Object, Store, StoreError, check_body, check_key};

#[derive(Clone, Debug, Default)]
pub struct MemoryStore {
    objects: Arc<Mutex<Objects>>,
}

/// Objects by key, each with the number of the write that made it.
#[derive(Debug, Default)]
struct Objects {
    by_key: BTreeMap<String, (Vec<u8>, u64)>,
    writes: u64,
}

fn etag(write: u64) -> Etag {
    Etag(write.to_string())
}

impl MemoryStore {
    fn objects(&self) -> MutexGuard<'_, Objects> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Everything that is stored.
    pub fn snapshot(&self) -> BTreeMap<String, Vec<u8>> {
        self.objects().by_key.iter().map(|(key, (body, _))| (key.clone(), body.clone())).collect()
    }
}

#[async_trait]
impl Store for MemoryStore {
    async fn get(&self, key: &str) -> Result<Option<Object>, StoreError> {
        check_key(key)?;
        let objects = self.objects();
        let found = objects.by_key.get(key);
        Ok(found.map(|(body, write)| Object { body: body.clone(), etag: etag(*write), modified: None }))
    }

    async fn put(&self, key: &str, body: Vec<u8>, expect: Expect) -> Result<Etag, StoreError> {
        check_key(key)?;
        check_body(key, &body)?;
        let mut objects = self.objects();
        let there = objects.by_key.get(key).map(|(_, write)| etag(*write));
        let holds = match &expect {
            Expect::Absent => there.is_none(),
            Expect::Content(expected) => there.as_ref() == Some(expected),
        };
        if !holds {
            return Err(StoreError::conflict(key));
        }
        objects.writes += 1;
        let write = objects.writes;
        objects.by_key.insert(key.to_owned(), (body, write));
        Ok(etag(write))
    }

    async fn delete(&self, key: &str) -> Result<(), StoreError> {
        check_key(key)?;
        self.objects().by_key.remove(key);
        Ok(())
    }

    async fn list(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        check_key(prefix.trim_end_matches('/'))?;
        Ok(self.objects().by_key.keys().filter(|key| key.starts_with(prefix)).cloned().collect())
    }
}
