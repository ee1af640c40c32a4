//! Several operators of one cluster: one of them leads.

use std::time::Duration;

use anyhow::Result;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Patch, PatchParams};
use runtime::LeaseConfig;
use serde_json::json;
use shard::{client::Code, identity::key_pair};

use crate::{
    gate::{Gate, STREAMS},
    scene::{Running, Scene},
};

const LEASE: &str = "strata";

/// Starts an operator behind a gate of its own.
async fn start(scene: &Scene, name: &str) -> Result<(Running, Gate)> {
    let gate = Gate::before(&scene.zones, "a").await?;
    let file = scene.write_addresses(&format!("{name}.yaml"), &gate.addresses(&scene.zones))?;
    let lease = LeaseConfig {
        namespace: scene.namespace.clone(),
        name: LEASE.to_owned(),
        identity: name.to_owned(),
        // Its renewals survive a busy machine.
        duration: Duration::from_mins(1),
    };
    Ok((scene.spawn(file, Some(lease)).await?, gate))
}

async fn until_open(scene: &Scene, gate: &Gate, streams: &[&str]) -> Result<()> {
    scene.until(&format!("open streams are {streams:?}"), || async { Ok(gate.open() == streams) }).await
}

#[tokio::test]
async fn a12_only_the_operator_that_holds_the_lease_has_streams() -> Result<()> {
    let scene = Scene::without_operator("lead", &["a"], json!({})).await?;
    let (leader, first) = start(&scene, "first").await?;
    until_open(&scene, &first, &STREAMS).await?;
    let (standby, second) = start(&scene, "second").await?;
    let is_ready = || async {
        let verdicts = standby.health.readiness();
        Ok(!verdicts.is_empty() && verdicts.values().all(Result::is_ok))
    };
    scene.until("the standby has all it needs", is_ready).await?;
    scene.create_pool("web", &["a"], Some(1)).await?;
    scene.until_sizes("web", &["a"], &[Some(1)]).await?;
    scene.until_pool("web", "Ready", "True/Reconciled").await?;
    assert_eq!(second.calls(), Vec::<String>::new(), "a standby says nothing to a shard");

    leader.stop().await?;
    until_open(&scene, &second, &STREAMS).await?;
    assert_eq!(first.open(), Vec::<String>::new());
    let before = first.calls();
    scene.scale("web", 2).await?;
    scene.until_sizes("web", &["a"], &[Some(2)]).await?;
    assert_eq!(first.calls(), before);

    // Another takes the lease from an operator that runs on.
    let stolen = json!({ "spec": { "holderIdentity": "another", "leaseDurationSeconds": 3600 } });
    scene.api::<Lease>().patch(LEASE, &PatchParams::default(), &Patch::Merge(stolen)).await?;
    until_open(&scene, &second, &[]).await?;
    let count = second.count("UpsertGroup");
    scene.scale("web", 3).await?;
    assert_eq!((second.open().len(), second.count("UpsertGroup")), (0, count));
    standby.stop().await
}

/// Only the leader of the cluster gives certificates.
async fn leads_cluster(scene: &Scene, shard: &str) -> Result<bool> {
    let key = key_pair().public_key_pem().into_bytes();
    match scene.zones.client(shard)?.renew_certificate(key).await {
        Ok(_) => Ok(true),
        Err(error) if error.code() == Code::FailedPrecondition => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[tokio::test]
async fn a05_a_shard_that_does_not_lead_the_cluster_sends_the_operator_to_the_next() -> Result<()> {
    let mut scene = Scene::without_operator("lead-cluster", &["a", "b"], json!({})).await?;
    scene.zones.stop("a").await;
    scene.until("b leads the cluster", || leads_cluster(&scene, "b")).await?;
    scene.zones.run("a").await?;
    assert!(!leads_cluster(&scene, "a").await?);
    scene.start().await?;
    scene.create_pool("web", &["a", "b"], Some(0)).await?;
    scene.until_pool("web", "Ready", "True/Reconciled").await?;
    assert!(leads_cluster(&scene, "b").await? && !leads_cluster(&scene, "a").await?, "it was so all the time");
    Ok(())
}
