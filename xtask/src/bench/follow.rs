//! One watch of the benchmark's own: the moment at which something is visible to any client.

use std::{
    fmt::Debug,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use futures::{Stream, StreamExt, stream::BoxStream};
use kube::{
    Api, Resource,
    api::{WatchEvent, WatchParams},
};
use serde::de::DeserializeOwned;

type Events<K> = BoxStream<'static, kube::Result<WatchEvent<K>>>;

/// Follows the objects of one API from the moment it is opened.
pub struct Follower<K> {
    api: Api<K>,
    events: Events<K>,
}

impl<K> Follower<K>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    /// Returns when the server has begun to answer, so that no connecting is measured.
    pub async fn open(api: Api<K>) -> Result<Self> {
        let events = open(&api).await?.boxed();
        Ok(Self { api, events })
    }

    /// Shows every object as it is and as it changes to `is_enough`; returns when that says yes.
    pub async fn until(
        &mut self,
        patience: Duration,
        what: &str,
        mut is_enough: impl FnMut(&K) -> bool,
    ) -> Result<Instant> {
        let seen = async {
            loop {
                match self.events.next().await {
                    Some(Ok(WatchEvent::Added(object) | WatchEvent::Modified(object))) if is_enough(&object) => {
                        return Ok(Instant::now());
                    }
                    Some(Ok(WatchEvent::Error(status))) => anyhow::bail!("the watch failed: {}", status.message),
                    Some(Err(error)) => return Err(error.into()),
                    Some(Ok(_)) => {}
                    // The server ends every watch after some minutes; the next one begins with all objects.
                    None => self.events = open(&self.api).await?.boxed(),
                }
            }
        };
        tokio::time::timeout(patience, seen).await.with_context(|| format!("{what}: not within {patience:?}"))?
    }
}

/// Version 0 asks for what is there already, too.
async fn open<K>(api: &Api<K>) -> Result<impl Stream<Item = kube::Result<WatchEvent<K>>> + Send + use<K>>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    Ok(api.watch(&WatchParams::default().timeout(290), "0").await?)
}
