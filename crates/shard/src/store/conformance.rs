//! What every store must do, and the proof of it that a server asks for when it starts.

use futures::future::join_all;

use super::{Etag, Expect, Store, StoreError};

/// Enough writers at once that a store without atomic comparison lets two of them through.
const RIVALS: usize = 8;

/// Rounds of rivalry: one might order the writers by luck.
const ROUNDS: usize = 4;

/// Why a store may not hold a shard.
#[derive(Debug, thiserror::Error)]
pub enum Unfit {
    #[error("the store accepted {0}: it cannot keep two servers apart; use another store or version of it")]
    Accepts(&'static str),
    #[error("the store failed {what}")]
    Failed { what: &'static str, source: StoreError },
    #[error("the store broke a promise: {0}")]
    Broke(&'static str),
}

/// Proves at start that the store refuses a second create and a stale write, also from several writers at once.
/// `unique` names this attempt; its object is removed.
pub async fn prove(store: &dyn Store, unique: &str) -> Result<(), Unfit> {
    let key = format!("probe/{unique}");
    let outcome = prove_at(store, &key).await;
    let removed = store.delete(&key).await;
    outcome?;
    removed.map_err(failed("to delete"))
}

async fn prove_at(store: &dyn Store, key: &str) -> Result<(), Unfit> {
    let first = store.put(key, b"0".to_vec(), Expect::Absent).await.map_err(failed("to create"))?;
    refused(store.put(key, b"1".to_vec(), Expect::Absent).await, "a second create")?;
    let mut current =
        store.put(key, b"2".to_vec(), Expect::Content(first.clone())).await.map_err(failed("to write"))?;
    refused(store.put(key, b"3".to_vec(), Expect::Content(first)).await, "a stale write")?;
    for round in 0..ROUNDS {
        let writes = (0..RIVALS).map(|rival| {
            let body = format!("{round}.{rival}").into_bytes();
            store.put(key, body, Expect::Content(current.clone()))
        });
        let mut won = Vec::new();
        for outcome in join_all(writes).await {
            match outcome {
                Ok(etag) => won.push(etag),
                Err(error) if error.is_conflict() => {}
                Err(error) => return Err(failed("a rival write")(error)),
            }
        }
        // A store may refuse all rivals, but never let two through.
        match won.len() {
            0 => {}
            1 => current = won.remove(0),
            _ => return Err(Unfit::Accepts("two writes over the same content")),
        }
    }
    Ok(())
}

fn refused(outcome: Result<Etag, StoreError>, what: &'static str) -> Result<(), Unfit> {
    match outcome {
        Ok(_) => Err(Unfit::Accepts(what)),
        Err(error) if error.is_conflict() => Ok(()),
        Err(error) => Err(failed(what)(error)),
    }
}

fn failed(what: &'static str) -> impl FnOnce(StoreError) -> Unfit {
    move |source| Unfit::Failed { what, source }
}

/// The whole suite, in the folder `conformance/{unique}/`, which it leaves empty.
pub async fn check(store: &dyn Store, unique: &str) -> Result<(), Unfit> {
    prove(store, &format!("{unique}-proof")).await?;
    let folder = format!("conformance/{unique}/");
    let key = |name: &str| format!("{folder}{name}");
    let missing = store.get(&key("none")).await.map_err(failed("to read a missing object"))?;
    require(missing.is_none(), "a missing object reads as absent")?;
    let nothing = store.list(&folder).await.map_err(failed("to list an empty folder"))?;
    require(nothing.is_empty(), "an empty folder lists nothing")?;
    writes(store, &key("a")).await?;
    listing(store, &folder).await?;
    for name in [&*key("../x"), "/x", "x//y", ".x", "a b", ""] {
        let refused = matches!(store.get(name).await, Err(StoreError::Invalid { .. }));
        require(refused, "a key that is no path of plain names is refused")?;
    }
    let left = store.list(&folder).await.map_err(failed("to list"))?;
    require(left.is_empty(), "what is deleted is not listed")
}

async fn writes(store: &dyn Store, key: &str) -> Result<(), Unfit> {
    let stale = store.put(key, b"one".to_vec(), Expect::Absent).await.map_err(failed("to create"))?;
    let read = store.get(key).await.map_err(failed("to read"))?;
    let read = read.ok_or(Unfit::Broke("a created object is there"))?;
    require(read.body == b"one" && read.etag == stale, "a read gives what was written, with the write's etag")?;
    let etag = store.put(key, b"two".to_vec(), Expect::Content(stale.clone())).await.map_err(failed("to write"))?;
    require(etag != stale, "another content has another etag")?;
    refused(store.put(key, b"three".to_vec(), Expect::Content(stale)).await, "a stale write")?;
    let read = store.get(key).await.map_err(failed("to read"))?;
    require(read.is_some_and(|object| object.body == b"two"), "a refused write changes nothing")?;
    store.delete(key).await.map_err(failed("to delete"))?;
    store.delete(key).await.map_err(failed("to delete what is gone"))?;
    refused(store.put(key, b"four".to_vec(), Expect::Content(etag)).await, "a write over a deleted object")?;
    let empty = store.put(key, Vec::new(), Expect::Absent).await.map_err(failed("to create an empty object"))?;
    let read = store.get(key).await.map_err(failed("to read"))?;
    require(read.is_some_and(|object| object.body.is_empty() && object.etag == empty), "an object may be empty")?;
    store.delete(key).await.map_err(failed("to delete"))
}

async fn listing(store: &dyn Store, folder: &str) -> Result<(), Unfit> {
    let mut expected: Vec<String> = ["b.json", "c/d.json", "c/e", "a"].map(|name| format!("{folder}{name}")).to_vec();
    for key in &expected {
        store.put(key, key.clone().into_bytes(), Expect::Absent).await.map_err(failed("to create"))?;
    }
    expected.sort();
    let all = store.list(folder).await.map_err(failed("to list"))?;
    require(all == expected, "a list has every key under the prefix, sorted")?;
    let asked = [&expected[..], &[format!("{folder}none")]].concat();
    let read = store.get_many(&asked).await.map_err(failed("to read several"))?;
    let bodies: Vec<_> = read.into_iter().map(|object| object.map(|object| object.body)).collect();
    let written = expected.iter().map(|key| Some(key.clone().into_bytes())).chain([None]);
    require(bodies == written.collect::<Vec<_>>(), "several objects are read in the order of their keys")?;
    let inner = store.list(&format!("{folder}c/")).await.map_err(failed("to list"))?;
    require(inner.len() == 2, "a list has only keys under the prefix")?;
    for key in &expected {
        store.delete(key).await.map_err(failed("to delete"))?;
    }
    Ok(())
}

fn require(holds: bool, promise: &'static str) -> Result<(), Unfit> {
    if holds { Ok(()) } else { Err(Unfit::Broke(promise)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Careless, FileStore, MemoryStore};

    #[tokio::test]
    async fn the_memory_store_conforms() {
        check(&MemoryStore::default(), "m").await.unwrap();
    }

    #[tokio::test]
    async fn the_file_store_conforms() {
        let folder = tempfile::tempdir().unwrap();
        check(&FileStore::open(folder.path()).unwrap(), "f").await.unwrap();
    }

    #[tokio::test]
    async fn a_store_that_takes_a_stale_write_is_refused_with_the_reason() {
        let store = MemoryStore::default();
        let error = prove(&Careless(store.clone()), "x").await.unwrap_err().to_string();
        assert!(error.contains("accepted a stale write"), "{error}");
        assert!(store.snapshot().is_empty(), "the probe is removed");
    }
}
