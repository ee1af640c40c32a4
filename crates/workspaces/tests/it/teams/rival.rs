//! Two Workspaces in one namespace (W13).

use anyhow::Result;
use api::workspace::{User, Workspace, WorkspacePhase};
use serde_json::json;

use super::harness::{World, condition, user};

#[tokio::test]
async fn w13_the_second_workspace_reports_a_conflict_and_changes_nothing() -> Result<()> {
    let space = World::shared().await.space("rival").await?;
    // The names decide should both be of one second.
    space.ready_workspace("a-first", json!({ "users": [user("ana")] })).await?;
    space.workspace("b-second", json!({ "users": [user("ana"), user("bob")] })).await?;
    let second = space.until_phase("b-second", WorkspacePhase::Failed).await?;
    assert!(condition(&second, "Ready").starts_with("False NamespaceTaken: Workspace a-first"), "{second:?}");
    assert_eq!(second.metadata.finalizers, None);
    assert_eq!(space.names::<User>().await?, ["ana"]);
    assert_eq!(second.status.unwrap_or_default().inventory, []);
    // Once the first is gone the namespace is the second's.
    let first = space.delete::<Workspace>("a-first").await?;
    space.until_gone(&first).await?;
    space.until_phase("b-second", WorkspacePhase::Ready).await?;
    assert_eq!(space.names::<User>().await?, ["ana", "bob"]);
    Ok(())
}
