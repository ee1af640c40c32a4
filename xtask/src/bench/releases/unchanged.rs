//! Releases that are as they should be when the operator starts.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use api::workspace::HelmRelease;
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use serde::Serialize;
use serde_json::{Value, json};

use super::requests::Requests;
use crate::bench::{
    ground::{Ground, WRITERS},
    operator::{Operator, Usage},
    tally::each,
};

/// Rounds of releases that have ended, whatever their result.
pub const ROUNDS: &str = r#"controller_runtime_reconcile_total{controller="helmrelease""#;
/// Counters give no event; this is the resolution of the time.
const LOOK: Duration = Duration::from_millis(10);

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Unchanged {
    pub count: usize,
    /// From the start of the process until its caches are filled.
    pub ready_seconds: f64,
    /// From the start of the process until as many rounds have ended as there are releases.
    pub checked_seconds: f64,
    /// Of the whole process, from its start until then.
    pub cpu_ms_each: f64,
    pub usage: Usage,
    pub requests: Requests,
}

impl Unchanged {
    /// What there should be none of.
    pub fn disturbance(&self) -> usize {
        self.requests.own_writes + self.requests.helm
    }
}

pub async fn measure(ground: &Ground, program: &Path, count: usize) -> Result<Unchanged> {
    ground.settled().await?;
    let mark = ground.mark()?;
    let operator = Operator::start(ground, program, "operator-restarted").await?;
    let ready_seconds = operator.started().elapsed().as_secs_f64();
    let deadline = Instant::now() + ground.patience();
    while operator.metric(ROUNDS).await? < each(count, 1) {
        if Instant::now() > deadline {
            bail!("the operator does not look at all releases; the end of its log:\n{}", operator.child().log_tail());
        }
        tokio::time::sleep(LOOK).await;
    }
    let checked_seconds = operator.started().elapsed().as_secs_f64();
    let cpu_ms_each = operator.usage()?.cpu_ms / each(count, 1);
    ground.settled().await?;
    let (usage, requests) = (operator.usage()?, Requests::of(&ground.entries_after(mark)?));
    operator.stop().await?;
    Ok(Unchanged { count, ready_seconds, checked_seconds, cpu_ms_each, usage, requests })
}

/// Makes `count` releases that look to the operator exactly as one that it installed: the object with its status, and
/// Helm's record. Their own objects are missing, which the operator does not look at without drift detection.
pub async fn copy(ground: &Ground, namespace: &str, count: usize) -> Result<()> {
    let releases: Api<HelmRelease> = Api::namespaced(ground.client.clone(), namespace);
    let secrets: Api<Secret> = Api::namespaced(ground.client.clone(), namespace);
    // The last one has never been upgraded.
    let name = format!("bench-{:04}", ground.count - 1);
    let original = (releases.get(&name).await?, secrets.get(&secret_name(&name)).await?);
    let place = ground.control_plane.namespace("copies").await?;
    let copies = (0..count).map(|number| copy_one(ground, &place, &original, format!("copy-{number:05}")));
    stream::iter(copies).buffer_unordered(WRITERS).try_collect::<()>().await
}

async fn copy_one(ground: &Ground, namespace: &str, original: &(HelmRelease, Secret), name: String) -> Result<()> {
    let (release, secret) = original;
    let secrets: Api<Secret> = Api::namespaced(ground.client.clone(), namespace);
    let mut labels = secret.metadata.labels.clone().unwrap_or_default();
    labels.insert("name".to_owned(), name.clone());
    let mut record = json!({ "metadata": { "name": secret_name(&name), "labels": labels } });
    (record["type"], record["data"]) = (json!(secret.type_), json!(secret.data));
    let made = secrets.create(&PostParams::default(), &serde_json::from_value(record)?).await?;

    let releases: Api<HelmRelease> = Api::namespaced(ground.client.clone(), namespace);
    let finalizers = &release.metadata.finalizers;
    let object = json!({ "metadata": { "name": name, "finalizers": finalizers }, "spec": release.spec });
    releases.create(&PostParams::default(), &serde_json::from_value(object)?).await?;
    let mut status: Value = json!(release.status);
    let newest = status["history"].as_array_mut().and_then(|history| history.first_mut()).context("no history")?;
    newest["secretUid"] = json!(made.metadata.uid);
    newest["lastDeployed"] = json!(made.metadata.creation_timestamp);
    releases.patch_status(&name, &PatchParams::default(), &Patch::Merge(json!({ "status": status }))).await?;
    Ok(())
}

fn secret_name(release: &str) -> String {
    format!("sh.helm.release.v1.{release}.v1")
}
