//! One watch of the benchmark's own: the moment at which something is visible to any client.

use std::{
    fmt::Debug,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use futures::{
    Stream, StreamExt,
    stream::{self, BoxStream},
};
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
                let (WatchEvent::Added(object) | WatchEvent::Modified(object)) = self.event().await? else { continue };
                if is_enough(&object) {
                    return anyhow::Ok(Instant::now());
                }
            }
        };
        tokio::time::timeout(patience, seen).await.with_context(|| format!("{what}: not within {patience:?}"))?
    }

    /// All that is shown, without an end. An object may be shown several times as it is.
    pub fn events(self) -> impl Stream<Item = Result<WatchEvent<K>>> {
        stream::unfold(self, |mut follower| async move {
            let event = follower.event().await;
            Some((event, follower))
        })
    }

    /// What is shown next. The server ends every watch after some minutes; the next one begins with all objects.
    async fn event(&mut self) -> Result<WatchEvent<K>> {
        loop {
            match self.events.next().await {
                Some(Ok(WatchEvent::Error(status))) => bail!("the watch failed: {}", status.message),
                Some(event) => return Ok(event?),
                None => self.events = open(&self.api).await?.boxed(),
            }
        }
    }
}

/// Version 0 asks for what is there already, too.
async fn open<K>(api: &Api<K>) -> Result<impl Stream<Item = kube::Result<WatchEvent<K>>> + Send + use<K>>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    Ok(api.watch(&WatchParams::default().timeout(290), "0").await?)
}
