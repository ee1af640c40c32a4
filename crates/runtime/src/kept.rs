//! What a controller keeps of its objects between their rounds: the object itself, or its text.

use std::{marker::PhantomData, sync::Arc};

use k8s_openapi::{Metadata, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use serde::{Serialize, de::DeserializeOwned};

use crate::store::Versioned;

/// Held for each object `K` of a controller, and opened when a round begins.
pub trait Kept<K>: Sized + Send + Sync + 'static {
    fn uid(&self) -> Option<&str>;
    fn opened(kept: &Arc<Versioned<Self>>) -> Arc<Versioned<K>>;
}

impl<K: Metadata<Ty = ObjectMeta> + Send + Sync + 'static> Kept<K> for K {
    fn uid(&self) -> Option<&str> {
        self.metadata().uid.as_deref()
    }

    fn opened(kept: &Arc<Versioned<Self>>) -> Arc<Versioned<K>> {
        kept.clone()
    }
}

/// A `K` as text, for kinds of which there are thousands: a map with one entry takes the room of eleven, and most fields
/// of metadata are empty. A round reads it anew, which costs less than a hundredth of a write.
#[derive(Debug)]
pub struct Packed<K> {
    /// Looked at before each step of a round.
    uid: Option<Box<str>>,
    text: Box<[u8]>,
    kind: PhantomData<fn() -> K>,
}

impl<K: Serialize + DeserializeOwned + Metadata<Ty = ObjectMeta>> Packed<K> {
    pub fn new(object: &K) -> Self {
        let text = serde_json::to_vec(object).expect("our own objects serialise").into();
        Self { uid: object.metadata().uid.as_deref().map(Into::into), text, kind: PhantomData }
    }

    pub fn open(&self) -> K {
        serde_json::from_slice(&self.text).expect("it was written as JSON")
    }
}

impl<K: Serialize + DeserializeOwned + Metadata<Ty = ObjectMeta> + 'static> Kept<K> for Packed<K> {
    fn uid(&self) -> Option<&str> {
        self.uid.as_deref()
    }

    fn opened(kept: &Arc<Versioned<Self>>) -> Arc<Versioned<K>> {
        Arc::new(Versioned { version: kept.version, value: kept.value.open() })
    }
}
