//! A store in memory: for tests and benchmarks. Clones share the objects, as servers share a bucket.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use async_trait::async_trait;

use super::{Etag, Expect, Object, Store, StoreError, check_body, check_key, content_etag};

#[derive(Clone, Debug, Default)]
pub struct MemoryStore {
    objects: Arc<Mutex<BTreeMap<String, Vec<u8>>>>,
}

impl MemoryStore {
    fn with<T>(&self, read: impl FnOnce(&mut BTreeMap<String, Vec<u8>>) -> T) -> T {
        read(&mut self.objects.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Everything that is stored.
    pub fn snapshot(&self) -> BTreeMap<String, Vec<u8>> {
        self.with(|objects| objects.clone())
    }
}

#[async_trait]
impl Store for MemoryStore {
    async fn get(&self, key: &str) -> Result<Option<Object>, StoreError> {
        check_key(key)?;
        let body = self.with(|objects| objects.get(key).cloned());
        Ok(body.map(|body| Object { etag: content_etag(&body), body, modified: None }))
    }

    async fn put(&self, key: &str, body: Vec<u8>, expect: Expect) -> Result<Etag, StoreError> {
        check_key(key)?;
        check_body(key, &body)?;
        let etag = content_etag(&body);
        self.with(|objects| {
            let holds = match (&expect, objects.get(key)) {
                (Expect::Absent, there) => there.is_none(),
                (Expect::Content(etag), there) => there.is_some_and(|body| content_etag(body) == *etag),
            };
            if !holds {
                return Err(StoreError::conflict(key));
            }
            objects.insert(key.to_owned(), body);
            Ok(etag)
        })
    }

    async fn delete(&self, key: &str) -> Result<(), StoreError> {
        check_key(key)?;
        self.with(|objects| objects.remove(key));
        Ok(())
    }

    async fn list(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        check_key(prefix.trim_end_matches('/'))?;
        Ok(self.with(|objects| objects.keys().filter(|key| key.starts_with(prefix)).cloned().collect()))
    }
}
