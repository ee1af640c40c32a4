//! Rounds of Workspaces and Users beside each other (W14).

use std::{collections::BTreeSet, time::Duration};

use anyhow::Result;
use api::workspace::{User, WorkspacePhase};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use serde_json::{Value, json};
use testbed::fault::{Calls, Fault, Injected, Verb};
use workspaces::workspace;

use super::harness::{Space, World, eventually, user};

/// Longer than the test takes: what is held is not given up before its end.
const REQUEST_TIMEOUT: Duration = Duration::from_mins(10);
/// Of ten slots one namespace may use so many.
const SLOTS: u64 = 8;

/// From now on every StatefulSet of this namespace takes as long as the test wants.
fn hold(world: &World, space: &Space) -> Injected {
    let sets = Calls::of(Verb::Patch, "statefulsets").in_namespace(&space.namespace);
    world.proxy.inject(sets, Fault::HoldBeforeCommit)
}

/// The StatefulSets that the operator sent for a namespace so far.
fn sent(world: &World, space: &Space) -> Vec<String> {
    let mut requests = world.proxy.requests();
    requests.retain(|seen| {
        seen.request.namespace.as_ref() == Some(&space.namespace) && seen.request.is_for("statefulsets")
    });
    requests.into_iter().filter_map(|seen| seen.request.name).collect()
}

#[tokio::test]
async fn w14_users_reconcile_at_once_each_serially_and_a_slow_namespace_delays_no_other() -> Result<()> {
    let world = World::with_timeout(workspace::Config::default(), REQUEST_TIMEOUT).await?;
    let (slow, serial, quick) = (world.space("slow").await?, world.space("serial").await?, world.space("quick").await?);
    let (all, one) = (hold(&world, &slow), hold(&world, &serial));
    let users = |count: u32| (0..count).map(|number| user(&format!("u{number}"))).collect::<Vec<Value>>();
    slow.workspace("team", json!({ "users": users(12) })).await?;
    all.reached_times(SLOTS).await?;
    let names = sent(&world, &slow);
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "different ones at once: {names:?}");

    // Another namespace has its Workspace whole, and the slow one's Workspace itself goes on.
    quick.ready_workspace("team", json!({ "users": users(2) })).await?;
    slow.change("team", json!({ "network": { "internet": false } })).await?;
    eventually("the Workspace of the slow namespace is looked at", async || {
        Ok(!slow.has::<NetworkPolicy>("team-internet").await?)
    })
    .await?;
    assert_eq!(all.hits(), SLOTS, "none was given up");

    // Changed during its round, a User has its next round after that and not beside it.
    serial.workspace("team", json!({ "users": users(1) })).await?;
    one.reached().await?;
    for note in ["a", "b", "c"] {
        serial.patch::<User>("u0", json!({ "metadata": { "annotations": { "example.com/note": note } } })).await?;
    }
    quick.change("team", json!({ "users": users(3) })).await?;
    quick.until_phase("team", WorkspacePhase::Ready).await?;
    assert_eq!((one.hits(), sent(&world, &serial)), (1, vec!["code-server-u0".to_owned()]), "two rounds of one User");
    all.end();
    one.end();
    for space in [&slow, &serial] {
        space.until_phase("team", WorkspacePhase::Ready).await?;
    }
    Ok(())
}
