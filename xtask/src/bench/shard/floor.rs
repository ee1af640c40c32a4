//! What the store itself takes: no server on it can be quicker.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use anyhow::Result;
use futures::future::try_join_all;
use serde::Serialize;
use shard::store::{Expect, FileStore, Store};

const WINDOW: Duration = Duration::from_secs(3);
const WRITERS: [usize; 2] = [1, 8];

/// About the size of a record.
const PAYLOAD: usize = 600;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RawWrites {
    pub writers: usize,
    pub per_second: f64,
}

pub async fn measure(folder: &Path) -> Result<Vec<RawWrites>> {
    let store = FileStore::open(folder.join("floor"))?;
    let mut rates = Vec::new();
    for writers in WRITERS {
        let started = Instant::now();
        let all = (0..writers).map(|writer| write_until(&store, writer, started + WINDOW));
        let writes: usize = try_join_all(all).await?.iter().sum();
        rates.push(RawWrites {
            writers,
            per_second: super::super::tally::each(writes, 1) / started.elapsed().as_secs_f64(),
        });
    }
    Ok(rates)
}

/// Each writer replaces an object of its own, over the content it wrote before.
async fn write_until(store: &FileStore, writer: usize, end: Instant) -> Result<usize> {
    let key = format!("raw/{writer}");
    store.delete(&key).await?;
    let mut etag = store.put(&key, vec![b'x'; PAYLOAD], Expect::Absent).await?;
    let mut writes = 0;
    while Instant::now() < end {
        let mut body = vec![b'x'; PAYLOAD];
        body.extend(writes.to_string().bytes());
        etag = store.put(&key, body, Expect::Content(etag)).await?;
        writes += 1;
    }
    Ok(writes)
}
