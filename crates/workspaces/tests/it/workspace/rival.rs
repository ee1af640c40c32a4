//! Two Workspaces in one namespace (W13).

use anyhow::Result;
use api::workspace::{User, Workspace, WorkspacePhase};
use k8s_openapi::api::core::v1::Secret;
use serde_json::json;

use super::harness::{World, condition, eventually, line, user};

#[tokio::test]
async fn w13_the_second_workspace_reports_a_conflict_and_changes_nothing() -> Result<()> {
    let world = World::shared().await;
    let space = world.space("rival").await?;
    // The names decide should both be of one second.
    space.ready_workspace("a-first", json!({ "users": [user("ana")] })).await?;
    space.create::<Secret>(json!({ "metadata": { "name": "source" }, "stringData": { "a": "b" } })).await?;
    let mark = world.mark()?;
    let configs = json!({ "token": { "fromSecret": { "name": "source" } } });
    space.workspace("b-second", json!({ "users": [user("ana"), user("bob")], "configs": configs })).await?;
    let second = space.until_phase("b-second", WorkspacePhase::Failed).await?;
    assert!(condition(&second, "Ready").starts_with("False NamespaceTaken: Workspace a-first"), "{second:?}");
    assert_eq!(second.metadata.finalizers, None);
    assert_eq!(space.names::<User>().await?, ["ana"]);
    assert_eq!(second.status.unwrap_or_default().inventory, []);
    let of_source =
        || -> Result<usize> { Ok(world.requests(&space, mark)?.iter().filter(|entry| entry.name == "source").count()) };
    assert_eq!(of_source()?, 0, "it reads nothing either");
    let written = || -> Result<Vec<String>> {
        let requests = world.requests(&space, mark)?;
        let mut written: Vec<_> = requests.iter().filter(|entry| entry.is_write()).map(line).collect();
        // The entry of the write that made the first one ready may come after the mark.
        written.retain(|line| line != "patch workspaces/status/a-first");
        written.dedup();
        Ok(written)
    };
    // A write is seen before its entry.
    eventually("its write has an entry", || async { Ok(!written()?.is_empty()) }).await?;
    assert_eq!(written()?, ["patch workspaces/status/b-second"], "it says so and does nothing else");
    // Once the first is gone the namespace is the second's.
    let first = space.delete::<Workspace>("a-first").await?;
    space.until_gone(&first).await?;
    space.until_phase("b-second", WorkspacePhase::Ready).await?;
    assert_eq!(space.names::<User>().await?, ["ana", "bob"]);
    eventually("now it is read", || async { Ok(of_source()? > 0) }).await
}
