//! What tests look at beside the objects themselves: their history, the audit log, the metrics.

use std::{fmt::Debug, future::Future};

use anyhow::{Context, Result, bail};
use futures::{StreamExt, pin_mut};
use k8s_openapi::Metadata;
use kube::{
    Api, Resource,
    api::{PostParams, WatchEvent, WatchParams},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use testbed::{
    ControlPlane, Looks,
    audit::{Entry, Mark},
};

use crate::harness::{OPERATOR_USER, PATIENCE, Running, Space};

/// Asks until the answer is yes.
pub async fn eventually<F: Future<Output = Result<bool>>>(what: &str, mut holds: impl FnMut() -> F) -> Result<()> {
    let (deadline, mut looks) = (tokio::time::Instant::now() + PATIENCE, Looks::default());
    while !holds().await? {
        if tokio::time::Instant::now() > deadline {
            bail!("it never came true that {what}");
        }
        looks.next().await;
    }
    Ok(())
}

/// Every version of the object after `from`, up to and with the first that `is_last`.
pub async fn history<K>(api: &Api<K>, name: &str, from: &K, is_last: impl Fn(&K) -> bool) -> Result<Vec<K>>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let from = from.meta().resource_version.as_deref().context("a stored object has a version")?;
    let params = WatchParams::default().fields(&format!("metadata.name={name}"));
    let versions = api.watch(&params, from).await?;
    pin_mut!(versions);
    let mut seen = Vec::new();
    let collect = async {
        while let Some(event) = versions.next().await {
            let (WatchEvent::Added(object) | WatchEvent::Modified(object) | WatchEvent::Deleted(object)) = event?
            else {
                continue;
            };
            let is_done = is_last(&object);
            seen.push(object);
            if is_done {
                return Ok(());
            }
        }
        bail!("the watch ended")
    };
    match tokio::time::timeout(PATIENCE, collect).await {
        Ok(result) => result.map(|()| seen),
        Err(_) => bail!("{name} has not come to the end of its history; so far {seen:#?}"),
    }
}

/// Creates an object from JSON.
pub async fn create<K>(api: &Api<K>, object: Value) -> Result<K>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Serialize + Debug,
{
    Ok(api.create(&PostParams::default(), &serde_json::from_value(object)?).await?)
}

/// The operator's writes in one namespace since `mark`, in the order they arrived, events aside.
pub fn writes(control_plane: &ControlPlane, space: &Space, mark: Mark) -> Result<Vec<Entry>> {
    let mut entries = control_plane.audit().entries_after(mark)?;
    entries.retain(|entry| {
        entry.user == OPERATOR_USER
            && entry.namespace == space.namespace
            && entry.is_write()
            && entry.resource != "events"
    });
    entries.sort_by_key(|entry| entry.received_at);
    Ok(entries)
}

/// `patch performers/status`.
pub fn line(entry: &Entry) -> String {
    let slash = if entry.subresource.is_empty() { "" } else { "/" };
    format!("{} {}{slash}{}", entry.verb, entry.resource, entry.subresource)
}

/// Rounds that the operator made in a namespace, however they ended.
pub fn rounds(operator: &Running, space: &Space) -> f64 {
    let text = operator.metrics.encode().expect("metrics encode");
    let start = format!("strata_reconcile_total{{controller=\"performer\",namespace=\"{}\"", space.namespace);
    text.lines().filter(|line| line.starts_with(&start)).filter_map(number).sum()
}

/// The number at the end of a metric line.
pub fn number(line: &str) -> Option<f64> {
    line.rsplit(' ').next()?.parse().ok()
}

/// Waits until the operator has made so many more rounds in the namespace.
pub async fn more_rounds(operator: &Running, space: &Space, count: u32) -> Result<()> {
    let before = rounds(operator, space);
    eventually("enough rounds were made", || async { Ok(rounds(operator, space) >= before + f64::from(count)) }).await
}

pub fn uid<K: Metadata<Ty = kube::api::ObjectMeta>>(object: &K) -> String {
    object.metadata().uid.clone().unwrap_or_default()
}
