//! What a Workspace costs when nothing happens (W12).

use anyhow::Result;
use k8s_openapi::api::apps::v1::StatefulSet;
use kube::api::{Patch, PatchParams};
use serde_json::{Map, Value, json};

use super::harness::{World, chart, line, user};

#[tokio::test]
async fn w12_fifty_users_and_twenty_releases_settled_cost_no_request() -> Result<()> {
    let world = World::hasty().await;
    let space = world.space("settled").await?;
    let users: Vec<Value> = (0..50).map(|number| user(&format!("user-{number}"))).collect();
    let services: Map<_, _> = (0..20)
        .map(|number| {
            (format!("service-{number}"), json!({ "chart": chart("web"), "expose": { "service": "web", "port": 80 } }))
        })
        .collect();
    let configs = json!({ "settings": { "data": { "a": "1" } } });
    let spec = json!({ "domain": "example.com", "users": users, "services": services, "configs": configs });
    space.ready_workspace("team", spec).await?;
    // What was still on its way has been looked at after one round of each.
    world.more_rounds(&space, "workspace", 3).await?;
    world.more_rounds(&space, "user", 150).await?;
    let mark = world.mark()?;
    world.more_rounds(&space, "workspace", 10).await?;
    world.more_rounds(&space, "user", 500).await?;
    let requests: Vec<_> = world.requests(&space, mark)?.iter().map(line).collect();
    assert_eq!(requests, [""; 0], "neither writes nor reads");
    Ok(())
}

#[tokio::test]
async fn w11_what_another_manager_adds_survives_and_is_not_fought_over() -> Result<()> {
    let world = World::hasty().await;
    let space = world.space("sidecar").await?;
    space.ready_workspace("team", json!({ "users": [user("ana")] })).await?;
    // A list that is one container longer than ours differs, and no apply of ours can shorten it.
    let sidecar = json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": { "name": "code-server-ana" },
        "spec": { "template": { "spec": { "containers": [{ "name": "mesh", "image": "mesh:1" }] } } },
    });
    let params = PatchParams::apply("mesh").force();
    space.api::<StatefulSet>().patch("code-server-ana", &params, &Patch::Apply(sidecar)).await?;
    world.more_rounds(&space, "user", 5).await?;
    space.until_user("ana", "Succeeded").await?;
    world.more_rounds(&space, "user", 5).await?;
    let mark = world.mark()?;
    world.more_rounds(&space, "user", 10).await?;
    let requests: Vec<_> = world.requests(&space, mark)?.iter().map(line).collect();
    assert_eq!(requests, [""; 0]);
    let containers = json!(space.set("ana").await?)["spec"]["template"]["spec"]["containers"].clone();
    assert_eq!(containers.as_array().map(Vec::len), Some(2), "{containers}");
    Ok(())
}
