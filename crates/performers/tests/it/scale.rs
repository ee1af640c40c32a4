//! Many Performers at once.

use std::{collections::HashSet, time::Duration};

use anyhow::{Context, Result};
use api::performer::Performer;
use futures::{StreamExt, future::try_join_all};
use kube::Api;
use performers::Config;
use runtime::Settings;
use testbed::{Options, Workloads};

use crate::{
    harness::{OPERATOR_USER, Running, Space, alone, operator_user, spec},
    scene::{Scene, changes},
    turn::REQUEST_TIMEOUT,
};

const NAMESPACES: usize = 50;
const EACH: usize = 10;
/// Finalizer, pod, Service and two status writes; events and leases are counted apart.
const WRITES: usize = 5;
/// Ten times what it takes on two idle cores.
const PATIENCE: Duration = Duration::from_mins(10);

async fn all_ready(performers: Api<Performer>) -> Result<()> {
    let mut ready = HashSet::new();
    let mut changes = changes(performers);
    while ready.len() < NAMESPACES * EACH {
        let performer = changes.next().await.context("a watch never ends")?;
        let key = (performer.metadata.namespace, performer.metadata.name);
        if performer.status.is_some_and(|status| status.ready) {
            ready.insert(key);
        }
    }
    Ok(())
}

#[tokio::test]
async fn p50_500_performers_in_50_namespaces_become_ready_within_the_budget_of_calls() -> Result<()> {
    let options = Options { workloads: Some(Workloads::large()), ..Options::default() };
    let scene = Scene::start(options).await?;
    let spaces = try_join_all((0..NAMESPACES).map(|_| Space::new(&scene.control_plane, "scale"))).await?;
    let client = runtime::connect(scene.control_plane.config_as(&operator_user()).await?)?;
    // What it gave up, a busy server would log as failed.
    let settings = Settings { request_timeout: REQUEST_TIMEOUT, ..alone() };
    let operator = Running::start(client, settings, Config::default()).await?;
    try_join_all(spaces.iter().map(|space| async move {
        for number in 0..EACH {
            space.create(&format!("a{number}"), spec()).await?;
        }
        anyhow::Ok(())
    }))
    .await?;
    let ready = all_ready(Api::all(scene.control_plane.client().await?));
    tokio::time::timeout(PATIENCE, ready).await.context("all ready in time")??;
    operator.stop().await?;

    let mut entries = scene.control_plane.audit().entries()?;
    entries.retain(|entry| entry.user == OPERATOR_USER && !matches!(entry.resource.as_str(), "events" | "leases"));
    // A watch may be put off while the server sets up the new kind.
    let failed: Vec<_> = entries.iter().filter(|entry| entry.code >= 400 && entry.verb != "watch").collect();
    assert!(failed.is_empty(), "{failed:?}");
    let gets = entries.iter().filter(|entry| entry.verb == "get" && !entry.resource.is_empty()).count();
    let writes = entries.iter().filter(|entry| entry.is_write()).count();
    println!("{writes} writes and {gets} reads for {} performers", NAMESPACES * EACH);
    assert_eq!(gets, 0);
    assert!(writes <= WRITES * NAMESPACES * EACH, "{writes} writes");
    Ok(())
}
