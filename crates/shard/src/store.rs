//! Where a shard keeps what it must not lose: small objects with conditional writes.
//!
//! Every write names the state it replaces, so that of two writers one loses and notices. What is local is a cache.

pub mod conformance;
mod election;
mod fault;
mod file;
pub mod layout;
mod memory;
mod s3;

use std::fmt;

use async_trait::async_trait;
use futures::{StreamExt, TryStreamExt, stream};
use jiff::Timestamp;

pub use election::{Election, Lead, Lost, Role};
pub use fault::{Careless, Fault, Faults, FaultyStore, Refused, Side};
pub use file::FileStore;
pub use memory::MemoryStore;
pub use s3::{S3Options, S3Store};

/// The longest key and object that any store takes: a path must fit a file system, an object the memory of a reader.
const KEY_LIMIT: usize = 512;
pub const OBJECT_LIMIT: usize = 8 * 1024 * 1024;

/// Objects read at once: enough to hide a bucket's latency, few enough for its limits.
const READERS: usize = 32;

/// Names one content of one object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Etag(String);

impl Etag {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Etag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// An object as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    pub body: Vec<u8>,
    pub etag: Etag,
    pub modified: Option<Timestamp>,
}

/// What a write replaces. There is no write without one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expect {
    /// Nothing: the object must not exist.
    Absent,
    /// Exactly this content.
    Content(Etag),
}

/// Why storage gave no answer, or no for an answer.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The object is not what the write expected. Nothing was written by this call.
    #[error("{key}: another writer was first")]
    Conflict { key: String },
    /// Storage did not answer. A write may or may not have taken effect.
    #[error("{key}: storage is unavailable")]
    Unavailable { key: String, source: Box<dyn std::error::Error + Send + Sync> },
    /// A key or an object that no store takes.
    #[error("{key}: {why}")]
    Invalid { key: String, why: &'static str },
}

impl StoreError {
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Conflict { .. })
    }

    fn conflict(key: &str) -> Self {
        Self::Conflict { key: key.to_owned() }
    }

    fn unavailable(key: &str, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Unavailable { key: key.to_owned(), source: source.into() }
    }
}

/// The narrow side of storage. An implementation passes [`conformance::check`].
#[async_trait]
pub trait Store: Send + Sync + 'static {
    async fn get(&self, key: &str) -> Result<Option<Object>, StoreError>;

    /// Several at once, in the order of the keys: a leader that takes over reads thousands.
    async fn get_many(&self, keys: &[String]) -> Result<Vec<Option<Object>>, StoreError> {
        let reads: Vec<_> = keys.iter().map(|key| self.get(key)).collect();
        stream::iter(reads).buffered(READERS).try_collect().await
    }

    /// Writes durably: after `Ok` the object survives a crash of everything.
    async fn put(&self, key: &str, body: Vec<u8>, expect: Expect) -> Result<Etag, StoreError>;

    /// Removes the object if it is there. Only for what no reader needs any more: it is not conditional.
    async fn delete(&self, key: &str) -> Result<(), StoreError>;

    /// All keys that begin with the prefix (a folder and a slash), sorted. What another hand put there under a name that is
    /// no key, an editor's `x.json~` or `copy of x`, is none of ours and is passed over.
    async fn list(&self, prefix: &str) -> Result<Vec<String>, StoreError>;
}

/// Keys are paths of plain names, so that none leaves its folder and every store takes them.
fn check_key(key: &str) -> Result<(), StoreError> {
    let plain = |name: &str| {
        !name.is_empty()
            && !name.starts_with('.')
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
    };
    if key.len() <= KEY_LIMIT && key.split('/').all(plain) {
        return Ok(());
    }
    Err(StoreError::Invalid { key: key.to_owned(), why: "not a path of plain names" })
}

fn check_body(key: &str, body: &[u8]) -> Result<(), StoreError> {
    if body.len() <= OBJECT_LIMIT {
        return Ok(());
    }
    Err(StoreError::Invalid { key: key.to_owned(), why: "longer than 8 MiB" })
}

/// The etag of stores that have none of their own: equal content, equal etag.
fn content_etag(body: &[u8]) -> Etag {
    use sha2::Digest;
    let hash = sha2::Sha256::digest(body);
    Etag(hash.iter().take(16).fold(String::with_capacity(32), |text, byte| text + &format!("{byte:02x}")))
}
