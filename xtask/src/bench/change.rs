//! A changed spec until the new pod is there.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use api::performer::{Performer, owned_name};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
};
use serde::Serialize;
use serde_json::json;
use testbed::audit::Entry;

use super::{
    follow::Follower,
    ground::{Ground, OPERATOR_USER},
    times::Times,
};

/// One after another; a p99 needs at least a hundred.
const CHANGES: usize = 200;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Change {
    pub changes: usize,
    /// From sending a new image to a client's watch seeing the pod that has it.
    pub whole: Times,
    /// From the answer to the patch to the operator's delete of the old pod, as the API server saw both.
    pub delete: Times,
    /// Of that, the API server's time for the status that announces an upgrade before anything is deleted.
    pub announced: Times,
    /// From the end of the old pod to the operator's create of the new one.
    pub create: Times,
    /// Where the slowest one spent its time.
    pub slowest: String,
}

pub async fn measure(ground: &Ground, namespace: &str) -> Result<Change> {
    let performers: Api<Performer> = Api::namespaced(ground.client.clone(), namespace);
    let mut pods = Follower::open(Api::<Pod>::namespaced(ground.client.clone(), namespace)).await?;
    let names = performers.list_metadata(&kube::api::ListParams::default()).await?;
    let names: Vec<String> = names.items.iter().map(ResourceExt::name_any).take(CHANGES).collect();
    let image = "registry.test/performer:v2";
    let mark = ground.mark()?;
    let mut times = Vec::new();
    for name in &names {
        let patch = json!({ "spec": { "image": image } });
        let started = Instant::now();
        performers.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await?;
        let pod_name = owned_name(name);
        let is_new = |pod: &Pod| {
            let container = pod.spec.as_ref().and_then(|spec| spec.containers.first());
            pod.name_any() == pod_name && container.and_then(|container| container.image.as_deref()) == Some(image)
        };
        let seen = pods.until(Duration::from_mins(2), "the new pod", is_new).await.with_context(|| name.clone())?;
        times.push(seen.duration_since(started).as_secs_f64() * 1000.0);
    }
    ground.settled().await?;
    let mut entries = ground.entries_after(mark)?;
    entries.sort_by_key(|entry| entry.received_at);
    let parts: Option<Vec<Parts>> = names.iter().map(|name| Parts::of(&entries, name)).collect();
    let parts = parts.context("the audit log lacks a request of a change")?;
    let slowest = times.iter().zip(&parts).zip(&names).max_by(|a, b| a.0.0.total_cmp(b.0.0));
    let slowest = slowest.map(|((whole, parts), name)| {
        format!(
            "{name}: {whole:.0} ms, of them {:.0} to the delete, {:.0} until the old pod was gone, {:.0} to the create",
            parts.delete, parts.gone, parts.create
        )
    });
    Ok(Change {
        changes: times.len(),
        delete: Times::of(parts.iter().map(|parts| parts.delete).collect()),
        announced: Times::of(parts.iter().map(|parts| parts.announced).collect()),
        create: Times::of(parts.iter().map(|parts| parts.create).collect()),
        slowest: slowest.unwrap_or_default(),
        whole: Times::of(times),
    })
}

/// Milliseconds of one change, by the audit log.
struct Parts {
    delete: f64,
    announced: f64,
    gone: f64,
    create: f64,
}

impl Parts {
    /// Of the entries in the order of their arrival.
    fn of(entries: &[Entry], performer: &str) -> Option<Self> {
        let pod = owned_name(performer);
        let is_pod =
            |entry: &&Entry| (entry.resource.as_str(), entry.subresource.as_str()) == ("pods", "") && entry.name == pod;
        let is_own = |entry: &&Entry| entry.user == OPERATOR_USER;
        let patch = entries.iter().find(|entry| {
            (entry.verb.as_str(), entry.resource.as_str(), entry.subresource.as_str()) == ("patch", "performers", "")
                && entry.name == performer
                && !is_own(entry)
        })?;
        let status = entries.iter().filter(is_own).find(|entry| {
            (entry.resource.as_str(), entry.subresource.as_str()) == ("performers", "status")
                && entry.name == performer
                && entry.received_at > patch.received_at
        })?;
        let deletes = || entries.iter().filter(is_pod).filter(|entry| entry.verb == "delete" && entry.code < 300);
        let delete = deletes().find(is_own)?;
        // The node's delete is the last one, if the operator's own was not enough.
        let gone = deletes().next_back()?;
        // The name is not in the address of a create; the server adds it to the entry.
        let create = entries.iter().filter(is_pod).filter(is_own).find(|entry| entry.verb == "create")?;
        Some(Self {
            delete: milliseconds(patch.answered_at, delete.received_at),
            announced: milliseconds(status.received_at, status.answered_at),
            gone: milliseconds(delete.received_at, gone.answered_at),
            create: milliseconds(gone.answered_at, create.received_at),
        })
    }
}

/// An event may overtake the answer that the audit log takes the time of.
fn milliseconds(from: Timestamp, to: Timestamp) -> f64 {
    to.duration_since(from).as_secs_f64().max(0.0) * 1000.0
}
