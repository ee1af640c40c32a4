//! What a Workspace costs when nothing happens (W12).

use anyhow::Result;
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
