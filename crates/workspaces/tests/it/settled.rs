//! What a workspace costs when nothing happens, with all of the layer at work (W12).

use std::time::Duration;

use anyhow::Result;
use serde_json::{Map, Value, json};
use workspaces::Config;

use crate::{
    space::{OPERATOR_USER, eventually},
    workspace,
    world::{Running, Vacant},
};

const USERS: u32 = 50;
const SERVICES: u32 = 20;

/// Waits until each of so many objects of a kind had this many more rounds.
async fn more_rounds(operator: &Running, namespace: &str, controller: &str, rounds: u32) -> Result<()> {
    let labels = [format!("controller=\"{controller}\""), format!("namespace=\"{namespace}\"")];
    let made = || operator.metric("strata_reconcile_total", &labels.each_ref().map(String::as_str));
    let before = made();
    eventually("enough rounds were made", async || Ok(made() >= before + f64::from(rounds))).await
}

#[tokio::test]
async fn w12_fifty_users_and_twenty_releases_settled_cost_no_request_and_no_helm() -> Result<()> {
    let place = Vacant::take().await?;
    let config = Config { resync: Duration::from_secs(1), ..place.config().await? };
    let operator = Running::start(config, None).await?;
    let space = place.space("settled").await?;
    let user =
        |number| json!({ "slug": format!("user-{number}"), "email": "a@example.com", "permissions": ["code-server"] });
    let services: Map<_, _> = (0..SERVICES)
        .map(|number| (format!("service-{number}"), json!({ "chart": space.chart("four", "1.0.0") })))
        .collect();
    let users: Vec<Value> = (0..USERS).map(user).collect();
    let team = workspace::Space { client: space.client.clone(), namespace: space.namespace.clone() };
    team.ready_workspace("team", json!({ "users": users, "services": services })).await?;
    let periods = async |count: u32| {
        tokio::try_join!(
            more_rounds(&operator, &space.namespace, "workspace", count),
            more_rounds(&operator, &space.namespace, "user", count * USERS),
            more_rounds(&operator, &space.namespace, "helmrelease", count * SERVICES),
        )
    };
    // What was still on its way has been looked at after a few rounds of each.
    periods(3).await?;
    let processes = operator.helm_processes();
    assert!(processes >= f64::from(SERVICES), "{processes}");
    let requests = async || {
        let mark = space.mark().await?;
        periods(10).await?;
        let mut requests = place.control_plane.audit().entries_after(mark)?;
        requests.retain(|entry| entry.user == OPERATOR_USER && entry.namespace == space.namespace);
        anyhow::Ok(requests)
    };
    let mut found = requests().await?;
    // Events of what happened before wait until nothing else is to be written, on a loaded machine for longer.
    if found.iter().all(|entry| entry.verb == "create" && entry.resource == "events") && !found.is_empty() {
        found = requests().await?;
    }
    assert_eq!(found, [], "neither writes nor reads");
    assert_eq!(format!("{}", operator.helm_processes()), format!("{processes}"));
    operator.stop().await
}
